//! Pods with sidecars, and Pods that should have one.

use serde_json::Value;

use super::kubernetes::waiting;
use super::picture::{Picture, annotation, label, list, name, namespace};
use super::{Check, Verdict, none_of};

const GROUP: &str = "data plane";
const PAGE: &str = "docs/injection.md";
const PROXY: &str = "istio-proxy";

pub(super) const CHECKS: &[Check] = &[
    Check {
        group: GROUP,
        name: "Pods of injected namespaces have sidecars",
        is_early: false,
        hint: PAGE,
        run: injected,
    },
    Check {
        group: GROUP,
        name: "sidecars have the version of the control plane",
        is_early: false,
        hint: PAGE,
        run: versions,
    },
    Check { group: GROUP, name: "revisions of Pods exist", is_early: false, hint: PAGE, run: revisions },
    Check { group: GROUP, name: "sidecars are ready", is_early: false, hint: PAGE, run: ready },
    Check { group: GROUP, name: "sidecars start", is_early: false, hint: PAGE, run: starting },
    Check { group: GROUP, name: "gateways are injected", is_early: false, hint: PAGE, run: gateways },
    Check { group: GROUP, name: "sidecars do not restart", is_early: false, hint: PAGE, run: restarts },
    Check { group: GROUP, name: "Pods choose injection by labels", is_early: false, hint: PAGE, run: annotated },
];

fn place(pod: &Value) -> String {
    format!("{}/{}", namespace(pod), name(pod))
}

fn proxy(pod: &Value) -> Option<&Value> {
    let lists = ["/spec/initContainers", "/spec/containers"];
    lists.iter().flat_map(|pointer| list(pod, pointer)).find(|container| container["name"] == PROXY)
}

fn status(pod: &Value) -> Option<&Value> {
    let lists = ["/status/initContainerStatuses", "/status/containerStatuses"];
    lists.iter().flat_map(|pointer| list(pod, pointer)).find(|status| status["name"] == PROXY)
}

fn is_running(pod: &Value) -> bool {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    !["Succeeded", "Failed"].contains(&phase) && pod["metadata"].get("deletionTimestamp").is_none()
}

fn with_proxy(picture: &Picture) -> Result<impl Iterator<Item = &Value>, String> {
    Ok(picture.all("Pod")?.iter().filter(|pod| is_running(pod) && proxy(pod).is_some()))
}

/// Whether the Pod should have a sidecar, by the labels of its namespace and its own.
fn should_have(pod: &Value, namespaces: &[Value]) -> bool {
    let of_namespace = namespaces.iter().find(|found| name(found) == namespace(pod));
    let injection = of_namespace.and_then(|found| label(found, "istio-injection"));
    let by_namespace = match injection {
        Some(value) => value == "enabled",
        None => of_namespace.is_some_and(|found| label(found, "istio.io/rev").is_some()),
    };
    let own = label(pod, "sidecar.istio.io/inject").or_else(|| annotation(pod, "sidecar.istio.io/inject"));
    let on_host = pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true));
    !on_host && own.map_or(by_namespace, |own| own == "true")
}

fn injected(picture: &Picture) -> Result<Verdict, String> {
    let namespaces = picture.all("Namespace")?;
    let bare = picture.all("Pod")?.iter().filter(|pod| is_running(pod) && proxy(pod).is_none());
    let bare = bare.filter(|pod| should_have(pod, namespaces));
    Ok(none_of(bare.map(place).collect(), |pods| {
        Verdict::Warning(format!("{pods}: they were created before the control plane; kubectl rollout restart"))
    }))
}

fn versions(picture: &Picture) -> Result<Verdict, String> {
    let deployment = picture.named("Deployment", &picture.control_plane())?.ok_or("there is no control plane")?;
    let arguments =
        list(deployment, "/spec/template/spec/containers").iter().flat_map(|container| list(container, "/args"));
    let current = arguments.filter_map(Value::as_str).find_map(|argument| argument.strip_prefix("--proxy-image="));
    let current = current.ok_or("the control plane names no image of sidecars")?;
    let own = picture.revision();
    let others = with_proxy(picture)?.filter(|pod| label(pod, "istio.io/rev") == Some(own)).filter_map(|pod| {
        let image = proxy(pod)?["image"].as_str()?;
        let is_chosen = annotation(pod, "sidecar.istio.io/proxyImage").is_some();
        (image != current && !is_chosen).then(|| format!("{} has {image}", place(pod)))
    });
    Ok(none_of(others.collect(), Verdict::Warning))
}

fn revisions(picture: &Picture) -> Result<Verdict, String> {
    let injectors = picture.all("MutatingWebhookConfiguration")?;
    let exists = |revision: &str| injectors.iter().any(|found| label(found, "istio.io/rev") == Some(revision));
    let orphans = with_proxy(picture)?.filter_map(|pod| {
        let revision = label(pod, "istio.io/rev").filter(|revision| !exists(revision))?;
        Some(format!("{} is of {revision}", place(pod)))
    });
    Ok(none_of(orphans.collect(), Verdict::Warning))
}

fn ready(picture: &Picture) -> Result<Verdict, String> {
    let unready = with_proxy(picture)?.filter(|pod| status(pod).is_some_and(|status| status["ready"] == false));
    Ok(none_of(unready.map(place).collect(), Verdict::Warning))
}

fn starting(picture: &Picture) -> Result<Verdict, String> {
    const NORMAL: [&str; 2] = ["PodInitializing", "ContainerCreating"];
    let stuck =
        with_proxy(picture)?.flat_map(waiting).filter(|reason| !NORMAL.iter().any(|normal| reason.contains(normal)));
    Ok(none_of(stuck.collect(), Verdict::Failed))
}

fn gateways(picture: &Picture) -> Result<Verdict, String> {
    let auto = with_proxy(picture)?.filter(|pod| proxy(pod).is_some_and(|proxy| proxy["image"] == "auto"));
    Ok(none_of(auto.map(place).collect(), Verdict::Failed))
}

fn restarts(picture: &Picture) -> Result<Verdict, String> {
    /// So many restarts are a habit.
    const MANY: i64 = 5;
    let often = with_proxy(picture)?.filter_map(|pod| {
        let count = status(pod)?["restartCount"].as_i64()?;
        (count >= MANY).then(|| format!("{}: {count} times", place(pod)))
    });
    Ok(none_of(often.collect(), Verdict::Warning))
}

fn annotated(picture: &Picture) -> Result<Verdict, String> {
    let old = picture.all("Pod")?.iter().filter(|pod| {
        annotation(pod, "sidecar.istio.io/inject").is_some() && label(pod, "sidecar.istio.io/inject").is_none()
    });
    Ok(none_of(old.map(place).collect(), |pods| {
        Verdict::Warning(format!(
            "{pods}: the annotation sidecar.istio.io/inject cannot choose the webhook; write a label"
        ))
    }))
}
