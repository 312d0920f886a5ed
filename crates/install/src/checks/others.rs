//! What is in the cluster already: another mesh, or another installation.

use serde_json::Value;

use super::picture::{Picture, label, list, name, namespace};
use super::{Check, Verdict, must, none_of};

const GROUP: &str = "others";
const PAGE: &str = "docs/install.md#beside-istio";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

pub(super) const CHECKS: &[Check] = &[
    Check {
        group: GROUP,
        name: "no other control plane has the revision",
        is_early: true,
        hint: PAGE,
        run: control_planes,
    },
    Check {
        group: GROUP,
        name: "no injector of others injects the same Pods",
        is_early: true,
        hint: PAGE,
        run: injectors,
    },
    Check { group: GROUP, name: "no other mesh injects sidecars", is_early: true, hint: PAGE, run: meshes },
    Check { group: GROUP, name: "the namespace is not being deleted", is_early: true, hint: PAGE, run: terminating },
    Check {
        group: GROUP,
        name: "the namespace admits the control plane's Pods",
        is_early: true,
        hint: PAGE,
        run: own_injection,
    },
];

/// Whether this program or this chart has installed it.
fn is_ours(object: &Value) -> bool {
    let chart = label(object, "helm.sh/chart").unwrap_or_default();
    label(object, MANAGED_BY) == Some(crate::MANAGER) || chart.starts_with("evenkeel-")
}

fn control_planes(picture: &Picture) -> Result<Verdict, String> {
    let other = picture.named("Deployment", &picture.control_plane())?.filter(|found| !is_ours(found));
    Ok(none_of(
        other.map(|other| format!("the Deployment {} is not of this program", name(other))).into_iter().collect(),
        Verdict::Failed,
    ))
}

fn injectors(picture: &Picture) -> Result<Verdict, String> {
    let own = picture.revision();
    let injects = |object: &&Value| {
        let webhooks = list(object, "/webhooks").iter();
        let is_same = |webhook: &Value| {
            let rules = list(webhook, "/namespaceSelector/matchExpressions").iter();
            rules.clone().any(|rule| rule["key"] == "istio.io/rev" && list(rule, "/values").iter().any(|v| v == own))
                || (own == "default"
                    && rules.clone().any(|rule| rule["key"] == "istio-injection" && rule["operator"] == "In"))
        };
        webhooks.clone().any(is_same)
    };
    let all = picture.all("MutatingWebhookConfiguration")?.iter();
    let others = all.filter(|object| !is_ours(object) && label(object, "istio.io/rev") != Some(own)).filter(injects);
    Ok(none_of(others.map(|other| name(other).to_owned()).collect(), Verdict::Failed))
}

fn meshes(picture: &Picture) -> Result<Verdict, String> {
    const OTHERS: [&str; 3] = ["linkerd", "kuma", "consul"];
    let all = picture.all("MutatingWebhookConfiguration")?.iter().map(name);
    let others = all.filter(|name| OTHERS.iter().any(|other| name.contains(other)));
    Ok(none_of(others.map(str::to_owned).collect(), Verdict::Warning))
}

fn terminating(picture: &Picture) -> Result<Verdict, String> {
    let found = picture.named("Namespace", &picture.namespace)?;
    Ok(must(
        found.is_none_or(|found| found.pointer("/status/phase").is_none_or(|phase| phase != "Terminating")),
        || format!("{} is being deleted: wait until it is gone", picture.namespace),
    ))
}

/// A namespace that injects its own control plane could not start it.
fn own_injection(picture: &Picture) -> Result<Verdict, String> {
    let found = picture.named("Namespace", &picture.namespace)?;
    let injects = found.is_some_and(|found| label(found, "istio-injection") == Some("enabled"));
    let pods = picture.all("Pod")?.iter().filter(|pod| namespace(pod) == picture.namespace).count();
    Ok(must(!injects, || {
        format!(
            "{} ({pods} Pods) has the label istio-injection=enabled, which is for namespaces of workloads",
            picture.namespace
        )
    }))
}
