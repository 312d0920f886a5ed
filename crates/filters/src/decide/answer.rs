//! Answers of the proxy's own that are decided by configuration and request.

use std::sync::Arc;

/// An answer without an upstream.
#[derive(Debug)]
pub enum Answer<'c, R> {
    /// The target is no path: `*`, or a URL where these are refused.
    NotAPath,
    /// The path cannot be normalized, or holds escaped slashes where these are refused.
    BadPath,
    /// To the path with its slashes unescaped.
    PathRedirect(Vec<u8>),
    /// The table the routes come from has not arrived.
    NoRouteTable,
    /// No virtual host, or none of its routes, fits.
    NoRoute,
    /// The virtual host takes https only.
    TlsRedirect(Vec<u8>),
    /// The route redirects.
    Redirect {
        /// 3xx.
        status: u16,
        /// Where to.
        location: Vec<u8>,
    },
    /// The route answers at once.
    Direct {
        /// Status.
        status: u16,
        /// Body.
        body: &'c Arc<[u8]>,
    },
    /// The tunnel that is asked for is not allowed.
    UpgradeRefused,
    /// The route's cluster does not exist; answered with this status.
    NoCluster(u16),
    /// A filter answers, or ends the request.
    Filter(R),
}

impl<R> Answer<'_, R> {
    /// Its status; `None`: that is the filter's.
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

    /// `%RESPONSE_CODE_DETAILS%`; `None`: they are the filter's.
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
