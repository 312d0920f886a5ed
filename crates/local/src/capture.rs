//! nftables rules that redirect a replica's traffic to its sidecar, equivalent to those of Istio's `istio-iptables`.
//!
//! Outbound TCP goes to port 15001, inbound to 15006, DNS to 15053; the original destination stays readable through
//! `SO_ORIGINAL_DST`. Istio recognizes its proxy's own packets by the user id 1337. On one machine there may be no spare user
//! (an unprivileged namespace maps a single one), so the proxy marks its sockets with [`PROXY_MARK`] instead.
//!
//! In the mode TPROXY inbound connections are not redirected: the kernel delivers them to the sidecar with their addresses
//! unchanged, and the sidecar connects to its application with the client's address. The application's answers are addressed
//! to the client, so they have to be routed back to the sidecar, by [`CLIENT_MARK`]. The control plane sets this mark of such
//! connections in the proxy, as Istio's does (`OriginalSrc.mark`).

use std::net::Ipv4Addr;

use evenkeel_api::annotations::CaptureRules;
use evenkeel_base::cidr::IpNet;

/// Socket mark of all traffic of the proxy and the agent themselves. Istio also sets this mark on its proxy's traffic.
pub const PROXY_MARK: u32 = 1338;
/// The field of packets (RFC 2474) by which the egress process tells connections of a sidecar from those that a program
/// makes past it, since marks do not leave the replica's network. Programs cannot set it: the rules clear it.
pub const PROXY_DSCP: &str = "0x2b";
/// Mark of the connections between a sidecar and its application that have the client's address, as in Istio.
const CLIENT_MARK: u32 = 1337;
/// Port for captured outbound connections.
pub const OUTBOUND_PORT: u16 = 15001;
/// Port for captured inbound connections.
pub const INBOUND_PORT: u16 = 15006;
/// Port for captured DNS queries.
pub const DNS_PORT: u16 = 15053;
/// Source address of connections from a sidecar to its own application (Istio's `InboundPassthroughBindIpv4`).
pub const INBOUND_SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
/// Ports served by the sidecar itself, which are never captured: HBONE, admin, agent health, readiness, Prometheus.
pub const SIDECAR_PORTS: [u16; 5] = [15008, 15000, 15020, 15021, 15090];

/// How inbound connections are redirected to the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Redirected: the application sees the sidecar's address.
    Redirect,
    /// By TPROXY: the application sees the client's address.
    Transparent,
}

/// How a replica's traffic is captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    /// Rules for `nft`.
    pub rules: String,
    /// Routes that the rules rely on, as a script for `ip`.
    pub routes: String,
}

impl Capture {
    /// The rules for one replica. `control_plane` is reachable without capture, as the sidecar needs it first. `rules` say
    /// which connections the sidecar gets, in the order of Istio's `istio-iptables`: what is excluded, then the ports that
    /// are included, then the ranges. Without `dns` the workload asks the cluster's name server itself.
    pub fn new(mode: Mode, control_plane: Ipv4Addr, rules: &CaptureRules, dns: bool) -> Self {
        let (inbound, routes) = match mode {
            Mode::Redirect => (redirected(rules), String::new()),
            Mode::Transparent => (transparent(rules), client_routes()),
        };
        let (outbound, origin) = (outbound_chain(control_plane, rules, dns), origin_chain());
        Self { rules: format!("table ip evenkeel {{\n{inbound}{outbound}{origin}}}\n"), routes }
    }
}

/// Keeps the traffic with the client's address between the sidecar and its application on this machine: packets with the mark
/// [`CLIENT_MARK`] are routed by Istio's routing table.
fn client_routes() -> String {
    const TABLE: u32 = 133;
    format!("rule add fwmark {CLIENT_MARK} lookup {TABLE}\nroute add local 0.0.0.0/0 dev lo table {TABLE}\n")
}

/// Inbound connections that are redirected.
fn redirected(rules: &CaptureRules) -> String {
    let captured = inbound(rules, &format!("redirect to :{INBOUND_PORT}"));
    format!(
        "  chain inbound {{
    type nat hook prerouting priority dstnat; policy accept;
{}    tcp dport {{ {} }} return
{captured}  }}
",
        interfaces("iifname", rules),
        own_ports()
    )
}

/// Inbound connections that the kernel gives to the sidecar as they are.
fn transparent(rules: &CaptureRules) -> String {
    let captured = inbound(rules, &format!("tproxy to :{INBOUND_PORT} meta mark set {CLIENT_MARK} accept"));
    format!(
        "  chain inbound {{
    type filter hook prerouting priority mangle; policy accept;
{}    # The sidecar calling its application as the client, and the answers. The connection is remembered by its mark.
    meta l4proto tcp meta mark {CLIENT_MARK} ct mark set {CLIENT_MARK} return
    # The sidecar calling its application as itself.
    iifname lo ip saddr {INBOUND_SOURCE} return
    # The application talking to itself.
    iifname lo meta mark != {PROXY_MARK} return
    ip daddr 127.0.0.0/8 return
    tcp dport {{ {} }} return
{captured}  }}
  chain answers {{
    type route hook output priority mangle; policy accept;
    # The application's answers are addressed to the client, and belong to the sidecar.
    meta l4proto tcp ct mark {CLIENT_MARK} meta mark set {CLIENT_MARK}
  }}
",
        interfaces("iifname", rules),
        own_ports()
    )
}

/// Says in each packet whether the sidecar sends it.
fn origin_chain() -> String {
    format!(
        "  chain origin {{
    type filter hook output priority mangle; policy accept;
    meta l4proto tcp meta mark {PROXY_MARK} ip dscp set {PROXY_DSCP} return
    ip dscp {PROXY_DSCP} ip dscp set 0x00
  }}
"
    )
}

fn own_ports() -> String {
    SIDECAR_PORTS.map(|port| port.to_string()).join(", ")
}

/// Outbound connections, which are redirected in either mode.
fn outbound_chain(control_plane: Ipv4Addr, rules: &CaptureRules, dns: bool) -> String {
    let no_ports = ports("return", &rules.except_outbound_ports);
    let no_interfaces = interfaces("oifname", rules);
    let captured = outbound(rules);
    let names = match dns {
        true => format!("    udp dport 53 redirect to :{DNS_PORT}\n    tcp dport 53 redirect to :{DNS_PORT}\n"),
        false => String::new(),
    };
    format!(
        "  chain outbound {{
    type nat hook output priority -100; policy accept;
{no_interfaces}    # The sidecar calling its own application.
    oifname lo ip saddr {INBOUND_SOURCE} return
{no_ports}    # The application called its own service and the sidecar picked this very replica: through the inbound side, as from anywhere.
    oifname lo ip daddr != 127.0.0.1 meta l4proto tcp tcp dport != 15008 meta mark {PROXY_MARK} redirect to :{INBOUND_PORT}
    # Everything else the sidecar sends is final.
    meta mark {PROXY_MARK} return
    ip daddr {control_plane} return
{names}    # The application talking to itself, by loopback or by its own address.
    oifname lo return
    ip daddr 127.0.0.1 return
{captured}  }}
"
    )
}

/// Which inbound connections the sidecar gets, and how.
fn inbound(rules: &CaptureRules, verdict: &str) -> String {
    match &rules.inbound_ports {
        None => {
            let except = ports("return", &rules.except_inbound_ports);
            format!("{except}    meta l4proto tcp {verdict}\n")
        }
        Some(only) => ports(verdict, only),
    }
}

/// Which outbound connections the sidecar gets.
fn outbound(rules: &CaptureRules) -> String {
    let redirect = format!("redirect to :{OUTBOUND_PORT}");
    let mut lines = ranges("return", &rules.except_outbound_ranges);
    lines += &ports(&redirect, &rules.outbound_ports);
    lines += &match &rules.outbound_ranges {
        None => format!("    meta l4proto tcp {redirect}\n"),
        Some(only) => ranges(&redirect, only),
    };
    lines
}

/// A rule that leaves what passes the excluded interfaces as it is, DNS included; none without interfaces.
fn interfaces(direction: &str, rules: &CaptureRules) -> String {
    match rules.except_interfaces.as_slice() {
        [] => String::new(),
        names => {
            // The names have been validated: nothing else can be between the quotation marks.
            let list = names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
            format!("    {direction} {{ {list} }} return\n")
        }
    }
}

/// A rule for TCP to these ports; none without ports.
fn ports(verdict: &str, ports: &[u16]) -> String {
    match ports {
        [] => String::new(),
        ports => {
            let list = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
            format!("    tcp dport {{ {list} }} {verdict}\n")
        }
    }
}

/// A rule for TCP to each of these ranges. Replicas have no IPv6 addresses.
fn ranges(verdict: &str, ranges: &[IpNet]) -> String {
    let ours = ranges.iter().filter(|range| matches!(range, IpNet::V4(_)));
    ours.map(|range| format!("    ip daddr {range} meta l4proto tcp {verdict}\n")).collect()
}

/// A rule set that only tests whether the kernel can redirect, which is known once it is loaded.
pub const PROBE: &str = "\
table ip evenkeel_probe {
  chain outbound {
    type nat hook output priority -100; policy accept;
    tcp dport 1 redirect to :1
  }
}
delete table ip evenkeel_probe
";

#[cfg(test)]
mod tests {
    use evenkeel_base::cidr;

    use super::*;

    /// The rules that annotations change, without indentation.
    fn shown(rules: &CaptureRules) -> Vec<String> {
        let text = Capture::new(Mode::Redirect, Ipv4Addr::new(10, 0, 0, 1), rules, true).rules;
        let is_one = |line: &&str| {
            line.contains(&format!(":{OUTBOUND_PORT}"))
                || line.contains("l4proto tcp return")
                || line.contains("ifname {")
                || line.starts_with("tcp dport {") && !line.contains("15008")
                || **line == *format!("meta l4proto tcp redirect to :{INBOUND_PORT}")
        };
        text.lines().map(str::trim).filter(is_one).map(str::to_owned).collect()
    }

    #[test]
    fn annotations_say_which_connections_are_captured() {
        let check = |rules: CaptureRules, expected: &[&str]| assert_eq!(shown(&rules), expected, "{rules:?}");
        let all = CaptureRules::default;
        let (inbound, outbound) = ("meta l4proto tcp redirect to :15006", "meta l4proto tcp redirect to :15001");
        check(all(), &[inbound, outbound]);
        check(
            CaptureRules { except_inbound_ports: vec![22, 9000], ..all() },
            &["tcp dport { 22, 9000 } return", inbound, outbound],
        );
        check(
            CaptureRules { inbound_ports: Some(vec![80]), except_inbound_ports: vec![22], ..all() },
            &["tcp dport { 80 } redirect to :15006", outbound],
        );
        check(CaptureRules { inbound_ports: Some(vec![]), ..all() }, &[outbound]);
        check(
            CaptureRules { except_outbound_ports: vec![3306], ..all() },
            &[inbound, "tcp dport { 3306 } return", outbound],
        );
        let net = |text: &str| cidr::parse(text).expect("a range");
        check(
            CaptureRules { except_outbound_ranges: vec![net("10.9.0.0/16"), net("fd00::/8")], ..all() },
            &[inbound, "ip daddr 10.9.0.0/16 meta l4proto tcp return", outbound],
        );
        check(
            CaptureRules {
                outbound_ranges: Some(vec![net("10.96.0.0/12")]),
                except_outbound_ranges: vec![net("10.97.0.0/16")],
                outbound_ports: vec![443],
                ..all()
            },
            &[
                inbound,
                "ip daddr 10.97.0.0/16 meta l4proto tcp return",
                "tcp dport { 443 } redirect to :15001",
                "ip daddr 10.96.0.0/12 meta l4proto tcp redirect to :15001",
            ],
        );
        check(CaptureRules { outbound_ranges: Some(vec![]), ..all() }, &[inbound]);
        check(
            CaptureRules { except_interfaces: vec!["eth1".to_owned(), "br-0".to_owned()], ..all() },
            &["iifname { \"eth1\", \"br-0\" } return", inbound, "oifname { \"eth1\", \"br-0\" } return", outbound],
        );
    }

    #[test]
    fn tproxy_takes_inbound_connections_as_they_are_and_brings_answers_back() {
        let check = |rules: CaptureRules, expected: &str| {
            let Capture { rules: text, routes } =
                Capture::new(Mode::Transparent, Ipv4Addr::new(10, 0, 0, 1), &rules, true);
            let lines: Vec<_> = text.lines().map(str::trim).filter(|line| line.contains("tproxy")).collect();
            assert_eq!(lines, [expected], "{text}");
            assert!(text.contains("meta l4proto tcp ct mark 1337 meta mark set 1337"), "{text}");
            assert!(routes.starts_with(&format!("rule add fwmark {CLIENT_MARK} lookup ")), "{routes}");
            // The sidecar's traffic with the client's address is neither captured again nor taken for its own.
            assert_ne!(CLIENT_MARK, PROXY_MARK);
        };
        check(CaptureRules::default(), "meta l4proto tcp tproxy to :15006 meta mark set 1337 accept");
        let only = CaptureRules { inbound_ports: Some(vec![80, 81]), ..CaptureRules::default() };
        check(only, "tcp dport { 80, 81 } tproxy to :15006 meta mark set 1337 accept");
        let except = CaptureRules { except_interfaces: vec!["eth1".to_owned()], ..CaptureRules::default() };
        let text = Capture::new(Mode::Transparent, Ipv4Addr::new(10, 0, 0, 1), &except, true).rules;
        let is_first = |chain: &str, rule: &str| {
            let lines = text.split_once(&format!("chain {chain} {{")).expect("the chain").1.lines();
            assert_eq!(lines.map(str::trim).nth(2), Some(rule), "{text}");
        };
        is_first("inbound", "iifname { \"eth1\" } return");
        is_first("outbound", "oifname { \"eth1\" } return");
    }
}
