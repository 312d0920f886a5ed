//! Gateways of the Gateway API as the model's gateways: one for each listener, with one server.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_api::gateway_api::{
    FromNamespaces, Gateway as Written, GatewayAddress, GatewaySpec, Listener, ListenerSet, ListenerTls,
    ListenerTlsMode, SecretRef,
};
use evenkeel_api::{Kind, Object, ObjectKey, Resource};
use evenkeel_base::{Diagnostic, Diagnostics, Spanned};

use super::super::shared;
use super::super::tracking::Cx;
use super::frontend_tls::FrontendTls;
use super::grants::{Referred, is_granted};
use super::listener_sets::{Unattached, all_listeners, conflict, parent_of};
use super::listeners::{Class, Owned, class_of, gateway_name, host_of, set_name};
use crate::gateway::{AdmittedClients, BackendCertificate, ClientRoots, ServerCertificates};
use crate::selection::GATEWAY_NAME;
use crate::{Gateway, GatewayHost, Labels, Server, ServerProtocol, ServerTls, ServerTlsMode};

/// The name of the only port of such a gateway, as in Istio.
const PORT_NAME: &str = "default";
/// The class of waypoints.
const WAYPOINT: &str = "istio-waypoint";
/// Istio's options of a listener's TLS.
const ISTIO_OPTIONS: &str = "gateway.istio.io/";
/// Istio's option that asks clients for certificates.
const TERMINATE_MODE: &str = "gateway.istio.io/tls-terminate-mode";

/// The model's gateways of a Gateway.
pub(in super::super) fn gateways(
    cx: &Cx<'_>,
    object: &Object,
    written: &Written,
    found: &mut Diagnostics,
) -> Vec<Gateway> {
    let spec = &written.spec;
    let mut reader = Reader { cx, object, gateway: object, prefix: object.name.to_string(), spec, found };
    if !reader.is_ours(spec) {
        return Vec::new();
    }
    let Some(proxies) = reader.proxies(spec) else { return Vec::new() };
    let certificate = reader.backend_certificate(&proxies);
    let listeners = spec.listeners.iter().filter_map(|listener| reader.gateway(&proxies, listener));
    listeners.map(|gateway| with_certificate(gateway, &certificate)).collect()
}

/// The model's gateways of a ListenerSet.
pub(in super::super) fn gateways_of_set(
    cx: &Cx<'_>,
    object: &Arc<Object>,
    set: &ListenerSet,
    found: &mut Diagnostics,
) -> Vec<Gateway> {
    let parent = match parent_of(cx, object, set) {
        Ok(parent) => parent,
        Err(why) => {
            found.push(unattached(object, set, why));
            return Vec::new();
        }
    };
    let spec = &parent.gateway.spec;
    // What is wrong with the Gateway itself is said of it.
    let mut elsewhere = Diagnostics::new();
    let (gateway, of) = (&**parent.object, &**parent.object);
    let mut of_gateway = Reader { cx, object: of, gateway, prefix: String::new(), spec, found: &mut elsewhere };
    let Some(proxies) = of_gateway.proxies(spec) else { return Vec::new() };
    let certificate = of_gateway.backend_certificate(&proxies);
    let mut reader = Reader { cx, object, gateway, prefix: set_name(&object.name), spec, found };
    let all = all_listeners(cx, parent.object, parent.gateway);
    let mut gateways = Vec::new();
    for listener in &set.spec.listeners {
        if all.iter().any(|owned| std::ptr::eq(owned.listener, listener)) {
            gateways.extend(reader.gateway(&proxies, listener));
            continue;
        }
        let first = all.iter().find_map(|owned| Some((*owned, conflict(*owned, listener)?)));
        if let Some((owned, why)) = first {
            reader.push(conflicted(object, listener, owned, &why.message));
        }
    }
    gateways.into_iter().map(|gateway| with_certificate(gateway, &certificate)).collect()
}

fn conflicted(object: &Object, listener: &Spanned<Listener>, owned: Owned<'_>, why: &str) -> Diagnostic {
    let message = format!("{object}: the listener `{}` is not served: {why}", listener.name.0);
    Diagnostic::warning("conflict", listener.span.clone(), message)
        .with_help("use another port or hostname; a Gateway's own listeners come first, then the older ListenerSets")
        .with_related(owned.listener.span.clone(), "this one is served")
}

/// The finding about a ListenerSet without a Gateway here.
fn unattached(object: &Object, set: &ListenerSet, why: Unattached) -> Diagnostic {
    let parent = &set.spec.parent_ref;
    let name = format!("{}/{}", parent.namespace(&object.namespace), parent.name.value);
    let (code, reason, help) = match why {
        Unattached::NoGateway => ("unsupported-parent", "its parent is no Gateway".to_owned(), "name a Gateway"),
        Unattached::Missing => {
            ("missing-gateway", format!("there is no Gateway `{name}`"), "correct the name, or add it")
        }
        Unattached::NotAllowed => (
            "not-allowed",
            format!("the Gateway `{name}` does not take it"),
            "set `allowedListeners: {namespaces: {from: Same}}`, or All or Selector, in the Gateway",
        ),
        Unattached::NotOurs => {
            let message = format!("{object} is left to the controller of the Gateway `{name}`");
            return Diagnostic::info("foreign-class", parent.span.clone(), message).about(object.reference());
        }
    };
    let message = format!("{object} is not served: {reason}");
    Diagnostic::warning(code, parent.span.clone(), message).with_help(help).about(object.reference())
}

/// The certificate that the proxies of a Gateway show to backends.
#[derive(Default)]
struct OwnCertificate {
    certificate: Option<BackendCertificate>,
    granted: BTreeSet<Arc<str>>,
}

fn with_certificate(gateway: Gateway, own: &OwnCertificate) -> Gateway {
    let granted_secrets = gateway.granted_secrets.union(&own.granted).cloned().collect();
    Gateway { backend_certificate: own.certificate.clone(), granted_secrets, ..gateway }
}

/// The gateway proxies of a Gateway.
struct Proxies {
    namespace: Arc<str>,
    selector: Labels,
}

struct Reader<'a, 't> {
    cx: &'a Cx<'t>,
    /// The Gateway or ListenerSet.
    object: &'a Object,
    /// The Gateway.
    gateway: &'a Object,
    /// What the names of the model's gateways begin with.
    prefix: String,
    spec: &'a GatewaySpec,
    found: &'a mut Diagnostics,
}

/// Whom a listener with TLS lets in.
#[derive(Debug, Clone, Copy)]
enum Clients {
    Anybody,
    WithCertificate,
    WithCertificateOrNone,
}

impl Reader<'_, '_> {
    fn push(&mut self, finding: Diagnostic) {
        self.found.push(finding.about(self.object.reference()));
    }

    /// Whether the Gateway is of a class of ours.
    fn is_ours(&mut self, spec: &GatewaySpec) -> bool {
        let (class, object) = (&spec.gateway_class_name, self.object);
        match class_of(self.cx, spec) {
            Class::Ours => return true,
            Class::Foreign(controller) => {
                let message =
                    format!("{object} is left to the controller `{controller}` of its class `{}`", class.value);
                let finding = Diagnostic::info("foreign-class", class.span.clone(), message);
                self.push(finding.with_help("set `gatewayClassName: istio` to have it served by the mesh"));
            }
            Class::Missing if class.value == WAYPOINT => {
                let message = format!("{object} is a waypoint, and there is no ambient mode; it is ignored");
                let finding = Diagnostic::warning("foreign-class", class.span.clone(), message);
                self.push(finding.with_help("sidecars do the work of waypoints"));
            }
            Class::Missing => {
                let message = format!("{object}: there is no GatewayClass `{}`; no gateway serves it", class.value);
                let finding = Diagnostic::warning("missing-class", class.span.clone(), message);
                self.push(finding.with_help("write `istio` or `evenkeel`, or add the GatewayClass"));
            }
        }
        false
    }

    /// The Pods that serve a Gateway: those with its name as a label, or those of a Service that it names by its address.
    fn proxies(&mut self, spec: &GatewaySpec) -> Option<Proxies> {
        let (cx, object) = (self.cx, self.object);
        let host = spec.addresses.iter().find(|address| address.kind() == GatewayAddress::HOSTNAME);
        let Some(address) = host else {
            let selector = Labels::from([(GATEWAY_NAME.to_owned(), object.name.to_string())]);
            if !cx.selects_something(&object.namespace, &selector) {
                let message = format!(
                    "{object}: no Pod of the namespace {} has the label `{GATEWAY_NAME}: {}`, so no gateway proxy serves it",
                    object.namespace, object.name
                );
                let help = "deploy a gateway proxy with this label, or name the Service of one in `addresses` with `type: Hostname`";
                let finding = Diagnostic::info("selects-nothing", object.origin.clone(), message);
                self.push(finding.with_help(help));
            }
            return Some(Proxies { namespace: object.namespace.clone(), selector });
        };
        let name = address.value.value.as_deref().unwrap_or_default();
        let mut parts = name.split('.');
        let service = parts.next().unwrap_or_default();
        let namespace = parts.next().map_or_else(|| object.namespace.clone(), shared);
        let key = ObjectKey { kind: Kind::Service, namespace: namespace.clone(), name: shared(service) };
        let found = cx.object(&key).map(|object| &object.resource);
        match found {
            Some(Resource::Service(service)) if !service.spec.selector.is_empty() => {
                Some(Proxies { namespace, selector: service.spec.selector.clone() })
            }
            _ => {
                let message = format!(
                    "{object}: there is no Service `{namespace}/{service}` with a selector, so no gateway proxy serves it"
                );
                let finding = Diagnostic::warning("missing-service", address.span.clone(), message);
                self.push(finding.with_help("name the Service of the gateway proxies"));
                None
            }
        }
    }

    fn backend_certificate(&mut self, proxies: &Proxies) -> OwnCertificate {
        let mut granted = BTreeSet::new();
        let own = self.spec.tls.as_ref().and_then(|tls| tls.backend.as_ref()?.client_certificate_ref.as_ref());
        let certificate = own.map(|of| {
            let secret = self.secret(proxies, of, &mut granted);
            secret.map_or(BackendCertificate::Refused, BackendCertificate::Secret)
        });
        OwnCertificate { certificate, granted }
    }

    fn gateway(&mut self, proxies: &Proxies, listener: &Spanned<Listener>) -> Option<Gateway> {
        let object = self.object;
        let protocol = match listener.protocol.as_str() {
            "HTTP" => ServerProtocol::Http,
            "HTTPS" => ServerProtocol::Https,
            "TLS" => ServerProtocol::Tls,
            "TCP" => ServerProtocol::Tcp,
            "UDP" => ServerProtocol::Udp,
            other => {
                let message = format!(
                    "{object}: the protocol {other} is not supported; the listener `{}` is not served",
                    listener.name.0
                );
                let finding = Diagnostic::warning("unsupported-value", listener.protocol.span.clone(), message);
                self.push(finding.with_help("supported: HTTP, HTTPS, TLS, TCP, UDP"));
                return None;
            }
        };
        let mut granted = BTreeSet::new();
        let tls = match protocol {
            ServerProtocol::Http | ServerProtocol::Tcp | ServerProtocol::Udp => None,
            ServerProtocol::Https | ServerProtocol::Tls => Some(self.tls(proxies, listener, &mut granted)?),
        };
        let allowed = listener.allowed_routes.as_ref().and_then(|allowed| allowed.namespaces.as_ref());
        let is_same = allowed.and_then(|allowed| allowed.from).is_none_or(|from| from == FromNamespaces::Same);
        let host = GatewayHost { namespace: is_same.then(|| object.namespace.clone()), host: host_of(listener)? };
        let span = listener.hostname.as_ref().map_or(&listener.span, |host| &host.span);
        let server = Server {
            port: listener.port.0,
            port_name: PORT_NAME.into(),
            name: listener.name.0.clone(),
            protocol,
            grpc_web: false,
            bind: None,
            hosts: vec![Spanned::new(host, span.clone())],
            tls,
            https_redirect: false,
            origin: listener.port.span.clone(),
        };
        Some(Gateway {
            name: gateway_name(&self.prefix, listener),
            namespace: object.namespace.clone(),
            selector: proxies.selector.clone(),
            proxy_namespace: Some(proxies.namespace.clone()),
            granted_secrets: granted,
            backend_certificate: None,
            servers: vec![server],
            origin: object.origin.clone(),
        })
    }

    /// TLS of a listener. Without a certificate that it may use, the listener is not served: plain text would be worse.
    fn tls(
        &mut self,
        proxies: &Proxies,
        listener: &Spanned<Listener>,
        granted: &mut BTreeSet<Arc<str>>,
    ) -> Option<ServerTls> {
        let object = self.object;
        let tls = listener.tls.as_ref();
        if tls.is_some_and(|tls| tls.mode == Some(ListenerTlsMode::Passthrough)) {
            let none = ServerTls::simple(ServerCertificates::Secrets(Vec::new()));
            return Some(ServerTls { mode: ServerTlsMode::Passthrough, ..none });
        }
        let clients = tls.map_or(Some(Clients::Anybody), |tls| self.clients(tls))?;
        let references = tls.map_or(&[][..], |tls| &tls.certificate_refs);
        let secrets: Vec<_> = references.iter().filter_map(|of| self.secret(proxies, of, granted)).collect();
        let Some(first) = secrets.first().cloned() else {
            let message = format!(
                "{object}: the listener `{}` has no certificate that it may use; it is not served",
                listener.name.0
            );
            let finding = Diagnostic::warning("missing-secret", listener.span.clone(), message);
            self.push(finding.with_help("add `tls: {certificateRefs: [{name: SECRET}]}`"));
            return None;
        };
        let certificates = ServerCertificates::Secrets(secrets);
        let simple = ServerTls::simple(certificates.clone());
        if let Some(validation) = self.spec.tls.as_ref().and_then(|tls| tls.validation(listener.port.0)) {
            let verified = FrontendTls { cx: self.cx, object: self.gateway, found: self.found }.clients(validation)?;
            let admitted = match clients {
                Clients::Anybody | Clients::WithCertificateOrNone if verified.anybody => AdmittedClients::Any,
                _ => AdmittedClients::Verified,
            };
            let roots = ClientRoots::Pem(verified.roots);
            return Some(ServerTls { mode: ServerTlsMode::Mutual { certificates, roots, admitted }, ..simple });
        }
        let admitted = match clients {
            Clients::Anybody => return Some(simple),
            Clients::WithCertificate => AdmittedClients::Verified,
            Clients::WithCertificateOrNone => AdmittedClients::VerifiedOrNone,
        };
        let mode = ServerTlsMode::Mutual { certificates, roots: ClientRoots::Secret(first), admitted };
        Some(ServerTls { mode, ..simple })
    }

    /// Whom a listener lets in, by Istio's options; `None` if an option of Istio is not known: it could ask for more than is done.
    fn clients(&mut self, tls: &ListenerTls) -> Option<Clients> {
        let mut clients = Clients::Anybody;
        for (name, value) in &tls.options {
            clients = match (name.as_str(), value.as_str()) {
                (TERMINATE_MODE, "SIMPLE") => Clients::Anybody,
                (TERMINATE_MODE, "MUTUAL") => Clients::WithCertificate,
                (TERMINATE_MODE, "OPTIONAL_MUTUAL") => Clients::WithCertificateOrNone,
                _ => {
                    self.unknown_option(name, value)?;
                    clients
                }
            };
        }
        Some(clients)
    }

    /// Names an option that is not supported; `None` if the listener cannot be served without it.
    fn unknown_option(&mut self, name: &str, value: &Spanned<String>) -> Option<()> {
        let is_of_istio = name.starts_with(ISTIO_OPTIONS);
        let (effect, help) = if is_of_istio {
            (
                "the listener is not served",
                "supported: `gateway.istio.io/tls-terminate-mode`: SIMPLE, MUTUAL, OPTIONAL_MUTUAL",
            )
        } else {
            ("it is ignored", "it is an option of another implementation")
        };
        let message = format!("{}: the TLS option `{name}: {}` is not supported; {effect}", self.object, value.value);
        self.push(Diagnostic::warning("unsupported-field", value.span.clone(), message).with_help(help));
        (!is_of_istio).then_some(())
    }

    /// The name of a Secret, as the gateway proxies ask for it.
    fn secret(
        &mut self,
        proxies: &Proxies,
        reference: &Spanned<SecretRef>,
        granted: &mut BTreeSet<Arc<str>>,
    ) -> Option<Spanned<Arc<str>>> {
        let (cx, object) = (self.cx, self.object);
        let (group, kind) = (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("Secret"));
        let namespace = reference.namespace.as_ref().map_or_else(|| object.namespace.clone(), |own| own.0.clone());
        let name = reference.name.as_str();
        if (group, kind) != ("", "Secret") {
            let message = format!("{object}: a certificate is in a Secret, not in a {kind}");
            let finding = Diagnostic::warning("unsupported-value", reference.span.clone(), message);
            self.push(finding.with_help("name a Secret"));
            return None;
        }
        let to = Referred { group, kind, namespace: &namespace, name };
        if !is_granted(cx, object, &to) {
            let message =
                format!("{object} may not use the Secret {namespace}/{name}: no ReferenceGrant there allows it");
            let finding = Diagnostic::warning("missing-grant", reference.span.clone(), message);
            let help =
                format!("add a ReferenceGrant to the namespace {namespace}, from Gateways of {}", object.namespace);
            self.push(finding.with_help(help));
            return None;
        }
        let span = reference.name.span.clone();
        if namespace == proxies.namespace {
            return Some(Spanned::new(shared(name), span));
        }
        let full: Arc<str> = format!("{namespace}/{name}").into();
        granted.insert(full.clone());
        Some(Spanned::new(full, span))
    }
}
