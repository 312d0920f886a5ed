//! Backends of routes as destinations.

use std::sync::Arc;

use evenkeel_api::gateway_api::BackendTarget;
use evenkeel_api::{Kind, Object};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::one_of;
use evenkeel_base::{Diagnostic, Diagnostics, Span};

use super::super::destination_rules::missing_host_help;
use super::super::tracking::Cx;
use super::grants::{Referred, is_granted};
use super::parent_fields::parent_fields;
use crate::service::ServicePort;
use crate::{Destination, DestinationState, Protocol};

/// Whether a route applies to calls in the mesh only.
fn is_of_mesh(route: &Object) -> bool {
    route.kind() != Kind::UdpRoute && parent_fields(route).is_some_and(|fields| fields.are_of_mesh())
}

/// Resolves the backends of one route.
pub(super) struct Backends<'a, 't> {
    pub(super) cx: &'a Cx<'t>,
    pub(super) object: &'a Object,
    pub(super) found: &'a mut Diagnostics,
    /// What becomes of requests to a backend that cannot be used, for messages.
    pub(super) effect: &'static str,
    /// How the route carries what it routes.
    pub(super) transport: Transport,
}

/// How a route carries what it routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// In connections.
    Tcp,
    /// In datagrams.
    Udp,
}

impl Backends<'_, '_> {
    pub(super) fn warn(&mut self, code: &'static str, span: &Span, message: String, help: String) {
        let message = format!("{}: {message}; {}", self.object, self.effect);
        let finding = Diagnostic::warning(code, span.clone(), message).with_help(help);
        self.found.push(finding.about(self.object.reference()));
    }

    /// The destination of a backend, and what is wrong with it.
    pub(super) fn destination(&mut self, target: BackendTarget<'_>) -> Destination {
        let own = &self.object.namespace;
        let namespace = target.namespace.map_or_else(|| own.clone(), |namespace| namespace.0.clone());
        let span = &target.name.span;
        let of_service = || Hostname::of_service(target.name, &namespace, &self.cx.mesh().cluster_domain);
        let (host, state) = match (target.group, target.kind) {
            ("", "Service") => {
                let host = of_service();
                let state = self.state(target, &namespace, &host);
                (host, state)
            }
            // Istio's way to name any host of the mesh.
            ("networking.istio.io", "Hostname") => match Hostname::parse(target.name) {
                Ok(host) => {
                    let state = self.look_up(target, &host);
                    (host, state)
                }
                Err(error) => {
                    let host = of_service();
                    self.warn("bad-host", span, error.to_string(), "name a host of the mesh".to_owned());
                    (host, DestinationState::Refused)
                }
            },
            (group, kind) => {
                let host = of_service();
                let message = format!("a {kind} of `{group}` cannot be a backend");
                let help = "name a Service, or a `Hostname` of networking.istio.io".to_owned();
                self.warn("unsupported-backend", span, message, help);
                (host, DestinationState::Refused)
            }
        };
        Destination { host, subset: None, port: target.port, state, origin: span.clone() }
    }

    fn state(&mut self, target: BackendTarget<'_>, namespace: &Arc<str>, host: &Hostname) -> DestinationState {
        let to = Referred { group: target.group, kind: target.kind, namespace, name: target.name };
        // As in Istio, clients of the mesh reach other namespaces without a grant, so their routes do.
        if is_of_mesh(self.object) || is_granted(self.cx, self.object, &to) {
            return self.look_up(target, host);
        }
        let message =
            format!("no ReferenceGrant allows the reference to the Service `{namespace}/{}`", target.name.value);
        let (kind, own) = (self.object.kind(), &self.object.namespace);
        let help = format!("add a ReferenceGrant to the namespace {namespace}, from {kind} of {own} to Service");
        self.warn("missing-grant", &target.name.span, message, help);
        DestinationState::Refused
    }

    fn look_up(&mut self, target: BackendTarget<'_>, host: &Hostname) -> DestinationState {
        let (cx, own) = (self.cx, &self.object.namespace);
        let span = &target.name.span;
        let Some(service) = cx.destination(host, own) else {
            let help = missing_host_help(cx, host, own);
            self.warn("missing-service", span, format!("there is no Service `{host}`"), help);
            return DestinationState::UnknownHost;
        };
        let is_carried = |port: &&ServicePort| match self.transport {
            Transport::Tcp => true,
            Transport::Udp => port.protocol == Protocol::Udp,
        };
        let ports = || service.ports.iter().filter(is_carried);
        match target.port.filter(|number| ports().all(|port| port.number != *number)) {
            None => DestinationState::Known,
            Some(port) => {
                let numbers: Vec<String> = ports().map(|port| port.number.to_string()).collect();
                let of_udp = if self.transport == Transport::Udp { " of UDP" } else { "" };
                let help = match numbers.as_slice() {
                    [] => format!("it has no ports{of_udp}"),
                    numbers => format!("its ports{of_udp}: {}", one_of(numbers.iter().map(String::as_str))),
                };
                self.warn("missing-port", span, format!("the Service `{host}` has no port {port}{of_udp}"), help);
                DestinationState::UnknownPort
            }
        }
    }
}
