//! VirtualServices: resolved, and each host of the mesh given to one.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_api::{Kind, Object, Resource, istio};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::closest;
use evenkeel_base::{Diagnostic, Diagnostics, Span, Spanned};

use super::{Objects, routes};
use crate::{GatewayRef, Snapshot, VirtualService, Visibility};

pub(super) fn build(
    objects: &Objects<'_>,
    snapshot: &Snapshot,
    diagnostics: &mut Diagnostics,
) -> Vec<Arc<VirtualService>> {
    let mut built = Vec::new();
    let mut claims = Claims::default();
    for object in objects.of(Kind::VirtualService) {
        let Resource::VirtualService(written) = &object.resource else { continue };
        let whole = virtual_service(object, &written.spec, snapshot, diagnostics);
        note_gateways(snapshot, object, &whole, &written.spec, diagnostics);
        claims.join(object, &whole, diagnostics);
        let (mesh, gateways): (Vec<_>, Vec<_>) = whole.gateways.iter().cloned().partition(|g| *g == GatewayRef::Mesh);
        let free = if mesh.is_empty() { Vec::new() } else { claims.claim(object, &whole, diagnostics) };
        if free.len() == whole.hosts.len() || mesh.is_empty() {
            built.push(Arc::new(whole));
            continue;
        }
        // Part of the hosts belong to others in the mesh, but at gateways all stay.
        if !free.is_empty() {
            built.push(Arc::new(VirtualService { hosts: free, gateways: mesh, ..whole.clone() }));
        }
        if !gateways.is_empty() {
            built.push(Arc::new(VirtualService { gateways, ..whole }));
        }
    }
    built
}

fn virtual_service(
    object: &Object,
    spec: &istio::VirtualServiceSpec,
    snapshot: &Snapshot,
    diagnostics: &mut Diagnostics,
) -> VirtualService {
    let namespace = &*object.namespace;
    let resolve = |host: &Spanned<Hostname>| {
        // A name that is too long in full keeps its short form; no service has it.
        let full = Hostname::resolve(host.as_str(), namespace, &snapshot.mesh.cluster_domain);
        Spanned::new(full.unwrap_or_else(|_| host.value.clone()), host.span.clone())
    };
    let gateways: Vec<GatewayRef> = match spec.gateways.is_empty() {
        true => vec![GatewayRef::Mesh],
        false => spec.gateways.iter().map(|g| GatewayRef::parse(g, namespace)).collect(),
    };
    let mut reader = routes::Reader { object, snapshot, gateways: &gateways, diagnostics };
    let (http, tls, tcp) = (reader.http(&spec.http), reader.tls(&spec.tls), reader.tcp(&spec.tcp));
    VirtualService {
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        hosts: spec.hosts.iter().map(resolve).collect(),
        export_to: Visibility::from_export_to(spec.export_to.iter().map(|e| e.as_str()), namespace),
        http,
        tls,
        tcp,
        origin: object.origin.clone(),
        gateways,
    }
}

/// Who has which host.
#[derive(Default)]
struct Claims {
    in_mesh: BTreeMap<Hostname, Vec<Claim>>,
    at_gateways: BTreeMap<(GatewayRef, Hostname), Claim>,
}

struct Claim {
    owner: String,
    visibility: Visibility,
    span: Span,
}

impl Claims {
    /// At a gateway the routes of all who name a host are merged.
    fn join(&mut self, object: &Object, service: &VirtualService, diagnostics: &mut Diagnostics) {
        for gateway in service.gateways.iter().filter(|g| **g != GatewayRef::Mesh) {
            for host in &service.hosts {
                let key = (gateway.clone(), host.value.clone());
                let Some(first) = self.at_gateways.get(&key) else {
                    let visibility = service.export_to.clone();
                    self.at_gateways
                        .insert(key, Claim { owner: object.to_string(), visibility, span: host.span.clone() });
                    continue;
                };
                let message = format!(
                    "{} also routes `{}` at the Gateway {gateway}; its routes come before those of {object}",
                    first.owner, host.value
                );
                diagnostics.push(
                    Diagnostic::info("merged", host.span.clone(), message)
                        .with_help("the first route that matches is taken, one without a match comes last")
                        .with_related(first.span.clone(), "these routes come first"),
                );
            }
        }
    }

    /// Claims the hosts that no earlier VirtualService with common viewers has.
    fn claim(
        &mut self,
        object: &Object,
        service: &VirtualService,
        diagnostics: &mut Diagnostics,
    ) -> Vec<Spanned<Hostname>> {
        let mut free = Vec::new();
        for host in &service.hosts {
            let claims = self.in_mesh.entry(host.value.clone()).or_default();
            match claims.iter().find(|c| c.visibility.overlaps(&service.export_to)) {
                Some(first) => diagnostics.push(
                    Diagnostic::warning(
                        "duplicate-host",
                        host.span.clone(),
                        format!(
                            "{} already routes `{}` in the mesh; the routes of {object} for it are ignored",
                            first.owner, host.value
                        ),
                    )
                    .with_help("write the routes of a host into one VirtualService")
                    .with_related(first.span.clone(), "this one applies"),
                ),
                None => {
                    let visibility = service.export_to.clone();
                    claims.push(Claim { owner: object.to_string(), visibility, span: host.span.clone() });
                    free.push(host.clone());
                }
            }
        }
        free
    }
}

/// Checks that the gateways exist and serve the hosts.
fn note_gateways(
    snapshot: &Snapshot,
    object: &Object,
    service: &VirtualService,
    spec: &istio::VirtualServiceSpec,
    diagnostics: &mut Diagnostics,
) {
    let mut found = Vec::new();
    for (written, reference) in spec.gateways.iter().zip(&service.gateways) {
        let GatewayRef::Named { namespace, name } = reference else { continue };
        match snapshot.gateways.iter().find(|g| g.namespace == *namespace && g.name == *name) {
            Some(gateway) => found.push(gateway),
            None => {
                let names: Vec<String> =
                    snapshot.gateways.iter().map(|g| format!("{}/{}", g.namespace, g.name)).collect();
                let elsewhere = snapshot.gateways.iter().position(|g| g.name == *name).and_then(|i| names.get(i));
                let near = elsewhere
                    .map(String::as_str)
                    .or_else(|| closest(&reference.to_string(), names.iter().map(String::as_str)));
                let help = match near {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "add the Gateway, or correct the name".to_owned(),
                };
                let message = format!("{object}: there is no Gateway `{reference}`");
                diagnostics.push(Diagnostic::warning("missing-gateway", written.span.clone(), message).with_help(help));
            }
        }
    }
    if found.is_empty() || service.applies_at(&GatewayRef::Mesh) {
        return;
    }
    for host in &service.hosts {
        let served = found.iter().flat_map(|g| &g.servers).flat_map(|s| &s.hosts);
        if !served.clone().any(|h| h.intersection(service, &host.value).is_some()) {
            let hosts: Vec<String> = served.map(|h| format!("`{}`", h.value)).collect();
            let message = format!("{object}: none of its gateways serves `{}`", host.value);
            let help = format!("they serve {}", if hosts.is_empty() { "nothing".to_owned() } else { hosts.join(", ") });
            diagnostics.push(Diagnostic::warning("host-not-served", host.span.clone(), message).with_help(help));
        }
    }
}
