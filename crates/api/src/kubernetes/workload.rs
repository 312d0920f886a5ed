//! Deployments, StatefulSets and DaemonSets.

use std::collections::BTreeMap;

use evenkeel_base::{Diagnostics, Span, Spanned};

use crate::annotations;
use crate::decode::{Context, Decode};
use crate::kubernetes::PodSpec;
use crate::object_meta::ObjectMeta;
use evenkeel_base::yaml::Node;

/// The annotation of a Pod template that holds the command which runs a replica on one machine.
pub const RUN_ANNOTATION: &str = "local.evenkeel.dev/run";

object! {
    /// Replicas of a Pod.
    pub struct Deployment {
        /// The specification.
        spec: DeploymentSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The specification of a Deployment.
    pub struct DeploymentSpec {
        /// Number of replicas; 1 if not given.
        replicas: Option<u32> = "replicas",
        /// Selects its Pods.
        selector: LabelSelector = "selector",
        /// The template of its Pods.
        template: PodTemplate = "template",
    }
    inert: ["strategy", "minReadySeconds", "revisionHistoryLimit", "paused", "progressDeadlineSeconds"];
    check: check_deployment;
}

object! {
    /// Replicas of a Pod that keep their names: NAME-0, NAME-1, …
    pub struct StatefulSet {
        /// The specification.
        spec: StatefulSetSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The specification of a StatefulSet.
    pub struct StatefulSetSpec {
        /// Number of replicas; 1 if not given.
        replicas: Option<u32> = "replicas",
        /// The headless Service under which each Pod has a DNS name.
        service_name: Option<String> = "serviceName",
        /// Whether replicas start one after the other.
        pod_management_policy: Option<PodManagementPolicy> = "podManagementPolicy",
        /// Selects its Pods.
        selector: LabelSelector = "selector",
        /// The template of its Pods.
        template: PodTemplate = "template",
    }
    later: ["ordinals", "volumeClaimTemplates"];
    inert: [
        "updateStrategy", "minReadySeconds", "revisionHistoryLimit", "persistentVolumeClaimRetentionPolicy",
    ];
    check: check_stateful_set;
}

choices! {
    /// Whether replicas start one after the other.
    pub enum PodManagementPolicy {
        /// Yes.
        OrderedReady = "OrderedReady",
        /// No.
        Parallel = "Parallel",
    }
}

object! {
    /// One Pod on each machine.
    pub struct DaemonSet {
        /// The specification.
        spec: DaemonSetSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The specification of a DaemonSet.
    pub struct DaemonSetSpec {
        /// Selects its Pods.
        selector: LabelSelector = "selector",
        /// The template of its Pods.
        template: PodTemplate = "template",
    }
    inert: ["updateStrategy", "minReadySeconds", "revisionHistoryLimit"];
    check: check_daemon_set;
}

object! {
    /// Chooses objects by their labels.
    pub struct LabelSelector {
        /// Labels that must match.
        match_labels: BTreeMap<String, String> = "matchLabels",
    }
    refused: ["matchExpressions"];
}

object! {
    /// The template of its Pods.
    pub struct PodTemplate {
        /// Labels and annotations of the replicas.
        metadata: Option<ObjectMeta> = "metadata",
        /// The specification of the Pods.
        spec: PodSpec = "spec",
    }
    check: check_template;
}

fn check_template(_: &PodTemplate, node: &Node, cx: &mut Context) {
    if let Some(metadata) = node.get("metadata") {
        cx.at_field("metadata", |cx| annotations::check("Pod", metadata, cx));
    }
}

impl PodTemplate {
    /// Labels of the replicas.
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.metadata.as_ref().map(|m| m.labels.clone()).unwrap_or_default()
    }

    /// The command that runs a replica on one machine.
    pub fn run_command(&self) -> Option<&Spanned<String>> {
        self.metadata.as_ref()?.annotations.get(RUN_ANNOTATION)
    }
}

impl Deployment {
    /// The number of replicas.
    pub fn replicas(&self) -> u32 {
        self.spec.replicas.unwrap_or(1)
    }
}

fn check_deployment(spec: &DeploymentSpec, node: &Node, cx: &mut Context) {
    check_selector(&spec.selector, &spec.template, node, cx);
}

fn check_stateful_set(spec: &StatefulSetSpec, node: &Node, cx: &mut Context) {
    check_selector(&spec.selector, &spec.template, node, cx);
}

fn check_daemon_set(spec: &DaemonSetSpec, node: &Node, cx: &mut Context) {
    check_selector(&spec.selector, &spec.template, node, cx);
}

/// Checks that a workload's selector matches the labels of its template.
fn check_selector(selector: &LabelSelector, template: &PodTemplate, node: &Node, cx: &mut Context) {
    let (labels, wanted) = (template.labels(), &selector.match_labels);
    let span = node.get("selector").map_or(&node.span, |n| &n.span);
    if wanted.is_empty() {
        cx.at_field("selector", |cx| {
            cx.error(
                "empty-selector",
                span,
                "the selector is empty",
                "repeat the template's labels under `matchLabels`",
            );
        });
    }
    for (name, value) in wanted.iter().filter(|(name, value)| labels.get(*name) != Some(value)) {
        let help = format!("add `{name}: {value}` to template.metadata.labels");
        let message = format!("selects the label `{name}: {value}`, which the template does not have");
        cx.at_field("selector", |cx| cx.error("selector-mismatch", span, message, help));
    }
}

impl PodTemplate {
    /// Reads a Pod, or the template of Pods, as an API server has it: the fields `metadata` and `spec`.
    ///
    /// # Errors
    /// The findings that refuse it.
    pub fn of_json(json: &serde_json::Map<String, serde_json::Value>, place: &Span) -> Result<Self, Diagnostics> {
        let fields = ["metadata", "spec"].into_iter();
        let fields: serde_json::Map<String, serde_json::Value> =
            fields.filter_map(|name| Some((name.to_owned(), json.get(name)?.clone()))).collect();
        let mut cx = Context::new("Kubernetes").lenient(&[]);
        let template = Self::decode(&Node::from_json(&fields.into(), place), &mut cx);
        template.filter(|_| !cx.has_errors()).ok_or_else(|| cx.into_diagnostics())
    }
}
