//! The rules that bring a replica's traffic to its sidecar: Istio's redirect rules, said in nftables.
//!
//! Outbound TCP goes to 15001, inbound to 15006, DNS to 15053; the original destination stays readable through
//! `SO_ORIGINAL_DST`. Istio tells its proxy's own packets by user id 1337; one machine has no user to spare for that
//! (an unprivileged namespace maps a single one), so the proxy marks its sockets with 1337 instead.

use std::net::Ipv4Addr;

/// Socket mark of everything the proxy and the agent send themselves.
pub const PROXY_MARK: u32 = 1337;
/// Where captured outbound connections arrive.
pub const OUTBOUND_PORT: u16 = 15001;
/// Where captured inbound connections arrive.
pub const INBOUND_PORT: u16 = 15006;
/// Where captured DNS queries arrive.
pub const DNS_PORT: u16 = 15053;
/// Source address of connections from a sidecar to its own application (Istio's `InboundPassthroughBindIpv4`).
pub const INBOUND_SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
/// Ports served by the sidecar itself, which are never captured: HBONE, admin, agent health, readiness, Prometheus.
pub const SIDECAR_PORTS: [u16; 5] = [15008, 15000, 15020, 15021, 15090];

/// The rule set for one captured replica. `control_plane` is reachable without capture, as the sidecar needs it first.
pub fn ruleset(control_plane: Ipv4Addr) -> String {
    let own_ports = SIDECAR_PORTS.map(|port| port.to_string()).join(", ");
    format!(
        "\
table ip evenkeel {{
  chain inbound {{
    type nat hook prerouting priority dstnat; policy accept;
    tcp dport {{ {own_ports} }} return
    meta l4proto tcp redirect to :{INBOUND_PORT}
  }}
  chain outbound {{
    type nat hook output priority -100; policy accept;
    # The sidecar calling its own application.
    oifname lo ip saddr {INBOUND_SOURCE} return
    # The application called its own service and the sidecar picked this very replica: through the inbound side, as from anywhere.
    oifname lo ip daddr != 127.0.0.1 meta l4proto tcp tcp dport != 15008 meta mark {PROXY_MARK} redirect to :{INBOUND_PORT}
    # Everything else the sidecar sends is final.
    meta mark {PROXY_MARK} return
    ip daddr {control_plane} return
    udp dport 53 redirect to :{DNS_PORT}
    tcp dport 53 redirect to :{DNS_PORT}
    # The application talking to itself, by loopback or by its own address.
    oifname lo return
    ip daddr 127.0.0.1 return
    meta l4proto tcp redirect to :{OUTBOUND_PORT}
  }}
}}
"
    )
}

/// A rule set that does nothing but ask the kernel whether it can redirect; loading it is the test.
pub const PROBE: &str = "\
table ip evenkeel_probe {
  chain outbound {
    type nat hook output priority -100; policy accept;
    tcp dport 1 redirect to :1
  }
}
delete table ip evenkeel_probe
";
