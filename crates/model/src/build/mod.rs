//! From a user's objects to the [`Snapshot`], with what only shows when they are seen together.

mod destination_rules;
mod endpoints;
mod gateways;
mod mesh;
mod policies;
mod routes;
mod services;
mod virtual_services;
mod workloads;

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_api::{Kind, Object, Resource};
use evenkeel_base::suggest::closest;
use evenkeel_base::{Diagnostic, Diagnostics};

use crate::index::HostIndex;
use crate::{AddressBook, Labels, MeshConfig, Snapshot};

/// Builds the snapshot of all objects, in the order of precedence (files in the order of their names): where two claim
/// the same, the earlier one wins. `mesh` holds the settings that a ConfigMap `istio` does not override; `book` the
/// addresses given so far, and afterwards those given now.
///
/// An error here means that one object, or part of it, is left out; everything else is in the snapshot.
pub fn build<'a>(
    objects: impl IntoIterator<Item = &'a Object>,
    mesh: &MeshConfig,
    book: &mut AddressBook,
) -> (Snapshot, Diagnostics) {
    let mut diagnostics = Diagnostics::new();
    let objects = Objects::new(objects, &mut diagnostics);
    let mut snapshot = Snapshot { mesh: mesh::settings(&objects, mesh, &mut diagnostics), ..Snapshot::default() };
    snapshot.namespaces = objects.of(Kind::Namespace).map(|o| (o.name.clone(), o.labels.clone())).collect();
    snapshot.services = services::build(&objects, &snapshot.mesh, book, &mut diagnostics);
    snapshot.peer_authentications = policies::peer_authentications(&objects, &snapshot.mesh, &mut diagnostics);
    snapshot.authorization_policies = policies::authorization_policies(&objects, &mut diagnostics);
    snapshot.workloads = workloads::build(&objects, &snapshot, &mut diagnostics);
    snapshot.endpoints = endpoints::build(&objects, &snapshot, &mut diagnostics);
    snapshot.destination_rules = destination_rules::build(&objects, &snapshot, &mut diagnostics);
    snapshot.gateways = gateways::build(&objects, &mut diagnostics);
    snapshot.virtual_services = virtual_services::build(&objects, &snapshot, &mut diagnostics);
    snapshot.index = HostIndex::new(&snapshot.virtual_services);
    diagnostics.sort();
    (snapshot, diagnostics)
}

/// The objects, each name once per kind, and what is asked of them often.
struct Objects<'a> {
    by_kind: BTreeMap<Kind, Vec<&'a Object>>,
    /// Labels of everything that runs or would run, by namespace: Pods and the templates of Deployments.
    workload_labels: BTreeMap<&'a str, Vec<Labels>>,
}

impl<'a> Objects<'a> {
    fn new(objects: impl IntoIterator<Item = &'a Object>, diagnostics: &mut Diagnostics) -> Self {
        let mut seen: BTreeMap<(Kind, &str, &str), &Object> = BTreeMap::new();
        let mut index = Self { by_kind: BTreeMap::new(), workload_labels: BTreeMap::new() };
        for object in objects {
            let key = (object.kind(), &*object.namespace, &*object.name);
            match seen.get(&key) {
                Some(first) => diagnostics.push(duplicate(object, first)),
                None => {
                    seen.insert(key, object);
                    index.add(object);
                }
            }
        }
        index
    }

    fn add(&mut self, object: &'a Object) {
        let labels = match &object.resource {
            Resource::Pod(_) => Some(object.labels.clone()),
            Resource::Deployment(deployment) => Some(deployment.spec.template.labels()),
            _ => None,
        };
        self.workload_labels.entry(&object.namespace).or_default().extend(labels);
        self.by_kind.entry(object.kind()).or_default().push(object);
    }

    /// All objects of a kind, in the order of precedence.
    fn of(&self, kind: Kind) -> impl Iterator<Item = &'a Object> + '_ {
        self.by_kind.get(&kind).into_iter().flatten().copied()
    }

    /// Labels of everything that runs or would run in a namespace.
    fn workload_labels(&self, namespace: &str) -> &[Labels] {
        self.workload_labels.get(namespace).map_or(&[], Vec::as_slice)
    }
}

fn duplicate(object: &Object, first: &Object) -> Diagnostic {
    let message = format!("{object} is defined twice; this one is ignored");
    Diagnostic::error("duplicate-object", object.origin.clone(), message)
        .with_help("remove or rename one of the two")
        .with_related(first.origin.clone(), "first defined here")
}

/// Warns about a selector that fits nothing in its namespace, where there is something to choose from: it is most
/// likely misspelt.
fn note_idle_selector(objects: &Objects<'_>, object: &Object, selector: &Labels, diagnostics: &mut Diagnostics) {
    let candidates = objects.workload_labels(&object.namespace);
    let fits = |labels: &Labels| crate::workload::selects(selector, labels);
    if selector.is_empty() || candidates.is_empty() || candidates.iter().any(fits) {
        return;
    }
    let text = labels_text(selector);
    let values: Vec<_> = candidates.iter().flat_map(|l| l.iter().map(|(k, v)| format!("{k}: {v}"))).collect();
    let help = match closest(&text, values.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "compare it with the labels of the Pod templates".to_owned(),
    };
    let message = format!("{object} selects `{text}`, which no Deployment or Pod has");
    diagnostics.push(Diagnostic::warning("selects-nothing", object.origin.clone(), message).with_help(help));
}

/// `app: web, version: v1`
fn labels_text(labels: &Labels) -> String {
    labels.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(", ")
}

/// Shared text.
fn shared(text: &str) -> Arc<str> {
    text.into()
}
