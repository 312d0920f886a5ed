//! `Listener`, its filter chains and network filters.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use evenkeel_tls::SecretStore;
use evenkeel_xds::Any;
use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::config::listener::v3 as listener;
use evenkeel_xds::pb::envoy::data::accesslog::v3::AccessLogType;
use evenkeel_xds::pb::envoy::extensions::filters::listener::original_src::v3::OriginalSrc;
use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use evenkeel_xds::pb::envoy::extensions::filters::network::tcp_proxy::v3 as tcp_proxy;

use super::access_log::access_logs;
use super::address::{cidr, listen_address, port_number};
use super::discovery::discovered;
use super::hash_policy::tcp_hash_policy;
use super::http_connection_manager::http_connection_manager;
use super::listen_options::listen_options;
use super::metadata::{criteria, lb_metadata, text_of};
use super::udp_proxy::udp_listener;
use super::{Cx, headers, proxy_protocol, source, tls, type_name};
use crate::FastMap;
use crate::address::ListenAddress;
use crate::bind::ListenOption;
use crate::filter_chain_match::{ChainIndex, FilterChainMatch, SourceType};
use crate::filters::custom::CustomFilter;
use crate::filters::passive::is_passive;
use crate::listener::{
    FilterChain, Listener, ListenerFilters, NetworkFilter, PortPredicate, TcpProxy, Terminal, TrafficDirection,
    Tunneling, WeightedTcpCluster,
};
use crate::network_filters::{self, MAX_NETWORK_FILTERS, NetworkFilterConfig};

const ORIGINAL_DST: &str = "envoy.extensions.filters.listener.original_dst.v3.OriginalDst";
const ORIGINAL_SRC: &str = "envoy.extensions.filters.listener.original_src.v3.OriginalSrc";
const TLS_INSPECTOR: &str = "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector";
const HTTP_INSPECTOR: &str = "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector";
const HTTP_CONNECTION_MANAGER: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const TCP_PROXY: &str = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
const PROXY_PROTOCOL: &str = "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol";
const SNI_CLUSTER: &str = "envoy.extensions.filters.network.sni_cluster.v3.SniCluster";

const DEFAULT_LISTENER_FILTERS_TIMEOUT: Duration = Duration::from_secs(15);
const DEFAULT_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
const DEFAULT_TCP_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);
/// `SOMAXCONN` of current kernels.
const DEFAULT_BACKLOG: u32 = 4096;
/// Maximum number of companion listeners that a listener may name; more are ignored.
const MAX_COMPANIONS: usize = 256;

/// A listener, and the resources it needs before it can become active.
#[derive(Debug)]
pub(crate) struct CompiledListener {
    pub listener: Arc<Listener>,
    /// RDS and SDS names it waits for.
    pub references: source::References,
    /// The references of each chain, in order, the default one last.
    chain_references: Vec<source::References>,
}

/// A filter chain with the RDS and SDS names it waits for.
type ReferringChain = (Arc<FilterChain>, source::References);

/// Filter chains of held versions of a listener, by their source messages: an unchanged chain is the same `Arc`, so that its
/// connections are kept.
#[derive(Debug, Default)]
pub(crate) struct KnownChains {
    by_name: FastMap<String, Vec<(listener::FilterChain, ReferringChain)>>,
}

impl KnownChains {
    /// Adds the chains of a version that `next` replaces. A version with another address or direction is a different
    /// listener: none of its connections stays.
    pub fn add(&mut self, version: listener::Listener, compiled: &CompiledListener, next: &listener::Listener) {
        let moves = version.address != next.address || version.additional_addresses != next.additional_addresses;
        if moves || version.traffic_direction != next.traffic_direction {
            return;
        }
        let messages = version.filter_chains.into_iter().chain(version.default_filter_chain);
        let chains = compiled.listener.filter_chains.iter().chain(&compiled.listener.default_filter_chain);
        for ((message, chain), references) in messages.zip(chains).zip(&compiled.chain_references) {
            let known = self.by_name.entry(message.name.clone()).or_default();
            known.push((message, (Arc::clone(chain), references.clone())));
        }
    }

    /// The chain that was compiled from this message, with the configurations of filters that are in force.
    fn find(&self, cx: &Cx<'_>, message: &listener::FilterChain) -> Option<ReferringChain> {
        let is_held = |used: &source::ExtensionUse| {
            let held = cx.extensions.and_then(|all| all.get(&used.reference.name));
            held == used.used.as_ref()
        };
        let known = self.by_name.get(&message.name)?;
        let mut known = known.iter().filter(|(known, _)| known == message);
        known.find(|(_, (_, references))| references.extensions.iter().all(is_held)).map(|(_, chain)| chain.clone())
    }
}

/// Compiles a listener, except for known chains.
pub(crate) fn listener(
    cx: &mut Cx<'_>,
    l: &listener::Listener,
    secrets: &SecretStore,
    known: &KnownChains,
) -> Option<CompiledListener> {
    let name: Arc<str> = cx.non_empty("name", &l.name)?.into();
    let address = listen_address(cx, l.address.as_ref());
    let is_udp = matches!(address, Some((ListenAddress::Datagram(_), _)));
    let (listener_filters, udp) = if is_udp {
        (Some(ListenerFilters::default()), udp_listener(cx, l))
    } else {
        if l.udp_listener_config.is_some() {
            cx.fail_at::<()>("udp_listener_config", "needs an address with protocol UDP");
        }
        (listener_filters(cx, l), None)
    };
    let binds = l.bind_to_port.as_ref().is_none_or(|bind| bind.value);
    if l.transparent.as_ref().is_some_and(|it| it.value) && matches!(address, Some((ListenAddress::Pipe(_), _))) {
        cx.fail_at::<()>("transparent", "no connection to another address arrives at a Unix socket");
    }
    if !binds && matches!(address, Some((ListenAddress::Pipe(_), _))) {
        cx.fail_at::<()>("bind_to_port", "no connection is redirected to a Unix socket: it must be bound");
    }
    if !is_udp && l.filter_chains.is_empty() && l.default_filter_chain.is_none() {
        cx.fail_at::<()>("filter_chains", "must not be empty unless there is a default_filter_chain");
    }
    let compile = |cx: &mut Cx<'_>, chain| known.find(cx, chain).or_else(|| referring_chain(cx, chain, secrets));
    let chains = cx.each("filter_chains", &l.filter_chains, compile);
    let (filter_chains, mut chain_references): (Vec<_>, Vec<_>) = chains.into_iter().unzip();
    let default = l.default_filter_chain.as_ref();
    let default = default.and_then(|chain| cx.at("default_filter_chain", |cx| compile(cx, chain)));
    let (default_filter_chain, references) = default.unzip();
    chain_references.extend(references);
    let chain_index = chain_index(cx, &filter_chains, l.filter_chains.len());
    let direction = match core::TrafficDirection::try_from(l.traffic_direction) {
        Ok(core::TrafficDirection::Unspecified) => TrafficDirection::Unspecified,
        Ok(core::TrafficDirection::Inbound) => TrafficDirection::Inbound,
        Ok(core::TrafficDirection::Outbound) => TrafficDirection::Outbound,
        Err(_) => return cx.fail_at("traffic_direction", format!("unknown value {}", l.traffic_direction)),
    };
    let (address, file_mode) = address?;
    let socket_options = listen_options(cx, l, &address, &l.socket_options).into();
    let additional = additional_addresses(cx, l, &address)?;
    let listener = Listener {
        name,
        address,
        additional,
        file_mode,
        socket_options,
        bind_to_port: binds,
        reuse_port: l.enable_reuse_port.as_ref().is_none_or(|reuse| reuse.value),
        ignore_global_conn_limit: l.ignore_global_conn_limit,
        transparent: l.transparent.as_ref().is_some_and(|transparent| transparent.value),
        use_original_dst: l.use_original_dst.as_ref().is_some_and(|use_it| use_it.value),
        direction,
        listener_filters: listener_filters?,
        filter_chains,
        default_filter_chain,
        chain_index,
        udp,
        access_logs: access_logs(cx, "access_log", &l.access_log, AccessLogType::NotSet),
        backlog: l.tcp_backlog_size.as_ref().map_or(DEFAULT_BACKLOG, |backlog| backlog.value),
        companions: companions(l.metadata.as_ref()),
        used: AtomicBool::new(false),
    };
    let mut references = source::References::default();
    chain_references.iter().for_each(|chain| references.add(chain));
    Some(CompiledListener { listener: Arc::new(listener), references, chain_references })
}

/// The further addresses, with the options of their sockets. They are of TCP, as the first one.
fn additional_addresses(
    cx: &mut Cx<'_>,
    l: &listener::Listener,
    first: &ListenAddress,
) -> Option<Vec<(ListenAddress, Arc<[ListenOption]>)>> {
    let mut known = vec![first.clone()];
    let further = cx.each("additional_addresses", &l.additional_addresses, |cx, more| {
        let (address, _) = listen_address(cx, more.address.as_ref())?;
        if address.socket().is_none() || first.socket().is_none() {
            return cx.fail_at("address", "must be one of TCP, as the listener's first");
        }
        if known.contains(&address) {
            // Sockets are kept apart by their configured addresses.
            let why =
                if address.port() == Some(0) { ": only one port at an IP address may be any free one" } else { "" };
            return cx.fail_at("address", format!("{address} is there already{why}"));
        }
        known.push(address.clone());
        let options = more.socket_options.as_ref().map_or(&l.socket_options, |own| &own.socket_options);
        let options = listen_options(cx, l, &address, options);
        Some((address, options.into()))
    });
    (further.len() == l.additional_addresses.len()).then_some(further)
}

/// Chains that failed to compile would shift the indices, so the check is skipped then.
fn chain_index(cx: &mut Cx<'_>, chains: &[Arc<FilterChain>], defined: usize) -> ChainIndex {
    if chains.len() != defined {
        return ChainIndex::default();
    }
    match ChainIndex::new(chains.iter().map(|chain| &chain.matches)) {
        Ok(index) => index,
        Err(duplicate) => {
            let reason = format!(
                "matches the same connections as filter_chains[{}] ({:?})",
                duplicate.first, chains[duplicate.first].name
            );
            cx.fail_at::<()>(&format!("filter_chains[{}].filter_chain_match", duplicate.second), reason);
            ChainIndex::default()
        }
    }
}

fn listener_filters(cx: &mut Cx<'_>, l: &listener::Listener) -> Option<ListenerFilters> {
    let default = Some(DEFAULT_LISTENER_FILTERS_TIMEOUT);
    let mut filters = ListenerFilters {
        timeout: cx.limit("listener_filters_timeout", l.listener_filters_timeout.as_ref(), default),
        continue_on_timeout: l.continue_on_listener_filters_timeout,
        // Listeners with `use_original_dst` restore the destination even without the filter, as in Envoy.
        original_dst: l.use_original_dst.as_ref().is_some_and(|use_it| use_it.value),
        ..ListenerFilters::default()
    };
    cx.each("listener_filters", &l.listener_filters, |cx, filter| {
        let disabled = match &filter.filter_disabled {
            None => PortPredicate::Never,
            Some(predicate) => cx.at("filter_disabled", |cx| port_predicate(cx, predicate))?,
        };
        let Some(listener::listener_filter::ConfigType::TypedConfig(any)) = &filter.config_type else {
            return cx.fail_at("typed_config", "is required");
        };
        match type_name(&any.type_url) {
            ORIGINAL_DST if disabled != PortPredicate::Never => {
                return cx.fail_at("filter_disabled", "is not supported on original_dst");
            }
            ORIGINAL_DST => filters.original_dst = true,
            ORIGINAL_SRC if disabled != PortPredicate::Never => {
                return cx.fail_at("filter_disabled", "is not supported on original_src");
            }
            ORIGINAL_SRC => {
                let config: OriginalSrc = cx.at("typed_config", |cx| cx.unpack(any))?;
                filters.original_src = Some(config.mark);
            }
            TLS_INSPECTOR => {
                filters.tls_inspector = true;
                filters.tls_inspector_disabled = disabled;
            }
            PROXY_PROTOCOL if disabled != PortPredicate::Never => {
                return cx.fail_at("filter_disabled", "is not supported on proxy_protocol");
            }
            PROXY_PROTOCOL => {
                filters.proxy_protocol = cx.at("typed_config", |cx| {
                    let config = cx.unpack(any)?;
                    proxy_protocol::filter(cx, &config)
                });
            }
            HTTP_INSPECTOR => {
                filters.http_inspector = true;
                filters.http_inspector_disabled = disabled;
            }
            name => return cx.fail_at("typed_config", format!("{name} is no listener filter")),
        }
        Some(())
    });
    Some(filters)
}

fn port_predicate(cx: &mut Cx<'_>, predicate: &listener::ListenerFilterChainMatchPredicate) -> Option<PortPredicate> {
    use listener::listener_filter_chain_match_predicate::{MatchSet, Rule};
    let set =
        |cx: &mut Cx<'_>, field: &str, set: &MatchSet| cx.at(field, |cx| cx.each("rules", &set.rules, port_predicate));
    match &predicate.rule {
        Some(Rule::AnyMatch(any)) => Some(if *any { PortPredicate::Any } else { PortPredicate::Never }),
        Some(Rule::OrMatch(rules)) => Some(PortPredicate::Or(set(cx, "or_match", rules))),
        Some(Rule::AndMatch(rules)) => Some(PortPredicate::And(set(cx, "and_match", rules))),
        Some(Rule::NotMatch(rule)) => {
            Some(PortPredicate::Not(Box::new(cx.at("not_match", |cx| port_predicate(cx, rule))?)))
        }
        Some(Rule::DestinationPortRange(range)) => match (u32::try_from(range.start), u32::try_from(range.end)) {
            (Ok(start), Ok(end)) if start < end && end <= 65536 => Some(PortPredicate::Range(start..end)),
            _ => cx.fail_at("destination_port_range", "must satisfy 0 <= start < end <= 65536"),
        },
        None => cx.fail("a rule is required"),
    }
}

fn referring_chain(cx: &mut Cx<'_>, chain: &listener::FilterChain, secrets: &SecretStore) -> Option<ReferringChain> {
    let others = std::mem::take(&mut cx.references);
    let compiled = filter_chain(cx, chain, secrets);
    let references = std::mem::replace(&mut cx.references, others);
    Some((compiled?, references))
}

fn filter_chain(cx: &mut Cx<'_>, chain: &listener::FilterChain, secrets: &SecretStore) -> Option<Arc<FilterChain>> {
    let matches = match &chain.filter_chain_match {
        None => Some(FilterChainMatch::default()),
        Some(m) => cx.at("filter_chain_match", |cx| filter_chain_match(cx, m)),
    };
    let tls = tls::downstream(cx, chain.transport_socket.as_ref(), secrets);
    let handshake = cx.limit(
        "transport_socket_connect_timeout",
        chain.transport_socket_connect_timeout.as_ref(),
        Some(DEFAULT_HANDSHAKE_TIMEOUT),
    );
    let (network_filters, terminal) = filters(cx, &chain.filters)?;
    Some(Arc::new(FilterChain {
        name: chain.name.as_str().into(),
        matches: matches?,
        tls: tls?,
        handshake_timeout: handshake.unwrap_or(DEFAULT_HANDSHAKE_TIMEOUT),
        network_filters,
        terminal,
    }))
}

fn filter_chain_match(cx: &mut Cx<'_>, m: &listener::FilterChainMatch) -> Option<FilterChainMatch> {
    use listener::filter_chain_match::ConnectionSourceType;
    let destination_port = match &m.destination_port {
        None => None,
        Some(port) => Some(port_number(cx, "destination_port", port.value)?),
    };
    let source_type = match ConnectionSourceType::try_from(m.source_type) {
        Ok(ConnectionSourceType::Any) => SourceType::Any,
        Ok(ConnectionSourceType::SameIpOrLoopback) => SourceType::SameIpOrLoopback,
        Ok(ConnectionSourceType::External) => SourceType::External,
        Err(_) => return cx.fail_at("source_type", format!("unknown value {}", m.source_type)),
    };
    Some(FilterChainMatch {
        destination_port,
        prefix_ranges: cx.each("prefix_ranges", &m.prefix_ranges, cidr),
        server_names: cx.each("server_names", &m.server_names, |cx, name| server_name(cx, name)),
        transport_protocol: (!m.transport_protocol.is_empty()).then(|| m.transport_protocol.as_str().into()),
        application_protocols: m.application_protocols.iter().map(|protocol| protocol.as_str().into()).collect(),
        direct_source_prefix_ranges: cx.each("direct_source_prefix_ranges", &m.direct_source_prefix_ranges, cidr),
        source_prefix_ranges: cx.each("source_prefix_ranges", &m.source_prefix_ranges, cidr),
        source_ports: cx.each("source_ports", &m.source_ports, |cx, port| match u16::try_from(*port) {
            Ok(port) if port > 0 => Some(port),
            _ => cx.fail("must lie between 1 and 65535"),
        }),
        source_type,
    })
}

fn server_name(cx: &mut Cx<'_>, name: &str) -> Option<Box<str>> {
    let rest = name.strip_prefix("*.").unwrap_or(name);
    if rest.is_empty() || rest.contains('*') {
        return cx.fail(format!("{name:?}: a server name is exact or begins with \"*.\""));
    }
    Some(name.to_ascii_lowercase().into())
}

fn filters(cx: &mut Cx<'_>, filters: &[listener::Filter]) -> Option<(Vec<NetworkFilter>, Terminal)> {
    let Some((last, first)) = filters.split_last() else {
        return cx.fail_at("filters", "must end with http_connection_manager or tcp_proxy");
    };
    let cluster_from_sni = first.iter().any(|filter| is_of(filter, SNI_CLUSTER));
    if first.len() > MAX_NETWORK_FILTERS {
        return cx.fail_at("filters", format!("there may be {MAX_NETWORK_FILTERS} at most before the last one"));
    }
    let network = cx.each("filters", first, network_filter).into_iter().flatten().collect();
    let terminal = cx.at("filters", |cx| cx.element(first.len(), |cx| terminal_filter(cx, last, cluster_from_sni)));
    Some((network, terminal?))
}

/// `Some(None)`: not a separate filter, but a setting of the terminal filter.
fn network_filter(cx: &mut Cx<'_>, filter: &listener::Filter) -> Option<Option<NetworkFilter>> {
    if let Some(listener::filter::ConfigType::ConfigDiscovery(source)) = &filter.config_type {
        cx.non_empty("name", &filter.name)?;
        return cx.at("config_discovery", |cx| match discovered(cx, &filter.name, source)? {
            Some(any) => configured_filter(cx, &filter.name, &any),
            None => {
                let config = NetworkFilterConfig::Custom(CustomFilter::missing());
                Some(Some(NetworkFilter { name: filter.name.as_str().into(), config }))
            }
        });
    }
    let any = typed_config(cx, filter)?;
    cx.at("typed_config", |cx| configured_filter(cx, &filter.name, any))
}

fn configured_filter(cx: &mut Cx<'_>, name: &str, any: &Any) -> Option<Option<NetworkFilter>> {
    match type_name(&any.type_url) {
        SNI_CLUSTER => Some(None),
        HTTP_CONNECTION_MANAGER | TCP_PROXY => cx.fail("must be the last network filter"),
        _ if is_passive(cx, any)? => Some(None),
        _ => {
            let config = network_filters::network_filter(cx, any)?;
            Some(Some(NetworkFilter { name: name.into(), config }))
        }
    }
}

fn is_of(filter: &listener::Filter, kind: &str) -> bool {
    matches!(&filter.config_type, Some(listener::filter::ConfigType::TypedConfig(any)) if type_name(&any.type_url) == kind)
}

fn terminal_filter(cx: &mut Cx<'_>, filter: &listener::Filter, cluster_from_sni: bool) -> Option<Terminal> {
    let any = typed_config(cx, filter)?;
    cx.at("typed_config", |cx| match type_name(&any.type_url) {
        HTTP_CONNECTION_MANAGER => {
            let config: hcm::HttpConnectionManager = cx.unpack(any)?;
            Some(Terminal::Http(Arc::new(http_connection_manager(cx, &config)?)))
        }
        TCP_PROXY => {
            let config: tcp_proxy::TcpProxy = cx.unpack(any)?;
            Some(Terminal::Tcp(Arc::new(TcpProxy { cluster_from_sni, ..tcp_proxy_filter(cx, &config)? })))
        }
        name if name == SNI_CLUSTER || network_filters::is_network_filter(cx, any) => {
            cx.fail("cannot be the last network filter: nothing serves the connection")
        }
        name => cx.fail(format!("{name} is no network filter")),
    })
}

fn typed_config<'m>(
    cx: &mut Cx<'_>,
    filter: &'m listener::Filter,
) -> Option<&'m evenkeel_xds::pb::google::protobuf::Any> {
    cx.non_empty("name", &filter.name)?;
    match &filter.config_type {
        Some(listener::filter::ConfigType::TypedConfig(any)) => Some(any),
        _ => cx.fail_at("typed_config", "is required"),
    }
}

fn tcp_proxy_filter(cx: &mut Cx<'_>, config: &tcp_proxy::TcpProxy) -> Option<TcpProxy> {
    use tcp_proxy::tcp_proxy::ClusterSpecifier;
    let stat_prefix = cx.non_empty("stat_prefix", &config.stat_prefix)?.into();
    let of_proxy = lb_metadata(config.metadata_match.as_ref());
    let clusters = match &config.cluster_specifier {
        Some(ClusterSpecifier::Cluster(name)) => {
            let cluster = cx.non_empty("cluster", name)?.into();
            vec![WeightedTcpCluster { cluster, weight: 1, metadata_match: criteria(&of_proxy, None) }]
        }
        Some(ClusterSpecifier::WeightedClusters(weighted)) => cx.at("weighted_clusters", |cx| {
            let clusters = cx.each("clusters", &weighted.clusters, |cx, entry| {
                let name = cx.non_empty("name", &entry.name)?;
                match entry.weight {
                    0 => cx.fail_at("weight", "must be at least 1"),
                    weight => Some(WeightedTcpCluster {
                        cluster: name.into(),
                        weight,
                        metadata_match: criteria(&of_proxy, entry.metadata_match.as_ref()),
                    }),
                }
            });
            let total: u64 = clusters.iter().map(|entry| u64::from(entry.weight)).sum();
            if clusters.is_empty() || total > u64::from(u32::MAX) {
                return cx.fail_at("clusters", "weights must add up to between 1 and 4294967295");
            }
            Some(clusters)
        })?,
        None => return cx.fail("one of cluster, weighted_clusters is required"),
    };
    let attempts = config.max_connect_attempts.as_ref().map_or(1, |attempts| attempts.value);
    if attempts == 0 {
        return cx.fail_at("max_connect_attempts", "must be at least 1");
    }
    let duration = config.max_downstream_connection_duration.as_ref();
    let on_demand = match &config.on_demand {
        None => None,
        Some(asked) => Some(cx.at("on_demand", |cx| {
            source::on_demand_clusters(cx, "odcds_config", asked.odcds_config.as_ref(), asked.timeout.as_ref())
        })?),
    };
    let tunneling = match &config.tunneling_config {
        None => None,
        Some(config) => Some(cx.at("tunneling_config", |cx| tunneling(cx, config))?),
    };
    Some(TcpProxy {
        stat_prefix,
        clusters,
        idle_timeout: cx.limit("idle_timeout", config.idle_timeout.as_ref(), Some(DEFAULT_TCP_IDLE_TIMEOUT)),
        max_downstream_connection_duration: cx.limit("max_downstream_connection_duration", duration, None),
        max_connect_attempts: attempts,
        access_logs: access_logs(cx, "access_log", &config.access_log, AccessLogType::TcpConnectionEnd),
        hash_source_ip: tcp_hash_policy(cx, &config.hash_policy),
        on_demand,
        cluster_from_sni: false,
        metadata_match: criteria(&of_proxy, None),
        tunneling,
    })
}

fn tunneling(cx: &mut Cx<'_>, config: &tcp_proxy::tcp_proxy::TunnelingConfig) -> Option<Tunneling> {
    let hostname = cx.non_empty("hostname", &config.hostname)?;
    let hostname = cx.format("hostname", hostname)?;
    let path = match config.post_path.as_str() {
        "" => "/",
        _ if !config.use_post => return cx.fail_at("post_path", "is of use only with use_post"),
        path if path.bytes().all(|byte| byte.is_ascii_graphic()) => path,
        _ => return cx.fail_at("post_path", "must hold no blanks"),
    };
    Some(Tunneling {
        hostname,
        headers: cx.each("headers_to_add", &config.headers_to_add, headers::addition),
        post: config.use_post.then(|| path.into()),
        keep_headers: config.propagate_response_headers,
        keep_trailers: config.propagate_response_trailers,
    })
}

/// `filter_metadata["evenkeel.dev"].listeners`: names, comma-separated.
fn companions(metadata: Option<&core::Metadata>) -> Vec<Arc<str>> {
    let names = text_of(metadata, "evenkeel.dev", "listeners").unwrap_or_default();
    names.split(',').filter(|name| !name.is_empty()).take(MAX_COMPANIONS).map(Into::into).collect()
}
