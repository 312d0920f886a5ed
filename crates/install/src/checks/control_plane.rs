//! The control plane's Deployment, its Pods, and what belongs to them.

use evenkeel_base::yaml;
use serde_json::Value;

use super::kubernetes::{seconds, waiting};
use super::picture::{Picture, condition, label, list, name};
use super::{Check, Verdict, must, none_of, should};

const GROUP: &str = "control plane";
const PAGE: &str = "docs/install.md#what-is-installed";

pub(super) const CHECKS: &[Check] = &[
    Check { group: GROUP, name: "the Deployment exists", is_early: false, hint: PAGE, run: exists },
    Check { group: GROUP, name: "the Deployment is available", is_early: false, hint: PAGE, run: available },
    Check { group: GROUP, name: "the Deployment is rolled out", is_early: false, hint: PAGE, run: rolled_out },
    Check { group: GROUP, name: "there are two replicas or more", is_early: false, hint: PAGE, run: replicas },
    Check { group: GROUP, name: "replicas are on different nodes", is_early: false, hint: PAGE, run: spread },
    Check { group: GROUP, name: "Pods are scheduled", is_early: false, hint: PAGE, run: scheduled },
    Check { group: GROUP, name: "images are there, and containers start", is_early: false, hint: PAGE, run: starting },
    Check { group: GROUP, name: "Pods are ready", is_early: false, hint: PAGE, run: ready },
    Check { group: GROUP, name: "Pods do not restart", is_early: false, hint: PAGE, run: restarts },
    Check { group: GROUP, name: "memory suffices", is_early: false, hint: PAGE, run: memory },
    Check { group: GROUP, name: "its version is that of this program", is_early: false, hint: PAGE, run: version },
    Check { group: GROUP, name: "the Service exists", is_early: false, hint: PAGE, run: service },
    Check {
        group: GROUP,
        name: "the Service has the ports of proxies and webhooks",
        is_early: false,
        hint: PAGE,
        run: ports,
    },
    Check { group: GROUP, name: "the Service has ready endpoints", is_early: false, hint: PAGE, run: endpoints },
    Check { group: GROUP, name: "a PodDisruptionBudget protects it", is_early: false, hint: PAGE, run: budget },
    Check { group: GROUP, name: "autoscaling works", is_early: false, hint: PAGE, run: autoscaling },
    Check { group: GROUP, name: "the ServiceAccount exists", is_early: false, hint: PAGE, run: account },
    Check { group: GROUP, name: "its rights are granted", is_early: false, hint: PAGE, run: binding },
    Check { group: GROUP, name: "a replica leads", is_early: false, hint: PAGE, run: leader },
    Check { group: GROUP, name: "the mesh's configuration can be read", is_early: false, hint: PAGE, run: mesh },
];

fn deployment(picture: &Picture) -> Result<&Value, String> {
    let name = picture.control_plane();
    picture.named("Deployment", &name)?.ok_or_else(|| format!("there is no Deployment {name} in {}", picture.namespace))
}

fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

fn exists(picture: &Picture) -> Result<Verdict, String> {
    Ok(deployment(picture).map_or_else(Verdict::Failed, |_| Verdict::Passed))
}

fn available(picture: &Picture) -> Result<Verdict, String> {
    let found = condition(deployment(picture)?, "Available");
    let message =
        found.and_then(|found| found["message"].as_str()).unwrap_or("no controller has looked at it yet").to_owned();
    Ok(must(found.is_some_and(|found| found["status"] == "True"), || message))
}

fn rolled_out(picture: &Picture) -> Result<Verdict, String> {
    let found = deployment(picture)?;
    let [seen, made] = ["/status/observedGeneration", "/metadata/generation"].map(|pointer| number(found, pointer));
    let [updated, all] = ["/status/updatedReplicas", "/status/replicas"].map(|pointer| number(found, pointer));
    Ok(must(seen >= made && updated == all, || format!("{updated} of {all} replicas are of the newest generation")))
}

fn replicas(picture: &Picture) -> Result<Verdict, String> {
    let count = number(deployment(picture)?, "/status/readyReplicas");
    Ok(should(count >= 2, || format!("{count} ready: no Pod gets its sidecar while the only one restarts")))
}

fn spread(picture: &Picture) -> Result<Verdict, String> {
    let pods = picture.replicas()?;
    let mut nodes: Vec<_> = pods.iter().filter_map(|pod| pod.pointer("/spec/nodeName")?.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    if pods.len() < 2 || picture.all("Node")?.len() < 2 {
        return Err("there is one replica, or one node".to_owned());
    }
    Ok(should(nodes.len() > 1, || format!("all are on {}", nodes.join(", "))))
}

fn scheduled(picture: &Picture) -> Result<Verdict, String> {
    let unscheduled = picture.replicas()?.into_iter().filter_map(|pod| {
        let found = condition(pod, "PodScheduled").filter(|found| found["status"] == "False")?;
        Some(format!("{}: {}", name(pod), found["message"].as_str().unwrap_or_default()))
    });
    Ok(none_of(unscheduled.collect(), Verdict::Failed))
}

fn starting(picture: &Picture) -> Result<Verdict, String> {
    Ok(none_of(picture.replicas()?.into_iter().flat_map(waiting).collect(), Verdict::Failed))
}

fn ready(picture: &Picture) -> Result<Verdict, String> {
    let pods = picture.replicas()?;
    if pods.is_empty() {
        return Err("there are no Pods".to_owned());
    }
    let is_ready = |pod: &&Value| condition(pod, "Ready").is_some_and(|found| found["status"] == "True");
    let unready = pods.into_iter().filter(|pod| !is_ready(pod)).map(|pod| name(pod).to_owned());
    Ok(none_of(unready.collect(), Verdict::Failed))
}

fn restarts(picture: &Picture) -> Result<Verdict, String> {
    let often = picture.replicas()?.into_iter().filter_map(|pod| {
        let all = list(pod, "/status/containerStatuses").iter();
        let count: i64 = all.map(|status| number(status, "/restartCount")).sum();
        (count > 3).then(|| format!("{}: {count} times", name(pod)))
    });
    Ok(none_of(often.collect(), Verdict::Warning))
}

fn memory(picture: &Picture) -> Result<Verdict, String> {
    let killed = picture.replicas()?.into_iter().filter(|pod| {
        let mut all = list(pod, "/status/containerStatuses").iter();
        all.any(|status| status.pointer("/lastState/terminated/reason").is_some_and(|reason| reason == "OOMKilled"))
    });
    Ok(none_of(killed.map(|pod| format!("{} was killed for its memory", name(pod))).collect(), Verdict::Failed))
}

fn version(picture: &Picture) -> Result<Verdict, String> {
    let found = label(deployment(picture)?, "app.kubernetes.io/version").ok_or("its Deployment names none")?;
    Ok(should(found == picture.version, || format!("it is {found}, and this program {}", picture.version)))
}

fn the_service(picture: &Picture) -> Result<&Value, String> {
    let name = picture.control_plane();
    picture.named("Service", &name)?.ok_or_else(|| format!("there is no Service {name}"))
}

fn service(picture: &Picture) -> Result<Verdict, String> {
    Ok(the_service(picture).map_or_else(Verdict::Failed, |_| Verdict::Passed))
}

fn ports(picture: &Picture) -> Result<Verdict, String> {
    let served: Vec<_> = list(the_service(picture)?, "/spec/ports").iter().map(|port| number(port, "/port")).collect();
    let missing = [15012, 443].into_iter().filter(|port| !served.contains(port)).map(|port: i64| port.to_string());
    Ok(none_of(missing.collect(), Verdict::Failed))
}

fn endpoints(picture: &Picture) -> Result<Verdict, String> {
    let own = picture.control_plane();
    let slices =
        picture.all("EndpointSlice")?.iter().filter(|slice| label(slice, "kubernetes.io/service-name") == Some(&own));
    let ready =
        slices.flat_map(|slice| list(slice, "/endpoints")).filter(|endpoint| endpoint["conditions"]["ready"] == true);
    Ok(must(ready.count() > 0, || "proxies and the API server reach nobody".to_owned()))
}

fn budget(picture: &Picture) -> Result<Verdict, String> {
    let found = picture.named("PodDisruptionBudget", &picture.control_plane())?;
    Ok(should(found.is_some(), || "a drain of nodes may stop all replicas at once".to_owned()))
}

fn autoscaling(picture: &Picture) -> Result<Verdict, String> {
    let found = picture.named("HorizontalPodAutoscaler", &picture.control_plane())?.ok_or("it is not used")?;
    let broken = ["AbleToScale", "ScalingActive"].into_iter().filter_map(|kind| {
        let found = condition(found, kind).filter(|found| found["status"] == "False")?;
        Some(format!("{kind}: {}", found["message"].as_str().unwrap_or_default()))
    });
    Ok(none_of(broken.collect(), Verdict::Warning))
}

fn account(picture: &Picture) -> Result<Verdict, String> {
    let name = picture.control_plane();
    Ok(must(picture.named("ServiceAccount", &name)?.is_some(), || format!("there is no ServiceAccount {name}")))
}

fn binding(picture: &Picture) -> Result<Verdict, String> {
    let role = format!("{}-clusterrole-{}", picture.control_plane(), picture.namespace);
    if picture.named("ClusterRole", &role)?.is_none() {
        return Ok(Verdict::Failed(format!("there is no ClusterRole {role}")));
    }
    let own = picture.control_plane();
    let grants = |found: &Value| {
        let is_own =
            |subject: &Value| subject["name"] == own.as_str() && subject["namespace"] == picture.namespace.as_str();
        found["roleRef"]["name"] == role.as_str() && list(found, "/subjects").iter().any(is_own)
    };
    let bound = picture.all("ClusterRoleBinding")?.iter().any(grants);
    Ok(must(bound, || format!("no ClusterRoleBinding grants {role} to {own}")))
}

fn leader(picture: &Picture) -> Result<Verdict, String> {
    let lease = format!("evenkeel-status{}", picture.suffix());
    let all = picture.all("Lease")?.iter();
    let mut found =
        all.filter(|found| found["metadata"]["namespace"] == picture.namespace.as_str() && name(found) == lease);
    let Some(found) = found.next() else { return Ok(Verdict::Failed(format!("there is no Lease {lease}"))) };
    let renewed = found.pointer("/spec/renewTime").and_then(seconds).unwrap_or_default();
    let age = picture.now_s + picture.skew_s.unwrap_or_default() - renewed;
    Ok(must(age <= 60, || format!("{} has not renewed it for {age} s", found["spec"]["holderIdentity"])))
}

fn mesh(picture: &Picture) -> Result<Verdict, String> {
    let name = format!("istio{}", picture.suffix());
    let Some(found) = picture.named("ConfigMap", &name)? else {
        return Ok(Verdict::Warning(format!("there is no ConfigMap {name}: the mesh has its defaults")));
    };
    let wrong = ["mesh", "meshNetworks"].into_iter().filter_map(|key| {
        let (_, findings) = yaml::parse(&key.into(), found["data"][key].as_str()?);
        findings.has_errors().then(|| format!("{key}: {findings}"))
    });
    Ok(none_of(wrong.collect(), Verdict::Failed))
}
