//! RequestAuthentications: the tokens (JWT) that requests may carry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::{Diagnostics, Span};

use evenkeel_base::hostname::Hostname;

use crate::Selection;

/// Which tokens requests to some workloads may carry. A request without a token passes.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestAuthentication {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace; in the root namespace it applies to the whole mesh.
    pub namespace: Arc<str>,
    /// The workloads it is for.
    pub selection: Selection,
    /// The issuers.
    pub rules: Vec<JwtRule>,
    /// Where it was written.
    pub origin: Span,
}

/// An issuer whose tokens are accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct JwtRule {
    /// `iss` of its tokens.
    pub issuer: Arc<str>,
    /// Accepted audiences; empty = all.
    pub audiences: Vec<Arc<str>>,
    /// Its keys.
    pub keys: JwtKeys,
    /// Headers that may carry a token, each with the prefix of the token.
    pub from_headers: Vec<(Arc<str>, Arc<str>)>,
    /// Query parameters that may carry a token.
    pub from_params: Vec<Arc<str>>,
    /// Cookies that may carry a token.
    pub from_cookies: Vec<Arc<str>>,
    /// The token stays in the request.
    pub forward: bool,
    /// The header that gets the payload.
    pub payload_header: Option<Arc<str>>,
    /// Headers that get claims: the header, and the claim's path with dots.
    pub claim_headers: Vec<(Arc<str>, Arc<str>)>,
    /// Claims whose values are separated by spaces, besides `scope` and `permission`.
    pub space_delimited_claims: Vec<Arc<str>>,
    /// Whether a request without a valid token of any issuer is refused (`presence: REQUIRED`).
    pub required: bool,
    /// Where the rule was written.
    pub origin: Span,
}

/// An issuer's keys.
#[derive(Debug, Clone, PartialEq)]
pub enum JwtKeys {
    /// Written in the rule.
    Inline(Arc<str>),
    /// The control plane fetches them.
    Fetched {
        /// Their source.
        from: JwksSource,
        /// Limit for fetching.
        timeout: Option<Duration>,
        /// The last good ones.
        keys: Option<Arc<str>>,
    },
    /// The proxies fetch them, from a service of the mesh.
    Remote(Arc<RemoteJwks>),
    /// There are none that can be used: every token fails.
    None,
}

/// Keys that the proxies fetch.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteJwks {
    /// Where they are (`jwksUri`).
    pub uri: Arc<str>,
    /// The service.
    pub host: Hostname,
    /// Its port.
    pub port: u16,
    /// Limit for fetching.
    pub timeout: Option<Duration>,
}

impl JwtKeys {
    /// Returns the source from which the proxies fetch the keys, if they do.
    pub fn remote(&self) -> Option<&RemoteJwks> {
        match self {
            Self::Remote(remote) => Some(remote),
            Self::Inline(_) | Self::Fetched { .. } | Self::None => None,
        }
    }

    /// The keys, if there are usable ones.
    pub fn text(&self) -> Option<&Arc<str>> {
        match self {
            Self::Inline(text) => Some(text),
            Self::Fetched { keys, .. } => keys.as_ref(),
            Self::Remote(_) | Self::None => None,
        }
    }
}

/// The location of an issuer's keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JwksSource {
    /// At this URI (`jwksUri`).
    Uri(Arc<str>),
    /// At the URI in the issuer's OpenID configuration.
    Issuer(Arc<str>),
}

impl JwksSource {
    /// The URI that is asked first.
    pub fn uri(&self) -> String {
        match self {
            Self::Uri(uri) => uri.to_string(),
            Self::Issuer(issuer) => format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/')),
        }
    }

    /// The name of the ConfigMap in the root namespace in which the control plane keeps the keys.
    pub fn config_map(&self) -> String {
        format!("{JWKS_CONFIG_MAP_PREFIX}{}", evenkeel_jwt::digest(self.uri().as_bytes()))
    }
}

/// Returns the sources of keys, each with the shortest time limit that a rule sets for it.
pub(crate) fn jwks_sources(authentications: &[Arc<RequestAuthentication>]) -> BTreeMap<JwksSource, Option<Duration>> {
    let mut sources = BTreeMap::new();
    for rule in authentications.iter().flat_map(|authentication| &authentication.rules) {
        if let JwtKeys::Fetched { from, timeout, .. } = &rule.keys {
            let known = sources.entry(from.clone()).or_insert(*timeout);
            *known = known.iter().chain(timeout).min().copied();
        }
    }
    sources
}

/// The code of findings about keys that are not fetched yet.
pub(crate) const NOT_FETCHED: &str = "jwks-not-fetched";

/// Removes findings that only a running control plane can judge: files alone do not show whether keys can be fetched.
pub fn of_files_alone(mut findings: Diagnostics) -> Diagnostics {
    findings.retain(|finding| finding.code != NOT_FETCHED);
    findings
}

/// Prefix of the names of ConfigMaps with fetched keys.
pub const JWKS_CONFIG_MAP_PREFIX: &str = "evenkeel-jwks-";
/// The keys in such a ConfigMap.
pub const JWKS_KEY: &str = "jwks";
