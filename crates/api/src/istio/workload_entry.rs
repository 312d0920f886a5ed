//! WorkloadEntry: a workload that is not a Pod, such as a virtual machine; also the endpoints of ServiceEntries.

use std::collections::BTreeMap;
use std::net::IpAddr;

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use crate::decode::{Context, Label, Port};

/// The annotation of a WorkloadEntry whose health counts: with `true` it gets traffic only with the condition `Healthy`.
pub const HEALTH_CHECKS_ANNOTATION: &str = "proxy.istio.io/health-checks-enabled";

/// The label by which a proxy says whether it accepts mutual TLS.
const TLS_MODE_LABEL: &str = "security.istio.io/tlsMode";

object! {
    /// A workload that is not a Pod.
    pub struct WorkloadEntry {
        /// The specification.
        spec: WorkloadEntrySpec = "spec",
        /// Its status.
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
        /// The network it is in; not given: that of its clients.
        network: Option<String> = "network",
        /// Its locality, `region/zone/subzone`.
        locality: Option<String> = "locality",
        /// Its share.
        weight: Option<u32> = "weight",
        /// The service account of its identity.
        service_account: Option<Label> = "serviceAccount",
    }
}

object! {
    /// The status of a workload.
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
        /// When it was checked.
        last_probe_time: Option<String> = "lastProbeTime",
        /// Since when it has this status.
        last_transition_time: Option<String> = "lastTransitionTime",
        /// Why it is so.
        message: Option<String> = "message",
    }
    inert: ["reason", "observedGeneration"];
}

impl WorkloadEntry {
    /// Whether it takes traffic. Istio's `isHealthy`: the condition `Healthy` counts only with the annotation
    /// [`HEALTH_CHECKS_ANNOTATION`], and with that one it must be there.
    pub fn is_healthy(&self, annotations: &BTreeMap<String, Spanned<String>>) -> bool {
        let checked = annotations.get(HEALTH_CHECKS_ANNOTATION).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let mut conditions = self.status.iter().flat_map(|status| &status.conditions);
        let healthy = conditions.find(|condition| condition.kind == "Healthy");
        !checked || healthy.is_some_and(|condition| condition.status.eq_ignore_ascii_case("true"))
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
