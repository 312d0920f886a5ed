//! Settings of the mesh.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_api::istio::{self, MeshOutboundMode};
use evenkeel_api::remote::{self, CLUSTER_LABEL, NETWORK_LABEL, OWN_SOURCE};
use evenkeel_api::{Kind, Object};
use evenkeel_base::{Diagnostic, Diagnostics};

use super::discovery::Discovery;
use super::objects::mesh_settings;
use super::refused;
use super::run::Run;
use super::settings;
use super::step::{Results, Step};
use super::tracking::Cx;
use crate::{Labels, MeshConfig, Snapshot};

/// Labels of the namespaces that are declared.
#[derive(Debug, Default)]
pub(super) struct Namespaces(Arc<BTreeMap<Arc<str>, Labels>>);

pub(super) fn settings_step(run: &mut Run<'_>) -> bool {
    let defaults = run.defaults;
    let mesh = run.read(|cx, found| of_objects(cx, defaults, found));
    if mesh != run.tables.mesh {
        run.tables.mesh = mesh;
        run.tracker.all_changed();
        // The step may never have run.
        run.tracker.want(Step::Namespaces);
    }
    true
}

pub(super) fn namespaces_step(run: &mut Run<'_>) -> bool {
    let labels = run.read(|cx, _| cx.objects(Kind::Namespace).map(|o| (o.name.clone(), o.labels.clone())).collect());
    let labels = Namespaces(Arc::new(labels));
    if labels.0 != run.tables.namespaces.0 {
        // Labels seldom change, so what depends on them is not recorded.
        run.tables.namespaces = labels;
        run.tracker.all_changed();
    }
    let discovery = Discovery::of(&run.tables.mesh, &run.tables.namespaces.0);
    run.tables.objects.discover(discovery, run.tracker);
    true
}

impl<'t> Cx<'t> {
    /// The labels of a namespace that is declared. When labels of namespaces change, all steps run again.
    pub(super) fn namespace_labels(&self, namespace: &str) -> Option<&'t Labels> {
        self.tables().namespaces.0.get(namespace)
    }

    /// The network of the control plane's own cluster: a label of the root namespace.
    pub(super) fn own_network(&self) -> Option<&'t str> {
        let labels = self.namespace_labels(&self.mesh().root_namespace)?;
        labels.get(NETWORK_LABEL).map(String::as_str).filter(|network| !network.is_empty())
    }

    /// Adds the labels of cluster and network to those of a workload or an endpoint that an object of a cluster stands for, as Istio does:
    /// subsets and `sourceLabels` may name them. What files declare is in no cluster.
    pub(super) fn add_place(&self, object: &Object, network: &str, labels: &mut Labels) {
        let cluster = match remote::split(&object.name).0 {
            "" if object.source.name() == OWN_SOURCE => &*self.mesh().cluster,
            remote => remote,
        };
        if cluster.is_empty() {
            return;
        }
        labels.insert(CLUSTER_LABEL.to_owned(), cluster.to_owned());
        if !network.is_empty() {
            labels.insert(NETWORK_LABEL.to_owned(), network.to_owned());
        }
    }
}

impl Results for MeshConfig {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        let changed = *self != next.mesh;
        if changed {
            next.mesh.clone_from(self);
        }
        changed
    }
}

impl Results for Namespaces {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        let changed = self.0 != next.namespaces;
        next.namespaces.clone_from(&self.0);
        changed
    }
}

/// The defaults, overridden by the ConfigMap `istio` in the root namespace.
fn of_objects(cx: &Cx<'_>, defaults: &MeshConfig, found: &mut Diagnostics) -> MeshConfig {
    let mut mesh = defaults.clone();
    let root = defaults.root_namespace.clone();
    for object in mesh_settings(cx) {
        if object.namespace == root {
            if let Some((said, _)) = istio::MeshConfig::of_object(object) {
                if object.refused.is_some() {
                    let mode = said.outbound_traffic_policy.as_ref().and_then(|policy| policy.mode.as_ref());
                    let only = mode.is_some_and(|mode| mode.value == MeshOutboundMode::RegistryOnly);
                    let effect = if only {
                        "settings with a mistake keep their defaults, and calls to unknown hosts are refused"
                    } else {
                        "settings with a mistake keep their defaults"
                    };
                    found.push(refused::closed(object, effect));
                }
                let mut of_settings = Diagnostics::new();
                settings::apply(&mut mesh, said, &mut of_settings);
                found.extend(of_settings.about(object.reference()));
            }
            continue;
        }
        let message = format!("{object} has no effect: mesh settings are read from the namespace `{root}`");
        let finding = Diagnostic::warning("no-effect", object.origin.clone(), message);
        found.push(finding.with_help("move it there").about(object.reference()));
    }
    mesh
}
