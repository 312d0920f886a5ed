//! Parameters of a Gateway or of its class: a ConfigMap whose entries are merged into what is deployed, as by a strategic merge patch.

use std::collections::BTreeMap;

use evenkeel_base::yaml;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::objects::Blueprint;

/// The entries of a ConfigMap that are read, as Istio's.
const KEYS: [&str; 5] = ["deployment", "service", "serviceAccount", "horizontalPodAutoscaler", "podDisruptionBudget"];
/// The metadata that parameters must not change.
const FIXED: [&str; 4] = ["name", "namespace", "ownerReferences", "finalizers"];

/// The lists whose elements are merged, and by which field (Kubernetes' `patchMergeKey`).
const MERGE_KEYS: [(&str, &str); 12] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("volumes", "name"),
    ("env", "name"),
    ("imagePullSecrets", "name"),
    ("resourceClaims", "name"),
    ("ports", "containerPort"),
    ("ports", "port"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
    ("hostAliases", "ip"),
    ("topologySpreadConstraints", "topologyKey"),
];

/// The data of ConfigMaps; later ones come over earlier ones.
pub(super) type Overlays = Vec<BTreeMap<String, String>>;

/// Returns what is deployed for a Gateway; or what is wrong with the parameters. `selector`: that of an existing Deployment.
pub(super) fn objects(
    blueprint: &Blueprint,
    overlays: &Overlays,
    selector: Option<&Map<String, Value>>,
) -> Result<Vec<Value>, String> {
    if let Some(key) = overlays.iter().flat_map(BTreeMap::keys).find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!("the entry `{key}` is not known; known: {}", KEYS.join(", ")));
    }
    let [deployment, service, account, autoscaler, budget] =
        KEYS.map(|key| overlays.iter().filter_map(|data| data.get(key).map(String::as_str)).collect::<Vec<&str>>());
    let mut objects = Vec::new();
    if !blueprint.has_own_account {
        objects.push(merged::<ServiceAccount>(blueprint.service_account(), &account)?);
    }
    objects.push(merged::<Service>(blueprint.service(), &service)?);
    objects.push(merged::<Deployment>(blueprint.deployment(selector), &deployment)?);
    if !autoscaler.is_empty() {
        objects.push(merged::<HorizontalPodAutoscaler>(blueprint.autoscaler(), &autoscaler)?);
    }
    if !budget.is_empty() {
        objects.push(merged::<PodDisruptionBudget>(blueprint.disruption_budget(), &budget)?);
    }
    Ok(objects)
}

/// An object with overlays; reading it as a `T` finds what is misspelt. (`DeepMerge` of a `T` would take required fields that an
/// overlay leaves out for empty ones.)
fn merged<T: Serialize + DeserializeOwned>(base: Value, overlays: &[&str]) -> Result<Value, String> {
    let kind = base["kind"].as_str().unwrap_or_default().to_owned();
    let failed = |error: String| format!("the parameters of the {kind}: {error}");
    let mut object = base.clone();
    for text in overlays {
        merge(&mut object, parse(text).map_err(&failed)?);
    }
    let typed: T = serde_json::from_value(object.clone()).map_err(|error| failed(error.to_string()))?;
    let read = serde_json::to_value(&typed).map_err(|error| failed(error.to_string()))?;
    if let Some(field) = unknown(&object, &read, "") {
        return Err(failed(format!("`{field}` is not known")));
    }
    let changed = FIXED.iter().find(|field| object["metadata"][**field] != base["metadata"][**field]);
    match changed {
        Some(field) => Err(failed(format!("they must not change `metadata.{field}`"))),
        None => Ok(object),
    }
}

/// Merges an overlay into a value: objects by field, where null removes one, and lists by the key of their elements if they have
/// one. Other lists replace what is there.
fn merge(base: &mut Value, overlay: Value) {
    let fields = match (base.as_object_mut(), overlay) {
        (Some(base), Value::Object(overlay)) => {
            overlay.into_iter().map(|field| (base.remove(&field.0), field)).collect()
        }
        (_, overlay) => {
            *base = overlay;
            Vec::new()
        }
    };
    for (before, (name, value)) in fields {
        let value = match (before, value) {
            (_, Value::Null) => continue,
            (Some(Value::Array(mut elements)), Value::Array(overlay)) if key_of(&name, &overlay).is_some() => {
                let key = key_of(&name, &overlay).unwrap_or_default();
                overlay.into_iter().for_each(|element| put(&mut elements, key, element));
                Value::Array(elements)
            }
            (before, value) => {
                // What is new may have nulls, too.
                let mut own = before.unwrap_or_else(|| if value.is_object() { Map::new().into() } else { Value::Null });
                merge(&mut own, value);
                own
            }
        };
        base[name] = value;
    }
}

/// Merges an element into the one with its key, or adds it.
fn put(elements: &mut Vec<Value>, key: &str, element: Value) {
    match elements.iter_mut().find(|own| own[key] == element[key]) {
        Some(own) => merge(own, element),
        None => elements.push(element),
    }
}

/// The field by which the elements of a list are merged; `None`: the list is replaced.
fn key_of(list: &str, elements: &[Value]) -> Option<&'static str> {
    let mut keys = MERGE_KEYS.iter().filter(|(name, _)| *name == list).map(|(_, key)| *key);
    keys.find(|key| elements.iter().all(|element| element.get(key).is_some()))
}

fn parse(text: &str) -> Result<Value, String> {
    let (documents, found) = yaml::parse(&"parameters".into(), text);
    match documents.as_slice() {
        _ if found.has_errors() => {
            Err(found.iter().map(|finding| finding.message.clone()).collect::<Vec<_>>().join("; "))
        }
        [document] if document.to_json().is_object() => Ok(document.to_json()),
        _ => Err("expected one object".to_owned()),
    }
}

/// The first field that reading has dropped.
fn unknown(written: &Value, read: &Value, path: &str) -> Option<String> {
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => written.iter().find_map(|(name, value)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            match read.get(name) {
                Some(read) => unknown(value, read, &path),
                None => Some(path),
            }
        }),
        (Value::Array(written), Value::Array(read)) => {
            let mut pairs = written.iter().zip(read).enumerate();
            pairs.find_map(|(at, (written, read))| unknown(written, read, &format!("{path}[{at}]")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn blueprint() -> Blueprint {
        let gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "edge", "namespace": "shop", "uid": "u"},
            "spec": {"gatewayClassName": "istio", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
        });
        let gateway = serde_json::from_value(gateway).expect("an object");
        Blueprint::of(&gateway, "istio.io/gateway-controller", "").expect("a Gateway")
    }

    fn rendered(entries: &[(&str, &str)]) -> Result<Vec<Value>, String> {
        let overlays = entries.iter().map(|(key, text)| BTreeMap::from([((*key).to_owned(), (*text).to_owned())]));
        objects(&blueprint(), &overlays.collect(), None)
    }

    #[test]
    fn parameters_are_merged_by_the_names_in_lists() {
        let check = |entries: &[(&str, &str)], kind: &str, pointer: &str, expected: Value| {
            let objects = rendered(entries).expect("good parameters");
            let object = objects.iter().find(|object| object["kind"] == kind).unwrap_or(&Value::Null);
            assert_eq!(object.pointer(pointer).cloned().unwrap_or_default(), expected, "{entries:?} {pointer}");
        };
        check(&[], "Deployment", "/spec/template/spec/containers/0/image", json!("auto"));
        let resources =
            "spec: {template: {spec: {containers: [{name: istio-proxy, resources: {requests: {cpu: 2}}}]}}}";
        let containers = "/spec/template/spec/containers";
        check(&[("deployment", resources)], "Deployment", &format!("{containers}/0/resources/requests/cpu"), json!(2));
        check(&[("deployment", resources)], "Deployment", &format!("{containers}/0/image"), json!("auto"));
        check(&[("deployment", resources)], "Deployment", &format!("{containers}/1"), Value::Null);
        let (three, four) = (("deployment", "spec: {replicas: 3}"), ("deployment", "spec: {replicas: 4}"));
        check(&[three, four], "Deployment", "/spec/replicas", json!(4));
        let no_user = "spec: {template: {spec: {securityContext: {runAsUser: null}}}}";
        check(&[("deployment", no_user)], "Deployment", "/spec/template/spec/securityContext/runAsUser", Value::Null);
        let port = "spec: {ports: [{name: extra, port: 9000}]}";
        check(&[("service", port)], "Service", "/spec/ports/2/port", json!(9000));
        check(&[("service", "metadata: {annotations: {a: b}}")], "Service", "/metadata/annotations/a", json!("b"));
        let scaler = "spec: {minReplicas: 2, maxReplicas: 5}";
        check(&[("horizontalPodAutoscaler", scaler)], "HorizontalPodAutoscaler", "/spec/maxReplicas", json!(5));
        check(
            &[("horizontalPodAutoscaler", scaler)],
            "HorizontalPodAutoscaler",
            "/spec/scaleTargetRef/name",
            json!("edge-istio"),
        );
        check(
            &[("podDisruptionBudget", "spec: {minAvailable: 1}")],
            "PodDisruptionBudget",
            "/spec/minAvailable",
            json!(1),
        );
        assert_eq!(rendered(&[]).map(|objects| objects.len()), Ok(3), "others only when they are asked for");
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        let check = |key: &str, text: &str, expected: &str| {
            let error = rendered(&[(key, text)]).expect_err(text);
            assert!(error.contains(expected), "{error}\nnot: {expected}");
        };
        check("job", "{}", "`job` is not known; known: deployment");
        check("deployment", "spec: {replica: 3}", "`spec.replica` is not known");
        check("deployment", "spec: {template: {spec: {containers: [{name: a, '$patch': delete}]}}}", "$patch");
        check("deployment", "spec: {replicas: many}", "the parameters of the Deployment: ");
        check("deployment", "metadata: {name: other}", "must not change `metadata.name`");
        check("service", "a: [", "the parameters of the Service: ");
        check("service", "[]", "expected one object");
    }
}
