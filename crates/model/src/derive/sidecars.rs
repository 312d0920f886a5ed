//! Sidecars, except those that are overridden by others.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use evenkeel_api::istio::{self, CaptureMode, EgressBind, EgressHost, OutboundTrafficPolicyMode, SidecarSpec};
use evenkeel_api::{Kind, Object, Resource};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::closest;
use evenkeel_base::{Diagnostic, Diagnostics, Span, Spanned};

use super::destination_rules::connection_pool;
use super::gateways::server_tls;
use super::objects::{mesh_settings, note_idle_selector};
use super::run::Run;
use super::step::Results;
use super::tracking::{Cx, Fact};
use super::{refused, renew, reuse_if_equal, shared, telemetries};
use crate::{
    Destination, DestinationState, EgressListener, Imports, IngressEndpoint, IngressListener, Labels, MeshConfig,
    MtlsMode, Protocol, Sidecar, SidecarOutboundPolicy, Snapshot,
};

/// Sidecars by namespace.
#[derive(Debug, Default)]
pub(super) struct Table {
    sidecars: BTreeMap<Arc<str>, Vec<Arc<Sidecar>>>,
    changed: bool,
}

pub(super) fn namespace_step(run: &mut Run<'_>, namespace: &Arc<str>) -> bool {
    let (sidecars, keep) =
        run.read(|cx, found| (sidecars(cx, namespace, found), !cx.objects_in(Kind::Sidecar, namespace).is_empty()));
    run.tables.sidecars.set(namespace, sidecars);
    keep
}

/// Looks for the services that the mesh's settings name.
pub(super) fn mesh_step(run: &mut Run<'_>) -> bool {
    run.read(|cx, found| {
        let root = &cx.mesh().root_namespace;
        for object in mesh_settings(cx).filter(|object| object.namespace == *root) {
            let Some((said, _)) = istio::MeshConfig::of_object(object) else { continue };
            telemetries::note_providers_of_mesh(cx, object, &said, found);
            if let Some(proxy) = said.outbound_traffic_policy.and_then(|policy| policy.egress_proxy) {
                egress_proxy(cx, object, &proxy, found);
            }
        }
    });
    true
}

impl Results for Table {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        renew(&mut next.sidecars, self.changed())
    }
}

/// The Sidecars of a namespace, in the order of precedence: of those with the same selector the first.
fn sidecars(cx: &Cx<'_>, namespace: &Arc<str>, found: &mut Diagnostics) -> Vec<Sidecar> {
    let (mut built, mut stand_ins): (Vec<Sidecar>, Vec<Sidecar>) = Default::default();
    for (_, object) in cx.objects_in(Kind::Sidecar, namespace) {
        for other in refused::ignored(cx, object) {
            let Resource::Sidecar(ignored) = &other.resource else { continue };
            stand_ins.extend(closed(cx, other, &ignored.spec, found));
        }
        let Resource::Sidecar(written) = &object.resource else { continue };
        if object.refused.is_some() {
            stand_ins.extend(closed(cx, object, &written.spec, found));
            continue;
        }
        let selector = selector(&written.spec);
        note_idle_selector(cx, object, &selector, found);
        if let Some(first) = built.iter().find(|first| first.selector == selector) {
            let whom = if selector.is_empty() { "the whole namespace" } else { "the same workloads" };
            let message = format!("{object} is ignored: `{}` already applies to {whom}", first.name);
            found.push(
                Diagnostic::warning("overridden", object.origin.clone(), message)
                    .about(object.reference())
                    .with_help("merge the two")
                    .with_related(first.origin.clone(), "this one applies"),
            );
            continue;
        }
        for host in written.spec.egress.iter().flat_map(|listener| &listener.hosts) {
            note_unknown_import(cx, object, host, found);
        }
        note_idle_tls(cx, object, &written.spec, found);
        built.push(sidecar(cx, object, &written.spec, found));
    }
    // Valid Sidecars come first; stand-ins for refused ones only add restrictions.
    built.extend(stand_ins);
    built
}

fn sidecar(cx: &Cx<'_>, object: &Object, spec: &SidecarSpec, found: &mut Diagnostics) -> Sidecar {
    Sidecar {
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        selector: selector(spec),
        egress: egress(spec, cx.mesh().http_proxy_port),
        ingress: spec.ingress.iter().map(ingress).collect(),
        inbound_pool: spec.inbound_connection_pool.as_ref().map(connection_pool),
        outbound_policy: outbound_policy(cx, object, spec, found),
        refused: false,
        origin: object.origin.clone(),
        uncaptured: Default::default(),
    }
}

fn selector(spec: &SidecarSpec) -> Labels {
    spec.workload_selector.as_ref().map(|selector| selector.labels.clone()).unwrap_or_default()
}

/// The stand-in for a Sidecar that is refused, or ignored because its name is taken; `None` if it allows any call.
fn closed(cx: &Cx<'_>, object: &Object, spec: &SidecarSpec, found: &mut Diagnostics) -> Option<Sidecar> {
    let written = sidecar(cx, object, spec, &mut Diagnostics::new());
    if matches!(written.outbound_policy, None | Some(SidecarOutboundPolicy::AllowAny)) {
        return None;
    }
    found.push(refused::closed(object, "its workloads can call only known services (REGISTRY_ONLY)"));
    Some(Sidecar { outbound_policy: Some(SidecarOutboundPolicy::RegistryOnly), refused: true, ..written })
}

impl Table {
    fn set(&mut self, namespace: &Arc<str>, new: Vec<Sidecar>) {
        let old = self.sidecars.remove(namespace).unwrap_or_default();
        // Several may have the same name, but each has its own position.
        let by_place: HashMap<&Span, &Arc<Sidecar>> = old.iter().map(|s| (&s.origin, s)).collect();
        let new: Vec<_> =
            new.into_iter().map(|s| reuse_if_equal(by_place.get(&s.origin.clone()).copied(), s)).collect();
        self.changed |= old.len() != new.len() || !old.iter().zip(&new).all(|(a, b)| Arc::ptr_eq(a, b));
        if !new.is_empty() {
            self.sidecars.insert(namespace.clone(), new);
        }
    }

    /// All Sidecars by namespace, if they have changed.
    fn changed(&mut self) -> Option<impl Iterator<Item = Arc<Sidecar>> + use<'_>> {
        std::mem::take(&mut self.changed).then(|| self.sidecars.values().flatten().cloned())
    }
}

/// Returns the Sidecar for workloads without one, when the mesh's settings configure an HTTP proxy.
pub(super) fn default(mesh: &MeshConfig, http_proxy_port: Spanned<u16>) -> Sidecar {
    Sidecar {
        name: shared("default"),
        namespace: mesh.root_namespace.clone(),
        selector: Labels::default(),
        egress: egress(&SidecarSpec::default(), Some(http_proxy_port.value)),
        ingress: Vec::new(),
        inbound_pool: None,
        outbound_policy: None,
        refused: false,
        origin: http_proxy_port.span,
        uncaptured: Default::default(),
    }
}

/// The egress listeners; without any, all exported services may be called. The mesh's HTTP proxy serves what may be called on ports
/// that no listener names, as in Istio's `GetEgressListenerForRDS`.
fn egress(spec: &SidecarSpec, http_proxy_port: Option<u16>) -> Vec<EgressListener> {
    let mut listeners = written_egress(spec);
    let http_proxy = http_proxy_port.and_then(|number| {
        let others = listeners.iter().find(|listener| listener.port.is_none_or(|(own, _)| own == number))?;
        others.port.is_none().then(|| EgressListener {
            port: Some((number, Protocol::Http)),
            bind: Some(Ipv4Addr::LOCALHOST.into()),
            socket: None,
            is_bound: true,
            takes_all_ports: true,
            imports: others.imports.clone(),
        })
    });
    // The one for all other ports comes last.
    listeners.splice(..0, http_proxy);
    listeners
}

fn written_egress(spec: &SidecarSpec) -> Vec<EgressListener> {
    if spec.egress.is_empty() {
        return vec![EgressListener::everything()];
    }
    let listener = |written: &Spanned<istio::EgressListener>| {
        let mut imports = Imports::default();
        for host in written.hosts.iter().filter_map(|host| EgressHost::parse(host).ok()) {
            if host.excludes {
                imports.exclude(host.namespace, host.host)
            } else {
                imports.add(host.namespace, host.host)
            }
        }
        let port = written.port.as_ref();
        let socket = written.socket().map(shared);
        let is_bound = socket.is_some() || written.capture_mode == Some(CaptureMode::None);
        let takes_all_ports = socket.is_some() || port.is_some_and(istio::EgressPort::is_http_proxy);
        let port = port.map(|port| (port.number().unwrap_or_default(), protocol(&port.protocol)));
        let default = if is_bound {
            socket.is_none().then_some(Ipv4Addr::LOCALHOST)
        } else {
            // The connections may be to any address.
            takes_all_ports.then_some(Ipv4Addr::UNSPECIFIED)
        };
        let bind = match written.bind.as_deref() {
            Some(EgressBind::Address(address)) => Some(*address),
            _ => default.map(IpAddr::from),
        };
        EgressListener { port, bind, socket, is_bound, takes_all_ports, imports }
    };
    spec.egress.iter().map(listener).collect()
}

fn ingress(written: &istio::IngressListener) -> IngressListener {
    let endpoint = written.default_endpoint.as_ref().and_then(|text| istio::IngressEndpoint::parse(text));
    IngressListener {
        port: written.port.number.0,
        // Decrypted HTTPS is HTTP.
        protocol: match protocol(&written.port.protocol) {
            Protocol::Https if written.tls.is_some() => Protocol::Http,
            protocol => protocol,
        },
        bind: written.bind.as_ref().map(|bind| bind.value),
        is_bound: written.capture_mode == Some(CaptureMode::None),
        endpoint: match endpoint {
            None => IngressEndpoint::AsCalled,
            Some(istio::IngressEndpoint::Loopback(address, port)) => IngressEndpoint::Loopback(address, port),
            Some(istio::IngressEndpoint::Own(port)) => IngressEndpoint::Own(port),
            Some(istio::IngressEndpoint::Unix(path)) => IngressEndpoint::Unix(shared(&path)),
        },
        pool: written.connection_pool.as_ref().map(connection_pool),
        tls: written.tls.as_deref().map(server_tls),
    }
}

/// The decoder has checked that it is one of Istio's.
fn protocol(name: &str) -> Protocol {
    if name.eq_ignore_ascii_case("HTTP_PROXY") {
        return Protocol::Http;
    }
    Protocol::from_name(name).unwrap_or(Protocol::Tcp)
}

fn outbound_policy(
    cx: &Cx<'_>,
    object: &Object,
    spec: &SidecarSpec,
    found: &mut Diagnostics,
) -> Option<SidecarOutboundPolicy> {
    let policy = spec.outbound_traffic_policy.as_ref()?;
    let allows = policy.mode == Some(OutboundTrafficPolicyMode::AllowAny);
    Some(match &policy.egress_proxy {
        Some(proxy) if allows => SidecarOutboundPolicy::EgressProxy(egress_proxy(cx, object, proxy, found)),
        _ if allows => SidecarOutboundPolicy::AllowAny,
        _ => SidecarOutboundPolicy::RegistryOnly,
    })
}

fn egress_proxy(cx: &Cx<'_>, object: &Object, written: &istio::Destination, found: &mut Diagnostics) -> Destination {
    let full = Hostname::resolve(written.host.as_str(), &object.namespace, &cx.mesh().cluster_domain);
    let host = full.unwrap_or_else(|_| written.host.value.clone());
    let port = written.port.as_ref().map(|port| port.number.0);
    let service = cx.service(&host, &object.namespace);
    let (state, problem) = match service {
        None => (DestinationState::UnknownHost, Some(format!("there is no Service `{host}`"))),
        Some(service) if port.is_some_and(|port| service.port(port).is_none()) => {
            (DestinationState::UnknownPort, Some(format!("`{host}` has no port {}", port.unwrap_or_default())))
        }
        Some(_) => (DestinationState::Known, None),
    };
    if let Some(problem) = problem {
        let code = if service.is_none() { "missing-service" } else { "missing-port" };
        let message = format!("{object}: {problem}; traffic for the egress proxy gets 503");
        let help = "add it, or correct `egressProxy`";
        let finding = Diagnostic::warning(code, written.host.span.clone(), message).with_help(help);
        found.push(finding.about(object.reference()));
    }
    let (subset, origin) = (written.subset.as_ref().map(|subset| shared(subset)), written.host.span.clone());
    Destination { host, subset, port, state, origin }
}

/// Reports an imported host (not a wildcard) that no service has; most likely it is not the full name.
fn note_unknown_import(cx: &Cx<'_>, object: &Object, written: &Spanned<String>, found: &mut Diagnostics) {
    let Ok(import) = EgressHost::parse(written) else { return };
    let host = &import.host;
    if import.excludes || host.is_wildcard() || !cx.services_of(host).is_empty() || cx.is_routed(host) {
        return;
    }
    let namespace = match import.namespace {
        "." | "*" => &object.namespace,
        name => name,
    };
    let full = Hostname::resolve(host.as_str(), namespace, &cx.mesh().cluster_domain).ok();
    let full = full.filter(|full| full != host && !cx.services_of(full).is_empty());
    let help = match full.or_else(|| near(cx, host)) {
        Some(full) => format!("did you mean `{}/{full}`?", import.namespace),
        None => "add the service, or correct the name".to_owned(),
    };
    let message = format!("{object}: there is no Service `{host}`; this host imports nothing");
    let finding = Diagnostic::warning("missing-service", written.span.clone(), message).with_help(help);
    found.push(finding.about(object.reference()));
}

/// Reports TLS of an ingress port that has no effect: mutual TLS of the mesh takes precedence there, as in Istio's
/// `buildInboundListeners`.
fn note_idle_tls(cx: &Cx<'_>, object: &Object, spec: &SidecarSpec, found: &mut Diagnostics) {
    let labels = selector(spec);
    for listener in &spec.ingress {
        let (Some(tls), port) = (&listener.tls, listener.port.number.0) else { continue };
        if cx.mtls_mode(&object.namespace, &labels, port) == MtlsMode::Disable {
            continue;
        }
        let message = format!(
            "{object}: the `tls` of port {port} has no effect: a PeerAuthentication must set its mode to DISABLE first"
        );
        let help = format!("add a PeerAuthentication with `portLevelMtls: {{{port}: {{mode: DISABLE}}}}`");
        found.push(
            Diagnostic::warning("no-effect", tls.span.clone(), message).with_help(help).about(object.reference()),
        );
    }
}

fn near(cx: &Cx<'_>, host: &Hostname) -> Option<Hostname> {
    let found = closest(host.as_str(), cx.services().map(|service| service.host.as_str()))?;
    Hostname::parse(found).ok()
}

impl Cx<'_> {
    /// Whether a VirtualService claims a host in the mesh.
    fn is_routed(&self, host: &Hostname) -> bool {
        self.read(Fact::MeshHost(host.as_str())).routes.claims(host)
    }
}
