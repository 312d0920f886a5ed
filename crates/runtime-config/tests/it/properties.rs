//! Compares matchers with naive ones; nothing panics on any input.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use evenkeel_base::re2::Regex;
use evenkeel_runtime_config::domains::DomainIndex;
use evenkeel_runtime_config::filter_chain_match::{ChainIndex, ChainInput, FilterChainMatch, SourceType};
use evenkeel_runtime_config::matching::{query_parameter, split_path};
use evenkeel_runtime_config::rewrite::https_location;
use evenkeel_runtime_config::route::{PathMatch, RedirectAction, RedirectPath, RouteMatch};
use evenkeel_runtime_config::route_match::without_port;
use evenkeel_runtime_config::substitution_format::Format;
use evenkeel_runtime_config::support;
use evenkeel_runtime_config::view::PlainRequest;
use evenkeel_xds::Any;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::input;

/// Few letters, so that names overlap.
fn name() -> impl Strategy<Value = String> {
    "[ab.]{1,5}"
}

fn domain() -> impl Strategy<Value = String> {
    prop_oneof![3 => name(), 2 => name().prop_map(|n| format!("*{n}")), 2 => name().prop_map(|n| format!("{n}*")), 1 => Just("*".into())]
}

/// Envoy's rule, as written in its documentation.
fn naive_host(domains: &[String], host: &str) -> Option<usize> {
    let best = |rank: &dyn Fn(&str) -> Option<usize>| {
        let ranked = domains.iter().enumerate().filter_map(|(index, domain)| Some((rank(domain)?, index)));
        ranked.max_by_key(|(rank, _)| *rank).map(|(_, index)| index)
    };
    let wild = |rest: &str| rest.len() < host.len() && !rest.is_empty();
    best(&|d| (d == host && !d.contains('*')).then_some(0))
        .or_else(|| best(&|d| d.strip_prefix('*').filter(|s| wild(s) && host.ends_with(s)).map(str::len)))
        .or_else(|| best(&|d| d.strip_suffix('*').filter(|p| wild(p) && host.starts_with(p)).map(str::len)))
        .or_else(|| best(&|d| (d == "*").then_some(0)))
}

#[derive(Debug, Clone)]
struct Connection {
    destination: SocketAddr,
    source: SocketAddr,
    sni: Option<String>,
    transport: &'static str,
    alpn: Vec<&'static str>,
}

fn address() -> impl Strategy<Value = SocketAddr> {
    let ip = prop_oneof![Just("10.0.0.1"), Just("10.0.1.1"), Just("11.0.0.1"), Just("127.0.0.1"), Just("[::1]")];
    (ip, 1u16..4).prop_map(|(ip, port)| format!("{ip}:{port}").parse().unwrap())
}

fn connection() -> impl Strategy<Value = Connection> {
    let alpn = vec(prop_oneof![Just("istio"), Just("h2"), Just("http/1.1")], 0..3);
    let transport = prop_oneof![Just("tls"), Just("raw_buffer"), Just("")];
    (address(), address(), option::of(name()), transport, alpn).prop_map(
        |(destination, source, sni, transport, alpn)| Connection { destination, source, sni, transport, alpn },
    )
}

fn chain_match() -> impl Strategy<Value = FilterChainMatch> {
    let net =
        prop_oneof![Just("10.0.0.0/8"), Just("10.0.0.0/24"), Just("10.0.0.1/32"), Just("0.0.0.0/0"), Just("::/0")];
    let net = net.prop_map(|net| net.parse().unwrap());
    let server = prop_oneof![name(), name().prop_map(|n| format!("*.{n}"))].prop_map(String::into_boxed_str);
    let protocol = prop_oneof![Just("istio"), Just("h2")].prop_map(Into::into);
    let transport = prop_oneof![Just("tls"), Just("raw_buffer")].prop_map(Into::into);
    let source_type =
        prop_oneof![Just(SourceType::Any), Just(SourceType::SameIpOrLoopback), Just(SourceType::External)];
    (
        option::weighted(0.3, 1u16..4),
        vec(net.clone(), 0..3),
        vec(server, 0..2),
        option::weighted(0.5, transport),
        vec(protocol, 0..2),
        (source_type, vec(net, 0..2), vec(1u16..4, 0..2)),
    )
        .prop_map(
            |(destination_port, prefix_ranges, server_names, transport_protocol, application_protocols, source)| {
                let (source_type, source_prefix_ranges, source_ports) = source;
                FilterChainMatch {
                    destination_port,
                    prefix_ranges,
                    server_names,
                    transport_protocol,
                    application_protocols,
                    direct_source_prefix_ranges: vec![],
                    source_prefix_ranges,
                    source_ports,
                    source_type,
                }
            },
        )
}

/// Chains as rows of single values; each criterion keeps the rows with the most specific value that fits, for good.
fn naive_chain(chains: &[FilterChainMatch], c: &Connection) -> Option<usize> {
    let mut rows: Vec<usize> = (0..chains.len()).collect();
    let narrow = |rows: &mut Vec<usize>, rank: &dyn Fn(&FilterChainMatch) -> Option<usize>| {
        let best = rows.iter().filter_map(|row| rank(&chains[*row])).max();
        rows.retain(|row| best.is_some() && rank(&chains[*row]) == best);
    };
    let net_rank = |nets: &[ipnet::IpNet], ip: std::net::IpAddr| {
        let fits = nets.iter().filter(|net| net.contains(&ip)).map(|net| usize::from(net.prefix_len()) + 1).max();
        fits.or(nets.is_empty().then_some(0))
    };
    narrow(&mut rows, &|m| match m.destination_port {
        None => Some(0),
        Some(port) => (port == c.destination.port()).then_some(1),
    });
    narrow(&mut rows, &|m| net_rank(&m.prefix_ranges, c.destination.ip()));
    narrow(&mut rows, &|m| {
        let rank = |pattern: &str| match (pattern.strip_prefix('*'), &c.sni) {
            (_, None) => None,
            (Some(suffix), Some(sni)) => {
                let at = sni.len().checked_sub(suffix.len())?;
                (at > 0 && sni.ends_with(suffix)).then_some(suffix.len())
            }
            (None, Some(sni)) => (pattern == sni).then_some(usize::MAX),
        };
        m.server_names.iter().filter_map(|name| rank(name)).max().or(m.server_names.is_empty().then_some(0))
    });
    narrow(&mut rows, &|m| match &m.transport_protocol {
        None => Some(0),
        Some(transport) => (**transport == *c.transport).then_some(1),
    });
    narrow(&mut rows, &|m| {
        let rank = |p: &str| c.alpn.iter().position(|offered| *offered == p).map(|at| 100 - at);
        let best = m.application_protocols.iter().filter_map(|p| rank(p)).max();
        best.or(m.application_protocols.is_empty().then_some(0))
    });
    let local = c.source.ip().is_loopback() || c.source.ip() == c.destination.ip();
    narrow(&mut rows, &|m| match m.source_type {
        SourceType::Any => Some(0),
        SourceType::SameIpOrLoopback => local.then_some(1),
        SourceType::External => (!local).then_some(1),
    });
    narrow(&mut rows, &|m| net_rank(&m.source_prefix_ranges, c.source.ip()));
    narrow(&mut rows, &|m| {
        if m.source_ports.is_empty() { Some(0) } else { m.source_ports.contains(&c.source.port()).then_some(1) }
    });
    rows.first().copied()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn hosts_agree_with_the_documented_rule(domains in vec(domain(), 0..12), host in name()) {
        let unique: BTreeSet<String> = domains.into_iter().collect();
        let domains: Vec<String> = unique.into_iter().collect();
        let mut index: DomainIndex = DomainIndex::default();
        for (number, domain) in domains.iter().enumerate() {
            prop_assert_eq!(index.insert(domain, number), Ok(()));
            prop_assert!(index.insert(domain, number).is_err());
        }
        let host_upper = host.to_ascii_uppercase();
        prop_assert_eq!(index.find(host.as_bytes()).copied(), naive_host(&domains, &host));
        prop_assert_eq!(index.find(host_upper.as_bytes()).copied(), naive_host(&domains, &host));
    }

    #[test]
    fn filter_chains_agree_with_narrowing_row_by_row(chains in vec(chain_match(), 1..8), c in connection()) {
        let Ok(index) = ChainIndex::new(&chains) else { return Ok(()) };
        let input = ChainInput {
            destination: c.destination,
            source: c.source,
            direct_source: c.source,
            server_name: c.sni.as_deref(),
            transport_protocol: c.transport,
            application_protocols: &c.alpn,
        };
        prop_assert_eq!(index.find(&input), naive_chain(&chains, &c));
    }

    #[test]
    fn texts_of_any_kind_are_parsed_or_refused(text in ".{0,60}", bytes in vec(any::<u8>(), 0..60)) {
        let _ = Format::parse(&text, &|_| None);
        let _ = Format::parse(&format!("%{text}%"), &|name| Some(name.into()));
        let _ = Regex::whole(&text);
        if let Ok(regex) = Regex::anywhere(&text) {
            let _ = regex.check_rewrite(&text);
        }
        let (path, query) = split_path(&bytes);
        prop_assert!(path.len() + query.len() <= bytes.len());
        let _ = query_parameter(query, b"a");
        prop_assert!(bytes.starts_with(without_port(&bytes)));
    }

    #[test]
    fn locations_come_out_for_any_request(authority in ".{0,20}", path in ".{0,20}", port in option::of(any::<u16>()), strip_query: bool) {
        let request = PlainRequest::new("GET", &authority, &path);
        prop_assert!(https_location(&request).starts_with(b"https://"));
        let action = RedirectAction {
            scheme: None, host: None, port, path: RedirectPath::Prefix("/".into()), status: 301, strip_query,
        };
        let matched = RouteMatch {
            path: PathMatch::Prefix("/abc".into()), case_sensitive: true, headers: vec![], query_parameters: vec![],
            fraction_ppm: 1_000_000, grpc_only: false,
                dynamic_metadata: vec![],
        };
        prop_assert!(action.location(&matched, &request).starts_with(b"http://"));
    }

    #[test]
    fn bytes_of_any_kind_are_compiled_or_refused(bytes in vec(any::<u8>(), 0..80)) {
        let mut builder = input::builder();
        for name in [
            "envoy.config.listener.v3.Listener", "envoy.config.cluster.v3.Cluster",
            "envoy.config.route.v3.RouteConfiguration", "envoy.config.endpoint.v3.ClusterLoadAssignment",
            "envoy.extensions.transport_sockets.tls.v3.Secret",
        ] {
            let any = Any { type_url: format!("type.googleapis.com/{name}"), value: bytes.clone() };
            let schema = evenkeel_xds::Schema::acquire();
            if matches!(schema.decode(&any), Some(Ok(_))) {
                prop_assert_eq!(support::check(&any), support::named_problems(&schema, &any));
            }
            if let Err(rejection) = input::set(&mut builder, &any) {
                prop_assert!(!rejection.problems.is_empty());
            }
        }
        builder.build();
    }
}
