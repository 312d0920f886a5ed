//! VirtualServices as route sets.

use evenkeel_api::{Object, istio};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::closest;
use evenkeel_base::{Diagnostic, Diagnostics, Spanned};

use super::routes;
use super::tracking::Cx;
use crate::{GatewayRef, MeshConfig, RouteOrder, RouteSet};

/// The routes of a VirtualService, every name resolved.
pub(super) fn route_set(
    cx: &Cx<'_>,
    object: &Object,
    spec: &istio::VirtualServiceSpec,
    diagnostics: &mut Diagnostics,
) -> RouteSet {
    let namespace = &*object.namespace;
    let resolve = |host: &Spanned<Hostname>| {
        let full = Hostname::resolve(host.as_str(), namespace, &cx.mesh().cluster_domain);
        Spanned::new(full.unwrap_or_else(|_| host.value.clone()), host.span.clone())
    };
    let gateways: Vec<GatewayRef> = if spec.gateways.is_empty() {
        vec![GatewayRef::Mesh]
    } else {
        spec.gateways.iter().map(|g| GatewayRef::parse(g, namespace)).collect()
    };
    let mut reader = routes::Reader { cx, object, gateways: &gateways, root: None, diagnostics };
    let (http, tls, tcp) = (reader.http(&spec.http), reader.tls(&spec.tls), reader.tcp(&spec.tcp));
    let made = RouteSet {
        kind: object.kind(),
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        hosts: spec.hosts.iter().map(resolve).collect(),
        export_to: MeshConfig::visibility(
            spec.export_to.iter().map(|e| e.as_str()),
            &cx.mesh().virtual_service_export_to,
            namespace,
        ),
        http,
        order: RouteOrder::AsWritten,
        tls,
        tcp,
        udp: Vec::new(),
        origin: object.origin.clone(),
        gateways,
    };
    note_gateways(cx, object, &made, spec, diagnostics);
    made
}

/// Checks that the gateways exist and serve the hosts.
fn note_gateways(
    cx: &Cx<'_>,
    object: &Object,
    service: &RouteSet,
    spec: &istio::VirtualServiceSpec,
    diagnostics: &mut Diagnostics,
) {
    let mut found = Vec::new();
    for (written, reference) in spec.gateways.iter().zip(&service.gateways) {
        let GatewayRef::Named { namespace, name } = reference else { continue };
        match cx.gateway(namespace, name) {
            Some(gateway) => found.push(gateway),
            None => {
                let names: Vec<String> = cx.gateways().map(|g| format!("{}/{}", g.namespace, g.name)).collect();
                let elsewhere = cx.gateways().position(|g| g.name == *name).and_then(|i| names.get(i));
                let near = elsewhere
                    .map(String::as_str)
                    .or_else(|| closest(&reference.to_string(), names.iter().map(String::as_str)));
                let help = match near {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "add the Gateway, or correct the name".to_owned(),
                };
                let message = format!("{object}: there is no Gateway `{reference}`");
                let finding = Diagnostic::warning("missing-gateway", written.span.clone(), message).with_help(help);
                diagnostics.push(finding.about(object.reference()));
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
            let finding = Diagnostic::warning("host-not-served", host.span.clone(), message).with_help(help);
            diagnostics.push(finding.about(object.reference()));
        }
    }
}
