//! Labels of namespaces.

use serde_json::Value;

use super::picture::{Picture, annotation, label, name};
use super::{Check, Verdict, none_of};

const GROUP: &str = "namespaces";
const PAGE: &str = "docs/injection.md#who-gets-one";
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

pub(super) const CHECKS: &[Check] = &[
    Check {
        group: GROUP,
        name: "labels do not contradict each other",
        is_early: true,
        hint: PAGE,
        run: contradictions,
    },
    Check { group: GROUP, name: "istio-injection is enabled or disabled", is_early: true, hint: PAGE, run: values },
    Check { group: GROUP, name: "labels of Pods are not on namespaces", is_early: true, hint: PAGE, run: misplaced },
    Check { group: GROUP, name: "labels are not written as annotations", is_early: true, hint: PAGE, run: annotations },
    Check { group: GROUP, name: "namespaces of the system are not injected", is_early: true, hint: PAGE, run: system },
    Check { group: GROUP, name: "revisions that namespaces name exist", is_early: false, hint: PAGE, run: revisions },
    Check { group: GROUP, name: "some namespace is injected", is_early: false, hint: PAGE, run: any },
];

fn those(picture: &Picture, wrong: impl Fn(&Value) -> bool) -> Result<Vec<String>, String> {
    Ok(picture
        .all("Namespace")?
        .iter()
        .filter(|namespace| wrong(namespace))
        .map(|found| name(found).to_owned())
        .collect())
}

fn contradictions(picture: &Picture) -> Result<Verdict, String> {
    let both = |found: &Value| label(found, "istio-injection").is_some() && label(found, "istio.io/rev").is_some();
    // Istio ignores the revision then.
    Ok(none_of(those(picture, both)?, |names| {
        Verdict::Warning(format!("istio-injection and istio.io/rev are both on {names}: the revision is not used"))
    }))
}

fn values(picture: &Picture) -> Result<Verdict, String> {
    let wrong =
        |found: &Value| label(found, "istio-injection").is_some_and(|value| !["enabled", "disabled"].contains(&value));
    Ok(none_of(those(picture, wrong)?, Verdict::Warning))
}

fn misplaced(picture: &Picture) -> Result<Verdict, String> {
    Ok(none_of(those(picture, |found| label(found, "sidecar.istio.io/inject").is_some())?, Verdict::Warning))
}

fn annotations(picture: &Picture) -> Result<Verdict, String> {
    let wrong = |found: &Value| ["istio-injection", "istio.io/rev"].iter().any(|key| annotation(found, key).is_some());
    Ok(none_of(those(picture, wrong)?, Verdict::Warning))
}

fn is_injected(namespace: &Value) -> bool {
    label(namespace, "istio-injection") == Some("enabled")
        || (label(namespace, "istio-injection").is_none() && label(namespace, "istio.io/rev").is_some())
}

fn system(picture: &Picture) -> Result<Verdict, String> {
    Ok(none_of(those(picture, |found| SYSTEM.contains(&name(found)) && is_injected(found))?, Verdict::Failed))
}

fn revisions(picture: &Picture) -> Result<Verdict, String> {
    let injectors = picture.all("MutatingWebhookConfiguration")?;
    let exists = |revision: &str| {
        injectors
            .iter()
            .any(|found| [label(found, "istio.io/rev"), label(found, "istio.io/tag")].contains(&Some(revision)))
    };
    let unknown = picture.all("Namespace")?.iter().filter_map(|found| {
        let revision = label(found, "istio.io/rev").filter(|revision| !exists(revision))?;
        Some(format!("{} names {revision}", name(found)))
    });
    Ok(none_of(unknown.collect(), Verdict::Failed))
}

fn any(picture: &Picture) -> Result<Verdict, String> {
    if those(picture, is_injected)?.is_empty() {
        return Err("no namespace has the label istio-injection=enabled or istio.io/rev".to_owned());
    }
    Ok(Verdict::Passed)
}
