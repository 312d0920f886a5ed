//! `envoy.filters.http.jwt_authn`, compiled: which tokens (JWT) requests have to carry.

pub(crate) mod compile;

use std::sync::Arc;
use std::time::Duration;

use evenkeel_jwt::{Audiences, Jwks};

use crate::filter_needs::FilterNeeds;
use crate::retry::RetryPolicy;
use crate::route::RouteMatch;
use crate::string_match::StringMatcher;
use crate::support::message::{MessageSupport, Role::Part, extension, part};

/// The namespace of the filter's dynamic metadata, whatever its name.
pub const METADATA: &str = "envoy.filters.http.jwt_authn";
/// Maximum number of tokens that `jwt_cache_config` may keep, per worker and provider.
pub const MAX_CACHED_TOKENS: usize = 100_000;

/// The filter's configuration.
#[derive(Debug)]
pub struct JwtAuthn {
    /// The providers, sorted by name.
    pub providers: Vec<Arc<Provider>>,
    /// The requirements of requests; the first rule that matches applies.
    pub rules: Vec<Rule>,
    /// The requirements of requests that match no rule, by an object of the filter state.
    pub filter_state: Option<FilterStateRules>,
    /// Requirements that routes may name, sorted by name.
    pub named: Vec<(Box<str>, Requirement)>,
    /// Preflight requests (CORS) pass.
    pub bypass_cors_preflight: bool,
    /// Whether replies omit the reason.
    pub strip_failure_response: bool,
    /// Further prefix of its statistics; empty: none.
    pub stat_prefix: Box<str>,
    /// The headers that any provider fills: what clients send in them is removed.
    pub filled_headers: Vec<Box<str>>,
}

impl FilterNeeds for JwtAuthn {
    fn clusters(&self) -> Vec<&Arc<str>> {
        let remote = self.providers.iter().filter_map(|provider| match &provider.keys {
            KeySource::Remote(source) => Some(&source.cluster),
            KeySource::Local(_) => None,
        });
        remote.collect()
    }

    fn reads(&self, name: &str) -> bool {
        let of_rules = self.rules.iter().filter_map(|rule| rule.requirement.as_ref());
        let of_state = self.filter_state.iter().flat_map(|rules| rules.requirements.iter().map(|(_, own)| own));
        let named = self.named.iter().map(|(_, own)| own);
        of_rules.chain(of_state).chain(named).any(|requirement| requirement.reads(name))
    }
}

impl JwtAuthn {
    /// The requirement of this name.
    pub fn named(&self, name: &str) -> Option<&Requirement> {
        self.named.iter().find(|(own, _)| **own == *name).map(|(_, requirement)| requirement)
    }

    /// The names of requirements, for the reply to a request whose route names another.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.named.iter().map(|(name, _)| &**name).collect();
        names.join(",")
    }
}

/// `RequirementRule`.
#[derive(Debug)]
pub struct Rule {
    /// Which requests.
    pub matches: RouteMatch,
    /// The requirement; `None`: there is none.
    pub requirement: Option<Requirement>,
}

/// `FilterStateRule`.
#[derive(Debug)]
pub struct FilterStateRules {
    /// The object's key.
    pub key: Box<str>,
    /// Requirements by the object's text.
    pub requirements: Vec<(Box<str>, Requirement)>,
}

/// `JwtRequirement`.
#[derive(Debug)]
pub enum Requirement {
    /// Nothing is required.
    Nothing,
    /// A valid token of this provider (by its index).
    Provider {
        /// Index of the provider.
        provider: usize,
        /// Audiences in place of the provider's.
        audiences: Option<Audiences>,
        /// The locations of its tokens.
        locations: Locations,
    },
    /// Tokens of any provider, if there are some.
    Lenient {
        /// Which requests pass besides those whose tokens are all valid.
        lenience: Lenience,
        /// The locations of the providers' tokens.
        locations: Locations,
    },
    /// At least one of these is required.
    Any {
        /// The requirements.
        children: Vec<Requirement>,
        /// Which requests pass besides.
        lenience: Option<Lenience>,
    },
    /// All of these are required.
    All(Vec<Requirement>),
}

impl Requirement {
    /// Whether a token may be in this header, or in the query parameter NAME for `?NAME`.
    fn reads(&self, name: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::Provider { locations, .. } | Self::Lenient { locations, .. } => locations.have(name),
            Self::Any { children, .. } | Self::All(children) => children.iter().any(|child| child.reads(name)),
        }
    }
}

/// Which requests pass although no token is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lenience {
    /// Requests without a token.
    Missing,
    /// All requests.
    MissingOrFailed,
    /// All requests: tokens are read and not verified. The header that reports the result is set to `false` if there is one.
    ExtractOnly(Option<Box<str>>),
}

/// `JwtProvider`.
#[derive(Debug)]
pub struct Provider {
    /// Its name.
    pub name: Box<str>,
    /// The issuer of its tokens; empty: any.
    pub issuer: Box<str>,
    /// Accepted audiences.
    pub audiences: Audiences,
    /// Accepted subjects.
    pub subjects: Option<StringMatcher>,
    /// Tokens have to expire, within this time if it is `Some(Some(_))`.
    pub lifetime: Option<Option<Duration>>,
    /// Accepted difference of clocks, in seconds.
    pub clock_skew_seconds: u64,
    /// Its keys.
    pub keys: KeySource,
    /// The token stays in the request.
    pub forward: bool,
    /// The header that gets the payload; empty: none.
    pub payload_header: Box<str>,
    /// The payload in this header is padded.
    pub pad_payload_header: bool,
    /// Headers that get claims.
    pub claim_headers: Vec<ClaimHeader>,
    /// The key of the payload in dynamic metadata; empty: not there.
    pub payload_in_metadata: Box<str>,
    /// Claims that become lists of words in dynamic metadata.
    pub space_delimited_claims: Vec<Box<str>>,
    /// The key of the token's header in dynamic metadata; empty: not there.
    pub header_in_metadata: Box<str>,
    /// The key in dynamic metadata for the error of a token; empty: it is not set.
    pub failed_status_in_metadata: Box<str>,
    /// The route is selected again after a token was accepted.
    pub clear_route_cache: bool,
    /// Limits of its verified tokens that are kept; `None`: the filter's own.
    pub cache: Option<TokenCache>,
}

/// A header that gets a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimHeader {
    /// Lower-case name.
    pub header: Box<str>,
    /// The path of the claim, from the outermost object in.
    pub path: Vec<Box<str>>,
}

/// `JwtCacheConfig`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCache {
    /// Maximum number of tokens.
    pub tokens: usize,
    /// Maximum size of a token, in bytes.
    pub token_bytes: usize,
}

/// The source of a provider's keys.
#[derive(Debug, Clone)]
pub enum KeySource {
    /// In the configuration.
    Local(Arc<Jwks>),
    /// At a server.
    Remote(Arc<RemoteJwks>),
}

/// `RemoteJwks`.
#[derive(Debug, Clone)]
pub struct RemoteJwks {
    /// The URI, as configured.
    pub uri: Box<str>,
    /// `:scheme` of the request.
    pub https: bool,
    /// `:authority` of the request.
    pub authority: Box<str>,
    /// `:path` of the request.
    pub path: Box<str>,
    /// The cluster to ask.
    pub cluster: Arc<str>,
    /// Limit for an answer.
    pub timeout: Duration,
    /// How long keys are used before they are fetched again.
    pub cache_duration: Duration,
    /// How fetching is tried again at once.
    pub retry: Option<Arc<RetryPolicy>>,
    /// Time until the next fetch after a failed one.
    pub failed_refetch: Duration,
    /// Keys are kept fresh although no request needs them.
    pub keep_fresh: bool,
}

/// The locations of tokens in a request. Headers and parameters are sorted as in Envoy; the last token is judged first.
#[derive(Debug, Clone, Default)]
pub struct Locations {
    /// Headers.
    pub headers: Vec<HeaderLocation>,
    /// Query parameters, and whose tokens they may carry.
    pub parameters: Vec<(Box<str>, Issuers)>,
    /// Cookies, and whose tokens they may carry.
    pub cookies: Vec<(Box<str>, Issuers)>,
    /// Headers that the providers fill.
    pub filled: Vec<Box<str>>,
}

impl Locations {
    /// Whether a token may be in this header, or in the query parameter NAME for `?NAME`.
    fn have(&self, name: &str) -> bool {
        match name.strip_prefix('?') {
            Some(parameter) => self.parameters.iter().any(|(own, _)| **own == *parameter),
            None if name == "cookie" => !self.cookies.is_empty() || self.headers.iter().any(|own| *own.name == *name),
            None => self.headers.iter().any(|own| *own.name == *name),
        }
    }
}

/// A header that may carry tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderLocation {
    /// Lower-case name.
    pub name: Box<str>,
    /// The prefix of the token; empty: none.
    pub prefix: Box<str>,
    /// The issuers of the tokens.
    pub issuers: Issuers,
}

/// Issuers whose tokens may stand in some place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Issuers {
    /// Any.
    any: bool,
    /// These.
    named: Vec<Box<str>>,
}

impl Issuers {
    /// Adds an issuer; an empty one stands for all.
    pub fn add(&mut self, issuer: &str) {
        match issuer {
            "" => self.any = true,
            issuer if self.named.iter().any(|known| **known == *issuer) => {}
            issuer => self.named.push(issuer.into()),
        }
    }

    /// Whether tokens of this issuer may stand there.
    pub fn allow(&self, issuer: &str) -> bool {
        self.any || self.named.iter().any(|known| **known == *issuer)
    }
}

/// `PerRouteConfig`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PerRoute {
    /// Nothing is required.
    Disabled,
    /// The requirement of this name.
    Named(Box<str>),
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    extension("envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
        &["providers", "rules", "filter_state_rules", "bypass_cors_preflight", "requirement_map", "strip_failure_response",
          "stat_prefix"]),
    extension("envoy.extensions.filters.http.jwt_authn.v3.PerRouteConfig", &["disabled", "requirement_name"]),
    part("envoy.extensions.filters.http.jwt_authn.v3.JwtProvider",
        &["issuer", "audiences", "subjects", "require_expiration", "max_lifetime", "remote_jwks", "local_jwks", "forward",
          "from_headers", "from_params", "from_cookies", "forward_payload_header", "pad_forward_payload_header",
          "payload_in_metadata", "normalize_payload_in_metadata", "header_in_metadata", "failed_status_in_metadata",
          "clock_skew_seconds", "jwt_cache_config", "claim_to_headers", "clear_route_cache"]),
    part("envoy.extensions.filters.http.jwt_authn.v3.JwtProvider.NormalizePayload", &["space_delimited_claims"]),
    part("envoy.extensions.filters.http.jwt_authn.v3.JwtCacheConfig", &["jwt_cache_size", "jwt_max_token_size"]),
    part("envoy.extensions.filters.http.jwt_authn.v3.RemoteJwks",
        &["http_uri", "cache_duration", "async_fetch", "retry_policy"]),
    MessageSupport {
        name: "envoy.extensions.filters.http.jwt_authn.v3.JwksAsyncFetch",
        role: Part,
        full: &["failed_refetch_duration"],
        values: &[],
        no_effect: &[("listeners never wait for keys; requests do", &["fast_listener"])],
    },
    part("envoy.extensions.filters.http.jwt_authn.v3.JwtHeader", &["name", "value_prefix"]),
    part("envoy.extensions.filters.http.jwt_authn.v3.ProviderWithAudiences", &["provider_name", "audiences"]),
    part("envoy.extensions.filters.http.jwt_authn.v3.JwtRequirement",
        &["provider_name", "provider_and_audiences", "requires_any", "requires_all", "allow_missing_or_failed",
          "allow_missing", "extract_only_without_validation"]),
    part("envoy.extensions.filters.http.jwt_authn.v3.ExtractOnlyWithoutValidation", &["verification_status_header"]),
    part("envoy.extensions.filters.http.jwt_authn.v3.JwtRequirementOrList", &["requirements"]),
    part("envoy.extensions.filters.http.jwt_authn.v3.JwtRequirementAndList", &["requirements"]),
    part("envoy.extensions.filters.http.jwt_authn.v3.RequirementRule", &["match", "requires", "requirement_name"]),
    part("envoy.extensions.filters.http.jwt_authn.v3.FilterStateRule", &["name", "requires"]),
    part("envoy.extensions.filters.http.jwt_authn.v3.JwtClaimToHeader", &["header_name", "claim_name", "claim_path"]),
    part("envoy.extensions.filters.http.jwt_authn.v3.JwtClaimToHeader.PathSegment", &["key"]),
];
