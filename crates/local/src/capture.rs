//! How the traffic of replicas is captured: the settings of crate `capture` on one machine.
//!
//! Istio recognizes its proxy's own packets by the user id 1337. On one machine there may be no spare user (an unprivileged namespace maps
//! a single one), so the proxy marks its sockets instead. Marks do not leave the replica's network, so packets of the proxy also have a
//! value of DSCP, by which the egress process recognizes them.

use std::net::Ipv4Addr;

use evenkeel_api::istio::InterceptionMode;
use evenkeel_capture::{Capture, DnsCapture, PROXY_DSCP, ProxyIdentity};

use crate::workloads::{Sidecar, Workload};

/// What is captured of a workload's replicas; `None`: nothing. `control_plane` is reachable without capture, as the sidecar needs it
/// first.
pub(crate) fn of_workload(workload: &Workload, control_plane: Ipv4Addr) -> Option<Capture> {
    let proxy = &workload.proxy;
    let has_no_capture = matches!(workload.sidecar, Sidecar::None | Sidecar::Gateway);
    if has_no_capture || proxy.mode == InterceptionMode::None {
        return None;
    }
    let mut rules = workload.capture.clone();
    // The agent's page is not captured, at any port.
    rules.except_inbound_ports.extend(proxy.status_port.filter(|port| *port != 0));
    // Otherwise the workload asks the cluster's name server itself.
    let dns = if proxy.captures_dns == Some(false) { DnsCapture::Off } else { DnsCapture::All };
    Some(Capture {
        mode: proxy.mode,
        rules,
        proxy: ProxyIdentity::Mark,
        dns,
        direct: vec![control_plane.into()],
        proxy_dscp: Some(PROXY_DSCP),
        ..Capture::default()
    })
}

#[cfg(test)]
mod tests {
    use evenkeel_capture::nftables;

    use super::*;
    use crate::workloads::{Commands, Manifest};

    #[test]
    fn a_template_says_what_is_captured() {
        let check = |annotations: &str, expected: Option<&str>| {
            let text = format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  selector: {{matchLabels: {{app: web}}}}\n  \
                 template:\n    metadata:\n      labels: {{app: web}}\n      annotations: {{local.evenkeel.dev/run: ./web{annotations}}}\n    \
                 spec: {{containers: [{{name: web}}]}}\n"
            );
            let (objects, found) = evenkeel_api::load(&[("app.yaml".into(), text.into())]);
            assert!(!found.has_errors(), "{found}");
            let (manifest, _) = Manifest::read(&objects, &Commands::default(), &[]);
            let workload = manifest.workloads.first().expect("a workload");
            let capture = of_workload(workload, Ipv4Addr::new(10, 0, 0, 1));
            let text = capture.map(|capture| capture.rulesets().iter().map(nftables::render).collect::<String>());
            let has = |line: &str| text.as_ref().is_some_and(|text| text.lines().any(|known| known.trim() == line));
            assert!(expected.map_or(text.is_none(), has), "{annotations}: {text:?}");
        };
        check("", Some("ip daddr 10.0.0.1 return"));
        check("", Some("udp dport 53 redirect to :15053"));
        check(", status.sidecar.istio.io/port: '9020'", Some("tcp dport { 9020 } return"));
        check(", traffic.sidecar.istio.io/excludeOutboundPorts: '3306'", Some("tcp dport { 3306 } return"));
        let tproxy = "meta l4proto tcp tproxy to :15006 meta mark set 1337 accept";
        check(", sidecar.istio.io/interceptionMode: TPROXY", Some(tproxy));
        check(", sidecar.istio.io/interceptionMode: NONE", None);
        check(", sidecar.istio.io/inject: 'false'", None);
        let without_dns = ", proxy.istio.io/config: '{proxyMetadata: {ISTIO_META_DNS_CAPTURE: \"false\"}}'";
        check(&format!("{without_dns}, status.sidecar.istio.io/port: '7'"), Some("tcp dport { 7 } return"));
    }
}
