//! What the kernel does with the rules: rules of nftables and of iptables redirect the same connections.

use std::net::SocketAddr;

use evenkeel_api::annotations::CaptureRules;
use evenkeel_api::istio::InterceptionMode;
use evenkeel_base::cidr;
use evenkeel_capture::{Capture, DnsCapture, Family, PROXY_DSCP, ProxyIdentity};

use crate::network::{Loader, Networks, Party, Place, address};

/// A call, and what answers it.
#[derive(Debug, Clone, Copy)]
struct Row {
    from: Party,
    to: Place,
    port: u16,
    answers: &'static str,
}

const fn row(from: Party, to: Place, port: u16, answers: &'static str) -> Row {
    Row { from, to, port, answers }
}

/// Calls over TCP in either mode.
const CALLS: &[Row] = &[
    row(Party::Outside, Place::Pod, 8080, "inbound"),
    row(Party::Outside, Place::Pod, 9000, "application"),
    row(Party::Outside, Place::Pod, 15020, "agent"),
    row(Party::Application, Place::Server, 80, "outbound"),
    row(Party::Application, Place::Server, 3306, "server"),
    row(Party::Application, Place::Excluded, 80, "server"),
    row(Party::Application, Place::Direct, 443, "server"),
    row(Party::Application, Place::Loopback, 8080, "application"),
    row(Party::Application, Place::Pod, 8080, "application"),
    row(Party::Application, Place::NameServer, 53, "dns"),
    row(Party::Proxy, Place::Server, 80, "server"),
    row(Party::Proxy, Place::Loopback, 8080, "application"),
    row(Party::Proxy, Place::Pod, 8080, "inbound"),
    row(Party::Proxy, Place::NameServer, 53, "server"),
    row(Party::ProxyToApplication, Place::Pod, 8080, "application"),
];

/// Queries over UDP.
const QUERIES: &[Row] = &[
    row(Party::Application, Place::NameServer, 53, "dns"),
    row(Party::Application, Place::Server, 53, "dns"),
    row(Party::Proxy, Place::NameServer, 53, "server"),
];

/// Everything but a port, a range and a server.
fn capture(mode: InterceptionMode, proxy: ProxyIdentity) -> Capture {
    let both = |place| [Family::V4, Family::V6].map(|family| address(place, family)).to_vec();
    let ranges = ["10.1.0.0/16", "fd01::/16"].map(|text| cidr::parse(text).expect("a range"));
    let rules = CaptureRules {
        except_inbound_ports: vec![9000, 15020],
        except_outbound_ports: vec![3306],
        except_outbound_ranges: ranges.to_vec(),
        ..CaptureRules::default()
    };
    let dns = DnsCapture::All;
    Capture { mode, rules, proxy, dns, direct: both(Place::Direct), ipv6: true, ..Capture::default() }
}

/// Loads the rules into networks of their own, with each program, and makes the calls. Only root can: the calls come from other users.
fn check(capture: &Capture, calls: &[&[Row]], queries: &[Row]) {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    for loader in [Loader::Nftables, Loader::Iptables] {
        std::thread::scope(|scope| {
            let checked = scope.spawn(|| {
                let networks = Networks::new(capture, loader);
                for family in [Family::V4, Family::V6] {
                    let to = |row: &Row| SocketAddr::new(address(row.to, family), row.port);
                    let name = |row: &Row| format!("{loader:?} {:?} {:?}: {row:?}", capture.mode, capture.proxy);
                    for row in calls.iter().copied().flatten() {
                        assert_eq!(networks.call(row.from, to(row)), row.answers, "{}", name(row));
                    }
                    for row in queries {
                        assert_eq!(networks.query(row.from, to(row)), row.answers, "{} over UDP", name(row));
                    }
                }
            });
            checked.join().unwrap_or_else(|problem| std::panic::resume_unwind(problem));
        });
    }
}

fn of_user() -> ProxyIdentity {
    Capture::default().proxy
}

#[test]
fn redirected_connections_go_to_the_proxy_and_its_own_go_out() {
    for proxy in [ProxyIdentity::Mark, of_user()] {
        check(&capture(InterceptionMode::Redirect, proxy), &[CALLS], QUERIES);
    }
    let one_machine =
        Capture { proxy_dscp: Some(PROXY_DSCP), ..capture(InterceptionMode::Redirect, ProxyIdentity::Mark) };
    check(&one_machine, &[CALLS], QUERIES);
}

#[test]
fn transparent_connections_go_to_the_proxy_and_answers_come_back_to_it() {
    let as_client = [row(Party::ProxyAsClient, Place::Pod, 8080, "application")];
    for proxy in [ProxyIdentity::Mark, of_user()] {
        check(&capture(InterceptionMode::Tproxy, proxy), &[CALLS, &as_client], QUERIES);
    }
}

#[test]
fn only_queries_to_the_name_servers_are_captured() {
    let servers = [Family::V4, Family::V6].map(|family| address(Place::NameServer, family)).to_vec();
    let some = Capture { dns: DnsCapture::Servers(servers), ..capture(InterceptionMode::Redirect, of_user()) };
    let queries = [
        row(Party::Application, Place::NameServer, 53, "dns"),
        row(Party::Application, Place::Server, 53, "server"),
        row(Party::Proxy, Place::NameServer, 53, "server"),
    ];
    check(&some, &[CALLS], &queries);
    let calls = [row(Party::Application, Place::NameServer, 53, "outbound")];
    let queries = [row(Party::Application, Place::NameServer, 53, "server")];
    check(&Capture { dns: DnsCapture::Off, ..some }, &[&calls], &queries);
}

#[test]
fn included_ports_and_ranges_alone_are_captured() {
    let rules = CaptureRules {
        inbound_ports: Some(vec![9000]),
        outbound_ports: vec![443],
        outbound_ranges: Some(["10.1.0.0/16", "fd01::/16"].map(|text| cidr::parse(text).expect("a range")).to_vec()),
        ..CaptureRules::default()
    };
    let calls = [
        row(Party::Outside, Place::Pod, 8080, "application"),
        row(Party::Outside, Place::Pod, 9000, "inbound"),
        row(Party::Application, Place::Server, 80, "server"),
        row(Party::Application, Place::Server, 443, "outbound"),
        row(Party::Application, Place::Excluded, 80, "outbound"),
    ];
    for mode in [InterceptionMode::Redirect, InterceptionMode::Tproxy] {
        check(&Capture { rules: rules.clone(), ..capture(mode, of_user()) }, &[&calls], &[]);
    }
    let excluded = CaptureRules { except_interfaces: vec!["eth0".to_owned()], ..CaptureRules::default() };
    let calls =
        [row(Party::Outside, Place::Pod, 8080, "application"), row(Party::Application, Place::Server, 80, "server")];
    for mode in [InterceptionMode::Redirect, InterceptionMode::Tproxy, InterceptionMode::None] {
        check(&Capture { rules: excluded.clone(), ..capture(mode, of_user()) }, &[&calls], &[]);
    }
}

/// The outside stands for a virtual machine in the Pod: its calls are outbound ones.
#[test]
fn calls_of_virtual_machines_are_outbound() {
    for mode in [InterceptionMode::Redirect, InterceptionMode::Tproxy] {
        let virtual_interfaces = vec!["eth0".to_owned()];
        let calls =
            [row(Party::Outside, Place::Pod, 8080, "outbound"), row(Party::Application, Place::Server, 80, "outbound")];
        check(&Capture { virtual_interfaces, ..capture(mode, of_user()) }, &[&calls], &[]);
    }
}
