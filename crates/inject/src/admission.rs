//! The answers of admission webhooks (`admission.k8s.io/v1`, `AdmissionReview`).

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use evenkeel_base::{Diagnostic, Diagnostics, Severity, Span};
use serde_json::{Map, Value, json};

use crate::document::Mesh;
use crate::pod::Owner;

/// Label of Pods that a Deployment's ReplicaSet has made: the last part of the ReplicaSet's name.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// Digits of the time that ends the names of a CronJob's Jobs.
const MIN_TIME_DIGITS: usize = 8;

/// A request of the API server.
#[derive(Debug, Clone)]
pub struct AdmissionRequest<'a> {
    uid: &'a str,
    /// The namespace of the object; empty for objects without.
    pub namespace: &'a str,
    /// The object to admit.
    pub object: &'a Value,
}

impl<'a> AdmissionRequest<'a> {
    /// Reads a review; `None`: it is none of version `v1` with an object.
    pub fn of(review: &'a Value) -> Option<Self> {
        let version = review.get("apiVersion")?.as_str()?;
        let request = review.get("request")?;
        let namespace = request.get("namespace").and_then(Value::as_str).unwrap_or_default();
        let object = request.get("object").filter(|object| object.is_object())?;
        (version == "admission.k8s.io/v1").then_some(Self { uid: request.get("uid")?.as_str()?, namespace, object })
    }

    /// The answer that gives a Pod its sidecar.
    pub fn inject(&self, mesh: &Mesh<'_>) -> Value {
        let Some(pod) = self.object.as_object() else { return self.answer(true, Map::new()) };
        let place = Span::of_object(format!("Pod {}/{}", self.namespace, name_of(pod)));
        match mesh.inject_pod(pod, self.namespace, owner(pod), &place) {
            Ok(None) => self.answer(true, Map::new()),
            Ok(Some(injected)) => {
                let patch = json_patch::diff(self.object, &Value::Object(injected));
                let patch = BASE64_STANDARD.encode(json!(patch).to_string());
                self.answer(true, fields([("patchType", "JSONPatch".into()), ("patch", patch.into())]))
            }
            // Without its sidecar the Pod would be outside of the mesh without a word.
            Err(found) => self.refuse(&found),
        }
    }

    /// The answer to an object with these findings: refused if one is an error; warnings are shown by `kubectl`.
    pub fn judge(&self, found: &Diagnostics) -> Value {
        let warnings = found.iter().filter(|finding| finding.severity == Severity::Warning);
        let warnings: Vec<Value> = warnings.map(|finding| text(finding).into()).collect();
        let warnings = (!warnings.is_empty()).then(|| ("warnings", Value::Array(warnings)));
        if found.has_errors() {
            let mut refused = self.refuse(found);
            if let Some(response) = refused.get_mut("response").and_then(Value::as_object_mut) {
                response.extend(fields(warnings));
            }
            return refused;
        }
        self.answer(true, fields(warnings))
    }

    fn refuse(&self, found: &Diagnostics) -> Value {
        let errors = found.iter().filter(|finding| finding.severity == Severity::Error);
        let message = errors.map(text).collect::<Vec<_>>().join("; ");
        let status = json!({"code": 400, "reason": "BadRequest", "message": message});
        self.answer(false, fields([("status", status)]))
    }

    fn answer(&self, allowed: bool, more: Map<String, Value>) -> Value {
        let mut response = fields([("uid", self.uid.into()), ("allowed", allowed.into())]);
        response.extend(more);
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    }
}

fn fields<'n>(fields: impl IntoIterator<Item = (&'n str, Value)>) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A finding as `kubectl` shows it, after the object's name.
fn text(finding: &Diagnostic) -> String {
    let help = finding.help.as_ref().map(|help| format!(" (help: {help})")).unwrap_or_default();
    format!("{}{help} [{}]", finding.message, finding.code)
}

/// The Pod's name, or the beginning of the name that it will get.
fn name_of(pod: &Map<String, Value>) -> &str {
    let of = |field: &str| pod.get("metadata")?.get(field)?.as_str();
    of("name").or_else(|| of("generateName")).unwrap_or_default()
}

/// The workload of a Pod that a controller has made: the Deployment of its ReplicaSet, the CronJob of its Job, or the controller.
fn owner(pod: &Map<String, Value>) -> Option<Owner> {
    let metadata = pod.get("metadata")?;
    let controllers = metadata.get("ownerReferences")?.as_array()?.iter();
    let controller = controllers.clone().find(|owner| owner.get("controller") == Some(&Value::Bool(true)))?;
    let text = |field: &str| controller.get(field).and_then(Value::as_str).unwrap_or_default();
    let hash = metadata.get("labels").and_then(|labels| labels.get(TEMPLATE_HASH)?.as_str());
    let without = |suffix: &str| text("name").strip_suffix(suffix)?.strip_suffix('-').map(str::to_owned);
    let of = |version: &str, kind: &str, name: String| Owner {
        api_version: version.to_owned(),
        kind: kind.to_owned(),
        name,
    };
    let made_by = match text("kind") {
        "ReplicaSet" => hash.and_then(without).map(|name| of("apps/v1", "Deployment", name)),
        "Job" => cron_job(text("name")).map(|name| of("batch/v1", "CronJob", name.to_owned())),
        _ => None,
    };
    made_by.or_else(|| Some(of(text("apiVersion"), text("kind"), text("name").to_owned())))
}

/// The name of the CronJob that a Job is of: the Job's name ends in the time.
fn cron_job(name: &str) -> Option<&str> {
    let (name, time) = name.rsplit_once('-')?;
    (time.len() >= MIN_TIME_DIGITS && time.bytes().all(|byte| byte.is_ascii_digit())).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_what_people_have_written() {
        let check = |kind: &str, name: &str, hash: Option<&str>, expected: &str| {
            let mut metadata =
                json!({"ownerReferences": [{"kind": kind, "name": name, "apiVersion": "x/v1", "controller": true}]});
            metadata["labels"] = hash.map_or_else(|| json!({}), |hash| json!({TEMPLATE_HASH: hash}));
            let found = owner(&fields([("metadata", metadata)])).map(|owner| format!("{} {}", owner.kind, owner.name));
            assert_eq!(found.as_deref(), Some(expected), "{kind} {name}");
        };
        check("ReplicaSet", "web-5d4f8", Some("5d4f8"), "Deployment web");
        check("ReplicaSet", "web-5d4f8", Some("other"), "ReplicaSet web-5d4f8");
        check("ReplicaSet", "web", None, "ReplicaSet web");
        check("Job", "nightly-29012345", None, "CronJob nightly");
        check("Job", "migrate-2", None, "Job migrate-2");
        check("StatefulSet", "db", None, "StatefulSet db");
        assert_eq!(owner(&fields([("metadata", json!({}))])), None);
    }
}
