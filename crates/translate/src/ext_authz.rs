//! CUSTOM policies: for each provider an RBAC filter that says which requests it decides about, without deciding itself,
//! and a filter that asks it (istiod's `pilot/pkg/security/authz/builder/extauthz.go`). If the provider cannot be asked,
//! these requests are refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_model::authz_provider::{AuthzBody, AuthzHttp, AuthzProtocol, AuthzProvider};
use evenkeel_model::{AuthorizationAction, AuthorizationPolicy, Service, StringMatch};
use prost::Name;

use crate::context::Context;
use crate::names;
use crate::pb::config::listener::Filter;
use crate::pb::config::rbac::Policy;
use crate::pb::config::rbac::rbac::Action;
use crate::pb::core::grpc_service::{EnvoyGrpc, TargetSpecifier};
use crate::pb::core::http_uri::HttpUpstreamType;
use crate::pb::core::{ApiVersion, GrpcService, HeaderValue, HttpUri};
use crate::pb::envoy_type::HttpStatus;
use crate::pb::hcm::{HttpFilter, http_filter};
use crate::pb::http_ext_authz::{
    AuthorizationRequest, AuthorizationResponse, BufferSettings, ExtAuthz, HttpService, ext_authz::Services,
};
use crate::pb::matcher::metadata_matcher::{PathSegment, path_segment::Segment};
use crate::pb::matcher::string_matcher::MatchPattern as Text;
use crate::pb::matcher::value_matcher::MatchPattern;
use crate::pb::matcher::{ListStringMatcher, MetadataMatcher, StringMatcher, ValueMatcher};
use crate::pb::network_ext_authz::ExtAuthz as NetworkExtAuthz;
use crate::proto::{HttpRbac, NetworkRbac, RbacRules, any, any_named, duration, network_filter, string_matcher};
use crate::rbac::{self, Bytes, Layer};
use crate::string_match;

/// Prefix of the names of the rules, before the provider's name.
const MATCH_PREFIX: &str = "istio-ext-authz";
/// istiod's prefix of what the rules leave as statistics and metadata.
const STAT_PREFIX: &str = "istio_ext_authz_";
/// Behind the name of a rule whose provider cannot be asked.
const BAD_SUFFIX: &str = "-deny-due-to-bad-CUSTOM-action";
/// Behind the name of a rule about bytes on a port that may carry HTTP, whose provider can only be asked about requests.
const NOT_HTTP_SUFFIX: &str = "-deny-of-what-is-not-HTTP";
const NETWORK_STAT_PREFIX: &str = "tcp.";
/// Time limit of a check whose provider has none, as istiod's.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

const HTTP_RBAC: &str = "envoy.filters.http.rbac";
const NETWORK_RBAC: &str = "envoy.filters.network.rbac";

/// The requests that a provider decides about.
struct Judged {
    /// `None`: it cannot be asked.
    provider: Option<(Arc<AuthzProvider>, Arc<Service>)>,
    name: Arc<str>,
    rules: BTreeMap<String, Policy>,
}

/// Returns the filters for requests, which precede those that check tokens.
pub fn http_filters(context: Context<'_>) -> Vec<HttpFilter> {
    let filter = |name: &str, config: evenkeel_xds::pb::google::protobuf::Any| HttpFilter {
        name: name.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..Default::default()
    };
    let rbac = |config: &HttpRbac| filter(HTTP_RBAC, any_named(&crate::pb::http_rbac::Rbac::full_name(), config));
    let mut filters = Vec::new();
    for judged in judged(context, Layer::Http) {
        match &judged.provider {
            Some((provider, service)) => {
                filters.push(rbac(&HttpRbac {
                    rules: None,
                    shadow_rules: Some(deny(judged.rules)),
                    shadow_rules_stat_prefix: STAT_PREFIX.to_owned(),
                }));
                let enabled = when(HTTP_RBAC, &judged.name);
                filters.push(filter("envoy.filters.http.ext_authz", any(&http_config(provider, service, enabled))));
            }
            None => {
                let rules = Some(refusing(judged.rules, BAD_SUFFIX));
                filters.push(rbac(&HttpRbac { rules, ..HttpRbac::default() }));
            }
        }
    }
    filters
}

/// Returns filters for programs that cannot ask a provider: requests it would decide about are denied.
pub fn refusing_filters(context: Context<'_>) -> Vec<HttpFilter> {
    let filter = |judged: Judged| {
        let config = HttpRbac { rules: Some(refusing(judged.rules, BAD_SUFFIX)), ..HttpRbac::default() };
        HttpFilter {
            name: HTTP_RBAC.to_owned(),
            config_type: Some(http_filter::ConfigType::TypedConfig(any_named(
                &crate::pb::http_rbac::Rbac::full_name(),
                &config,
            ))),
            ..Default::default()
        }
    };
    judged(context, Layer::Http).into_iter().map(filter).collect()
}

/// The filters for connections. A provider that speaks HTTP decides about requests only, as in Istio. Where the proxy has
/// found no request, a server may find one (it skips an empty line at the beginning, or reads another case of a method), so
/// what the provider would have to decide about is refused.
pub fn network_filters(context: Context<'_>, bytes: Bytes) -> Vec<Filter> {
    let rbac = |config: &NetworkRbac| {
        network_filter(NETWORK_RBAC, any_named(&crate::pb::network_rbac::Rbac::full_name(), config))
    };
    let named = || NetworkRbac { stat_prefix: NETWORK_STAT_PREFIX.to_owned(), ..NetworkRbac::default() };
    let mut filters = Vec::new();
    for judged in judged(context, Layer::Tcp) {
        match &judged.provider {
            Some((provider, service)) if provider.protocol == AuthzProtocol::Grpc => {
                filters.push(rbac(&NetworkRbac {
                    shadow_rules: Some(deny(judged.rules)),
                    shadow_rules_stat_prefix: STAT_PREFIX.to_owned(),
                    ..named()
                }));
                let config = NetworkExtAuthz {
                    stat_prefix: NETWORK_STAT_PREFIX.to_owned(),
                    grpc_service: Some(grpc_service(provider, service)),
                    failure_mode_allow: provider.fail_open,
                    transport_api_version: ApiVersion::V3 as i32,
                    filter_enabled_metadata: Some(when(NETWORK_RBAC, &judged.name)),
                    ..NetworkExtAuthz::default()
                };
                filters.push(network_filter("envoy.filters.network.ext_authz", any(&config)));
            }
            Some(_) if bytes == Bytes::Declared => {}
            Some(_) => {
                filters.push(rbac(&NetworkRbac { rules: Some(refusing(judged.rules, NOT_HTTP_SUFFIX)), ..named() }));
            }
            None => filters.push(rbac(&NetworkRbac { rules: Some(refusing(judged.rules, BAD_SUFFIX)), ..named() })),
        }
    }
    filters
}

/// The rules of each provider that policies name, by the providers' names.
fn judged(context: Context<'_>, layer: Layer) -> Vec<Judged> {
    let policies = context.snapshot.policies_for(context.namespace(), &context);
    let custom = policies.iter().map(|policy| &***policy).filter(|policy| policy.action == AuthorizationAction::Custom);
    // Policies on trial are not sent to the provider, because its answer would be enforced.
    let custom: Vec<&AuthorizationPolicy> = custom.filter(|policy| !policy.dry_run).collect();
    let names: BTreeSet<Arc<str>> = custom.iter().map(|policy| policy.provider.clone().unwrap_or_default()).collect();
    let of = |name: Arc<str>| {
        let named: Vec<_> =
            custom.iter().copied().filter(|policy| *policy.provider.as_deref().unwrap_or_default() == *name).collect();
        let compiled = rbac::compile(&named, context.snapshot.mesh(), layer);
        let rules: BTreeMap<_, _> =
            compiled.into_iter().map(|(rule, policy)| (format!("{MATCH_PREFIX}-{name}-{rule}"), policy)).collect();
        Judged { provider: provider(context, &name), name, rules }
    };
    names.into_iter().map(of).filter(|judged| !judged.rules.is_empty()).collect()
}

/// The provider of this name, and its service; `None` if it cannot be asked.
fn provider(context: Context<'_>, name: &str) -> Option<(Arc<AuthzProvider>, Arc<Service>)> {
    let provider = context.snapshot.mesh().authz_providers.iter().find(|provider| *provider.name == *name)?;
    let service = context.provider_service(&provider.service)?;
    Some((Arc::clone(provider), Arc::clone(service)))
}

/// Used with [`when`]; nothing is denied by these.
fn deny(policies: BTreeMap<String, Policy>) -> RbacRules {
    RbacRules { action: Action::Deny as i32, policies }
}

fn refusing(policies: BTreeMap<String, Policy>, suffix: &str) -> RbacRules {
    deny(policies.into_iter().map(|(name, policy)| (name + suffix, policy)).collect())
}

/// Matches what the rules of a provider have matched.
fn when(filter: &str, provider: &str) -> MetadataMatcher {
    let key = PathSegment { segment: Some(Segment::Key(format!("{STAT_PREFIX}shadow_effective_policy_id"))) };
    // Up to what follows the provider's name, which may be the beginning of another's.
    let prefix = string_matcher(Text::Prefix(format!("{MATCH_PREFIX}-{provider}-ns[")));
    MetadataMatcher {
        filter: filter.to_owned(),
        path: vec![key],
        value: Some(ValueMatcher { match_pattern: Some(MatchPattern::StringMatch(prefix)) }),
        invert: false,
    }
}

fn http_config(provider: &AuthzProvider, service: &Service, enabled: MetadataMatcher) -> ExtAuthz {
    let (services, allowed_headers) = match &provider.protocol {
        AuthzProtocol::Grpc => (Services::GrpcService(grpc_service(provider, service)), None),
        AuthzProtocol::Http(http) => {
            (Services::HttpService(http_service(provider, service, http)), header_names(&http.headers_in_check))
        }
    };
    ExtAuthz {
        services: Some(services),
        allowed_headers,
        transport_api_version: ApiVersion::V3 as i32,
        failure_mode_allow: provider.fail_open,
        clear_route_cache: provider.clear_route_cache,
        status_on_error: provider.status_on_error.map(|code| HttpStatus { code: i32::from(code) }),
        with_request_body: provider.body.map(buffer_settings),
        filter_enabled_metadata: Some(enabled),
        ..ExtAuthz::default()
    }
}

fn buffer_settings(body: AuthzBody) -> BufferSettings {
    BufferSettings {
        max_request_bytes: body.max_bytes,
        allow_partial_message: body.partial,
        pack_as_bytes: body.as_bytes,
    }
}

fn grpc_service(provider: &AuthzProvider, service: &Service) -> GrpcService {
    let target = EnvoyGrpc {
        cluster_name: names::outbound_cluster(provider.service.port, "", &service.host),
        // A cluster's name has characters that no authority may have.
        authority: service.host.to_string(),
        ..EnvoyGrpc::default()
    };
    GrpcService {
        timeout: Some(duration(provider.timeout.unwrap_or(DEFAULT_TIMEOUT))),
        target_specifier: Some(TargetSpecifier::EnvoyGrpc(target)),
        ..GrpcService::default()
    }
}

fn http_service(provider: &AuthzProvider, service: &Service, http: &AuthzHttp) -> HttpService {
    let uri = HttpUri {
        uri: format!("http://{}", service.host),
        timeout: Some(duration(provider.timeout.unwrap_or(DEFAULT_TIMEOUT))),
        http_upstream_type: Some(HttpUpstreamType::Cluster(names::outbound_cluster(
            provider.service.port,
            "",
            &service.host,
        ))),
    };
    let header = |(name, value): &(Arc<str>, Arc<str>)| HeaderValue {
        key: name.to_string(),
        // No format string: what a user writes is sent as it is.
        value: value.replace('%', "%%"),
        ..HeaderValue::default()
    };
    let headers_to_add: Vec<_> = http.additional_headers.iter().map(header).collect();
    let request = (!headers_to_add.is_empty())
        .then(|| AuthorizationRequest { headers_to_add, ..AuthorizationRequest::default() });
    let lists =
        [&http.upstream_on_allow, &http.downstream_on_deny, &http.downstream_on_allow].map(|list| header_names(list));
    let response = lists.iter().any(Option::is_some).then(|| {
        let [upstream, denied, allowed] = lists;
        AuthorizationResponse {
            allowed_upstream_headers: upstream,
            allowed_client_headers: denied,
            allowed_client_headers_on_success: allowed,
            ..AuthorizationResponse::default()
        }
    });
    HttpService {
        server_uri: Some(uri),
        path_prefix: http.path_prefix.to_string(),
        authorization_request: request,
        authorization_response: response,
        ..HttpService::default()
    }
}

fn header_names(names: &[StringMatch]) -> Option<ListStringMatcher> {
    let pattern = |name: &StringMatch| StringMatcher { ignore_case: true, ..string_match::string(name) };
    (!names.is_empty()).then(|| ListStringMatcher { patterns: names.iter().map(pattern).collect() })
}
