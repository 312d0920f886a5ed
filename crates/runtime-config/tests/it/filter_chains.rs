//! Filter chain precedence, row by row as Envoy documents it.

use std::net::SocketAddr;

use evenkeel_runtime_config::filter_chain_match::{
    ChainIndex, ChainInput, DuplicateMatch, FilterChainMatch, SourceType,
};

fn nets(list: &[&str]) -> Vec<ipnet::IpNet> {
    list.iter().map(|net| net.parse().unwrap()).collect()
}

fn names(list: &[&str]) -> Vec<Box<str>> {
    list.iter().map(|name| (*name).into()).collect()
}

fn input<'a>(destination: &str, sni: Option<&'a str>, transport: &'a str, alpn: &'a [&'a str]) -> ChainInput<'a> {
    let source: SocketAddr = "192.0.2.7:40000".parse().unwrap();
    ChainInput {
        destination: destination.parse().unwrap(),
        source,
        direct_source: source,
        server_name: sni,
        transport_protocol: transport,
        application_protocols: alpn,
    }
}

fn any() -> FilterChainMatch {
    FilterChainMatch::default()
}

#[test]
fn destination_port_comes_first_and_there_is_no_way_back() {
    let port = FilterChainMatch { destination_port: Some(80), prefix_ranges: nets(&["10.0.0.0/8"]), ..any() };
    let index = ChainIndex::new(&[port, any()]).unwrap();
    let find = |to| index.find(&input(to, None, "", &[]));
    assert_eq!(find("10.1.1.1:80"), Some(0));
    assert_eq!(find("10.1.1.1:81"), Some(1));
    // Port 80 is claimed by chain 0; that its range does not fit does not bring chain 1 back.
    assert_eq!(find("11.1.1.1:80"), None);
}

#[test]
fn the_longest_prefix_wins_before_names_are_looked_at() {
    let index = ChainIndex::new(&[
        FilterChainMatch { prefix_ranges: nets(&["10.0.0.0/8"]), server_names: names(&["a.example"]), ..any() },
        FilterChainMatch { prefix_ranges: nets(&["10.1.0.0/16"]), ..any() },
        FilterChainMatch {
            prefix_ranges: nets(&["10.1.1.1/32", "::/0"]),
            server_names: names(&["b.example"]),
            ..any()
        },
    ])
    .unwrap();
    let find = |to, sni| index.find(&input(to, sni, "tls", &[]));
    assert_eq!(find("10.2.0.1:1", Some("a.example")), Some(0));
    assert_eq!(find("10.1.0.1:1", Some("a.example")), Some(1));
    assert_eq!(find("10.1.1.1:1", Some("b.example")), Some(2));
    assert_eq!(find("10.1.1.1:1", Some("a.example")), None);
    assert_eq!(find("[2001:db8::1]:1", Some("b.example")), Some(2));
    // An IPv4-mapped address is an IPv4 address.
    assert_eq!(find("[::ffff:10.1.0.1]:1", None), Some(1));
}

#[test]
fn server_names_exact_then_longest_wildcard_then_none() {
    let index = ChainIndex::new(&[
        FilterChainMatch { server_names: names(&["www.example.com"]), ..any() },
        FilterChainMatch { server_names: names(&["*.example.com"]), ..any() },
        FilterChainMatch { server_names: names(&["*.com"]), ..any() },
        any(),
    ])
    .unwrap();
    for (sni, expected) in [
        (Some("www.example.com"), 0),
        (Some("api.example.com"), 1),
        (Some("a.b.example.com"), 1),
        (Some("example.com"), 2),
        (Some("com"), 3),
        (Some(".example.com"), 2),
        (Some("www.example.org"), 3),
        (Some(""), 3),
        (None, 3),
    ] {
        assert_eq!(index.find(&input("10.0.0.1:443", sni, "tls", &[])), Some(expected), "{sni:?}");
    }
}

#[test]
fn istios_inbound_chains_are_told_apart() {
    let alpn = |transport: &str, protocols: &[&str]| FilterChainMatch {
        transport_protocol: (!transport.is_empty()).then(|| transport.into()),
        application_protocols: names(protocols),
        ..any()
    };
    let mesh = ["istio-http/1.0", "istio-http/1.1", "istio-h2"];
    let index = ChainIndex::new(&[
        FilterChainMatch { destination_port: Some(15006), ..any() },
        alpn("tls", &mesh),
        alpn("raw_buffer", &["http/1.1", "h2c"]),
        alpn("tls", &["istio-peer-exchange", "istio"]),
        alpn("raw_buffer", &[]),
        alpn("tls", &[]),
    ])
    .unwrap();
    for (port, transport, offered, expected) in [
        (15006, "tls", &["istio"][..], 0),
        (8080, "tls", &["istio-http/1.1", "istio"], 1),
        (8080, "tls", &["istio", "istio-http/1.1"], 3),
        (8080, "tls", &["istio"], 3),
        (8080, "tls", &["h2", "http/1.1"], 5),
        (8080, "tls", &[], 5),
        (8080, "raw_buffer", &["http/1.1"], 2),
        (8080, "raw_buffer", &["http/1.0"], 4),
        (8080, "raw_buffer", &[], 4),
    ] {
        let to = format!("10.0.0.1:{port}");
        assert_eq!(index.find(&input(&to, None, transport, offered)), Some(expected), "{port} {transport} {offered:?}");
    }
    assert_eq!(index.find(&input("10.0.0.1:8080", None, "", &[])), None);
}

#[test]
fn sources_by_type_range_and_port() {
    let of = |source_type, ranges: &[&str], ports: &[u16]| FilterChainMatch {
        source_type,
        source_prefix_ranges: nets(ranges),
        source_ports: ports.to_vec(),
        ..any()
    };
    let index = ChainIndex::new(&[
        of(SourceType::SameIpOrLoopback, &[], &[]),
        of(SourceType::External, &["192.0.2.0/24"], &[]),
        of(SourceType::External, &["192.0.2.0/24"], &[40001]),
        of(SourceType::Any, &[], &[]),
    ])
    .unwrap();
    for (source, expected) in [
        ("127.0.0.1:1", Some(0)),
        ("10.0.0.1:1", Some(0)),
        ("192.0.2.1:40000", Some(1)),
        ("192.0.2.1:40001", Some(2)),
        // External chains exist, so chain 3 is out for external peers.
        ("198.51.100.1:1", None),
    ] {
        let source: SocketAddr = source.parse().unwrap();
        let input = ChainInput { source, direct_source: source, ..input("10.0.0.1:80", None, "", &[]) };
        assert_eq!(index.find(&input), expected, "{source}");
    }
}

#[test]
fn two_chains_may_not_match_the_same() {
    let a = FilterChainMatch { prefix_ranges: nets(&["10.0.0.0/8", "11.0.0.0/8"]), ..any() };
    let b = FilterChainMatch { prefix_ranges: nets(&["11.2.3.4/8"]), ..any() };
    assert_eq!(ChainIndex::new(&[any(), a, b]).unwrap_err(), DuplicateMatch { first: 1, second: 2 });
    let twice = FilterChainMatch { source_ports: vec![1, 1], ..any() };
    assert!(ChainIndex::new(&[twice]).is_ok());
}
