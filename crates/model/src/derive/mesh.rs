//! Settings of the mesh.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_api::Kind;
use evenkeel_api::istio::{self, AccessLogEncoding, OutboundTrafficPolicyMode};
use evenkeel_base::{Diagnostic, Diagnostics};

use super::http_fields::retries_of;
use super::objects::mesh_settings;
use super::refused;
use super::run::Run;
use super::shared;
use super::step::Results;
use super::tracking::Cx;
use crate::{Labels, MeshConfig, OutboundTrafficPolicy, Snapshot};

/// Labels of the namespaces that are declared.
#[derive(Debug, Default)]
pub(super) struct Namespaces(Arc<BTreeMap<Arc<str>, Labels>>);

pub(super) fn settings_step(run: &mut Run<'_>) -> bool {
    let defaults = run.defaults;
    let mesh = run.read(|cx, found| settings(cx, defaults, found));
    if mesh != run.tables.mesh {
        run.tables.mesh = mesh;
        run.tracker.all_changed();
    }
    true
}

pub(super) fn namespaces_step(run: &mut Run<'_>) -> bool {
    let labels = run.read(|cx, _| cx.objects(Kind::Namespace).map(|o| (o.name.clone(), o.labels.clone())).collect());
    run.tables.namespaces = Namespaces(Arc::new(labels));
    true
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
fn settings(cx: &Cx<'_>, defaults: &MeshConfig, found: &mut Diagnostics) -> MeshConfig {
    let mut mesh = defaults.clone();
    let root = defaults.root_namespace.clone();
    for object in mesh_settings(cx) {
        if object.namespace == root {
            if let Some((said, _)) = istio::MeshConfig::of_object(object) {
                if object.refused.is_some() {
                    let only = matches!(
                        said.outbound_traffic_policy.as_ref().and_then(|policy| policy.mode),
                        Some(OutboundTrafficPolicyMode::RegistryOnly)
                    );
                    let effect = match only {
                        true => "settings with a mistake keep their defaults, and calls to unknown hosts are refused",
                        false => "settings with a mistake keep their defaults",
                    };
                    found.push(refused::closed(object, effect));
                }
                apply(&mut mesh, said);
            }
            continue;
        }
        let message = format!("{object} has no effect: mesh settings are read from the namespace `{root}`");
        let finding = Diagnostic::warning("no-effect", object.origin.clone(), message);
        found.push(finding.with_help("move it there").about(object.reference()));
    }
    mesh
}

fn apply(mesh: &mut MeshConfig, said: istio::MeshConfig) {
    if let Some(domain) = &said.trust_domain {
        mesh.trust_domain = shared(domain);
    }
    if !said.trust_domain_aliases.is_empty() {
        mesh.trust_domain_aliases = said.trust_domain_aliases.iter().map(|a| shared(a)).collect();
    }
    if let Some(namespace) = said.root_namespace {
        mesh.root_namespace = namespace.0;
    }
    match said.outbound_traffic_policy.and_then(|p| p.mode) {
        Some(OutboundTrafficPolicyMode::AllowAny) => mesh.outbound_traffic_policy = OutboundTrafficPolicy::AllowAny,
        Some(OutboundTrafficPolicyMode::RegistryOnly) => {
            mesh.outbound_traffic_policy = OutboundTrafficPolicy::RegistryOnly;
        }
        None => {}
    }
    // An empty text turns the log off.
    if let Some(file) = said.access_log_file {
        mesh.access_log_file = (!file.is_empty()).then(|| shared(&file));
    }
    if let Some(format) = said.access_log_format {
        mesh.access_log_format = (!format.is_empty()).then(|| shared(&format));
    }
    if let Some(encoding) = said.access_log_encoding {
        mesh.access_log_json = encoding == AccessLogEncoding::Json;
    }
    mesh.connect_timeout = said.connect_timeout.unwrap_or(mesh.connect_timeout);
    mesh.protocol_detection_timeout = said.protocol_detection_timeout.unwrap_or(mesh.protocol_detection_timeout);
    mesh.enable_auto_mtls = said.enable_auto_mtls.unwrap_or(mesh.enable_auto_mtls);
    if let Some(policy) = &said.default_http_retry_policy {
        mesh.default_http_retry = Some(retries_of(policy));
    }
}
