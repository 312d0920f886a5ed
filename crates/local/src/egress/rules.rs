//! Network rules for egress in the mesh's own network: addresses, redirect rules, routes of replicas.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

use evenkeel_capture::{PROXY_DSCP, PROXY_MARK};

use crate::addresses::{BRIDGE, BRIDGE_ADDRESS, NAME_SERVER, POD_PREFIX};
use crate::network_error::NetworkError;
use crate::tools::Tools;

/// The machine's address in the mesh: a connection to it goes to 127.0.0.1 of the machine. No replica gets this
/// address.
pub const MACHINE: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 2);
/// Its names; the second is Docker Desktop's, which many manifests use.
pub const MACHINE_NAMES: [&str; 2] = ["host.evenkeel.internal", "host.docker.internal"];
/// The services' virtual addresses, 10.96.0.0/12: they never leave the mesh.
pub const SERVICES: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 96, 0, 0), 12);
/// Reserved addresses, 240.0.0.0/4, from which ServiceEntries without an address get theirs: they never leave the mesh
/// either.
pub const RESERVED: (Ipv4Addr, u8) = (Ipv4Addr::new(240, 0, 0, 0), 4);
/// Port for connections of sidecars and gateways, which have applied the mesh's policy.
pub const PROXIES_PORT: u16 = 15097;
/// Port for connections of replicas without a sidecar, and of programs past their sidecar.
pub const PLAIN_PORT: u16 = 15098;
/// The set of replicas without a sidecar.
pub const PLAIN_SET: &str = "plain";
/// The set of replicas with a sidecar. Connections that their sidecars make have [`PROXY_DSCP`].
pub const CAPTURED_SET: &str = "captured";

/// Whether the rules apply to packets within a bridge.
const BRIDGE_RULES: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";

/// A replica's access to destinations outside the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressAccess {
    /// Whether it has no sidecar; then the mesh's policy about traffic that leaves it is applied here.
    pub plain: bool,
    /// Whether egress is enabled.
    pub open: bool,
}

/// The network's address of a prefix that `address` is in.
pub(crate) fn network(address: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    Ipv4Addr::from(u32::from(address) & mask)
}

/// Installs addresses and rules in the mesh's own network. Without `open` connections to the outside are refused at
/// once.
pub fn install(tools: &Tools, open: bool) -> Result<(), NetworkError> {
    route_between_replicas()?;
    let machine = if open { format!("addr add {MACHINE}/32 dev lo\n") } else { String::new() };
    tools.ip(&format!("addr add {NAME_SERVER}/32 dev lo\n{machine}{}", own_routes(open)))?;
    tools.nft(&ruleset(open))?;
    Ok(())
}

/// Lets packets pass from one replica to another. They leave by the interface that they came from, which the kernel would
/// otherwise tell their senders, with a better route that replicas do not have.
fn route_between_replicas() -> Result<(), NetworkError> {
    let own = format!("conf/{BRIDGE}/send_redirects");
    for (name, value) in [("ip_forward", "1"), ("conf/all/send_redirects", "0"), (&own, "0")] {
        let path = Path::new("/proc/sys/net/ipv4").join(name);
        let what = path.display().to_string();
        fs::write(&path, value).map_err(|source| NetworkError::File { what, source })?;
    }
    // On machines with Docker the bridge would apply the rules, too, and would not return a packet to where it came from: only
    // a replica that calls itself would notice. Each network has this setting since Linux 5.3; before, the file is not in this
    // one.
    let _ = OpenOptions::new().write(true).open(BRIDGE_RULES).and_then(|mut file| file.write_all(b"0"));
    Ok(())
}

/// Routes of what runs in the mesh's own network, as a script for `ip`: the control plane fetches keys of issuers, which may be
/// services of the mesh, programs of the machine, or elsewhere. They lead to rules that redirect these connections, too.
fn own_routes(open: bool) -> String {
    let (services, prefix) = SERVICES;
    let out = if open { format!("route add default dev lo src {BRIDGE_ADDRESS}\n") } else { String::new() };
    format!("route add {services}/{prefix} dev lo src {BRIDGE_ADDRESS}\n{out}")
}

/// Whether a connection to the egress process comes from the mesh's own network: only there are these addresses local.
pub(crate) fn is_own(peer: Ipv4Addr) -> bool {
    [BRIDGE_ADDRESS, MACHINE].contains(&peer)
}

/// Redirects connections to the egress process, which gets their destination from `SO_ORIGINAL_DST`; nothing else
/// leaves. Connections to Services with a ready replica do not come here ([`crate::service_rules`]); those to other virtual
/// addresses are refused.
fn ruleset(open: bool) -> String {
    let pods = format!("{}/{POD_PREFIX}", network(BRIDGE_ADDRESS, POD_PREFIX));
    let virtual_addresses = [SERVICES, RESERVED].map(|(first, prefix)| format!("{first}/{prefix}")).join(", ");
    let (services, prefix) = SERVICES;
    // What no sidecar has judged.
    let unjudged = |to: &str| {
        let by = [format!("@{PLAIN_SET}"), format!("@{CAPTURED_SET} ip dscp != {PROXY_DSCP:#04x}")];
        by.map(|from| format!("    {to}meta l4proto tcp ip saddr {from} redirect to :{PLAIN_PORT}\n")).concat()
    };
    let out = if open {
        format!(
            "{}    ip daddr {MACHINE} meta l4proto tcp redirect to :{PROXIES_PORT}\n    \
             ip daddr {{ {pods}, {virtual_addresses} }} return\n{}    meta l4proto tcp redirect to :{PROXIES_PORT}\n",
            unjudged(&format!("ip daddr {MACHINE} ")),
            unjudged("")
        )
    } else {
        String::new()
    };
    let own = if open {
        format!(
            "    ip daddr {MACHINE} meta l4proto tcp dnat to {BRIDGE_ADDRESS}:{PLAIN_PORT}\n    \
             ip daddr {{ {pods}, {NAME_SERVER}, 127.0.0.0/8 }} return\n    \
             meta l4proto tcp dnat to {BRIDGE_ADDRESS}:{PLAIN_PORT}\n"
        )
    } else {
        // Refused there, as nothing else would answer.
        format!(
            "    ip daddr {NAME_SERVER} return\n    \
             ip daddr {services}/{prefix} meta l4proto tcp dnat to {BRIDGE_ADDRESS}:{PLAIN_PORT}\n"
        )
    };
    format!(
        "\
table ip evenkeel_egress {{
  # Replicas without a sidecar, and those with one.
  set {PLAIN_SET} {{ type ipv4_addr; }}
  set {CAPTURED_SET} {{ type ipv4_addr; }}
  chain redirected {{
    type nat hook prerouting priority dstnat; policy accept;
    iifname != {BRIDGE} return
    ip daddr {NAME_SERVER} return
{out}  }}
  # The control plane.
  chain own {{
    type nat hook output priority -100; policy accept;
{own}  }}
  chain refused {{
    type filter hook prerouting priority filter; policy accept;
    iifname != {BRIDGE} return
    ip daddr {{ {pods}, {NAME_SERVER} }} return
    # A reset ends what the sender's netfilter remembers of the attempt, too.
    ip daddr {{ {virtual_addresses} }} meta l4proto tcp reject with tcp reset
    # Said so that a connected UDP socket hears of it, too (RFC 1812 section 5.2.7.1, code 13).
    reject with icmp type admin-prohibited
  }}
}}
"
    )
}

/// Adds a replica to one of the sets; runs in the mesh's own network.
pub fn add(address: Ipv4Addr, set: &str, tools: &Tools) -> Result<(), NetworkError> {
    tools.nft(&format!("add element ip evenkeel_egress {set} {{ {address} }}\n"))?;
    Ok(())
}

/// Routes for a sidecar's own connections, as a script for `ip`: to the mesh, to addresses of Services and, if it is enabled,
/// to egress. Reserved addresses are unreachable, so that connections to them fail at once.
///
/// A connection attempt that is dropped silently would do more harm than the wait: netfilter remembers it for two
/// minutes as one without redirection, and the application's next connection with the same source port would not be
/// redirected either.
pub fn sidecar_routes(own: Ipv4Addr, egress: EgressAccess) -> String {
    let pods = network(BRIDGE_ADDRESS, POD_PREFIX);
    let table = format!("table {PROXY_MARK}\n");
    let via = format!("via {BRIDGE_ADDRESS} dev eth0 src {own} {table}");
    let ((services, services_prefix), (reserved, reserved_prefix)) = (SERVICES, RESERVED);
    let default =
        if egress.open { format!("route add default {via}") } else { format!("route add unreachable default {table}") };
    format!(
        "rule add fwmark {PROXY_MARK} lookup {PROXY_MARK}\nroute add {BRIDGE_ADDRESS} dev eth0 src {own} {table}\
         route add {pods}/{POD_PREFIX} {via}route add {services}/{services_prefix} {via}\
         route add unreachable {reserved}/{reserved_prefix} {table}{default}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_way_out_nothing_is_redirected_out_of_the_mesh() {
        let redirects = |open: bool| {
            let rules = ruleset(open);
            let lines = rules.lines().filter(|line| line.contains("redirect to") || line.contains(" return"));
            lines.map(str::trim).collect::<Vec<_>>().join("\n")
        };
        assert!(!redirects(false).contains("redirect to"), "{}", redirects(false));
        let open = redirects(true);
        assert!(open.contains("\nmeta l4proto tcp redirect to :15097\n"), "{open}");
        let past_it = "ip saddr @captured ip dscp != 0x2b redirect to :15098";
        assert_eq!(open.matches(past_it).count(), 2, "{open}");
        assert!(open.contains("\nip daddr { 10.244.0.0/16, 10.96.0.0/12, 240.0.0.0/4 } return\n"), "{open}");
    }

    #[test]
    fn a_sidecar_reaches_services_but_no_reserved_address() {
        for open in [false, true] {
            let routes = sidecar_routes(Ipv4Addr::new(10, 244, 1, 1), EgressAccess { plain: false, open });
            assert!(routes.contains("route add 10.96.0.0/12 via 10.244.0.1 dev eth0"), "{routes}");
            assert!(routes.contains("unreachable 240.0.0.0/4"), "{routes}");
            assert_eq!(routes.contains("unreachable default"), !open, "{routes}");
        }
    }

    #[test]
    fn a_network_is_what_its_prefix_leaves_of_an_address() {
        let check = |address: [u8; 4], prefix, expected: [u8; 4]| {
            assert_eq!(network(address.into(), prefix), Ipv4Addr::from(expected));
        };
        check([10, 244, 0, 1], 16, [10, 244, 0, 0]);
        check([10, 111, 255, 255], 12, [10, 96, 0, 0]);
        check([10, 112, 0, 1], 12, [10, 112, 0, 0]);
        check([1, 2, 3, 4], 32, [1, 2, 3, 4]);
        check([1, 2, 3, 4], 0, [0, 0, 0, 0]);
    }
}
