//! Labels and annotations of an injected Pod.

use std::collections::BTreeMap;

use evenkeel_api::annotations::parse_bool;
use serde_json::json;

use crate::container::Container;
use crate::decision::PROXY_CONTAINER;
use crate::pod::Pod;
use crate::settings::ProxySettings;

/// Where the agent's page shows the program's metrics with the proxy's.
pub(crate) const METRICS_PATH: &str = "/stats/prometheus";
/// Maximum length of a label's value, in bytes.
const MAX_LABEL: usize = 63;
const CANONICAL_NAME: &str = "service.istio.io/canonical-name";
const CANONICAL_REVISION: &str = "service.istio.io/canonical-revision";
const TLS_MODE: &str = "security.istio.io/tlsMode";
const REVISION: &str = "istio.io/rev";
/// Annotation with the names of what was added.
pub(crate) const STATUS_ANNOTATION: &str = "sidecar.istio.io/status";

/// The name of the service that a workload belongs to (Istio's canonical service): by label, or else that of its owner.
pub fn canonical_name(labels: &BTreeMap<String, String>, workload: &str) -> String {
    label(labels, [CANONICAL_NAME, "app.kubernetes.io/name", "app"]).unwrap_or_else(|| shortened(workload))
}

/// Its version, by label.
pub fn canonical_revision(labels: &BTreeMap<String, String>) -> String {
    label(labels, [CANONICAL_REVISION, "app.kubernetes.io/version", "version"]).unwrap_or_else(|| "latest".to_owned())
}

fn label(labels: &BTreeMap<String, String>, names: [&str; 3]) -> Option<String> {
    names.iter().find_map(|name| labels.get(*name)).map(|value| shortened(value))
}

/// The text as the value of a label, which does not end in a separator.
fn shortened(text: &str) -> String {
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= MAX_LABEL).last();
    let kept = text.get(..end.unwrap_or_default()).unwrap_or_default();
    kept.trim_end_matches(['-', '_', '.']).to_owned()
}

/// The labels that are added.
pub(crate) fn labels(pod: &Pod<'_>) -> BTreeMap<String, String> {
    let own = pod.labels();
    let added = [
        (TLS_MODE, "istio".to_owned()),
        (CANONICAL_NAME, canonical_name(own, pod.workload_name())),
        (CANONICAL_REVISION, canonical_revision(own)),
        (REVISION, pod.template.revision.clone()),
    ];
    let missing = added.into_iter().filter(|(name, _)| !own.contains_key(*name));
    missing.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// What an injection adds, by name.
pub(crate) struct Added<'a> {
    pub init_containers: &'a [Container],
    pub containers: &'a [Container],
    pub volumes: &'a [serde_json::Value],
}

/// The annotations that are added or replaced.
pub(crate) fn annotations(pod: &Pod<'_>, settings: &ProxySettings, added: &Added<'_>) -> BTreeMap<String, String> {
    let names = |containers: &[Container]| -> Option<Vec<String>> {
        (!containers.is_empty()).then(|| containers.iter().map(|container| container.name.clone()).collect())
    };
    let volumes: Vec<&serde_json::Value> = added.volumes.iter().filter_map(|volume| volume.get("name")).collect();
    let status = json!({
        "initContainers": names(added.init_containers),
        "containers": names(added.containers),
        "volumes": volumes,
        "imagePullSecrets": null,
        "revision": pod.template.revision,
    });
    let mut annotations = BTreeMap::from([
        (STATUS_ANNOTATION.to_owned(), status.to_string()),
        (REVISION.to_owned(), pod.template.revision.clone()),
    ]);
    let first =
        pod.spec.containers.iter().map(|container| container.name.to_string()).find(|name| name != PROXY_CONTAINER);
    let by_default = ["kubectl.kubernetes.io/default-container", "kubectl.kubernetes.io/default-logs-container"];
    let missing = by_default.into_iter().filter(|name| !pod.annotations().contains_key(*name));
    annotations.extend(missing.filter_map(|name| Some((name.to_owned(), first.clone()?))));
    annotations.extend(metrics(pod, settings));
    annotations
}

/// Prometheus scrapes the agent's page, which has the program's metrics, too.
fn metrics(pod: &Pod<'_>, settings: &ProxySettings) -> Vec<(String, String)> {
    let text = |name: &str| pod.annotations().get(name).map(|value| value.as_str());
    let merges = text("prometheus.istio.io/merge-metrics").and_then(parse_bool).unwrap_or(pod.template.merges_metrics);
    let is_scraped = text("prometheus.io/scrape").is_none_or(|scrape| scrape == "true");
    let page = settings.status_port.unwrap_or(crate::sidecar::STATUS_PORT);
    if !merges || !is_scraped || page == 0 {
        return Vec::new();
    }
    let all = [("path", METRICS_PATH.to_owned()), ("port", page.to_string()), ("scrape", "true".to_owned())];
    all.map(|(name, value)| (format!("prometheus.io/{name}"), value)).into()
}
