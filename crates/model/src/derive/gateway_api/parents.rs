//! Where a route applies: the listeners that take it, and the services of the mesh that it is for.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_api::gateway_api::{DefaultScope, GROUP, Listener, ParentRef};
use evenkeel_api::{Kind, Object, ObjectKey, Resource};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::{closest, one_of};
use evenkeel_base::{Diagnostic, Diagnostics, Span, Spanned};

use super::super::shared;
use super::super::tracking::Cx;
use super::listener_sets::{all_listeners, listener_set, parent_of};
use super::listeners::{
    Owned, gateway, gateway_name, host_of, is_anothers, own_controller, passes_tls, refusal, set_name,
};
use super::route_status::{accepted, reference, refused};
use crate::gateway_api_status::{Ancestor, RouteParentStatus, RouteStatus};
use crate::{Condition, GatewayRef, Visibility};

/// The controller of parents in the mesh, which have no class, as in Istio.
const MESH_CONTROLLER: &str = "istio.io/gateway-controller";

/// A place where a route applies.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Attached {
    /// The hosts there.
    pub(super) hosts: Vec<Spanned<Hostname>>,
    /// The gateway of a listener, or the mesh.
    pub(super) at: GatewayRef,
    /// TLS is passed on: at a listener, and in the mesh.
    pub(super) passes_tls: bool,
    /// In the mesh: only calls of this port.
    pub(super) port: Option<u16>,
    /// The namespaces whose clients follow it.
    pub(super) export_to: Visibility,
}

/// A route with its parents.
pub(super) struct RouteParents<'a, 't> {
    pub(super) cx: &'a Cx<'t>,
    pub(super) object: &'a Object,
    pub(super) parents: &'a [Spanned<ParentRef>],
    /// Whether it wants the default Gateways, too.
    pub(super) default_scope: Option<&'a Spanned<DefaultScope>>,
    pub(super) hostnames: &'a [Spanned<Hostname>],
}

/// Where a route applies, and what its parents say.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    pub(super) places: Vec<Attached>,
    pub(super) status: RouteStatus,
    /// The Gateways with listeners that take the route.
    pub(super) gateways: BTreeSet<Ancestor>,
}

/// What becomes of a route at a parent.
enum Outcome {
    /// It applies there; `gateway`: at the listeners of this one.
    Taken { controller: String, places: Vec<Attached>, gateway: Option<Ancestor> },
    /// The parent does not take it.
    Refused { controller: String, why: Condition },
    /// The parent is nobody's, or another controller's.
    NotOurs,
}

/// The Gateway or ListenerSet that a parent names, and the parent.
struct OfGateway<'p, 't> {
    parent: &'p Spanned<ParentRef>,
    object: &'t Arc<Object>,
    gateway: &'t Arc<Object>,
    /// What the names of the model's gateways begin with.
    prefix: String,
    listeners: &'t [Spanned<Listener>],
    /// Those of the whole Gateway.
    all: Vec<Owned<'t>>,
    controller: String,
}

impl<'t> RouteParents<'_, 't> {
    /// All places where the route applies, and what each parent says.
    pub(super) fn attached(&self, found: &mut Diagnostics) -> Attachments {
        let mut all = Attachments::default();
        let is_udp = self.object.kind() == Kind::UdpRoute;
        for parent in self.parents {
            let outcome = match (parent.group(), parent.kind()) {
                (group, kind @ ("Service" | "ServiceEntry")) if is_udp => {
                    let message = format!("{}: it cannot attach to a {kind} of `{group}`", self.object);
                    let help = "attach it to a Gateway or a ListenerSet: sidecars capture no datagrams";
                    self.warn("unsupported-parent", &parent.span, message, help.to_owned(), found);
                    Outcome::NotOurs
                }
                (GROUP, "Gateway") => self.at_gateway(parent, found),
                (GROUP, "ListenerSet") => self.at_listener_set(parent, found),
                ("", "Service") => self.at_service(parent, found),
                ("networking.istio.io", "ServiceEntry") => self.at_service_entry(parent, found),
                (group, kind) => {
                    let message = format!("{}: no route can attach to a {kind} of `{group}`", self.object);
                    let help =
                        "attach it to a Gateway, a ListenerSet, a Service or a ServiceEntry (networking.istio.io)";
                    self.warn("unsupported-parent", &parent.span, message, help.to_owned(), found);
                    Outcome::NotOurs
                }
            };
            all.add(parent, outcome);
        }
        if let Some(scope) = self.default_scope {
            self.attach_by_default(scope, &mut all, found);
        }
        all
    }

    /// Attaches the route to the default Gateways that it does not name. One that does not take it says nothing, as the route does not name
    /// it; the route says if none does.
    fn attach_by_default(&self, scope: &Spanned<DefaultScope>, all: &mut Attachments, found: &mut Diagnostics) {
        let (mut is_taken, mut why) = (false, None);
        for gateway in self.cx.objects(Kind::KubernetesGateway).filter(|gateway| is_default(gateway)) {
            if self.names(gateway) {
                is_taken = true;
                continue;
            }
            let parent = ParentRef::of_default_gateway(&gateway.namespace, &gateway.name, scope);
            let parent = Spanned::new(parent, scope.span.clone());
            let mut refusals = Diagnostics::new();
            match self.at_gateway(&parent, &mut refusals) {
                taken @ Outcome::Taken { .. } => {
                    is_taken = true;
                    all.add(&parent, taken);
                }
                Outcome::Refused { .. } => why = why.or_else(|| refusals.iter().next().cloned()),
                Outcome::NotOurs => {}
            }
        }
        if is_taken {
            return;
        }
        let (message, help) = match why {
            Some(why) => (format!("no default Gateway takes it: {}", why.message), why.help),
            None => (
                "there is no default Gateway".to_owned(),
                Some("name a Gateway in `parentRefs`, or set `defaultScope: All` of one".into()),
            ),
        };
        let finding = Diagnostic::warning("missing-gateway", scope.span.clone(), format!("{}: {message}", self.object));
        let finding = help.into_iter().fold(finding, Diagnostic::with_help);
        found.push(finding.about(self.object.reference()));
    }

    /// Whether the route names a Gateway as a parent.
    fn names(&self, gateway: &Object) -> bool {
        self.parents.iter().any(|parent| {
            (parent.group(), parent.kind()) == (GROUP, "Gateway")
                && parent.name.value == *gateway.name
                && parent.namespace(&self.object.namespace) == gateway.namespace
        })
    }

    /// Reports why a parent does not take the route, and returns that as the condition.
    fn warn(
        &self,
        code: &'static str,
        span: &Span,
        message: String,
        help: String,
        found: &mut Diagnostics,
    ) -> Condition {
        let condition = refused(code, &message);
        found.push(Diagnostic::warning(code, span.clone(), message).with_help(help).about(self.object.reference()));
        condition
    }

    fn at_gateway(&self, parent: &Spanned<ParentRef>, found: &mut Diagnostics) -> Outcome {
        let namespace = parent.namespace(&self.object.namespace);
        let Some((object, gateway)) = gateway(self.cx, &namespace, &parent.name) else {
            self.note_missing_gateway(parent, &namespace, found);
            return Outcome::NotOurs;
        };
        // Those of other controllers are not our concern.
        let Some(controller) = own_controller(self.cx, &gateway.spec) else { return Outcome::NotOurs };
        let all = all_listeners(self.cx, object, gateway);
        let (prefix, listeners) = (object.name.to_string(), &gateway.spec.listeners);
        self.outcome(OfGateway { parent, object, gateway: object, prefix, listeners, all, controller }, found)
    }

    fn outcome(&self, of: OfGateway<'_, '_>, found: &mut Diagnostics) -> Outcome {
        match self.at_listeners(&of, found) {
            Ok(places) => {
                let (namespace, name) = (of.gateway.namespace.clone(), of.gateway.name.clone());
                let gateway = Ancestor { namespace, name, controller: of.controller.clone() };
                Outcome::Taken { controller: of.controller, places, gateway: Some(gateway) }
            }
            Err(why) => Outcome::Refused { controller: of.controller, why },
        }
    }

    fn at_listener_set(&self, parent: &Spanned<ParentRef>, found: &mut Diagnostics) -> Outcome {
        let namespace = parent.namespace(&self.object.namespace);
        let key = ObjectKey { kind: Kind::ListenerSet, namespace: namespace.clone(), name: shared(&parent.name) };
        let Some((object, set)) = self.cx.object(&key).and_then(|object| Some((object, listener_set(object)?))) else {
            let message = format!("{}: there is no ListenerSet `{namespace}/{}`", self.object, parent.name.value);
            let help = "add the ListenerSet, or correct the name";
            self.warn("missing-gateway", &parent.name.span, message, help.to_owned(), found);
            return Outcome::NotOurs;
        };
        // Why a set has no Gateway is said of the set.
        let Ok(of) = parent_of(self.cx, object, set) else { return Outcome::NotOurs };
        let all = all_listeners(self.cx, of.object, of.gateway);
        let (prefix, listeners, controller) = (set_name(&object.name), &set.spec.listeners, of.controller);
        self.outcome(OfGateway { parent, object, gateway: of.object, prefix, listeners, all, controller }, found)
    }

    /// The places at the listeners that a parent names; or why there is none.
    fn at_listeners(&self, of: &OfGateway<'_, '_>, found: &mut Diagnostics) -> Result<Vec<Attached>, Condition> {
        let OfGateway { parent, object, listeners, .. } = of;
        let named = |listener: &&Spanned<Listener>| {
            let section = parent.section_name.as_ref().is_none_or(|name| name.value == listener.name.value);
            section && parent.port.as_ref().is_none_or(|port| port.value == listener.port.value)
        };
        let listeners: Vec<_> = listeners.iter().filter(named).collect();
        if listeners.is_empty() {
            return Err(self.note_missing_listener(of, found));
        }
        let refusals: Vec<_> = listeners.iter().map(|of| refusal(self.cx, object, of, self.object)).collect();
        let taken: Vec<_> =
            listeners.iter().zip(&refusals).filter(|(_, refusal)| refusal.is_none()).map(|(of, _)| *of).collect();
        if taken.is_empty() {
            let reason = refusals.into_iter().flatten().next().unwrap_or_default();
            let message = format!("{} may not attach to {object}: it {reason}", self.object);
            let help = "change `allowedRoutes` of the listener, or the route";
            return Err(self.warn("not-allowed", &parent.span, message, help.to_owned(), found));
        }
        let attached: Vec<_> = taken.iter().filter_map(|listener| self.at_listener(of, listener)).collect();
        if attached.is_empty() {
            let hosts = taken.iter().filter_map(|of| host_of(of)).map(|host| host.to_string()).collect::<Vec<_>>();
            let message = format!("{}: {object} serves none of its hosts", self.object);
            let help = format!("it serves {}", one_of(hosts.iter().map(String::as_str)));
            let span = self.hostnames.first().map_or(&parent.span, |host| &host.span);
            return Err(self.warn("host-not-served", span, message, help, found));
        }
        Ok(attached)
    }

    /// The hosts of the route that a listener serves; `None`: it serves none.
    fn at_listener(&self, of: &OfGateway<'_, '_>, listener: &Spanned<Listener>) -> Option<Attached> {
        let own = host_of(listener)?;
        let served = |host: &Spanned<Hostname>| {
            let name = match (own.covers(&host.value), host.value.covers(&own)) {
                (true, _) => host.value.clone(),
                (false, true) => own.clone(),
                (false, false) => return None,
            };
            Some(Spanned::new(name, host.span.clone()))
        };
        let all = [Spanned::new(own.clone(), of.parent.span.clone())];
        let written = if self.hostnames.is_empty() { &all[..] } else { self.hostnames };
        let mut hosts: Vec<_> = written.iter().filter_map(served).collect();
        hosts.retain(|host| !is_anothers(&of.all, listener, &host.value));
        let at = GatewayRef::Named { namespace: of.object.namespace.clone(), name: gateway_name(&of.prefix, listener) };
        (!hosts.is_empty()).then_some(Attached {
            hosts,
            at,
            passes_tls: passes_tls(listener),
            port: None,
            export_to: Visibility::Public,
        })
    }

    fn note_missing_gateway(&self, parent: &ParentRef, namespace: &str, found: &mut Diagnostics) {
        let all = self.cx.objects(Kind::KubernetesGateway);
        let names: Vec<String> = all.map(|of| format!("{}/{}", of.namespace, of.name)).collect();
        let wanted = format!("{namespace}/{}", parent.name.value);
        let elsewhere =
            names.iter().find(|name| name.split_once('/').is_some_and(|(_, name)| name == parent.name.value));
        let near = elsewhere.map(String::as_str).or_else(|| closest(&wanted, names.iter().map(String::as_str)));
        let help = near.map_or_else(
            || "add the Gateway (gateway.networking.k8s.io), or correct the name".to_owned(),
            |near| format!("did you mean `{near}`?"),
        );
        let message = format!("{}: there is no Gateway `{wanted}`", self.object);
        self.warn("missing-gateway", &parent.name.span, message, help, found);
    }

    fn note_missing_listener(&self, of: &OfGateway<'_, '_>, found: &mut Diagnostics) -> Condition {
        let (parent, listeners) = (of.parent, of.listeners);
        let wanted = match (&parent.section_name, &parent.port) {
            (Some(name), _) => format!("`{}`", name.0),
            (None, port) => format!("for port {}", port.as_ref().map_or(0, |port| port.0)),
        };
        let names: Vec<String> = listeners.iter().map(|of| format!("{} (port {})", of.name.0, of.port.0)).collect();
        let message = format!("{}: {} has no listener {wanted}", self.object, of.object);
        let help = format!("its listeners: {}", names.join(", "));
        let span = parent.section_name.as_ref().map_or(&parent.span, |name| &name.span);
        self.warn("missing-listener", span, message, help, found)
    }

    fn at_service(&self, parent: &Spanned<ParentRef>, found: &mut Diagnostics) -> Outcome {
        let namespace = parent.namespace(&self.object.namespace);
        let host = Hostname::of_service(&parent.name, &namespace, &self.cx.mesh().cluster_domain);
        if self.cx.service(&host, &namespace).is_none() {
            let message = format!("{}: there is no Service `{namespace}/{}`", self.object, parent.name.value);
            let help = "add the Service, or correct the name";
            let why = self.warn("missing-service", &parent.name.span, message, help.to_owned(), found);
            return Outcome::Refused { controller: MESH_CONTROLLER.to_owned(), why };
        }
        self.in_mesh(parent, &namespace, vec![Spanned::new(host, parent.name.span.clone())])
    }

    fn at_service_entry(&self, parent: &Spanned<ParentRef>, found: &mut Diagnostics) -> Outcome {
        let namespace = parent.namespace(&self.object.namespace);
        let key = ObjectKey { kind: Kind::ServiceEntry, namespace: namespace.clone(), name: shared(&parent.name) };
        let Some(Resource::ServiceEntry(entry)) = self.cx.object(&key).map(|object| &object.resource) else {
            let message = format!("{}: there is no ServiceEntry `{namespace}/{}`", self.object, parent.name.value);
            let help = "add the ServiceEntry, or correct the name";
            let why = self.warn("missing-service", &parent.name.span, message, help.to_owned(), found);
            return Outcome::Refused { controller: MESH_CONTROLLER.to_owned(), why };
        };
        let hosts = entry.spec.hosts.iter().map(|host| Spanned::new(host.value.clone(), parent.name.span.clone()));
        self.in_mesh(parent, &namespace, hosts.collect())
    }

    /// A producer's route, in the namespace of the service, is for all clients, and a consumer's for those of its own.
    fn in_mesh(&self, parent: &ParentRef, namespace: &Arc<str>, hosts: Vec<Spanned<Hostname>>) -> Outcome {
        let own = &self.object.namespace;
        let export_to = if own == namespace { Visibility::Public } else { Visibility::from_export_to(["."], own) };
        let place = Attached {
            hosts,
            at: GatewayRef::Mesh,
            passes_tls: true,
            port: parent.port.as_ref().map(|port| port.0),
            export_to,
        };
        Outcome::Taken { controller: MESH_CONTROLLER.to_owned(), places: vec![place], gateway: None }
    }
}

/// Whether a Gateway takes routes that do not name it.
fn is_default(gateway: &Object) -> bool {
    match &gateway.resource {
        Resource::KubernetesGateway(written) => written.spec.default_scope == Some(DefaultScope::All),
        _ => false,
    }
}

impl Attachments {
    fn add(&mut self, parent: &ParentRef, outcome: Outcome) {
        let (controller, condition) = match outcome {
            Outcome::NotOurs => return,
            Outcome::Refused { controller, why } => (controller, why),
            Outcome::Taken { controller, places, gateway } => {
                self.gateways.extend(gateway);
                let new: Vec<_> = places.into_iter().filter(|place| !self.places.contains(place)).collect();
                self.places.extend(new);
                (controller, accepted())
            }
        };
        let status = RouteParentStatus { parent: reference(parent), controller, conditions: vec![condition] };
        self.status.parents.push(status);
    }
}
