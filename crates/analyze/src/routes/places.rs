//! Where the routes of a VirtualService attach.

use std::sync::Arc;

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_model::{GatewayRef, Protocol, RouteSet, Visibility};
use serde_json::{Map, Value, json};

use super::gateways::{PlannedGateways, Section, SectionKind};
use super::writer::Writer;

/// A place where routes attach.
#[derive(Debug, Clone)]
pub(super) struct RoutePlace {
    /// The reference to the parent, as seen from the route's namespace.
    pub(super) parent: Map<String, Value>,
    /// The same place for Istio.
    pub(super) at: GatewayRef,
    /// The namespace that the route has there.
    pub(super) namespace: Arc<str>,
    /// The hosts; none in the mesh, where the parent says them, and for all hosts.
    pub(super) hostnames: Vec<String>,
    /// The ports there.
    pub(super) ports: Vec<PlacePort>,
    /// Routes attach to the sections of the ports, not to the whole parent.
    pub(super) by_section: bool,
}

/// A port of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlacePort {
    pub(super) number: u16,
    pub(super) is_tls: bool,
    /// The listener; empty in the mesh.
    pub(super) section: String,
}

/// What a route routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carried {
    Http,
    /// TLS that is passed on.
    Tls,
    Tcp,
}

impl RoutePlace {
    /// The references to the parent, for all ports or for one.
    pub(super) fn parents(&self, port: Option<u16>) -> Vec<Value> {
        let ports = self.ports.iter().filter(|own| port.is_none_or(|port| own.number == port));
        if self.by_section {
            return ports.map(|own| self.parent_with("sectionName", own.section.as_str().into())).collect();
        }
        vec![port.map_or_else(|| self.parent.clone().into(), |port| self.parent_with("port", port.into()))]
    }

    fn parent_with(&self, field: &str, value: Value) -> Value {
        let mut parent = self.parent.clone();
        parent.insert(field.to_owned(), value);
        parent.into()
    }

    /// Whether all ports, or this one, are the usual ones of their schemes.
    pub(super) fn has_usual_ports(&self, port: Option<u16>) -> bool {
        let mut ports = self.ports.iter().filter(|own| port.is_none_or(|port| own.number == port));
        ports.all(|port| port.number == if port.is_tls { 443 } else { 80 })
    }

    /// The distinct numbers of the ports.
    pub(super) fn numbers(&self) -> Vec<u16> {
        let mut numbers: Vec<u16> = self.ports.iter().map(|port| port.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }
}

/// All places of a VirtualService for what its routes carry.
pub(super) fn places(
    writer: &mut Writer<'_>,
    set: &RouteSet,
    carried: Carried,
    gateways: &PlannedGateways,
) -> Vec<RoutePlace> {
    let mut all = Vec::new();
    for at in &set.gateways {
        match at {
            GatewayRef::Mesh => all.extend(set.hosts.iter().filter_map(|host| in_mesh(writer, set, host, carried))),
            GatewayRef::Named { .. } => all.extend(at_gateway(writer, set, at, carried, gateways)),
        }
    }
    all
}

fn in_mesh(writer: &mut Writer<'_>, set: &RouteSet, host: &Spanned<Hostname>, carried: Carried) -> Option<RoutePlace> {
    let span = &host.span;
    let Some(service) = writer.service(&host.value).filter(|_| !host.value.is_wildcard()) else {
        let message =
            format!("`hosts`: a route in the mesh is for a Service or a ServiceEntry, and `{}` is neither", host.value);
        writer.refuse(span, message, "add a ServiceEntry with this host, or leave the VirtualService");
        return None;
    };
    let rivals = writer.snapshot.route_sets_naming(&host.value, &*set.namespace);
    let is_rival = |other: &&&Arc<RouteSet>| {
        let is_other = (other.kind, &other.namespace, &other.name) != (set.kind, &set.namespace, &set.name);
        is_other && other.applies_at(&GatewayRef::Mesh) && other.export_to == set.export_to
    };
    if let Some(other) = rivals.iter().find(is_rival) {
        let message = format!(
            "`hosts`: {} {}/{} has routes for `{}`, too, and only the older one counts",
            other.kind, other.namespace, other.name, host.value
        );
        writer.refuse(span, message, "remove one of them: routes of the Gateway API would be joined");
    }
    let namespace = match &set.export_to {
        Visibility::Public => service.namespace.clone(),
        seen if seen.is_private(&set.namespace) && set.namespace != service.namespace => set.namespace.clone(),
        _ => {
            let message = "`exportTo`: a route of the Gateway API is for all clients, or in another namespace than the service for that one's";
            writer.refuse(span, message, "remove `exportTo`, or leave the VirtualService");
            set.namespace.clone()
        }
    };
    if namespace != set.namespace {
        writer.note(
            span,
            format!("its route is in the namespace {namespace}, so that it is for all clients of `{}`", host.value),
        );
    }
    let mut parent = Map::new();
    if writer.is_of_kubernetes(service) {
        parent.insert("group".to_owned(), "".into());
        parent.insert("kind".to_owned(), "Service".into());
    } else {
        let of_entry = |other: &&Arc<evenkeel_model::Service>| {
            other.name == service.name && other.namespace == service.namespace && !writer.is_of_kubernetes(other)
        };
        let all: Vec<&Arc<evenkeel_model::Service>> = writer.snapshot.services.iter().filter(of_entry).collect();
        if let Some(other) = all.iter().find(|other| set.hosts.iter().all(|host| host.value != other.host)) {
            let message = format!(
                "`hosts`: the ServiceEntry {}/{} also has the host `{}`, to which its routes would apply",
                service.namespace, service.name, other.host
            );
            writer.refuse(span, message, "give each host a ServiceEntry of its own");
        }
        parent.insert("group".to_owned(), "networking.istio.io".into());
        parent.insert("kind".to_owned(), "ServiceEntry".into());
    }
    parent.insert("name".to_owned(), (*service.name).into());
    if namespace != service.namespace {
        parent.insert("namespace".to_owned(), (*service.namespace).into());
    }
    let is_carried = |protocol: Protocol| match carried {
        Carried::Http => {
            matches!(protocol, Protocol::Http | Protocol::Http2 | Protocol::Grpc | Protocol::GrpcWeb | Protocol::Auto)
        }
        Carried::Tls => protocol.is_tls(),
        Carried::Tcp => protocol != Protocol::Udp,
    };
    let ports = service.ports.iter().filter(|port| is_carried(port.protocol));
    let ports = ports.map(|port| PlacePort { number: port.number, is_tls: false, section: String::new() }).collect();
    Some(RoutePlace { parent, at: GatewayRef::Mesh, namespace, hostnames: Vec::new(), ports, by_section: false })
}

fn at_gateway(
    writer: &mut Writer<'_>,
    set: &RouteSet,
    at: &GatewayRef,
    carried: Carried,
    gateways: &PlannedGateways,
) -> Option<RoutePlace> {
    let Some(gateway) = gateways.get(at) else {
        writer.refuse(&set.origin, format!("`gateways`: there is no Gateway `{at}`"), "correct the name");
        return None;
    };
    if gateway.document.is_none() {
        let message = format!("`gateways`: the Gateway `{at}` has no equal, so it remains, and so do its routes");
        writer.refuse(&set.origin, message, "see the findings about the Gateway");
        return None;
    }
    if set.export_to != Visibility::Public {
        let help = "remove it: which namespaces have routes at a Gateway is said there (`allowedRoutes`)";
        writer.refuse(&set.origin, "`exportTo`: routes at a Gateway are not limited by it", help);
    }
    let is_kind = |section: &&Section| match carried {
        Carried::Http => section.kind == SectionKind::Http,
        Carried::Tls => section.kind == SectionKind::Passthrough,
        Carried::Tcp => section.kind == SectionKind::Connections,
    };
    let of_kind: Vec<&Section> = gateway.sections.iter().filter(is_kind).collect();
    let is_reached = |section: &&&Section| {
        let hosts = set.hosts.iter().any(|host| host.value.overlaps(&section.host));
        (hosts || carried == Carried::Tcp) && section.namespace.as_ref().is_none_or(|own| *own == set.namespace)
    };
    let reached: Vec<&Section> = of_kind.iter().filter(is_reached).copied().collect();
    if reached.is_empty() {
        writer
            .note(&set.origin, format!("the Gateway `{at}` has no server for these routes, so none are written there"));
        return None;
    }
    let open = reached.iter().filter(|section| !section.redirects);
    let ports =
        open.map(|section| PlacePort { number: section.port, is_tls: section.is_tls, section: section.name.clone() });
    let ports: Vec<PlacePort> = ports.collect();
    let hosts: Vec<String> = set.hosts.iter().map(|host| host.value.to_string()).collect();
    let hostnames = if hosts.iter().any(|host| host == "*") || carried == Carried::Tcp { Vec::new() } else { hosts };
    let (name, namespace) = (&gateway.name, &gateway.namespace);
    let mut parent = Map::new();
    parent.insert("name".to_owned(), (**name).into());
    if *namespace != set.namespace {
        parent.insert("namespace".to_owned(), json!(&**namespace));
    }
    // A redirecting listener must not serve them.
    let by_section = of_kind.iter().any(|section| section.redirects);
    let namespace = set.namespace.clone();
    (!ports.is_empty()).then_some(RoutePlace { parent, at: at.clone(), namespace, hostnames, ports, by_section })
}
