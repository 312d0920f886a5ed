//! Gateways, without the servers that cannot be served together.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_api::istio::{self, TlsProtocol};
use evenkeel_api::{Kind, Object, Resource};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::{Diagnostic, Diagnostics, Spanned};

use super::run::Run;
use super::step::Results;
use super::tracking::{Cx, Fact, Tracker};
use super::{gateway_api, ingresses};
use super::{renew, shared};
use crate::gateway::{AdmittedClients, CertificateFiles, ClientChecks, ClientRoots, ServerCertificates, TlsVersion};
use crate::labels::selects;
use crate::{Gateway, GatewayHost, Labels, Server, ServerProtocol, ServerTls, ServerTlsMode, Snapshot};

/// Gateways in the order of precedence, each with its object. They are few, and one can conflict with another over a
/// port, so they are built together.
#[derive(Debug, Default)]
pub(super) struct Table {
    gateways: Vec<(Arc<Object>, Arc<Gateway>)>,
    changed: bool,
}

pub(super) fn all_step(run: &mut Run<'_>) -> bool {
    let gateways = run.read(gateways);
    run.tables.gateways.set(gateways, run.tracker);
    true
}

impl Results for Table {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        renew(&mut next.gateways, self.changed())
    }
}

/// All Gateways, without the servers that conflict with others.
fn gateways(cx: &Cx<'_>, found: &mut Diagnostics) -> Vec<(Arc<Object>, Gateway)> {
    let mut objects = Vec::new();
    let mut built: Vec<Gateway> = Vec::new();
    for object in cx.objects(Kind::Gateway) {
        let Resource::Gateway(written) = &object.resource else { continue };
        let mut gateway = Gateway {
            name: object.name.clone(),
            namespace: object.namespace.clone(),
            selector: written.spec.selector.clone(),
            proxy_namespace: None,
            granted_secrets: BTreeSet::new(),
            backend_certificate: None,
            servers: Vec::new(),
            origin: object.origin.clone(),
        };
        for server in written.spec.servers.iter().filter_map(|s| server(s, &object.namespace)) {
            let mut said = Diagnostics::new();
            let server = admit(server, &gateway, &built, &mut said);
            gateway.servers.extend(server);
            found.extend(said.into_iter().map(|finding| finding.about(object.reference())));
        }
        built.push(gateway);
        objects.push(object.clone());
    }
    for object in cx.objects(Kind::KubernetesGateway).chain(cx.objects(Kind::ListenerSet)) {
        let of_listeners = match &object.resource {
            Resource::KubernetesGateway(written) => gateway_api::gateways(cx, object, written, found),
            Resource::ListenerSet(written) => gateway_api::gateways_of_set(cx, object, written, found),
            _ => continue,
        };
        for mut gateway in of_listeners {
            let mut conflicts = Diagnostics::new();
            let servers = std::mem::take(&mut gateway.servers);
            let admitted = servers.into_iter().filter_map(|server| admit(server, &gateway, &built, &mut conflicts));
            gateway.servers = admitted.collect();
            found.extend(conflicts.about(object.reference()));
            built.push(gateway);
            objects.push(object.clone());
        }
    }
    for object in cx.objects(Kind::Ingress) {
        let Resource::Ingress(written) = &object.resource else { continue };
        let Some(mut gateway) = ingresses::gateway(cx, object, written, found) else { continue };
        let servers = std::mem::take(&mut gateway.servers);
        // A gateway whose servers all serve all hosts is not worth a finding.
        let admitted = servers.into_iter().filter_map(|s| admit(s, &gateway, &built, &mut Diagnostics::new()));
        gateway.servers = admitted.collect();
        built.push(gateway);
        objects.push(object.clone());
    }
    objects.into_iter().zip(built).collect()
}

impl Table {
    fn set(&mut self, new: Vec<(Arc<Object>, Gateway)>, tracker: &mut Tracker) {
        let old = std::mem::take(&mut self.gateways);
        let before: HashMap<_, _> = old.iter().map(|(object, gateway)| (key(object, gateway), gateway)).collect();
        // If the object was rewritten, the gateway is new, too: positions in it may differ.
        let share = |(object, gateway): (Arc<Object>, Gateway)| {
            let same = before.get(&key(&object, &gateway)).filter(|old| ****old == gateway);
            let gateway = same.map_or_else(|| Arc::new(gateway), |same| Arc::clone(same));
            (object, gateway)
        };
        self.gateways = new.into_iter().map(share).collect();
        let now: HashMap<_, _> =
            self.gateways.iter().map(|(object, gateway)| (key(object, gateway), gateway)).collect();
        let is_in = |list: &HashMap<_, &Arc<Gateway>>, object: &Arc<Object>, gateway: &Arc<Gateway>| {
            list.get(&key(object, gateway)).is_some_and(|other| Arc::ptr_eq(other, gateway))
        };
        let gone = old.iter().filter(|(object, gateway)| !is_in(&now, object, gateway));
        let came = self.gateways.iter().filter(|(object, gateway)| !is_in(&before, object, gateway));
        for (_, gateway) in gone.chain(came) {
            tracker.changed(Fact::Gateway(&gateway.namespace, &gateway.name));
        }
        let same =
            old.len() == self.gateways.len() && old.iter().zip(&self.gateways).all(|(a, b)| Arc::ptr_eq(&a.1, &b.1));
        if !same {
            tracker.changed(Fact::Gateways);
            self.changed = true;
        }
    }

    /// All Gateways in the order of precedence, if they have changed.
    fn changed(&mut self) -> Option<impl Iterator<Item = Arc<Gateway>> + use<'_>> {
        std::mem::take(&mut self.changed).then(|| self.gateways.iter().map(|(_, gateway)| gateway.clone()))
    }
}

/// A Gateway of the Gateway API is several: one for each listener.
fn key(object: &Arc<Object>, gateway: &Gateway) -> (*const Object, Arc<str>) {
    (Arc::as_ptr(object), gateway.name.clone())
}

impl<'t> Cx<'t> {
    /// The Gateway of this namespace and name.
    pub(super) fn gateway(&self, namespace: &str, name: &str) -> Option<&'t Arc<Gateway>> {
        let gateways = &self.read(Fact::Gateway(namespace, name)).gateways.gateways;
        gateways.iter().map(|(_, gateway)| gateway).find(|g| *g.namespace == *namespace && *g.name == *name)
    }

    /// All Gateways.
    pub(super) fn gateways(&self) -> impl Iterator<Item = &'t Arc<Gateway>> + use<'t> {
        self.read(Fact::Gateways).gateways.gateways.iter().map(|(_, gateway)| gateway)
    }
}

/// The server as far as it can stand beside those already there on the same routers.
fn admit(mut server: Server, own: &Gateway, others: &[Gateway], diagnostics: &mut Diagnostics) -> Option<Server> {
    let same_routers = |other: &&Gateway| {
        let apart = other.proxy_namespace.as_ref().zip(own.proxy_namespace.as_ref()).is_some_and(|(a, b)| a != b);
        !apart && selectors_meet(&other.selector, &own.selector)
    };
    let earlier = others.iter().filter(same_routers).chain([own]);
    let on_port: Vec<(&Gateway, &Server)> = earlier
        .flat_map(|g| g.servers.iter().map(move |s| (g, s)))
        .filter(|(_, s)| s.port == server.port && s.bind == server.bind)
        // A port of TCP and one of UDP are different ones.
        .filter(|(_, s)| (class(s) == PortUse::Udp) == (class(&server) == PortUse::Udp))
        .collect();
    if let Some((gateway, first)) = on_port.iter().find(|(_, s)| class(s) != class(&server)) {
        let message = format!(
            "port {} cannot serve {} as well as {}; this server is ignored",
            server.port, server.protocol, first.protocol
        );
        diagnostics.push(
            Diagnostic::error("port-conflict", server.origin.clone(), message)
                .with_help("use another port number, or the same protocol")
                .with_related(
                    first.origin.clone(),
                    format!("Gateway {}/{} uses the port", gateway.namespace, gateway.name),
                ),
        );
        return None;
    }
    if let Some((_, first)) = on_port.first().filter(|_| matches!(class(&server), PortUse::Tcp | PortUse::Udp)) {
        let message = format!("port {} is already served; this server is ignored", server.port);
        diagnostics.push(
            Diagnostic::error("port-conflict", server.origin.clone(), message)
                .with_help(format!("two {} servers cannot share a port: use another port", server.protocol))
                .with_related(first.origin.clone(), "first served here"),
        );
        return None;
    }
    let tls = class(&server) == PortUse::Tls;
    let port = server.port;
    server.hosts.retain(|host| {
        let same = |s: &&(&Gateway, &Server)| s.1.hosts.iter().any(|h| h.host == host.host);
        let Some((gateway, first)) = on_port.iter().find(same) else { return true };
        diagnostics.push(double_host(host, port, tls, gateway, first));
        !tls
    });
    (!server.hosts.is_empty()).then_some(server)
}

/// Two Gateways can share a host with plain HTTP, but a TLS handshake can use only one certificate.
fn double_host(host: &Spanned<GatewayHost>, port: u16, tls: bool, gateway: &Gateway, first: &Server) -> Diagnostic {
    let at =
        format!("`{}` on port {port} is already served by Gateway {}/{}", host.host, gateway.namespace, gateway.name);
    let diagnostic = if tls {
        Diagnostic::error("duplicate-host", host.span.clone(), format!("{at}; it is ignored here"))
            .with_help("serve each host in one Gateway only")
    } else {
        Diagnostic::warning("duplicate-host", host.span.clone(), format!("{at}; the routes of both are merged"))
            .with_help("serve each host in one Gateway, unless this is intended")
    };
    diagnostic.with_related(first.origin.clone(), "first served here")
}

/// Whether one gateway proxy could match both selectors.
fn selectors_meet(a: &Labels, b: &Labels) -> bool {
    selects(a, b) || selects(b, a)
}

/// Protocols that can share a port.
#[derive(PartialEq)]
enum PortUse {
    Http,
    Tls,
    Tcp,
    Udp,
}

fn class(server: &Server) -> PortUse {
    match server.protocol {
        ServerProtocol::Http => PortUse::Http,
        ServerProtocol::Https | ServerProtocol::Tls => PortUse::Tls,
        ServerProtocol::Tcp => PortUse::Tcp,
        ServerProtocol::Udp => PortUse::Udp,
    }
}

fn server(written: &Spanned<istio::Server>, namespace: &str) -> Option<Server> {
    let protocol = match written.port.protocol.to_uppercase().as_str() {
        "HTTP" | "HTTP2" | "GRPC" | "GRPC-WEB" => ServerProtocol::Http,
        "HTTPS" => ServerProtocol::Https,
        "TLS" => ServerProtocol::Tls,
        // The decoder has checked that it is one of Istio's.
        _ => ServerProtocol::Tcp,
    };
    let secure = matches!(protocol, ServerProtocol::Https | ServerProtocol::Tls);
    Some(Server {
        port: written.port.number.0,
        port_name: shared(&written.port.name),
        name: shared(written.name.as_deref().unwrap_or_default()),
        protocol,
        grpc_web: written.port.protocol.eq_ignore_ascii_case("GRPC-WEB"),
        bind: written.bind.as_deref().map(|bind| shared(bind)),
        hosts: written.hosts.iter().filter_map(|h| host(h, namespace)).collect(),
        tls: written.tls.as_deref().filter(|_| secure).map(server_tls),
        https_redirect: written.tls.as_deref().is_some_and(|t| t.https_redirect),
        origin: written.port.number.span.clone(),
    })
}

/// `host`, `namespace/host`, `./host`, `*/host`
fn host(written: &Spanned<String>, own: &str) -> Option<Spanned<GatewayHost>> {
    let (namespace, name) = match written.split_once('/') {
        None | Some(("*", _)) => (None, written.split_once('/').map_or(written.as_str(), |(_, name)| name)),
        Some((".", name)) => (Some(shared(own)), name),
        Some((namespace, name)) => (Some(shared(namespace)), name),
    };
    let host = Hostname::parse(name).ok()?;
    Some(Spanned::new(GatewayHost { namespace, host }, written.span.clone()))
}

pub(super) fn server_tls(tls: &istio::ServerTlsSettings) -> ServerTls {
    let version = |v: &Option<Spanned<TlsProtocol>>| match v.as_deref() {
        None | Some(TlsProtocol::Auto) => None,
        Some(TlsProtocol::V1_2) => Some(TlsVersion::V1_2),
        Some(TlsProtocol::V1_3) => Some(TlsVersion::V1_3),
    };
    let mutual = |admitted| ServerTlsMode::Mutual { certificates: certificates(tls), roots: roots(tls), admitted };
    let texts = |list: &[Spanned<String>]| list.iter().map(|text| shared(text)).collect();
    ServerTls {
        mode: match tls.mode.unwrap_or(istio::ServerTlsMode::Passthrough) {
            istio::ServerTlsMode::Passthrough => ServerTlsMode::Passthrough,
            istio::ServerTlsMode::AutoPassthrough => ServerTlsMode::AutoPassthrough,
            istio::ServerTlsMode::Simple => ServerTlsMode::Simple(certificates(tls)),
            istio::ServerTlsMode::Mutual => mutual(AdmittedClients::Verified),
            istio::ServerTlsMode::OptionalMutual => mutual(AdmittedClients::VerifiedOrNone),
            istio::ServerTlsMode::IstioMutual => ServerTlsMode::IstioMutual,
        },
        clients: ClientChecks {
            subject_alt_names: tls.subject_alt_names.iter().map(|n| shared(n)).collect(),
            spki: texts(&tls.verify_certificate_spki),
            hashes: texts(&tls.verify_certificate_hash),
            revocation_lists: tls.ca_crl.as_deref().map(shared),
        },
        cipher_suites: tls.known_cipher_suites().into_iter().map(shared).collect(),
        ecdh_curves: tls.known_ecdh_curves().into_iter().map(shared).collect(),
        alpn_protocols: texts(&tls.alpn_protocols),
        min_version: version(&tls.min_protocol_version),
        max_version: version(&tls.max_protocol_version),
    }
}

/// Where the certificates are. Secrets take precedence over files, as in Istio. The decoder has checked that one of them
/// is given.
fn certificates(tls: &istio::ServerTlsSettings) -> ServerCertificates {
    let names: Vec<_> = tls.credential_name.iter().chain(&tls.credential_names).map(secret_name).collect();
    if !names.is_empty() {
        return ServerCertificates::Secrets(names);
    }
    let path = |path: &Option<String>| path.as_deref().map(shared).unwrap_or_default();
    let pair = |chain, key| CertificateFiles { chain: path(chain), key: path(key) };
    ServerCertificates::Files(match tls.tls_certificates.as_slice() {
        [] => vec![pair(&tls.server_certificate, &tls.private_key)],
        several => several.iter().map(|one| pair(&one.server_certificate, &one.private_key)).collect(),
    })
}

/// Returns the location of the roots for clients: a separate Secret, the Secret of the certificate, or a file.
fn roots(tls: &istio::ServerTlsSettings) -> ClientRoots {
    let names = tls.ca_cert_credential_name.iter().chain(&tls.credential_name).chain(&tls.credential_names);
    if let Some(name) = names.map(secret_name).next() {
        return ClientRoots::Secret(name);
    }
    let of_certificates = tls.tls_certificates.iter().filter_map(|one| one.ca_certificates.as_deref());
    let file = tls.ca_certificates.as_deref().into_iter().chain(of_certificates).next();
    ClientRoots::File(file.map(shared).unwrap_or_default())
}

/// The name of a Secret as written, without the scheme that Istio allows before it.
fn secret_name(written: &Spanned<String>) -> Spanned<Arc<str>> {
    let name = written.strip_prefix("kubernetes://").unwrap_or(written);
    Spanned::new(shared(name), written.span.clone())
}
