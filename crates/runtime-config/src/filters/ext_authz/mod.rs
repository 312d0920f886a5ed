//! `envoy.filters.http.ext_authz` and `envoy.filters.network.ext_authz`, compiled. Their implementation is in crate
//! `filters`.

pub(crate) mod compile;

use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::re2::Regex;

use crate::dynamic_metadata::MetadataMatcher;
use crate::filter_needs::FilterNeeds;
use crate::fraction::Fraction;
use crate::header_edits::HeaderAddition;
use crate::retry::RetryPolicy;
use crate::string_match::StringMatcher;
use crate::support::message::{
    MessageSupport, NO_READER, NO_SPAN, NO_TYPED_METADATA, Role::Extension, Role::Part, part,
};

/// The HTTP filter.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)]
pub struct ExtAuthz {
    /// The service that decides.
    pub service: AuthzService,
    /// Which requests are decided about.
    pub when: When,
    /// A request passes if there is no decision about it.
    pub failure_mode_allow: bool,
    /// Such a request gets `x-envoy-auth-failure-mode-allowed: true`.
    pub failure_mode_allow_header_add: bool,
    /// The service gets the request's body.
    pub body: Option<RequestBody>,
    /// The route is chosen again if the service changes the request.
    pub clear_route_cache: bool,
    /// The status of a request that is refused without a decision.
    pub status_on_error: u16,
    /// An answer with names or values that HTTP does not allow is an error (500).
    pub validate_mutations: bool,
    /// The data that the service gets besides the request.
    pub told: CheckAttributes,
    /// Suffix of the statistics' prefix; may be empty.
    pub stat_prefix: Arc<str>,
    /// Headers that a gRPC service gets; `None`: all.
    pub allowed_headers: Option<Names>,
    /// Headers that no service gets.
    pub disallowed_headers: Names,
    /// Whether a denied request counts among the responses of the cluster it would have gone to.
    pub charge_cluster_response_stats: bool,
    /// Header values are sent as they are, each by itself.
    pub encode_raw_headers: bool,
    /// Which headers of the request the service may change.
    pub mutation_rules: Option<MutationRules>,
    /// The service may set dynamic metadata.
    pub ingest_dynamic_metadata: bool,
    /// Logs get figures about the call, under the filter's name.
    pub emit_filter_state_stats: bool,
    /// Maximum size of a denial's body in bytes, which is cut off there; `None`: the limit of calls.
    pub max_denied_body_bytes: Option<usize>,
}

impl FilterNeeds for ExtAuthz {
    fn clusters(&self) -> Vec<&Arc<str>> {
        vec![self.service.cluster()]
    }

    fn sends_certificate(&self) -> bool {
        self.told.peer_certificate
    }
}

/// Which requests or connections are decided about.
#[derive(Debug)]
pub struct When {
    /// Share of all.
    pub share: Fraction,
    /// And only those with this dynamic metadata.
    pub metadata: Option<MetadataMatcher>,
    /// The others are refused.
    pub deny_others: bool,
}

/// The data about connection and route that the service gets.
#[derive(Debug, Default)]
pub struct CheckAttributes {
    /// Namespaces of dynamic metadata.
    pub metadata_namespaces: Vec<Box<str>>,
    /// Namespaces of the route's metadata.
    pub route_metadata_namespaces: Vec<Box<str>>,
    /// The client's certificate.
    pub peer_certificate: bool,
    /// The SNI.
    pub tls_session: bool,
}

/// `BufferSettings`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestBody {
    /// Maximum number of bytes that the service gets.
    pub max_bytes: usize,
    /// Whether the service gets the beginning of a longer body; otherwise the request is refused with 413.
    pub partial: bool,
    /// A gRPC service gets it as bytes, not as text.
    pub as_bytes: bool,
}

/// A service that decides.
#[derive(Debug)]
pub enum AuthzService {
    /// `envoy.service.auth.v3.Authorization/Check`.
    Grpc(GrpcTarget),
    /// A request that resembles the client's.
    Http(Box<HttpTarget>),
}

impl ExtAuthz {
    /// Returns which headers a service gets, including a service that a route sets; `None`: all.
    pub fn allowed_headers(&self) -> Option<&Names> {
        match &self.service {
            AuthzService::Http(target) => Some(&target.allowed_headers),
            AuthzService::Grpc(_) => self.allowed_headers.as_ref(),
        }
    }
}

impl AuthzService {
    /// The cluster that is called.
    pub fn cluster(&self) -> &Arc<str> {
        match self {
            Self::Grpc(grpc) => &grpc.call.cluster,
            Self::Http(http) => &http.call.cluster,
        }
    }
}

/// How a cluster is called.
#[derive(Debug, Clone)]
pub struct CallTarget {
    /// The cluster.
    pub cluster: Arc<str>,
    /// Time limit of a call (200 ms when unset); `None`: none but the request's own.
    pub timeout: Option<Duration>,
    /// Which failures to retry.
    pub retry: Option<Arc<RetryPolicy>>,
}

/// A gRPC service.
#[derive(Debug)]
pub struct GrpcTarget {
    /// How it is called.
    pub call: CallTarget,
    /// `:authority`; empty: the cluster's name.
    pub authority: Arc<str>,
    /// Headers of the call (`initial_metadata`).
    pub metadata: Vec<HeaderAddition>,
    /// Maximum size of an answer in bytes; `None`: the limit of calls.
    pub max_message_bytes: Option<usize>,
    /// Do not add `x-envoy-internal` and such headers.
    pub skip_envoy_headers: bool,
}

/// An HTTP service.
#[derive(Debug)]
pub struct HttpTarget {
    /// How it is called.
    pub call: CallTarget,
    /// How the client's path is changed.
    pub path: PathChange,
    /// Headers that it gets, `:authority`, `:method`, `:path` and `authorization` among them.
    pub allowed_headers: Names,
    /// Headers that it gets from this proxy.
    pub headers_to_add: Vec<HeaderAddition>,
    /// Which headers of a permission replace the request's.
    pub upstream_headers: Names,
    /// Which headers of a permission are added to the request's.
    pub upstream_headers_to_append: Names,
    /// Which headers of a refusal the client gets; `None`: all but the authority.
    pub client_headers: Option<Names>,
    /// Which headers of a permission the client gets.
    pub client_headers_on_success: Names,
    /// Which headers of an answer become dynamic metadata.
    pub metadata_headers: Names,
}

/// The path of a call to an HTTP service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathChange {
    /// The client's with this in front, which may be empty.
    Prefix(Box<str>),
    /// This one.
    Override(Box<str>),
}

/// Matchers of header names.
#[derive(Debug, Clone, Default)]
pub struct Names(pub Vec<StringMatcher>);

impl Names {
    /// Whether any of them matches; none does without matchers.
    pub fn has(&self, name: &[u8]) -> bool {
        self.0.iter().any(|matcher| matcher.matches(name))
    }
}

/// `HeaderMutationRules`.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools)]
pub struct MutationRules {
    /// `:authority`, `:method`, `:scheme` and `host` may be changed.
    pub allow_all_routing: bool,
    /// `x-envoy-…` may be changed.
    pub allow_envoy: bool,
    /// Names that begin with `:` may not.
    pub disallow_system: bool,
    /// Whether no name is allowed.
    pub disallow_all: bool,
    /// Names that are allowed, whatever the above says.
    pub allow: Option<Regex>,
    /// Names that are not allowed, whatever else is set.
    pub disallow: Option<Regex>,
    /// A change that is not allowed is an error (500), and not only left out.
    pub disallow_is_error: bool,
}

impl MutationRules {
    /// Whether a header may be set, or be removed. `name`: in lower case.
    pub fn allow(&self, name: &[u8]) -> bool {
        let says = |expression: &Option<Regex>| expression.as_ref().is_some_and(|regex| regex.is_match(name));
        if says(&self.disallow) {
            return false;
        }
        if says(&self.allow) {
            return true;
        }
        let is_routing = matches!(name, b"host" | b":authority" | b":scheme" | b":method");
        !(self.disallow_all
            || name.starts_with(b":") && self.disallow_system
            || name.starts_with(b"x-envoy") && !self.allow_envoy
            || is_routing && !self.allow_all_routing)
    }
}

/// The settings of a route (`ExtAuthzPerRoute`).
#[derive(Debug, Default)]
pub struct ExtAuthzPerRoute {
    /// Whether its requests pass without a decision.
    pub disabled: bool,
    /// Additional data for a gRPC service.
    pub context_extensions: Vec<(Box<str>, Box<str>)>,
    /// Whether the service gets the body.
    pub body: BodyOverride,
    /// The service that decides instead.
    pub service: Option<AuthzService>,
}

/// A route's setting for bodies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BodyOverride {
    /// The filter's setting applies.
    #[default]
    Inherit,
    /// The service gets none.
    Off,
    /// The service gets the body with these settings.
    With(RequestBody),
}

/// The network filter.
#[derive(Debug)]
pub struct NetworkExtAuthz {
    /// `ext_authz.PREFIX.`
    pub stat_prefix: Arc<str>,
    /// The service that decides.
    pub service: GrpcTarget,
    /// Which connections are decided about.
    pub enabled_metadata: Option<MetadataMatcher>,
    /// A connection passes if there is no decision about it.
    pub failure_mode_allow: bool,
    /// The data that the service gets besides the addresses.
    pub told: CheckAttributes,
}

impl FilterNeeds for NetworkExtAuthz {
    fn clusters(&self) -> Vec<&Arc<str>> {
        vec![&self.service.call.cluster]
    }

    fn sends_certificate(&self) -> bool {
        self.told.peer_certificate
    }
}

/// The supported fields of its messages.
pub(crate) const FIELDS: &[MessageSupport] = &[
    MessageSupport {
        name: "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz",
        role: Extension,
        full: &[
            "grpc_service",
            "http_service",
            "failure_mode_allow",
            "failure_mode_allow_header_add",
            "with_request_body",
            "clear_route_cache",
            "status_on_error",
            "validate_mutations",
            "metadata_context_namespaces",
            "route_metadata_context_namespaces",
            "filter_enabled",
            "filter_enabled_metadata",
            "deny_at_disable",
            "include_peer_certificate",
            "include_tls_session",
            "stat_prefix",
            "allowed_headers",
            "disallowed_headers",
            "charge_cluster_response_stats",
            "encode_raw_headers",
            "decoder_header_mutation_rules",
            "enable_dynamic_metadata_ingestion",
            "emit_filter_state_stats",
            "max_denied_response_body_bytes",
        ],
        values: &[("transport_api_version", "V3")],
        no_effect: &[
            (NO_TYPED_METADATA, &["typed_metadata_context_namespaces", "route_typed_metadata_context_namespaces"]),
            (NO_READER, &["filter_metadata"]),
            (NO_SPAN, &["emit_client_span"]),
        ],
    },
    MessageSupport {
        name: "envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute",
        role: Extension,
        full: &["disabled", "check_settings"],
        values: &[],
        no_effect: &[],
    },
    MessageSupport {
        name: "envoy.extensions.filters.http.ext_authz.v3.CheckSettings",
        role: Part,
        full: &[
            "context_extensions",
            "disable_request_body_buffering",
            "with_request_body",
            "grpc_service",
            "http_service",
        ],
        values: &[],
        no_effect: &[(NO_SPAN, &["emit_client_span"])],
    },
    part(
        "envoy.extensions.filters.http.ext_authz.v3.BufferSettings",
        &["max_request_bytes", "allow_partial_message", "pack_as_bytes"],
    ),
    part(
        "envoy.extensions.filters.http.ext_authz.v3.HttpService",
        &[
            "server_uri",
            "path_prefix",
            "path_override",
            "authorization_request",
            "authorization_response",
            "retry_policy",
        ],
    ),
    part("envoy.extensions.filters.http.ext_authz.v3.AuthorizationRequest", &["allowed_headers", "headers_to_add"]),
    part(
        "envoy.extensions.filters.http.ext_authz.v3.AuthorizationResponse",
        &[
            "allowed_upstream_headers",
            "allowed_upstream_headers_to_append",
            "allowed_client_headers",
            "allowed_client_headers_on_success",
            "dynamic_metadata_from_headers",
        ],
    ),
    part(
        "envoy.config.common.mutation_rules.v3.HeaderMutationRules",
        &[
            "allow_all_routing",
            "allow_envoy",
            "disallow_system",
            "disallow_all",
            "allow_expression",
            "disallow_expression",
            "disallow_is_error",
        ],
    ),
];

/// The supported fields of the network filter.
pub(crate) const NETWORK_FIELDS: &[MessageSupport] = &[MessageSupport {
    name: "envoy.extensions.filters.network.ext_authz.v3.ExtAuthz",
    role: Extension,
    full: &[
        "stat_prefix",
        "grpc_service",
        "failure_mode_allow",
        "include_peer_certificate",
        "filter_enabled_metadata",
        "include_tls_session",
        "metadata_context_namespaces",
    ],
    values: &[("transport_api_version", "V3")],
    no_effect: &[(NO_TYPED_METADATA, &["typed_metadata_context_namespaces"])],
}];

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_base::re2::Regex;

    #[test]
    fn rules_of_changes() {
        let regex = |text: &str| Some(Regex::whole(text).unwrap());
        let all = || MutationRules { allow_all_routing: true, allow_envoy: true, ..MutationRules::default() };
        for (rules, allowed, not) in [
            (
                MutationRules::default(),
                &["a", ":path"][..],
                &["x-envoy-a", "host", ":authority", ":scheme", ":method"][..],
            ),
            (all(), &["a", "x-envoy-a", "host", ":authority", ":path"], &[]),
            (MutationRules { disallow_system: true, ..all() }, &["a", "host"], &[":authority", ":path"]),
            (MutationRules { disallow_all: true, ..all() }, &[], &["a", ":path"]),
            (MutationRules { disallow_all: true, allow: regex("a|:method"), ..all() }, &["a", ":method"], &["ab", "b"]),
            (MutationRules { allow: regex(".*"), disallow: regex("a.*"), ..all() }, &["b"], &["a", "ab"]),
        ] {
            for (names, expected) in [(allowed, true), (not, false)] {
                names.iter().for_each(|name| assert_eq!(rules.allow(name.as_bytes()), expected, "{name} {rules:?}"));
            }
        }
    }
}
