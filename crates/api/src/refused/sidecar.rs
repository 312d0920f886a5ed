//! Stand-ins for refused Sidecars: their workloads can call only known services, unless the document clearly allows
//! more.

use evenkeel_base::yaml::{Mapping, Node, Value};

use super::parts::{labels, sound};
use crate::istio::{LabelsSelector, OutboundTrafficPolicyMode, Sidecar, SidecarOutboundTrafficPolicy, SidecarSpec};

/// Fields that the document may have.
const FIELDS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
/// Fields of `spec` that do not change the meaning of other fields.
const SPEC_FIELDS: [&str; 5] =
    ["workloadSelector", "ingress", "egress", "inboundConnectionPool", "outboundTrafficPolicy"];

/// REGISTRY_ONLY, with whatever else can be read. `None`: the document clearly allows any call or leaves it to the
/// mesh, which is also what holds without the Sidecar.
pub(super) fn sidecar(document: &Mapping) -> Option<Sidecar> {
    let spec = document.get("spec").filter(|spec| !spec.is_null());
    let has_only = |mapping: Option<&Mapping>, known: &[&str]| {
        mapping.is_some_and(|mapping| mapping.iter().all(|entry| known.contains(&&*entry.key)))
    };
    // An unknown field may be a misspelt `outboundTrafficPolicy`.
    let is_clear = has_only(Some(document), &FIELDS) && has_only(spec.and_then(Node::as_mapping), &SPEC_FIELDS);
    let policy = spec.and_then(|spec| spec.get("outboundTrafficPolicy")).filter(|policy| !policy.is_null());
    let allows = |policy: SidecarOutboundTrafficPolicy| {
        // Traffic for an egress proxy must be checked there, so it is not simply allowed.
        policy.mode == Some(OutboundTrafficPolicyMode::AllowAny) && policy.egress_proxy.is_none()
    };
    let is_open = match policy {
        None => is_clear,
        Some(policy) => sound(policy).is_some_and(allows),
    };
    if is_open {
        return None;
    }
    let mut closed = registry_only();
    let Some(spec) = spec else { return Some(closed) };
    let alone = |name: &str| {
        let entry = spec.as_mapping()?.iter().find(|entry| &*entry.key == name)?;
        let alone = Node { value: Value::Mapping(Mapping(vec![entry.clone()])), span: spec.span.clone() };
        sound::<SidecarSpec>(&alone)
    };
    closed.spec.ingress = alone("ingress").map(|spec| spec.ingress).unwrap_or_default();
    closed.spec.egress = alone("egress").map(|spec| spec.egress).unwrap_or_default();
    closed.spec.inbound_connection_pool = alone("inboundConnectionPool").and_then(|spec| spec.inbound_connection_pool);
    let labels = labels(spec.at_path("workloadSelector.labels"));
    closed.spec.workload_selector = (!labels.is_empty()).then_some(LabelsSelector { labels });
    Some(closed)
}

/// The stand-in for all workloads of a namespace.
pub(super) fn registry_only() -> Sidecar {
    let mode = Some(OutboundTrafficPolicyMode::RegistryOnly);
    Sidecar {
        spec: SidecarSpec {
            workload_selector: None,
            ingress: Vec::new(),
            egress: Vec::new(),
            inbound_connection_pool: None,
            outbound_traffic_policy: Some(SidecarOutboundTrafficPolicy { mode, egress_proxy: None }),
        },
    }
}
