//! `envoy.filters.http.cors`, compiled: what scripts of other origins may ask for.

use crate::fraction::Fraction;
use crate::matching::StringMatcher;

/// What `cors` of a route or a virtual host stands under among what is said to filters; no filter has this name.
pub const ROUTE_FIELD: &str = "envoy.config.route.v3.CorsPolicy";

/// The filter's configuration: it has none, routes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cors;

/// `CorsPolicy` of a route, or of what is around it. What it leaves out the next one says.
#[derive(Debug, Clone)]
pub struct CorsPolicy {
    /// Origins that may ask; empty: not said.
    pub allow_origins: Vec<StringMatcher>,
    /// `access-control-allow-methods`; `*`: the one that is asked for; empty: not said.
    pub allow_methods: Box<str>,
    /// `access-control-allow-headers`; `*`: those that are asked for; empty: not said.
    pub allow_headers: Box<str>,
    /// `access-control-expose-headers`; empty: not said.
    pub expose_headers: Box<str>,
    /// `access-control-max-age`; empty: not said.
    pub max_age: Box<str>,
    /// `access-control-allow-credentials`.
    pub allow_credentials: Option<bool>,
    /// `access-control-allow-private-network`.
    pub allow_private_network_access: Option<bool>,
    /// Preflights of other origins go to the service (yes where nobody says); otherwise they are answered here.
    pub forward_not_matching_preflights: Option<bool>,
    /// Requests the policy is in force for. Only the most specific policy's counts.
    pub enabled: Fraction,
    /// Requests whose origins are only counted.
    pub shadow_enabled: Fraction,
}
