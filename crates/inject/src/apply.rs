//! A Pod with its sidecar, as JSON.

use std::collections::BTreeMap;

use evenkeel_api::annotations::parse_bool;
use evenkeel_api::istio::ProxyConfig;
use evenkeel_api::kubernetes::PodTemplate;
use evenkeel_base::{Diagnostics, Span};
use serde_json::{Map, Value, json};

use crate::agent::literal;
use crate::container::{Container, Variable};
use crate::decision::is_gateway;
use crate::injection::{Injection, inject};
use crate::merge::{self, OVERRIDES_ANNOTATION};
use crate::pod::{Owner, Pod};
use crate::probes::{PROBES_VARIABLE, Probes, REWRITE_ANNOTATION};
use crate::settings::ProxySettings;
use crate::sidecar::STATUS_PORT;
use crate::template::Template;
use crate::undo::{LISTS, programs, undo};

/// A Pod, or the template of Pods, that may get a sidecar.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    /// Its fields, `metadata` and `spec` among them.
    pub json: &'a Map<String, Value>,
    /// Its place, for findings.
    pub place: &'a Span,
    /// The workload that it belongs to, if there is one.
    pub owner: Option<Owner>,
    /// The labels of its namespace.
    pub namespace_labels: &'a BTreeMap<String, String>,
}

/// Returns the Pod with its sidecar; `None`: it is not in the mesh. A Pod that has a sidecar already gets the present one in its
/// place. `config` returns the ProxyConfig that applies to Pods with the given labels.
///
/// # Errors
/// The Pod cannot be read.
pub fn inject_json(
    subject: &Subject<'_>,
    template: &Template,
    config: impl FnOnce(&BTreeMap<String, String>) -> ProxyConfig,
) -> Result<Option<Map<String, Value>>, Diagnostics> {
    let mut json = subject.json.clone();
    undo(&mut json);
    json.entry("metadata").or_insert_with(|| Map::new().into());
    let read = PodTemplate::of_json(&json, subject.place)?;
    let Some(metadata) = read.metadata else { return Ok(None) };
    let config = config(&metadata.labels);
    let pod = Pod {
        metadata: &metadata,
        spec: &read.spec,
        owner: subject.owner.clone(),
        namespace_labels: subject.namespace_labels,
        config: &config,
        template,
    };
    Ok(inject(&pod).map(|injection| with_sidecar(json, &pod, injection)))
}

fn with_sidecar(mut json: Map<String, Value>, pod: &Pod<'_>, mut injection: Injection) -> Map<String, Value> {
    let mut metadata = take_object(&mut json, "metadata");
    let mut spec = take_object(&mut json, "spec");
    let overrides = Overrides::take(&mut spec, &injection);
    let mut probes = Probes::default();
    if let Some(port) = probes_port(pod) {
        programs(&mut spec).for_each(|container| probes.redirect(container, port));
    }
    if let (Some(table), Some(proxy)) = (probes.table(), injection.proxy_mut()) {
        proxy.env.push(Variable::new(PROBES_VARIABLE, literal(&table)));
    }
    let added = [("containers", &injection.containers), ("initContainers", &injection.init_containers)];
    for (list, containers) in added {
        let merged: Vec<Value> = containers.iter().map(|container| overrides.merged(container)).collect();
        put_first(&mut spec, list, merged);
    }
    put_volumes(&mut spec, injection.volumes);
    put_texts(&mut metadata, "labels", injection.labels);
    put_texts(&mut metadata, "annotations", injection.annotations);
    put_texts(&mut metadata, "annotations", overrides.annotation());
    json.insert("metadata".to_owned(), metadata.into());
    json.insert("spec".to_owned(), spec.into());
    json
}

/// The port of the agent that probes go to; `None`: they stay as they are. The probes of a gateway are its proxy's.
fn probes_port(pod: &Pod<'_>) -> Option<u16> {
    let is_wanted = pod.text(REWRITE_ANNOTATION).and_then(parse_bool).unwrap_or(true);
    let settings = ProxySettings::of_pod(pod.config.clone(), pod.annotations(), pod.template.merges_metrics);
    let port = settings.status_port.unwrap_or(STATUS_PORT);
    (is_wanted && port != 0 && !is_gateway(pod.annotations(), pod.spec)).then_some(port)
}

/// What the Pod says itself about injected containers: its containers of their names, by list.
struct Overrides(BTreeMap<&'static str, Vec<Value>>);

impl Overrides {
    /// Takes them out of the Pod.
    fn take(spec: &mut Map<String, Value>, injection: &Injection) -> Self {
        let is_own = |container: &Value| {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
            injection.containers().any(|injected| injected.name == name)
        };
        let mut own = BTreeMap::new();
        for list in LISTS {
            let Some(all) = spec.get_mut(list).and_then(Value::as_array_mut) else { continue };
            let (named, others): (Vec<Value>, Vec<Value>) = std::mem::take(all).into_iter().partition(is_own);
            *all = others;
            if !named.is_empty() {
                own.insert(list, named);
            }
        }
        Self(own)
    }

    fn merged(&self, container: &Container) -> Value {
        let template = json!(container);
        let is_named = |own: &&Value| own.get("name") == template.get("name");
        match self.0.values().flatten().find(is_named) {
            Some(own) => merge::over(template, own),
            None => template,
        }
    }

    fn annotation(&self) -> BTreeMap<String, String> {
        let text = (!self.0.is_empty()).then(|| json!(self.0).to_string());
        text.into_iter().map(|text| (OVERRIDES_ANNOTATION.to_owned(), text)).collect()
    }
}

fn take_object(fields: &mut Map<String, Value>, name: &str) -> Map<String, Value> {
    match fields.get_mut(name).map(Value::take) {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

fn take_array(fields: &mut Map<String, Value>, name: &str) -> Vec<Value> {
    match fields.get_mut(name).map(Value::take) {
        Some(Value::Array(elements)) => elements,
        _ => Vec::new(),
    }
}

/// Puts containers before those of a list.
fn put_first(spec: &mut Map<String, Value>, list: &str, mut containers: Vec<Value>) {
    containers.extend(take_array(spec, list));
    // Without any there is no list. A list keeps its place, so that a second injection prints the same.
    if containers.is_empty() {
        spec.shift_remove(list);
    } else {
        spec.insert(list.to_owned(), containers.into());
    }
}

/// Puts volumes after those of the Pod; one of the same name replaces the Pod's.
fn put_volumes(spec: &mut Map<String, Value>, added: Vec<Value>) {
    let mut volumes = take_array(spec, "volumes");
    volumes.retain(|volume| !added.iter().any(|new| new.get("name") == volume.get("name")));
    volumes.extend(added);
    spec.insert("volumes".to_owned(), volumes.into());
}

fn put_texts(metadata: &mut Map<String, Value>, field: &str, texts: BTreeMap<String, String>) {
    if texts.is_empty() {
        return;
    }
    let mut all = take_object(metadata, field);
    all.extend(texts.into_iter().map(|(name, text)| (name, Value::String(text))));
    metadata.insert(field.to_owned(), all.into());
}
