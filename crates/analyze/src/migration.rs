//! What a mesh of Istio would do differently here, object by object, and the order in which its namespaces can move.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_api::{Object, Resource};
use evenkeel_base::{Diagnostic, Severity};

use crate::Finding;
use crate::checks::workloads::template;

/// Codes of findings that something has no effect here, or another one than in Istio. Other warnings hold in Istio, too.
const DIFFERENT: &[&str] = &[
    "conflict",
    "foreign-kind",
    "no-effect",
    "no-jwks",
    "not-captured",
    "unknown-annotation",
    "unknown-field",
    "unsupported",
    "unsupported-annotation",
    "unsupported-backend",
    "unsupported-field",
    "unsupported-filter",
    "unsupported-kind",
    "unsupported-parent",
    "unsupported-provider",
    "unsupported-value",
];

/// Groups of Kubernetes' own kinds. What these say is the cluster's to do, but for Istio's annotations and labels, and what ConfigMaps and
/// Secrets say to the mesh.
const PLATFORM: &[&str] = &["", "apps", "autoscaling", "batch", "discovery.k8s.io", "policy"];

/// What a finding means to who moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Impact {
    /// A part of the object has no effect, or another one.
    Differs,
    /// Calls that Istio serves would be refused, or the object would be refused: change it first.
    Blocks,
}

/// A difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What it means.
    pub impact: Impact,
    /// The finding.
    pub diagnostic: Diagnostic,
}

/// A namespace, as a step of the migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The namespace.
    pub namespace: Arc<str>,
    /// Deployments, StatefulSets and DaemonSets in it.
    pub workloads: usize,
    /// Whether a gateway is among them: gateways move last, because they serve the outside.
    pub has_gateway: bool,
    /// Labels that say which control plane injects its Pods, and which have to go.
    pub labels: Vec<String>,
    /// What differs in it.
    pub differences: Vec<Difference>,
}

impl Step {
    /// Whether something in it has to change first.
    pub fn is_blocked(&self) -> bool {
        self.differences.iter().any(|one| one.impact == Impact::Blocks)
    }
}

/// What differs, and where to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Differences of objects that hold for the whole mesh: the root namespace's, and those without namespace.
    pub mesh: Vec<Difference>,
    /// The namespaces in the order in which they can move; those with something that blocks come last.
    pub steps: Vec<Step>,
}

/// The labels of a Namespace that choose an injector.
const INJECTION_LABELS: [&str; 3] = ["istio-injection", "istio.io/rev", "istio.io/dataplane-mode"];

/// Plans the migration of these objects. `root_namespace` is the mesh's root namespace.
pub fn plan(objects: &[Object], findings: &[Finding], root_namespace: &str) -> Migration {
    let gateways = gateway_namespaces(objects);
    let mut steps: BTreeMap<Arc<str>, Step> = BTreeMap::new();
    for namespace in namespaces(objects) {
        if *namespace != *root_namespace || gateways.contains(&namespace) {
            steps.insert(namespace.clone(), step(objects, &namespace, gateways.contains(&namespace)));
        }
    }
    let mut mesh = Vec::new();
    let applied = applied(objects);
    for difference in findings.iter().filter_map(|finding| difference(finding, &applied)) {
        let namespace = difference.diagnostic.object.as_ref().map(|object| object.namespace.clone());
        let own = namespace.filter(|namespace| **namespace != *root_namespace);
        match own.and_then(|namespace| steps.get_mut(&namespace)) {
            Some(step) => step.differences.push(difference),
            None => mesh.push(difference),
        }
    }
    let mut steps: Vec<Step> = steps.into_values().collect();
    steps.sort_by_key(|step| (step.is_blocked(), step.has_gateway, step.workloads, step.namespace.clone()));
    Migration { mesh, steps }
}

/// Kind, namespace and name of the objects that apply.
fn applied(objects: &[Object]) -> BTreeSet<(&'static str, Arc<str>, Arc<str>)> {
    let sound = objects.iter().filter(|object| object.refused.is_none());
    sound.map(|object| (object.kind().as_str(), object.namespace.clone(), object.name.clone())).collect()
}

fn difference(finding: &Finding, applied: &BTreeSet<(&'static str, Arc<str>, Arc<str>)>) -> Option<Difference> {
    let diagnostic = finding.diagnostic.clone();
    let object = diagnostic.object.as_ref();
    if object.is_some_and(|object| is_of_platform(object.group, object.kind)) && !is_about_istio(&diagnostic) {
        return None;
    }
    let is_refused =
        object.is_none_or(|object| !applied.contains(&(object.kind, object.namespace.clone(), object.name.clone())));
    let impact = match (diagnostic.severity, diagnostic.code) {
        (_, "closed" | "not-enforced") => Impact::Blocks,
        // An error about an object that applies, such as a destination that does not exist, is one in Istio, too.
        (Severity::Error, _) if is_refused => Impact::Blocks,
        (_, code) if DIFFERENT.contains(&code) => Impact::Differs,
        _ => return None,
    };
    Some(Difference { impact, diagnostic })
}

fn is_of_platform(group: &str, kind: &str) -> bool {
    (PLATFORM.contains(&group) && !matches!(kind, "ConfigMap" | "Secret")) || kind == "NetworkPolicy"
}

/// Whether a finding about an object of Kubernetes is about an annotation or a label: those are Istio's.
fn is_about_istio(diagnostic: &Diagnostic) -> bool {
    ["annotations[", "labels["].iter().any(|part| diagnostic.message.contains(part))
}

/// The namespaces with workloads, and those that have an injector's label.
fn namespaces(objects: &[Object]) -> BTreeSet<Arc<str>> {
    let of = |object: &Object| match &object.resource {
        Resource::Namespace(_) => {
            let is_injected = INJECTION_LABELS.iter().any(|label| object.labels.contains_key(*label));
            is_injected.then(|| object.name.clone())
        }
        _ => template(object).map(|_| object.namespace.clone()),
    };
    objects.iter().filter_map(of).collect()
}

fn step(objects: &[Object], namespace: &Arc<str>, has_gateway: bool) -> Step {
    let is_own = |object: &&Object| object.namespace == *namespace && template(object).is_some();
    let own =
        objects.iter().find(|object| matches!(object.resource, Resource::Namespace(_)) && object.name == *namespace);
    let labels = own.map(|own| INJECTION_LABELS.iter().filter(|label| own.labels.contains_key(**label)));
    Step {
        namespace: namespace.clone(),
        workloads: objects.iter().filter(is_own).count(),
        has_gateway,
        labels: labels.into_iter().flatten().map(ToString::to_string).collect(),
        differences: Vec::new(),
    }
}

/// The namespaces with a workload that a Gateway selects, or that a Gateway of the Gateway API stands for.
fn gateway_namespaces(objects: &[Object]) -> BTreeSet<Arc<str>> {
    let selectors: Vec<&BTreeMap<String, String>> = objects
        .iter()
        .filter_map(|object| match &object.resource {
            Resource::Gateway(gateway) => Some(&gateway.spec.selector),
            _ => None,
        })
        .filter(|selector| !selector.is_empty())
        .collect();
    let is_selected = |labels: &BTreeMap<String, String>| {
        selectors.iter().any(|selector| selector.iter().all(|(name, value)| labels.get(name) == Some(value)))
    };
    let of = |object: &Object| {
        let is_gateway = template(object).is_some_and(|template| is_selected(&template.labels()));
        is_gateway.then(|| object.namespace.clone())
    };
    objects.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use evenkeel_model::MeshConfig;

    use super::*;

    fn workload(namespace: &str, name: &str) -> String {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{selector: \
             {{matchLabels: {{app: {name}}}}}, template: {{metadata: {{labels: {{app: {name}}}}}, spec: {{containers: [{{name: \
             main}}]}}}}}}\n---\n"
        )
    }

    fn object(api: &str, kind: &str, place: &str, spec: &str) -> String {
        let (namespace, name) = place.split_once('/').expect("a namespace");
        format!(
            "apiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n---\n"
        )
    }

    /// `mesh: CODE…`, then each namespace with what it has.
    fn planned(text: &str) -> Vec<String> {
        let (objects, read) = evenkeel_api::load(&[("mesh.yaml".into(), Arc::from(text))]);
        let findings = crate::analyze(&objects, &MeshConfig::default(), read, &[]);
        let migration = plan(&objects, &findings, "istio-system");
        let codes = |all: &[Difference]| {
            all.iter().map(|one| format!("{:?} {}", one.impact, one.diagnostic.code)).collect::<Vec<_>>().join(", ")
        };
        let mut lines: Vec<String> = Vec::new();
        if !migration.mesh.is_empty() {
            lines.push(format!("mesh: {}", codes(&migration.mesh)));
        }
        lines.extend(migration.steps.iter().map(|step| {
            let gateway = if step.has_gateway { " gateway" } else { "" };
            let labels = step.labels.iter().map(|label| format!(" {label}")).collect::<String>();
            format!("{} {}{gateway}{labels}: {}", step.namespace, step.workloads, codes(&step.differences))
        }));
        lines
    }

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        assert_eq!(planned(text), expected, "{text}");
    }

    #[test]
    fn small_namespaces_come_first_and_gateways_last() {
        let gateway = object(
            "networking.istio.io/v1",
            "Gateway",
            "edge/front",
            "{selector: {app: front}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}",
        );
        let text =
            [workload("edge", "front"), workload("shop", "a"), workload("shop", "b"), workload("data", "db"), gateway];
        check(&text.concat(), &["data 1: ", "shop 2: ", "edge 1 gateway: "]);
    }

    #[test]
    fn the_labels_of_a_namespace_that_have_to_go_are_named() {
        let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}\n";
        check(namespace, &["shop 0 istio-injection: "]);
        check("apiVersion: v1\nkind: Namespace\nmetadata: {name: other, labels: {team: a}}\n", &[]);
    }

    #[test]
    fn what_differs_is_told_from_what_is_wrong_in_istio_too() {
        // A destination that does not exist is no difference.
        let route = |http: &str| {
            let route = object("networking.istio.io/v1", "VirtualService", "shop/a", http);
            [workload("shop", "a"), workload("data", "db"), route].concat()
        };
        check(
            &route("{hosts: [a.test], http: [{route: [{destination: {host: db.data.svc.cluster.local}}]}]}"),
            &["data 1: ", "shop 1: "],
        );
        check(
            &route("{hosts: [a.test], http: [{timeout: soon, redirect: {uri: /}}]}"),
            &["data 1: ", "shop 1: Blocks bad-duration"],
        );
        let plugin =
            object("extensions.istio.io/v1alpha1", "WasmPlugin", "shop/a", "{url: 'oci://a.test/b', phase: AUTHN}");
        let text = [workload("shop", "a"), workload("data", "db"), plugin].concat();
        let lines = planned(&text);
        assert!(lines[0] == "data 1: " && lines[1].contains("Blocks closed"), "{lines:?}");
    }

    #[test]
    fn what_kubernetes_does_is_no_difference() {
        let text = |annotations: &str, more: &str| {
            format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: a, namespace: shop}}\nspec: {{strategy: {{type: Recreate}}, \
                 selector: {{matchLabels: {{app: a}}}}, template: {{metadata: {{labels: {{app: a}}, annotations: {{{annotations}}}}}, \
                 spec: {{containers: [{{name: main}}]{more}}}}}}}\n"
            )
        };
        check(&text("", ", hostPID: true"), &["shop 1: "]);
        check(&text("sidecar.istio.io/bootstrapOverride: a", ""), &["shop 1: Differs unsupported-annotation"]);
    }

    #[test]
    fn what_holds_for_the_mesh_stands_apart() {
        let filter = object("networking.istio.io/v1alpha3", "EnvoyFilter", "istio-system/a", "{configPatches: []}");
        let lines = planned(&[workload("shop", "a"), filter].concat());
        assert!(lines[0].starts_with("mesh: "), "{lines:?}");
        assert_eq!(lines[1], "shop 1: ");
    }

    #[test]
    fn findings_about_files_hold_for_the_mesh() {
        let finding = Finding::new(Diagnostic::error("yaml-syntax", evenkeel_base::Span::at("a.yaml", 1, 1), "no"));
        let migration = plan(&[], &[finding], "istio-system");
        assert_eq!(migration.mesh.len(), 1);
        assert!(migration.steps.is_empty());
    }
}
