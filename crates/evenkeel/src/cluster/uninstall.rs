//! `evenkeel uninstall`: removes what `install` has created, found by its labels.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::bail;
use evenkeel_install::crds::{self, VERSION_ANNOTATION};
use evenkeel_install::{MANAGER, in_uninstall_order};
use evenkeel_k8s::cluster::{Cluster, ObjectKind, Selection};
use serde_json::Value;

use super::object::text_of;
use super::{Target, connect};

/// What the names of some policies have behind the namespace.
const POLICY_SUFFIX: &str = "-istio.io";
/// Kinds of objects of a release.
const KINDS: [[&str; 2]; 16] = [
    ["admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"],
    ["admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"],
    ["admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"],
    ["admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"],
    ["autoscaling/v2", "HorizontalPodAutoscaler"],
    ["apps/v1", "Deployment"],
    ["v1", "Service"],
    ["rbac.authorization.k8s.io/v1", "RoleBinding"],
    ["rbac.authorization.k8s.io/v1", "Role"],
    ["rbac.authorization.k8s.io/v1", "ClusterRoleBinding"],
    ["rbac.authorization.k8s.io/v1", "ClusterRole"],
    ["v1", "ConfigMap"],
    ["v1", "ServiceAccount"],
    ["policy/v1", "PodDisruptionBudget"],
    ["networking.k8s.io/v1", "NetworkPolicy"],
    ["v1", "Secret"],
];

/// Flags of `evenkeel uninstall`.
#[derive(Debug, clap::Args)]
pub struct UninstallArguments {
    /// Also remove what all revisions share: the custom resource definitions with all their objects, the authority's key and other
    /// state, and the namespace.
    #[arg(long)]
    purge: bool,

    /// Uninstall although Pods have sidecars of this control plane. Their certificates are not renewed any more.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    target: Target,
}

pub async fn run(arguments: &UninstallArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let target = &arguments.target;
    let cluster = connect(&target.cluster).await?;
    let labels = labels_of(target);
    let mut objects = of_revision(&cluster, target).await?;
    if objects.is_empty() && !arguments.purge {
        bail!(
            "nothing of revision {} is labelled {labels}: what Helm has installed, `helm uninstall` removes",
            target.label()
        );
    }
    let injected = injected(&cluster, target, arguments.purge).await?;
    if !injected.is_empty() && !arguments.force {
        bail!(
            "{} Pods have sidecars of this control plane, such as {}: remove their labels and restart them first, or use --force",
            injected.len(),
            injected.first().map(String::as_str).unwrap_or_default()
        );
    }
    if arguments.purge {
        objects.extend(shared(&cluster, target).await?);
        // An object of a revision is in several lists.
        objects.sort_by_key(|object| text_of(object, "/metadata/uid").to_owned());
        objects.dedup_by_key(|object| text_of(object, "/metadata/uid").to_owned());
    }
    in_uninstall_order(&mut objects);
    let mut failed = 0;
    for object in &objects {
        let (kind, name) = (text_of(object, "/kind"), text_of(object, "/metadata/name"));
        match cluster.delete(object).await {
            Ok(_) => writeln!(out, "{kind} {name}: deleted")?,
            Err(error) => {
                failed += 1;
                writeln!(out, "{error}")?;
            }
        }
    }
    if failed > 0 {
        bail!("{failed} objects are not deleted");
    }
    if !arguments.purge {
        writeln!(
            out,
            "\nKept: definitions, the authority's key and other state, the namespace. --purge removes them, too."
        )?;
    }
    Ok(0)
}

fn labels_of(target: &Target) -> String {
    format!("app.kubernetes.io/managed-by={MANAGER},istio.io/rev={}", target.label())
}

/// Objects that have the labels of a revision.
pub(super) async fn of_revision(cluster: &Cluster, target: &Target) -> anyhow::Result<Vec<Value>> {
    let mut objects = listed(cluster, &labels_of(target)).await?;
    let others: BTreeSet<String> = releases(&objects).filter(|namespace| *namespace != target.namespace).collect();
    objects.retain(|object| !is_of_others(object, &target.namespace, &others));
    Ok(objects)
}

/// The namespaces with a control plane among these objects.
fn releases(objects: &[Value]) -> impl Iterator<Item = String> + '_ {
    let deployments = objects.iter().filter(|object| text_of(object, "/kind") == "Deployment");
    deployments.map(|object| text_of(object, "/metadata/namespace").to_owned())
}

/// Whether an object is part of a release in one of these other namespaces. A release of the same revision has the same labels; what has no
/// namespace of its own has that of the release at the end of its name, or calls a Service there.
fn is_of_others(object: &Value, own: &str, others: &BTreeSet<String>) -> bool {
    let namespace = text_of(object, "/metadata/namespace");
    if namespace == own || others.contains(namespace) {
        return namespace != own;
    }
    let called = text_of(object, "/webhooks/0/clientConfig/service/namespace");
    if !called.is_empty() {
        return others.contains(called);
    }
    let name = text_of(object, "/metadata/name");
    let name = name.strip_suffix(POLICY_SUFFIX).unwrap_or(name);
    let is_named = |namespace: &&str| name.strip_suffix(*namespace).is_some_and(|rest| rest.ends_with('-'));
    let all = others.iter().map(String::as_str).chain([own]);
    // `istiod-clusterrole-istio-mesh` is of the namespace `istio-mesh`, and not of `mesh`.
    all.filter(is_named).max_by_key(|namespace| namespace.len()).is_some_and(|namespace| namespace != own)
}

/// Objects of all kinds with these labels.
async fn listed(cluster: &Cluster, labels: &str) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    for [api_version, kind] in KINDS {
        let kind = ObjectKind { api_version, kind };
        objects.extend(cluster.list(kind, Selection { namespace: None, labels }).await?);
    }
    Ok(objects)
}

/// Pods with sidecars of the revision, or of all revisions.
async fn injected(cluster: &Cluster, target: &Target, all: bool) -> anyhow::Result<Vec<String>> {
    let labels = if all { "istio.io/rev".to_owned() } else { format!("istio.io/rev={}", target.label()) };
    let kind = ObjectKind { api_version: "v1", kind: "Pod" };
    let pods = cluster.list(kind, Selection { namespace: None, labels: &labels }).await?;
    let has_sidecar = |pod: &&Value| {
        let lists = ["/spec/initContainers", "/spec/containers"];
        let mut all = lists.iter().filter_map(|list| pod.pointer(list)?.as_array()).flatten();
        all.any(|container| container["name"] == "istio-proxy")
    };
    let name = |pod: &Value| format!("{}/{}", text_of(pod, "/metadata/namespace"), text_of(pod, "/metadata/name"));
    Ok(pods.iter().filter(has_sidecar).map(name).collect())
}

/// What all revisions share.
async fn shared(cluster: &Cluster, target: &Target) -> anyhow::Result<Vec<Value>> {
    // Other revisions and state, and then what is in no release.
    let mut objects = listed(cluster, &format!("app.kubernetes.io/managed-by={MANAGER}")).await?;
    let leases = ObjectKind { api_version: "coordination.k8s.io/v1", kind: "Lease" };
    let selection = Selection { namespace: Some(&target.namespace), labels: "" };
    let is_ours = |lease: &Value| text_of(lease, "/metadata/name").starts_with("evenkeel-");
    objects.extend(cluster.list(leases, selection).await?.into_iter().filter(is_ours));
    let roots = Selection { namespace: None, labels: "istio.io/config=true" };
    let maps = cluster.list(ObjectKind { api_version: "v1", kind: "ConfigMap" }, roots).await?;
    objects.extend(maps.into_iter().filter(|map| map["metadata"]["name"] == "istio-ca-root-cert"));
    for own in crds::definitions() {
        let kind = ObjectKind { api_version: "apiextensions.k8s.io/v1", kind: "CustomResourceDefinition" };
        let found = cluster.get(kind, None, text_of(&own, "/metadata/name")).await?;
        objects.extend(found.filter(|found| !found["metadata"]["annotations"][VERSION_ANNOTATION].is_null()));
    }
    let namespace = cluster.get(ObjectKind { api_version: "v1", kind: "Namespace" }, None, &target.namespace).await?;
    let is_created = |found: &Value| found["metadata"]["labels"]["app.kubernetes.io/managed-by"] == MANAGER;
    objects.extend(namespace.filter(is_created));
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn two_releases_of_a_revision_have_objects_of_their_own() {
        let others: BTreeSet<String> = ["istio-mesh".to_owned(), "canary".to_owned()].into();
        let check = |namespace: &str, name: &str, called: Option<&str>, expected: bool| {
            let webhooks = called.map(|namespace| json!([{"clientConfig": {"service": {"namespace": namespace}}}]));
            let object = json!({"metadata": {"namespace": namespace, "name": name}, "webhooks": webhooks});
            assert_eq!(is_of_others(&object, "mesh", &others), expected, "{object}");
        };
        check("mesh", "istiod", None, false);
        check("mesh", "istiod-istio-mesh", None, false);
        check("istio-mesh", "istiod", None, true);
        check("shop", "istiod-secrets-mesh", None, false);
        check("shop", "istiod-secrets-istio-mesh", None, true);
        check("", "istiod-clusterrole-mesh", None, false);
        check("", "istiod-clusterrole-istio-mesh", None, true);
        check("", "stable-channel-policy-istio-mesh-istio.io", None, true);
        check("", "stable-channel-policy-mesh-istio.io", None, false);
        check("", "istio-sidecar-injector", Some("istio-mesh"), true);
        check("", "istio-sidecar-injector-mesh", Some("mesh"), false);
        check("", "istio-revision-tag-prod", None, false);
    }
}
