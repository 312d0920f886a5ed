//! WorkloadGroup: the template of the WorkloadEntries of workloads that register themselves.

use std::collections::BTreeMap;

use evenkeel_base::yaml::Node;

use super::readiness_probe::ReadinessProbe;
use super::workload_entry::WorkloadEntrySpec;
use crate::decode::Context;

object! {
    /// A group of workloads that are not Pods.
    pub struct WorkloadGroup {
        /// The specification.
        spec: WorkloadGroupSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The common properties of its WorkloadEntries.
    pub struct WorkloadGroupSpec {
        /// Their labels and annotations.
        metadata: Option<WorkloadGroupMetadata> = "metadata",
        /// The template of their specification; each has its own address.
        template: WorkloadEntrySpec = "template",
        /// How agents check the health of their workload.
        probe: Option<ReadinessProbe> = "probe",
    }
    check: check;
}

object! {
    /// Labels and annotations of the WorkloadEntries.
    #[derive(Default)]
    pub struct WorkloadGroupMetadata {
        /// Labels.
        labels: BTreeMap<String, String> = "labels",
        /// Annotations.
        annotations: BTreeMap<String, String> = "annotations",
    }
}

impl WorkloadGroupSpec {
    /// The labels of its WorkloadEntries: those of the template, overridden by those of `metadata`.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let metadata = self.metadata.iter().flat_map(|metadata| &metadata.labels);
        self.template.labels.iter().chain(metadata).map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

fn check(spec: &WorkloadGroupSpec, _: &Node, cx: &mut Context) {
    if let Some(address) = &spec.template.address {
        let help = "remove it; a workload with a fixed address and without an agent is a WorkloadEntry";
        let message = "each workload registers with its own address, which replaces this one";
        cx.at_field("template", |cx| cx.at_field("address", |cx| cx.note("no-effect", &address.span, message, help)));
    }
}
