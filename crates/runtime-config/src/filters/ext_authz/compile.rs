//! `ExtAuthz` of HTTP and network filters, and `ExtAuthzPerRoute`.

use evenkeel_base::re2::Regex;
use evenkeel_xds::pb::envoy::config::common::mutation_rules::v3 as rules;
use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::extensions::filters::http::ext_authz::v3 as http;
use evenkeel_xds::pb::envoy::extensions::filters::network::ext_authz::v3 as network;
use evenkeel_xds::pb::envoy::r#type::matcher::v3 as matchers;
use evenkeel_xds::pb::envoy::r#type::v3 as types;
use evenkeel_xds::pb::google::protobuf;

use crate::compile::fraction::runtime_fraction;
use crate::compile::grpc_service::{grpc_target, header, http_target};
use crate::compile::{Cx, matcher, runtime};
use crate::dynamic_metadata::MetadataMatcher;
use crate::filters::ext_authz::{
    AuthzService, BodyOverride, CheckAttributes, ExtAuthz, ExtAuthzPerRoute, HttpTarget, MutationRules, Names,
    NetworkExtAuthz, PathChange, RequestBody, When,
};
use crate::fraction::Fraction;
use crate::string_match::StringMatcher;

const FORBIDDEN: u16 = 403;
/// Headers that an HTTP service gets with every request.
const ALWAYS_SENT: [&str; 4] = ["authorization", ":method", ":path", ":authority"];
/// Headers of a denial that a client gets in any case, if only some are allowed.
const ALWAYS_RETURNED: [&str; 5] = [":status", "content-length", "www-authenticate", "location", ":path"];

pub(crate) fn http_filter(cx: &mut Cx<'_>, config: &http::ExtAuthz) -> Option<ExtAuthz> {
    use http::ext_authz::Services;
    let allowed = optional_names(cx, "allowed_headers", config.allowed_headers.as_ref());
    let disallowed = names(cx, "disallowed_headers", config.disallowed_headers.as_ref());
    let service = match &config.services {
        Some(Services::GrpcService(grpc)) => {
            api_version(cx, config.transport_api_version)?;
            cx.at("grpc_service", |cx| grpc_target(cx, grpc)).map(AuthzService::Grpc)
        }
        Some(Services::HttpService(service)) => {
            let target = cx.at("http_service", |cx| http_service(cx, service, allowed.as_ref()));
            target.map(|target| AuthzService::Http(Box::new(target)))
        }
        None => cx.fail("one of grpc_service, http_service is required"),
    };
    let share = runtime_fraction(cx, "filter_enabled", config.filter_enabled.as_ref(), Fraction::ALL);
    let metadata = enabled_metadata(cx, config.filter_enabled_metadata.as_ref());
    let deny_others = runtime::flag(cx, config.deny_at_disable.as_ref(), false);
    let body = optional(cx, "with_request_body", config.with_request_body.as_ref(), request_body);
    let mutation_rules =
        optional(cx, "decoder_header_mutation_rules", config.decoder_header_mutation_rules.as_ref(), mutation_rules);
    let status_on_error = status(cx, config.status_on_error.as_ref());
    let boxed = |names: &[String]| names.iter().map(|name| name.as_str().into()).collect();
    Some(ExtAuthz {
        service: service?,
        when: When { share: share?, metadata: metadata?, deny_others },
        failure_mode_allow: config.failure_mode_allow,
        failure_mode_allow_header_add: config.failure_mode_allow_header_add,
        body: body?,
        clear_route_cache: config.clear_route_cache,
        status_on_error: status_on_error?,
        validate_mutations: config.validate_mutations,
        told: CheckAttributes {
            metadata_namespaces: boxed(&config.metadata_context_namespaces),
            route_metadata_namespaces: boxed(&config.route_metadata_context_namespaces),
            peer_certificate: config.include_peer_certificate,
            tls_session: config.include_tls_session,
        },
        stat_prefix: config.stat_prefix.as_str().into(),
        allowed_headers: allowed,
        disallowed_headers: disallowed,
        charge_cluster_response_stats: flag(config.charge_cluster_response_stats.as_ref(), true),
        encode_raw_headers: config.encode_raw_headers,
        mutation_rules: mutation_rules?,
        ingest_dynamic_metadata: flag(config.enable_dynamic_metadata_ingestion.as_ref(), true),
        emit_filter_state_stats: config.emit_filter_state_stats,
        max_denied_body_bytes: Some(config.max_denied_response_body_bytes as usize).filter(|most| *most > 0),
    })
}

pub(crate) fn per_route(cx: &mut Cx<'_>, config: &http::ExtAuthzPerRoute) -> Option<ExtAuthzPerRoute> {
    use http::ext_authz_per_route::Override;
    match &config.r#override {
        Some(Override::Disabled(disabled)) => {
            Some(ExtAuthzPerRoute { disabled: *disabled, ..ExtAuthzPerRoute::default() })
        }
        Some(Override::CheckSettings(settings)) => cx.at("check_settings", |cx| check_settings(cx, settings)),
        None => cx.fail("one of disabled, check_settings is required"),
    }
}

fn check_settings(cx: &mut Cx<'_>, settings: &http::CheckSettings) -> Option<ExtAuthzPerRoute> {
    use http::check_settings::ServiceOverride;
    let with = optional(cx, "with_request_body", settings.with_request_body.as_ref(), request_body);
    let body = match (settings.disable_request_body_buffering, with?) {
        (true, Some(_)) => return cx.fail("only one of disable_request_body_buffering, with_request_body may be set"),
        (true, None) => BodyOverride::Off,
        (false, Some(body)) => BodyOverride::With(body),
        (false, None) => BodyOverride::Inherit,
    };
    let service = match &settings.service_override {
        None => None,
        Some(ServiceOverride::GrpcService(grpc)) => {
            Some(AuthzService::Grpc(cx.at("grpc_service", |cx| grpc_target(cx, grpc))?))
        }
        Some(ServiceOverride::HttpService(service)) => {
            let target = cx.at("http_service", |cx| http_service(cx, service, None))?;
            Some(AuthzService::Http(Box::new(target)))
        }
    };
    let mut extensions: Vec<(Box<str>, Box<str>)> =
        settings.context_extensions.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect();
    extensions.sort();
    Some(ExtAuthzPerRoute { disabled: false, context_extensions: extensions, body, service })
}

pub(crate) fn network_filter(cx: &mut Cx<'_>, config: &network::ExtAuthz) -> Option<NetworkExtAuthz> {
    let stat_prefix = cx.non_empty("stat_prefix", &config.stat_prefix)?.into();
    api_version(cx, config.transport_api_version)?;
    let grpc = cx.required("grpc_service", config.grpc_service.as_ref())?;
    let service = cx.at("grpc_service", |cx| grpc_target(cx, grpc));
    let enabled_metadata = enabled_metadata(cx, config.filter_enabled_metadata.as_ref());
    let namespaces = config.metadata_context_namespaces.iter();
    Some(NetworkExtAuthz {
        stat_prefix,
        service: service?,
        enabled_metadata: enabled_metadata?,
        failure_mode_allow: config.failure_mode_allow,
        told: CheckAttributes {
            metadata_namespaces: namespaces.map(|name| name.as_str().into()).collect(),
            route_metadata_namespaces: Vec::new(),
            peer_certificate: config.include_peer_certificate,
            tls_session: config.include_tls_session,
        },
    })
}

fn http_service(cx: &mut Cx<'_>, service: &http::HttpService, of_filter: Option<&Names>) -> Option<HttpTarget> {
    let call = http_target(cx, service.server_uri.as_ref(), service.retry_policy.as_ref());
    for (field, path) in [("path_prefix", &service.path_prefix), ("path_override", &service.path_override)] {
        if !path.is_empty() && !path.starts_with('/') {
            return cx.fail_at(field, "must begin with /");
        }
    }
    let path = match (service.path_prefix.as_str(), service.path_override.as_str()) {
        (prefix, "") => PathChange::Prefix(prefix.into()),
        ("", path) => PathChange::Override(path.into()),
        _ => return cx.fail("only one of path_prefix, path_override may be set"),
    };
    let (own, headers_to_add) = match &service.authorization_request {
        None => (None, Vec::new()),
        Some(request) => cx.at("authorization_request", |cx| sent(cx, request)),
    };
    if own.is_some() && of_filter.is_some() {
        return cx
            .fail_at("authorization_request.allowed_headers", "cannot stand beside allowed_headers of the filter");
    }
    let mut allowed_headers = own.or_else(|| of_filter.cloned()).unwrap_or_default();
    allowed_headers.0.extend(ALWAYS_SENT.map(exactly));
    let absent = http::AuthorizationResponse::default();
    let answer = service.authorization_response.as_ref().unwrap_or(&absent);
    cx.at("authorization_response", |cx| {
        let client = optional_names(cx, "allowed_client_headers", answer.allowed_client_headers.as_ref());
        let client_headers = client.filter(|names| !names.0.is_empty()).map(|mut names| {
            names.0.extend(ALWAYS_RETURNED.map(exactly));
            names
        });
        Some(HttpTarget {
            call: call?,
            path,
            allowed_headers,
            headers_to_add,
            upstream_headers: names(cx, "allowed_upstream_headers", answer.allowed_upstream_headers.as_ref()),
            upstream_headers_to_append: names(
                cx,
                "allowed_upstream_headers_to_append",
                answer.allowed_upstream_headers_to_append.as_ref(),
            ),
            client_headers,
            client_headers_on_success: names(
                cx,
                "allowed_client_headers_on_success",
                answer.allowed_client_headers_on_success.as_ref(),
            ),
            metadata_headers: names(cx, "dynamic_metadata_from_headers", answer.dynamic_metadata_from_headers.as_ref()),
        })
    })
}

/// Compiles which of the client's headers an HTTP service gets, if that is set here, and in addition to which others.
#[allow(deprecated)] // `allowed_headers` is what Istio's control plane has sent for years.
fn sent(
    cx: &mut Cx<'_>,
    request: &http::AuthorizationRequest,
) -> (Option<Names>, Vec<crate::header_edits::HeaderAddition>) {
    let allowed = optional_names(cx, "allowed_headers", request.allowed_headers.as_ref());
    (allowed, cx.each("headers_to_add", &request.headers_to_add, header))
}

fn exactly(name: &str) -> StringMatcher {
    StringMatcher::Exact { value: name.as_bytes().into(), ignore_case: true }
}

fn names(cx: &mut Cx<'_>, field: &str, list: Option<&matchers::ListStringMatcher>) -> Names {
    optional_names(cx, field, list).unwrap_or_default()
}

fn optional_names(cx: &mut Cx<'_>, field: &str, list: Option<&matchers::ListStringMatcher>) -> Option<Names> {
    let list = list?;
    let mut matchers = Vec::with_capacity(list.patterns.len());
    for (index, pattern) in list.patterns.iter().enumerate() {
        matchers.extend(matcher::string(cx, &format!("{field}.patterns[{index}]"), pattern));
    }
    Some(Names(matchers))
}

fn api_version(cx: &mut Cx<'_>, version: i32) -> Option<()> {
    if version == core::ApiVersion::V3 as i32 { Some(()) } else { cx.fail_at("transport_api_version", "must be V3") }
}

/// `Some(None)`: all are decided about.
fn enabled_metadata(cx: &mut Cx<'_>, matcher: Option<&matchers::MetadataMatcher>) -> Option<Option<MetadataMatcher>> {
    optional(cx, "filter_enabled_metadata", matcher, self::matcher::metadata)
}

fn request_body(cx: &mut Cx<'_>, settings: &http::BufferSettings) -> Option<RequestBody> {
    match settings.max_request_bytes as usize {
        0 => cx.fail_at("max_request_bytes", "must be greater than 0"),
        max_bytes => {
            Some(RequestBody { max_bytes, partial: settings.allow_partial_message, as_bytes: settings.pack_as_bytes })
        }
    }
}

fn status(cx: &mut Cx<'_>, status: Option<&types::HttpStatus>) -> Option<u16> {
    let Some(status) = status else { return Some(FORBIDDEN) };
    match u16::try_from(status.code) {
        Ok(0) => Some(FORBIDDEN),
        Ok(status @ 200..=599) => Some(status),
        _ => cx.fail_at("status_on_error.code", "must lie between 200 and 599"),
    }
}

fn mutation_rules(cx: &mut Cx<'_>, config: &rules::HeaderMutationRules) -> Option<MutationRules> {
    let allow = optional_regex(cx, "allow_expression", config.allow_expression.as_ref());
    let disallow = optional_regex(cx, "disallow_expression", config.disallow_expression.as_ref());
    Some(MutationRules {
        allow_all_routing: flag(config.allow_all_routing.as_ref(), false),
        allow_envoy: flag(config.allow_envoy.as_ref(), false),
        disallow_system: flag(config.disallow_system.as_ref(), false),
        disallow_all: flag(config.disallow_all.as_ref(), false),
        allow: allow?,
        disallow: disallow?,
        disallow_is_error: flag(config.disallow_is_error.as_ref(), false),
    })
}

fn optional_regex(cx: &mut Cx<'_>, field: &str, expression: Option<&matchers::RegexMatcher>) -> Option<Option<Regex>> {
    match expression {
        None => Some(None),
        Some(expression) => matcher::regex(cx, field, expression).map(Some),
    }
}

fn flag(value: Option<&protobuf::BoolValue>, absent: bool) -> bool {
    value.map_or(absent, |value| value.value)
}

/// `Some(None)`: not set.
fn optional<M, T>(
    cx: &mut Cx<'_>,
    field: &str,
    message: Option<&M>,
    compile: impl FnOnce(&mut Cx<'_>, &M) -> Option<T>,
) -> Option<Option<T>> {
    match message {
        None => Some(None),
        Some(message) => cx.at(field, |cx| compile(cx, message)).map(Some),
    }
}
