//! The WorkloadEntry of a registered workload, as a JSON document.

use std::collections::BTreeMap;
use std::time::SystemTime;

use evenkeel_api::istio::{HEALTH_CHECKS_ANNOTATION, WorkloadGroupSpec};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::registrant::Registrant;

/// Istio's annotations of such entries.
const GROUP: &str = "istio.io/autoRegistrationGroup";
const CONTROLLER: &str = "istio.io/workloadController";
const CONNECTED_AT: &str = "istio.io/connectedAt";
const DISCONNECTED_AT: &str = "istio.io/disconnectedAt";

/// The health of a workload, as its agent reports it, and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// `Err`: the reason why it is unhealthy.
    pub result: Result<(), String>,
    /// When it was reported.
    pub at: SystemTime,
}

/// Whether and since when a workload is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connected {
    /// Connected since this time.
    Since(SystemTime),
    /// Disconnected since this time.
    Until(SystemTime),
}

/// Returns the labels of the entry. As in Istio's `workloadEntryFromGroup`, labels of the node override those of the group's
/// `metadata`, and these override those of its template.
pub fn labels(group: &WorkloadGroupSpec, registrant: &Registrant) -> BTreeMap<String, String> {
    let mut labels = group.labels();
    labels.extend(registrant.labels.clone());
    labels
}

/// Returns the entry of a workload (Istio's `workloadEntryFromGroup`).
pub fn document(
    group: &WorkloadGroupSpec,
    registrant: &Registrant,
    controller: &str,
    connected: Connected,
    health: Option<&Health>,
) -> Value {
    let template = &group.template;
    let labels = labels(group, registrant);
    let mut annotations: Map<String, Value> = Map::new();
    let own = group.metadata.iter().flat_map(|metadata| &metadata.annotations);
    annotations.extend(own.map(|(name, value)| (name.clone(), json!(value))));
    annotations.insert(GROUP.to_owned(), json!(&*registrant.group));
    if registrant.has_probe {
        annotations.insert(HEALTH_CHECKS_ANNOTATION.to_owned(), json!("true"));
    }
    annotations.insert(CONTROLLER.to_owned(), json!(controller));
    let (name, at) = match connected {
        Connected::Since(at) => (CONNECTED_AT, at),
        Connected::Until(at) => (DISCONNECTED_AT, at),
    };
    annotations.insert(name.to_owned(), json!(text(at)));

    let mut spec = Map::new();
    spec.insert("address".to_owned(), json!(registrant.address.to_string()));
    let ports: Map<String, Value> = template.ports.iter().map(|(name, port)| (name.clone(), json!(port.0))).collect();
    let said =
        |own: &str, of_group: &Option<String>| if own.is_empty() { of_group.clone() } else { Some(own.to_owned()) };
    let fields = [
        ("ports", (!ports.is_empty()).then(|| json!(ports))),
        ("labels", (!labels.is_empty()).then(|| json!(labels))),
        ("network", said(&registrant.network, &template.network).map(|network| json!(network))),
        ("locality", said(&registrant.locality, &template.locality).map(|locality| json!(locality))),
        ("weight", template.weight.map(|weight| json!(weight))),
        ("serviceAccount", template.service_account.as_ref().map(|account| json!(&*account.0))),
    ];
    spec.extend(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));

    let mut document = json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "WorkloadEntry",
        "metadata": {
            "name": registrant.entry_name(),
            "namespace": &*registrant.namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": spec,
    });
    if let Some(Health { result, at }) = health {
        // As in Istio both times are those of the report: an agent reports only changes.
        let mut condition = json!({
            "type": "Healthy",
            "status": if result.is_ok() { "True" } else { "False" },
            "lastProbeTime": text(*at),
            "lastTransitionTime": text(*at),
        });
        if let Err(message) = result {
            condition["message"] = json!(message);
        }
        document["status"] = json!({ "conditions": [condition] });
    }
    document
}

/// The contents of such an object that a control plane needs again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The group.
    pub group: String,
    /// Its namespace.
    pub namespace: String,
    /// The control plane that wrote it.
    pub controller: String,
    /// The reported health.
    pub health: Option<Health>,
}

/// Reads such an object; `None` if it is something else.
pub fn read(document: &Value) -> Option<Stored> {
    let metadata = document.get("metadata")?;
    let annotation = |name: &str| Some(metadata.get("annotations")?.get(name)?.as_str()?.to_owned());
    let conditions = document.pointer("/status/conditions").and_then(Value::as_array);
    let healthy = conditions.into_iter().flatten().find(|condition| condition["type"] == "Healthy");
    let health = healthy.and_then(|condition| {
        let at = OffsetDateTime::parse(condition["lastProbeTime"].as_str()?, &Rfc3339).ok()?;
        let message = condition["message"].as_str().unwrap_or_default().to_owned();
        let result = if condition["status"] == "True" { Ok(()) } else { Err(message) };
        Some(Health { result, at: at.into() })
    });
    Some(Stored {
        group: annotation(GROUP)?,
        namespace: metadata.get("namespace")?.as_str()?.to_owned(),
        controller: annotation(CONTROLLER)?,
        health,
    })
}

fn text(at: SystemTime) -> String {
    OffsetDateTime::from(at).format(&Rfc3339).unwrap_or_default()
}
