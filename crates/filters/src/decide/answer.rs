//! Local replies determined by configuration and request.

use std::sync::Arc;

/// A response without an upstream.
#[derive(Debug)]
pub enum Answer<'c, R> {
    /// The request target is not a path: `*`, or a URL where those are rejected.
    NotAPath,
    /// The path cannot be normalized, or contains escaped slashes where those are rejected.
    BadPath,
    /// Redirect to the path with its slashes unescaped.
    PathRedirect(Vec<u8>),
    /// The route table was not received yet.
    NoRouteTable,
    /// No virtual host matches, or none of its routes.
    NoRoute,
    /// Redirect to https: the virtual host requires TLS.
    TlsRedirect(Vec<u8>),
    /// The route's redirect.
    Redirect {
        /// 3xx.
        status: u16,
        /// The `location` header.
        location: Vec<u8>,
    },
    /// The route's direct response.
    Direct {
        /// Status.
        status: u16,
        /// Body.
        body: &'c Arc<[u8]>,
    },
    /// The requested tunnel is not allowed.
    UpgradeRefused,
    /// The route's cluster does not exist; the response has this status.
    NoCluster(u16),
    /// A filter's local reply, or the end of the request.
    Filter(R),
}

impl<R> Answer<'_, R> {
    /// The status; `None` if it is the filter's.
    pub fn status(&self) -> Option<u16> {
        Some(match self {
            Self::BadPath => 400,
            Self::NotAPath | Self::NoRouteTable | Self::NoRoute => 404,
            Self::PathRedirect(_) => 307,
            Self::TlsRedirect(_) => 301,
            Self::UpgradeRefused => 403,
            Self::Redirect { status, .. } | Self::Direct { status, .. } | Self::NoCluster(status) => *status,
            Self::Filter(_) => return None,
        })
    }

    /// `%RESPONSE_CODE_DETAILS%`; `None` if they are the filter's.
    pub fn details(&self) -> Option<&'static str> {
        Some(match self {
            Self::BadPath => "path_normalization_failed",
            Self::NotAPath => "absolute_path_rejected",
            Self::PathRedirect(_) => "path_normalization_redirect",
            Self::NoRouteTable | Self::NoRoute => "route_not_found",
            Self::TlsRedirect(_) => "tls_redirect",
            Self::Redirect { .. } | Self::Direct { .. } => "direct_response",
            Self::UpgradeRefused => "upgrade_failed",
            Self::NoCluster(_) => "cluster_not_found",
            Self::Filter(_) => return None,
        })
    }
}
