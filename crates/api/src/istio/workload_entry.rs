//! WorkloadEntry: a workload that is not a Pod, such as a virtual machine; also the endpoints of ServiceEntries.

use std::collections::BTreeMap;
use std::net::IpAddr;

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use crate::decode::{Context, Label, Port};

/// The label by which a proxy says whether it accepts mutual TLS.
const TLS_MODE_LABEL: &str = "security.istio.io/tlsMode";

object! {
    /// A workload that is not a Pod.
    pub struct WorkloadEntry {
        /// The specification.
        spec: WorkloadEntrySpec = "spec",
        /// What is known of it.
        status: Option<WorkloadEntryStatus> = "status",
    }
    check: check;
}

object! {
    /// One endpoint.
    pub struct WorkloadEntrySpec {
        /// An address, a DNS name (resolution DNS) or `unix://PATH`.
        address: Option<Spanned<String>> = "address",
        /// Its ports, by the names of the service's ports.
        ports: BTreeMap<String, Port> = "ports",
        /// Its labels.
        labels: BTreeMap<String, String> = "labels",
        /// The network it is in; the same network if not given.
        network: Option<String> = "network",
        /// Where it is, `region/zone/subzone`.
        locality: Option<String> = "locality",
        /// Its share.
        weight: Option<u32> = "weight",
        /// The service account of its identity.
        service_account: Option<Label> = "serviceAccount",
    }
}

object! {
    /// What is known of a workload.
    pub struct WorkloadEntryStatus {
        /// Its conditions.
        conditions: Vec<WorkloadCondition> = "conditions",
    }
    inert: ["validationMessages", "observedGeneration"];
}

object! {
    /// A condition.
    pub struct WorkloadCondition {
        /// Its name.
        kind: String = "type",
        /// `True` or `False`.
        status: String = "status",
    }
    inert: ["lastProbeTime", "lastTransitionTime", "reason", "message", "observedGeneration"];
}

impl WorkloadEntry {
    /// Whether it takes traffic: the condition `Healthy`, which its agent reports; without one it does.
    pub fn is_healthy(&self) -> bool {
        let conditions = self.status.iter().flat_map(|status| &status.conditions);
        conditions.filter(|condition| condition.kind == "Healthy").all(|condition| condition.status != "False")
    }
}

impl WorkloadEntrySpec {
    /// The address, if it is one and not a name or a socket.
    pub fn ip(&self) -> Option<IpAddr> {
        self.address.as_ref()?.parse().ok()
    }

    /// Whether its proxy accepts mutual TLS. Istio's `getTLSModeFromWorkloadEntry`: as the label says, else if it has an
    /// identity.
    pub fn takes_mtls(&self) -> bool {
        match self.labels.get(TLS_MODE_LABEL) {
            Some(mode) => mode == "istio",
            None => self.service_account.is_some(),
        }
    }
}

/// Reports an address that is neither an IP address nor a name nor a socket.
pub(super) fn check_address(address: &Spanned<String>, cx: &mut Context) {
    let is_ip = address.parse::<IpAddr>().is_ok();
    if !address.starts_with("unix://") && !is_ip && Hostname::parse(address).is_err() {
        let message = format!("`{}` is neither an IP address nor a DNS name", address.value);
        cx.error("bad-address", &address.span, message, "expected `10.0.0.7`, `db.example.com` or `unix:///path`");
    }
}

fn check(entry: &WorkloadEntry, node: &Node, cx: &mut Context) {
    cx.at_field("spec", |cx| match &entry.spec.address {
        None if entry.spec.network.is_none() => {
            cx.error("missing-field", &node.span, "a WorkloadEntry needs an `address`", "add `address: 10.0.0.7`");
        }
        None => {}
        Some(address) => cx.at_field("address", |cx| check_address(address, cx)),
    });
}
