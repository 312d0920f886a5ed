//! `envoy.filters.http.cors`, compiled: which requests scripts of other origins may make.

use crate::filter_needs::FilterNeeds;
use crate::fraction::Fraction;
use crate::string_match::StringMatcher;

/// The name under which the `cors` field of a route or virtual host is stored among filter overrides; no filter has this name.
pub const ROUTE_FIELD: &str = "envoy.config.route.v3.CorsPolicy";

/// The filter itself has no configuration; routes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cors;

impl FilterNeeds for Cors {}

/// `CorsPolicy` of a route or one of its parents. Unset fields are taken from the next one.
#[derive(Debug, Clone)]
pub struct CorsPolicy {
    /// Allowed origins; empty: unset.
    pub allow_origins: Vec<StringMatcher>,
    /// `access-control-allow-methods`; `*`: the requested one; empty: unset.
    pub allow_methods: Box<str>,
    /// `access-control-allow-headers`; `*`: the requested ones; empty: unset.
    pub allow_headers: Box<str>,
    /// `access-control-expose-headers`; empty: unset.
    pub expose_headers: Box<str>,
    /// `access-control-max-age`; empty: unset.
    pub max_age: Box<str>,
    /// `access-control-allow-credentials`.
    pub allow_credentials: Option<bool>,
    /// `access-control-allow-private-network`.
    pub allow_private_network_access: Option<bool>,
    /// Preflight requests of other origins are forwarded (the default); otherwise they are answered here.
    pub forward_not_matching_preflights: Option<bool>,
    /// Requests for which the policy is enforced. Only the most specific policy's setting counts.
    pub enabled: Fraction,
    /// Requests whose origins are only counted.
    pub shadow_enabled: Fraction,
}
