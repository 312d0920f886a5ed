//! A Pod without the sidecar that it has got before. An API server calls admission webhooks again when another one has changed the
//! Pod, and manifests are injected twice; the result must be the same as of the first time.

use serde_json::{Map, Value, json};

use crate::agent::PROMETHEUS_VARIABLE;
use crate::decision::PROXY_CONTAINER;
use crate::labels::{METRICS_PATH, STATUS_ANNOTATION};
use crate::merge::OVERRIDES_ANNOTATION;
use crate::probes::{PROBES_VARIABLE, Probes};

/// The fields of a Pod's specification with containers.
pub(crate) const LISTS: [&str; 2] = ["containers", "initContainers"];
/// Prefix of the annotations for Prometheus, and what they say.
const PROMETHEUS_PREFIX: &str = "prometheus.io/";
const METRICS: [&str; 3] = ["scrape", "port", "path"];

/// Removes what the annotation with the status names, and restores what the injection had replaced.
pub(crate) fn undo(json: &mut Map<String, Value>) {
    let Some(annotations) = fields(json, "metadata").and_then(|metadata| fields(metadata, "annotations")) else {
        return;
    };
    let Some(status) = taken(annotations, STATUS_ANNOTATION) else { return };
    let overrides = taken(annotations, OVERRIDES_ANNOTATION).unwrap_or_default();
    let Some(spec) = fields(json, "spec") else { return };
    let proxy = proxy(spec);
    for list in ["volumes", LISTS[0], LISTS[1]] {
        let added: Vec<Value> = array(&status, list);
        if let Some(all) = spec.get_mut(list).and_then(Value::as_array_mut) {
            all.retain(|element| !element.get("name").is_some_and(|name| added.contains(name)));
            all.extend(array(&overrides, list));
        }
    }
    let table = Probes::of(variable(&proxy, PROBES_VARIABLE).unwrap_or_default());
    programs(spec).for_each(|container| table.restore(container));
    let metrics = variable(&proxy, PROMETHEUS_VARIABLE).and_then(|text| serde_json::from_str(&text).ok());
    if let Some(annotations) = fields(json, "metadata").and_then(|metadata| fields(metadata, "annotations")) {
        restore_metrics(annotations, metrics);
    }
}

/// The containers with probes: programs, and init containers that keep running.
pub(crate) fn programs(spec: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    let lists = spec.iter_mut().filter(|(name, _)| LISTS.contains(&name.as_str()));
    lists.filter_map(|(_, list)| list.as_array_mut()).flatten()
}

/// Restores the annotations about the program's metrics, which name the agent's page now.
fn restore_metrics(annotations: &mut Map<String, Value>, own: Option<Map<String, Value>>) {
    let path = annotations.get(&format!("{PROMETHEUS_PREFIX}path")).and_then(Value::as_str);
    if path != Some(METRICS_PATH) {
        return;
    }
    for name in METRICS {
        let annotation = format!("{PROMETHEUS_PREFIX}{name}");
        match own.as_ref().and_then(|own| own.get(name)) {
            Some(value) => _ = annotations.insert(annotation, value.clone()),
            None => _ = annotations.remove(&annotation),
        }
    }
}

/// The proxy's container, as it is in the Pod.
fn proxy(spec: &Map<String, Value>) -> Value {
    let lists = LISTS.into_iter().filter_map(|list| spec.get(list)?.as_array()).flatten();
    let mut proxies = lists.filter(|container| container.get("name").and_then(Value::as_str) == Some(PROXY_CONTAINER));
    proxies.next().cloned().unwrap_or_else(|| json!({}))
}

/// The text of a container's variable, as its program gets it.
fn variable(container: &Value, name: &str) -> Option<String> {
    let variables = container.get("env")?.as_array()?;
    let found = variables.iter().find(|variable| variable.get("name").and_then(Value::as_str) == Some(name))?;
    Some(found.get("value")?.as_str()?.replace("$$", "$"))
}

/// The JSON in an annotation, which is removed.
fn taken(annotations: &mut Map<String, Value>, name: &str) -> Option<Value> {
    serde_json::from_str(annotations.remove(name)?.as_str()?).ok()
}

fn fields<'a>(fields: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Map<String, Value>> {
    fields.get_mut(name)?.as_object_mut()
}

fn array(value: &Value, name: &str) -> Vec<Value> {
    value.get(name).and_then(Value::as_array).cloned().unwrap_or_default()
}
