//! `RouteConfiguration`: virtual hosts and route matches.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::config::route::v3 as route;

use super::fraction::runtime_fraction;
use super::headers::{edits, header_fields};
use super::inherited::{Inherited, filter_overrides};
use super::metadata::{besides_origin, origin};
use super::mirror::mirror_policies;
use super::retry::retry_policy;
use super::route_action::route_action;
use super::source::Source;
use super::tracing::route_tracing;
use super::{Cx, matcher, rate_limit};
use crate::FastMap;
use crate::domains::DomainIndex;
use crate::filters::cors;
use crate::fraction::Fraction;
use crate::growing::Growing;
use crate::route::{PathMatch, RequireTls, Route, RouteMatch, VirtualHost};
use crate::route_filters::FilterOverrides;
use crate::route_table::RouteTable;

/// Largest direct response body in bytes, unless `max_direct_response_body_size_bytes` says otherwise.
const DEFAULT_MAX_DIRECT_RESPONSE_BODY_BYTES: u32 = 4096;

/// Whether a route table is inline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inline {
    /// In a connection manager: the name may be empty, and clusters are checked unless disabled.
    Yes,
    /// A separate resource, whose clusters may arrive later.
    No,
}

/// Compiles a route table.
pub(crate) fn route_table(cx: &mut Cx<'_>, table: &route::RouteConfiguration, inline: Inline) -> Option<RouteTable> {
    table_of(cx, table, inline, |cx, inherited| {
        let hosts = cx.each("virtual_hosts", &table.virtual_hosts, |cx, host| shared_host(cx, host, inherited));
        let named = table.virtual_hosts.iter().map(|host| (&*host.name, host.domains.iter().map(String::as_str)));
        Some(Hosts { hosts, domains: domains(cx, named) })
    })
}

/// The virtual hosts of a table.
pub(super) struct Hosts {
    pub hosts: Vec<Arc<VirtualHost>>,
    pub domains: Arc<DomainIndex>,
}

/// Compiles a route table, except for its virtual hosts: `hosts` supplies them.
pub(super) fn table_of(
    cx: &mut Cx<'_>,
    table: &route::RouteConfiguration,
    inline: Inline,
    hosts: impl FnOnce(&mut Cx<'_>, &Inherited<'_>) -> Option<Hosts>,
) -> Option<RouteTable> {
    if inline == Inline::No {
        cx.non_empty("name", &table.name)?;
    }
    let filters = filter_overrides(cx, &table.typed_per_filter_config, &FilterOverrides::default());
    let inherited = Inherited {
        max_direct_response_body_bytes: max_direct_response_body_bytes(table),
        retry: None,
        filters: &FilterOverrides::default(),
        validate_clusters: table.validate_clusters.as_ref().map_or(inline == Inline::Yes, |validate| validate.value),
        mirrors: None,
        rate_limits: None,
    };
    if table.vhds.is_some() && !table.request_mirror_policies.is_empty() {
        return cx.fail_at("request_mirror_policies", "not supported beside vhds; virtual hosts may have their own");
    }
    let mirrors = mirror_policies(cx, &table.request_mirror_policies, &inherited)?;
    let inherited = Inherited { mirrors: mirrors.as_ref(), ..inherited };
    let headers = Arc::new(edits(cx, &header_fields!(table)));
    let Hosts { hosts: virtual_hosts, domains } = hosts(cx, &inherited)?;
    let growing = match &table.vhds {
        None => None,
        Some(_) if inline == Inline::Yes => return cx.fail_at("vhds", "needs a route configuration of its own (RDS)"),
        Some(vhds) => {
            cx.at("vhds", |cx| {
                match cx.reference(&table.name, "config_source", vhds.config_source.as_ref())?.source {
                    Source::Ads => Some(()),
                    Source::Grpc { .. } | Source::File { .. } => cx.fail_at("config_source", "must be ads"),
                }
            })?;
            Some(growing(&virtual_hosts))
        }
    };
    Some(RouteTable {
        name: table.name.as_str().into(),
        domains,
        virtual_hosts,
        ignore_port_in_host_matching: table.ignore_port_in_host_matching,
        headers,
        filters: filters?,
        growing,
        most_specific_wins: table.most_specific_header_mutations_wins,
    })
}

/// The initial state of a growing table.
fn growing(hosts: &[Arc<VirtualHost>]) -> Growing {
    let mut growing = Growing::default();
    for host in hosts {
        for domain in &host.domains {
            // Problems with domains are reported where the table's own index is built.
            _ = growing.domains.insert(domain, host.clone());
        }
    }
    growing
}

/// Compiles a virtual host received on its own (VHDS), for a table with this limit on direct responses.
pub(crate) fn own_virtual_host(
    cx: &mut Cx<'_>,
    host: &route::VirtualHost,
    max_direct_response_body_bytes: u32,
) -> Option<VirtualHost> {
    if host.domains.is_empty() {
        return cx.fail_at("domains", "must not be empty");
    }
    let mut index: DomainIndex = DomainIndex::default();
    cx.each("domains", &host.domains, |cx, domain| match index.insert(domain, 0) {
        Ok(()) => Some(()),
        Err(error) => cx.fail(format!("{domain:?}: {error}")),
    });
    let inherited = Inherited {
        max_direct_response_body_bytes,
        retry: None,
        filters: &FilterOverrides::default(),
        validate_clusters: false,
        mirrors: None,
        rate_limits: None,
    };
    virtual_host(cx, host, &inherited)
}

/// The limit on direct responses that virtual hosts of a table inherit, in bytes.
pub(crate) fn max_direct_response_body_bytes(table: &route::RouteConfiguration) -> u32 {
    let max_body = table.max_direct_response_body_size_bytes.as_ref();
    max_body.map_or(DEFAULT_MAX_DIRECT_RESPONSE_BODY_BYTES, |max| max.value)
}

/// Indexes virtual hosts, each given by its name and its domains.
pub(super) fn domains<'h, D>(cx: &mut Cx<'_>, hosts: impl Iterator<Item = (&'h str, D)>) -> Arc<DomainIndex>
where
    D: Iterator<Item = &'h str>,
{
    let mut index = DomainIndex::default();
    let mut names = FastMap::default();
    cx.at("virtual_hosts", |cx| {
        for (number, (name, domains)) in hosts.enumerate() {
            cx.element(number, |cx| {
                if let Some(first) = names.insert(name, number) {
                    cx.fail_at::<()>("name", format!("{name:?} is also the name of virtual_hosts[{first}]"));
                }
                let mut domains = domains.peekable();
                if domains.peek().is_none() {
                    cx.fail_at::<()>("domains", "must not be empty");
                }
                cx.each("domains", domains, |cx, domain| match index.insert(domain, number) {
                    Ok(()) => Some(()),
                    Err(error) => cx.fail(format!("{domain:?}: {error}")),
                });
            });
        }
    });
    Arc::new(index)
}

/// Compiles a virtual host of a table.
pub(super) fn shared_host(
    cx: &mut Cx<'_>,
    host: &route::VirtualHost,
    inherited: &Inherited<'_>,
) -> Option<Arc<VirtualHost>> {
    let read = cx.reads_files;
    cx.reads_files = false;
    let compiled = virtual_host(cx, host, inherited);
    cx.reads_files |= read;
    compiled.map(Arc::new)
}

#[allow(deprecated)] // `cors` is still accepted by Envoy.
fn virtual_host(cx: &mut Cx<'_>, host: &route::VirtualHost, table: &Inherited<'_>) -> Option<VirtualHost> {
    use route::virtual_host::TlsRequirementType;
    let name = cx.non_empty("name", &host.name)?.into();
    let require_tls = match TlsRequirementType::try_from(host.require_tls) {
        Ok(TlsRequirementType::None) => RequireTls::None,
        Ok(TlsRequirementType::All) => RequireTls::All,
        Ok(TlsRequirementType::ExternalOnly) => RequireTls::ExternalOnly,
        Err(_) => return cx.fail_at("require_tls", format!("unknown value {}", host.require_tls)),
    };
    let retry = retry_policy(cx, host.retry_policy.as_ref())?.map(Arc::new);
    let filters = filter_overrides(cx, &host.typed_per_filter_config, table.filters)?;
    let filters = cors::with_field(cx, host.cors.as_ref(), filters)?;
    let mirrors = mirror_policies(cx, &host.request_mirror_policies, table)?;
    let limits: Arc<[_]> = rate_limit::descriptions(cx, &host.rate_limits).into();
    let rate_limits = Some(&limits).filter(|limits| !limits.is_empty());
    let inherited =
        Inherited { retry: retry.as_ref(), filters: &filters, mirrors: mirrors.as_ref(), rate_limits, ..*table };
    let routes = cx.each("routes", &host.routes, |cx, route| compile_route(cx, route, &inherited).map(Arc::new));
    Some(VirtualHost {
        name,
        domains: host.domains.iter().map(|domain| domain.as_str().into()).collect(),
        routes,
        require_tls,
        headers: edits(cx, &header_fields!(host)),
        include_request_attempt_count: host.include_request_attempt_count,
        include_attempt_count_in_response: host.include_attempt_count_in_response,
        retry,
        reads_files: cx.reads_files,
    })
}

#[allow(deprecated)] // `cors` is still accepted by Envoy.
fn compile_route(cx: &mut Cx<'_>, route: &route::Route, inherited: &Inherited<'_>) -> Option<Route> {
    let matches = cx.required("match", route.r#match.as_ref())?;
    let matches = cx.at("match", |cx| route_match(cx, matches));
    let headers = edits(cx, &header_fields!(route));
    let filters = filter_overrides(cx, &route.typed_per_filter_config, inherited.filters)?;
    let filters = match &route.action {
        Some(route::route::Action::Route(action)) => {
            cx.at("route", |cx| cors::with_field(cx, action.cors.as_ref(), filters))?
        }
        _ => filters,
    };
    let matches = matches?;
    let action = route_action(cx, route, inherited)?;
    Some(Route {
        name: route.name.as_str().into(),
        stat_prefix: (!route.stat_prefix.is_empty()).then(|| route.stat_prefix.as_str().into()),
        matches,
        action,
        headers,
        filters,
        origin: origin(route.metadata.as_ref()),
        metadata: besides_origin(route.metadata.as_ref()),
        tracing: route_tracing(cx, route)?,
    })
}

pub(crate) fn route_match(cx: &mut Cx<'_>, m: &route::RouteMatch) -> Option<RouteMatch> {
    let path = path_match(cx, m);
    let headers = cx.each("headers", &m.headers, matcher::header);
    let query_parameters = cx.each("query_parameters", &m.query_parameters, matcher::query_parameter);
    let dynamic_metadata = cx.each("dynamic_metadata", &m.dynamic_metadata, matcher::metadata);
    let fraction = match &m.runtime_fraction {
        Some(runtime) if runtime.default_value.is_none() => {
            Some(cx.runtime.fraction(&runtime.runtime_key).unwrap_or(Fraction::NONE))
        }
        runtime => runtime_fraction(cx, "runtime_fraction", runtime.as_ref(), Fraction::ALL),
    };
    Some(RouteMatch {
        path: path?,
        case_sensitive: m.case_sensitive.as_ref().is_none_or(|sensitive| sensitive.value),
        headers,
        query_parameters,
        fraction_ppm: fraction?.parts_per_million(),
        grpc_only: m.grpc.is_some(),
        dynamic_metadata,
    })
}

fn path_match(cx: &mut Cx<'_>, m: &route::RouteMatch) -> Option<PathMatch> {
    use route::route_match::PathSpecifier;
    match &m.path_specifier {
        // An empty prefix matches every path, as in Envoy.
        Some(PathSpecifier::Prefix(prefix)) => Some(PathMatch::Prefix(prefix.as_str().into())),
        Some(PathSpecifier::Path(path)) => Some(PathMatch::Exact(path.as_str().into())),
        Some(PathSpecifier::SafeRegex(pattern)) => matcher::regex(cx, "safe_regex", pattern).map(PathMatch::Regex),
        Some(PathSpecifier::PathSeparatedPrefix(prefix)) => {
            let valid = prefix.starts_with('/') && prefix.len() > 1 && !prefix.ends_with('/');
            if !valid || prefix.contains(['?', '#']) {
                let reason = "must begin with \"/\", not end with \"/\", and have no \"?\" or \"#\"";
                return cx.fail_at("path_separated_prefix", reason);
            }
            Some(PathMatch::SeparatedPrefix(prefix.as_str().into()))
        }
        Some(PathSpecifier::ConnectMatcher(_)) => Some(PathMatch::Connect),
        Some(PathSpecifier::PathMatchPolicy(_)) => cx.fail_at("path_match_policy", "not supported"),
        None => cx.fail("one of prefix, path, safe_regex, path_separated_prefix is required"),
    }
}
