//! Clusters resolved by DNS, with the test's own DNS server: how long answers are used, and what happens without any.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::time::Duration;

use evenkeel_testkit::dns::{Answer, Dns, NXDOMAIN, SERVFAIL};
use evenkeel_testkit::{Backend, Reply, eventually};

use crate::harness::{Proxy, get, http_listener, stat, static_bootstrap};

const NAME: &str = "app.mesh.test";
/// A server that says this of the name.
fn started(answer: Answer) -> Dns {
    let dns = Dns::start();
    dns.answer(NAME, answer);
    dns
}

/// Backends on one port of several loopback addresses.
fn backends<const N: usize>() -> [(Ipv4Addr, Backend); N] {
    eventually("a port free on all addresses", || {
        let port = evenkeel_testkit::free_port();
        let addresses: [Ipv4Addr; N] = std::array::from_fn(|n| Ipv4Addr::new(127, 9, 1, n as u8 + 1));
        // Checked first: a backend panics where it cannot bind.
        let free = addresses.iter().all(|address| TcpListener::bind((*address, port)).is_ok());
        free.then(|| {
            addresses.map(|address| {
                let name = address.to_string();
                (address, Backend::start_on((address, port).into(), move |_| Reply::text(name.clone())))
            })
        })
    })
}

fn proxy(kind: &str, dns: &Dns, port: u16, options: &str) -> Proxy {
    let server = dns.address.port();
    let cluster = format!(
        "{{name: app, type: {kind}, connect_timeout: 5s, dns_lookup_family: V4_ONLY, {options}, \
         typed_dns_resolver_config: {{name: cares, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig, resolvers: \
         [{{socket_address: {{address: 127.0.0.1, port_value: {server}}}}}]}}}}, load_assignment: {{cluster_name: app, \
         endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {NAME}, port_value: \
         {port}}}}}}}}}]}}]}}}}"
    );
    let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                  /}, route: {cluster: app}}]}]}";
    let proxy = Proxy::start(&static_bootstrap(&http_listener("dns", routes, ""), &[cluster]));
    proxy.wait_live();
    proxy
}

/// Who answers, of some requests.
fn answers(proxy: &Proxy) -> Vec<String> {
    let listener = proxy.listener("dns");
    let mut all: Vec<_> = (0..12)
        .map(|_| {
            let response = get(listener, "/");
            if response.status == 200 { response.text() } else { response.status.to_string() }
        })
        .collect();
    all.sort();
    all.dedup();
    all
}

fn wait_answers(proxy: &Proxy, expected: &[&str]) {
    eventually(&format!("answers of {expected:?}"), || (answers(proxy) == expected).then_some(()));
}

#[test]
fn an_answer_holds_for_its_time_to_live_and_no_longer() {
    let [(one, backend), (other, _two)] = backends();
    let port = backend.address().port();
    let dns = started(Answer::Addresses(vec![one], 1));
    // Without the time to live it would be asked for once.
    let proxy = proxy("STRICT_DNS", &dns, port, "dns_refresh_rate: 1000s, respect_dns_ttl: true");
    wait_answers(&proxy, &["127.9.1.1"]);
    dns.answer(NAME, Answer::Addresses(vec![other, one], 1));
    wait_answers(&proxy, &["127.9.1.1", "127.9.1.2"]);
    dns.answer(NAME, Answer::Addresses(vec![other], 1000));
    wait_answers(&proxy, &["127.9.1.2"]);
    let asked = dns.asked();
    dns.answer(NAME, Answer::Addresses(vec![one], 1));
    // Requests ask nobody, and the answer holds for long.
    assert_eq!(answers(&proxy), ["127.9.1.2"]);
    assert_eq!(dns.asked(), asked);
}

#[test]
fn without_the_time_to_live_the_refresh_rate_holds() {
    let [(one, backend), (other, _two)] = backends();
    let port = backend.address().port();
    let dns = started(Answer::Addresses(vec![one], 1000));
    let proxy = proxy("STRICT_DNS", &dns, port, "dns_refresh_rate: 0.05s");
    wait_answers(&proxy, &["127.9.1.1"]);
    dns.answer(NAME, Answer::Addresses(vec![other], 1000));
    wait_answers(&proxy, &["127.9.1.2"]);
}

#[test]
fn what_is_known_serves_on_while_no_server_answers() {
    let [(one, backend), (other, _two)] = backends();
    let port = backend.address().port();
    let dns = started(Answer::Addresses(vec![one], 1));
    let rates = "dns_refresh_rate: 0.05s, dns_failure_refresh_rate: {base_interval: 0.05s, max_interval: 0.05s}";
    let proxy = proxy("STRICT_DNS", &dns, port, rates);
    wait_answers(&proxy, &["127.9.1.1"]);
    dns.answer(NAME, Answer::Error(SERVFAIL));
    let asked = dns.asked();
    eventually("failed resolutions", || (dns.asked() > asked + 3).then_some(()));
    assert_eq!(answers(&proxy), ["127.9.1.1"]);
    assert_eq!(stat(&proxy, "cluster.app.membership_total"), [1]);
    dns.answer(NAME, Answer::Addresses(vec![other], 1));
    wait_answers(&proxy, &["127.9.1.2"]);
}

#[test]
fn a_name_that_is_taken_back_has_no_hosts_unless_the_cluster_is_a_logical_one() {
    let [(one, backend)] = backends();
    let port = backend.address().port();
    let rates = "dns_refresh_rate: 0.05s, dns_failure_refresh_rate: {base_interval: 0.05s, max_interval: 0.05s}";
    for (kind, without) in [("STRICT_DNS", "503"), ("LOGICAL_DNS", "127.9.1.1")] {
        let dns = started(Answer::Addresses(vec![one], 1));
        let proxy = proxy(kind, &dns, port, rates);
        wait_answers(&proxy, &["127.9.1.1"]);
        for taken_back in [Answer::Error(NXDOMAIN), Answer::Addresses(Vec::new(), 1)] {
            dns.answer(NAME, taken_back);
            let asked = dns.asked();
            eventually("resolutions", || (dns.asked() > asked + 3).then_some(()));
            wait_answers(&proxy, &[without]);
        }
        dns.answer(NAME, Answer::Addresses(vec![one], 1));
        wait_answers(&proxy, &["127.9.1.1"]);
    }
}

#[test]
fn a_name_that_does_not_exist_is_asked_for_at_the_failure_rate() {
    let [(one, backend)] = backends();
    let port = backend.address().port();
    let dns = started(Answer::Error(NXDOMAIN));
    // The proxy starts without it.
    let slow = proxy("STRICT_DNS", &dns, port, "dns_refresh_rate: 1000s");
    assert_eq!(answers(&slow), ["503"]);
    let asked = dns.asked();
    assert_eq!(answers(&slow), ["503"]);
    assert_eq!(dns.asked(), asked, "that it does not exist holds too, whatever requests come");
    drop(slow);
    let rates = "dns_refresh_rate: 1000s, dns_failure_refresh_rate: {base_interval: 0.05s, max_interval: 0.1s}";
    let proxy = proxy("STRICT_DNS", &dns, port, rates);
    assert_eq!(answers(&proxy), ["503"]);
    dns.answer(NAME, Answer::Addresses(vec![one], 1));
    wait_answers(&proxy, &["127.9.1.1"]);
}

#[test]
fn an_answer_too_large_for_udp_comes_over_tcp() {
    let [(one, backend)] = backends();
    let port = backend.address().port();
    let dns = started(Answer::LargeAddresses(vec![one], 1));
    let proxy = proxy("STRICT_DNS", &dns, port, "dns_refresh_rate: 1000s");
    wait_answers(&proxy, &["127.9.1.1"]);
    assert!(dns.asked_over_tcp() > 0);
}

#[test]
fn a_logical_cluster_is_one_host_and_a_strict_one_has_all() {
    let all @ [(one, backend), (other, _)] = &backends();
    assert_eq!(all.len(), 2);
    let port = backend.address().port();
    let dns = started(Answer::Addresses(vec![*one, *other], 1000));
    let strict = proxy("STRICT_DNS", &dns, port, "dns_refresh_rate: 1000s");
    wait_answers(&strict, &["127.9.1.1", "127.9.1.2"]);
    assert_eq!(stat(&strict, "cluster.app.membership_total"), [2]);
    drop(strict);
    let logical = proxy("LOGICAL_DNS", &dns, port, "dns_refresh_rate: 1000s");
    eventually("one host", || (stat(&logical, "cluster.app.membership_total") == [1]).then_some(()));
    assert_eq!(answers(&logical).len(), 1);
}

/// A safeguard against a test that waits for ever.
#[test]
fn the_server_answers_as_one_does() {
    let dns = started(Answer::Addresses(vec![Ipv4Addr::new(192, 0, 2, 7)], 60));
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("an option");
    let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03app\x04mesh\x04test\x00\x00\x01\x00\x01";
    socket.send_to(query, dns.address).expect("sent");
    let mut reply = [0; 512];
    let length = socket.recv(&mut reply).expect("an answer");
    assert_eq!(reply[..4], [0x12, 0x34, 0x85, 0x80]);
    assert_eq!(reply[length - 4..length], [192, 0, 2, 7]);
}
