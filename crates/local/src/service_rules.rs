//! Addresses of Services in the mesh's network, as kube-proxy makes them on a cluster's nodes: nftables rules take each new
//! connection to a Service's address to one of its ready replicas.
//!
//! Replicas reach each other through the mesh's own network (each has a network of one address), so the rules there see
//! both directions, and the server sees the client's own address.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::addresses::BRIDGE;
use crate::cluster::{self, Cluster};
use crate::pods::RosterView;
use crate::tools::Tools;

/// How often the control plane is asked while replicas are changing.
const BUSY_PERIOD: Duration = Duration::from_millis(20);
/// How often it is asked otherwise.
const IDLE_PERIOD: Duration = Duration::from_millis(200);
/// How long replicas count as changing after the last change: the control plane knows of it before that.
const BUSY_TIME: Duration = Duration::from_secs(1);

/// Pause after the kernel has refused the rules, before the next try.
const FAILED_PAUSE: Duration = Duration::from_secs(2);

/// The addresses behind Services to which new connections may be sent by the rules in force.
pub(crate) type Behind = BTreeSet<Ipv4Addr>;

/// A Service's address and port; `true`: for UDP.
type Virtual = (Ipv4Addr, bool, u16);

/// Keeps the rules up to date until dropped, and publishes which replicas they lead to.
pub(crate) async fn follow(tools: Tools, mut replicas: RosterView, behind: watch::Sender<Behind>) {
    let (mut known, mut applied) = (None, None);
    let mut busy_until = Instant::now() + BUSY_TIME;
    loop {
        match cluster::fetch(known).await {
            Ok(Cluster { generation, services: Some(services), .. }) => {
                let backends = backends(&services);
                if applied.as_ref() == Some(&backends) || apply(&tools, &backends).await {
                    behind.send_replace(backends.values().flatten().map(|backend| *backend.ip()).collect());
                    applied = Some(backends);
                    known = Some(generation);
                } else {
                    sleep(FAILED_PAUSE).await;
                }
            }
            Ok(_) => {}
            // It does not run yet, or is being restarted: another run counts generations anew.
            Err(error) => {
                tracing::debug!(error, "cannot get the mesh's services from the control plane");
                known = None;
            }
        }
        let period = if Instant::now() < busy_until { BUSY_PERIOD } else { IDLE_PERIOD };
        tokio::select! {
            changed = replicas.changed() => match changed {
                Ok(()) => busy_until = Instant::now() + BUSY_TIME,
                Err(_) => return,
            },
            () = sleep(period) => {}
        }
    }
}

/// Replaces the rules, as a whole or not at all; on another thread, because `nft` takes some milliseconds.
async fn apply(tools: &Tools, backends: &BTreeMap<Virtual, Vec<SocketAddrV4>>) -> bool {
    let (tools, rules) = (tools.clone(), ruleset(backends));
    let done = tokio::task::spawn_blocking(move || tools.nft(&rules)).await;
    match done {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the addresses of Services are out of date");
            false
        }
        Err(_) => false,
    }
}

/// The ready replicas behind each address and port. A Service without any is not among them, so its connections are
/// refused.
fn backends(services: &[cluster::Service]) -> BTreeMap<Virtual, Vec<SocketAddrV4>> {
    let mut all = BTreeMap::new();
    for service in services {
        for ip in service.ips() {
            let IpAddr::V4(ip) = ip else { continue };
            for port in &service.ports {
                let replicas: Vec<SocketAddrV4> =
                    port.endpoints.iter().filter_map(cluster::Endpoint::replica).collect();
                if !replicas.is_empty() {
                    all.entry((ip, port.udp, port.number)).or_insert(replicas);
                }
            }
        }
    }
    all
}

/// The rules, as a script for `nft` that replaces earlier ones.
fn ruleset(backends: &BTreeMap<Virtual, Vec<SocketAddrV4>>) -> String {
    let (mut chains, mut services) = (String::new(), Vec::new());
    let mut itself = BTreeSet::new();
    for (number, ((ip, udp, port), replicas)) in backends.iter().enumerate() {
        let protocol = if *udp { "udp" } else { "tcp" };
        services.push(format!("{ip} . {protocol} . {port} : goto service_{number}"));
        itself.extend(replicas.iter().map(|replica| *replica.ip()));
        let choice = replicas.iter().enumerate();
        let choice: Vec<String> = choice.map(|(n, to)| format!("{n} : {} . {}", to.ip(), to.port())).collect();
        let _ = writeln!(
            chains,
            "  chain service_{number} {{\n    meta l4proto {protocol} dnat ip addr . port to numgen random mod {} map {{ {} }}\n  }}",
            replicas.len(),
            choice.join(", ")
        );
    }
    let itself: Vec<String> = itself.iter().map(|ip| format!("{ip} . {ip}")).collect();
    let elements = |all: &[String]| match all {
        [] => String::new(),
        all => format!("    elements = {{ {} }}\n", all.join(", ")),
    };
    format!(
        "add table ip evenkeel_services\ndelete table ip evenkeel_services\ntable ip evenkeel_services {{
{chains}  map services {{
    type ipv4_addr . inet_proto . inet_service : verdict
{}  }}
  set itself {{
    type ipv4_addr . ipv4_addr
{}  }}
  # Before the rules for what leaves the mesh.
  chain from_replicas {{
    type nat hook prerouting priority -110; policy accept;
    iifname {BRIDGE} ip daddr . ip protocol . th dport vmap @services
  }}
  # The control plane.
  chain from_here {{
    type nat hook output priority -110; policy accept;
    ip daddr . ip protocol . th dport vmap @services
  }}
  # A replica that called its own Service and was picked would take a packet with its own address for a forged one.
  chain to_itself {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr . ip daddr @itself masquerade
  }}
}}
",
        elements(&services),
        elements(&itself)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(services: &str) -> String {
        ruleset(&backends(&serde_json::from_str::<Vec<cluster::Service>>(services).expect("services")))
    }

    const WEB: &str = r#"[{"host": "web.shop.svc.cluster.local", "headless": false, "alias_of": null,
        "addresses": ["10.96.1.1/32", "fd00::1/128", "10.96.0.10"],
        "ports": [
            {"name": "http", "number": 80, "udp": false, "endpoints": [
                {"address": "10.244.1.1", "port": 8080, "host_name": null},
                {"address": "10.244.1.2", "port": 8080, "host_name": null},
                {"address": "192.0.2.1", "port": 8080, "host_name": null},
                {"address": "10.244.0.1", "port": 15012, "host_name": null}]},
            {"name": "dns", "number": 53, "udp": true, "endpoints": [
                {"address": "10.244.1.1", "port": 5353, "host_name": null}]},
            {"name": "idle", "number": 90, "udp": false, "endpoints": []}]}]"#;

    #[test]
    fn connections_go_to_ready_replicas_and_nowhere_else() {
        let rules = rules(WEB);
        let lines =
            |part: &str| -> Vec<&str> { rules.lines().map(str::trim).filter(|line| line.contains(part)).collect() };
        assert_eq!(
            lines("goto"),
            ["elements = { 10.96.1.1 . tcp . 80 : goto service_0, 10.96.1.1 . udp . 53 : goto service_1 }"]
        );
        assert_eq!(
            lines("numgen"),
            [
                "meta l4proto tcp dnat ip addr . port to numgen random mod 2 map { 0 : 10.244.1.1 . 8080, 1 : 10.244.1.2 . 8080 }",
                "meta l4proto udp dnat ip addr . port to numgen random mod 1 map { 0 : 10.244.1.1 . 5353 }",
            ]
        );
        assert!(rules.contains("elements = { 10.244.1.1 . 10.244.1.1, 10.244.1.2 . 10.244.1.2 }"), "{rules}");
    }

    /// Only root may make a network namespace without a process of its own for it.
    #[test]
    fn the_kernel_takes_the_rules_again_and_again() {
        if !crate::preflight::is_root() {
            return;
        }
        let loaded = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).map_err(|error| error.to_string())?;
            let tools = Tools::find().map_err(|error| error.to_string())?;
            [WEB, "[]", WEB]
                .iter()
                .try_for_each(|services| tools.nft(&rules(services)).map_err(|error| error.to_string()))
        });
        assert_eq!(loaded.join().ok(), Some(Ok(())));
    }
}
