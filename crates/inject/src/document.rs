//! Where manifests have Pods.

use std::collections::BTreeMap;

use evenkeel_api::istio::ProxyConfig;
use evenkeel_base::{Diagnostics, Span};
use serde_json::{Map, Value};

use crate::apply::{Subject, inject_json};
use crate::pod::Owner;
use crate::template::Template;

/// Kinds with a template of Pods, and its place.
const TEMPLATES: [(&str, &str); 10] = [
    ("Deployment", "/spec/template"),
    ("ReplicaSet", "/spec/template"),
    ("StatefulSet", "/spec/template"),
    ("DaemonSet", "/spec/template"),
    ("ReplicationController", "/spec/template"),
    ("Job", "/spec/template"),
    ("CronJob", "/spec/jobTemplate/spec/template"),
    ("DeploymentConfig", "/spec/template"),
    ("Rollout", "/spec/template"),
    ("PodTemplate", "/template"),
];

/// What manifests are injected with.
pub struct Mesh<'a> {
    /// What the mesh says about all sidecars.
    pub template: &'a Template,
    /// The namespace of objects that name none.
    pub namespace: &'a str,
    /// The labels of a namespace.
    pub namespace_labels: &'a dyn Fn(&str) -> BTreeMap<String, String>,
    /// The ProxyConfig that applies to Pods of a namespace with these labels.
    pub config: &'a dyn Fn(&str, &BTreeMap<String, String>) -> ProxyConfig,
}

impl Mesh<'_> {
    /// Gives the Pods of a manifest their sidecars: those of a Pod, of a template, or of all items of a List. Returns how many got
    /// one.
    ///
    /// # Errors
    /// A Pod cannot be read.
    pub fn inject(&self, manifest: &mut Value, place: &Span) -> Result<usize, Diagnostics> {
        let text = |name: &str| manifest.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (version, kind) = (text("apiVersion"), text("kind"));
        if let Some(items) = manifest.get_mut("items").and_then(Value::as_array_mut)
            && kind.ends_with("List")
        {
            return items.iter_mut().map(|item| self.inject(item, place)).sum();
        }
        let metadata = |name: &str| manifest.pointer("/metadata")?.get(name)?.as_str().map(str::to_owned);
        let namespace = metadata("namespace").unwrap_or_else(|| self.namespace.to_owned());
        let owner = metadata("name").map(|name| Owner { api_version: version, kind: kind.clone(), name });
        let (pod, owner) = if kind == "Pod" {
            (Some(&mut *manifest), None)
        } else {
            let template = TEMPLATES.iter().find(|(templated, _)| *templated == kind);
            (template.and_then(|(_, pointer)| manifest.pointer_mut(pointer)), owner)
        };
        let Some(Value::Object(pod)) = pod else { return Ok(0) };
        let injected = self.inject_pod(pod, &namespace, owner, place)?;
        Ok(injected.map(|injected| *pod = injected).map_or(0, |()| 1))
    }

    /// Returns a Pod with its sidecar; `None`: it gets none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn inject_pod(
        &self,
        json: &Map<String, Value>,
        namespace: &str,
        owner: Option<Owner>,
        place: &Span,
    ) -> Result<Option<Map<String, Value>>, Diagnostics> {
        let namespace_labels = &(self.namespace_labels)(namespace);
        let subject = Subject { json, place, owner, namespace_labels };
        inject_json(&subject, self.template, |labels| (self.config)(namespace, labels))
    }
}
