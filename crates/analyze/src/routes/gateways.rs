//! Istio's Gateways as those of the Gateway API, served by the same proxies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_api::{Kind, Object};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::{Diagnostics, ObjectRef};
use evenkeel_model::gateway::{AdmittedClients, ClientChecks, ClientRoots, ServerCertificates, TlsVersion};
use evenkeel_model::{
    Gateway, GatewayRef, Server, ServerProtocol, ServerTls, ServerTlsMode, Service, Snapshot, Workload,
};
use serde_json::{Map, Value, json};

use super::documents::{Documents, RouteDocument, object};
use super::guards::{NewProxies, lost_guard};
use super::writer::Writer;
use super::{RouteOptions, WrittenRoutes};

/// The Gateways, by their references.
pub(super) type PlannedGateways = BTreeMap<GatewayRef, PlannedGateway>;

/// The most listeners of a Gateway.
const MAX_LISTENERS: usize = 64;

/// A Gateway.
#[derive(Debug)]
pub(super) struct PlannedGateway {
    pub(super) name: Arc<str>,
    pub(super) namespace: Arc<str>,
    pub(super) object: ObjectRef,
    pub(super) sections: Vec<Section>,
    /// `None`: it has no equal.
    pub(super) document: Option<Value>,
    /// Secrets of another namespace that it uses.
    secrets: BTreeSet<(Arc<str>, Arc<str>)>,
}

/// A listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) port: u16,
    pub(super) kind: SectionKind,
    /// TLS ends there.
    pub(super) is_tls: bool,
    /// All requests are sent to HTTPS.
    pub(super) redirects: bool,
    pub(super) host: Hostname,
    /// The only namespace whose routes it takes.
    pub(super) namespace: Option<Arc<str>>,
}

/// What a listener routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SectionKind {
    Http,
    /// TLS that is passed on.
    Passthrough,
    /// TCP, or what is inside of TLS.
    Connections,
}

/// Where the proxies of a Gateway are.
struct Proxies {
    namespace: Arc<str>,
    /// The Service that leads to them.
    service: Option<Hostname>,
}

/// Plans the equals of Istio's Gateways.
pub(super) fn write(objects: &[&Object], snapshot: &Snapshot, found: &mut Diagnostics) -> PlannedGateways {
    let options = RouteOptions::default();
    let mut all = PlannedGateways::new();
    for object in objects.iter().filter(|object| object.kind() == Kind::Gateway) {
        let is_it = |gateway: &&Arc<Gateway>| gateway.namespace == object.namespace && gateway.name == object.name;
        let Some(gateway) = snapshot.gateways.iter().find(is_it) else { continue };
        let mut writer = Writer::new(object, snapshot, &options);
        let planned = plan(&mut writer, gateway);
        found.extend(writer.findings);
        let reference = GatewayRef::Named { namespace: gateway.namespace.clone(), name: gateway.name.clone() };
        all.insert(reference, planned);
    }
    all
}

fn plan(writer: &mut Writer<'_>, gateway: &Gateway) -> PlannedGateway {
    let mut sections = Vec::new();
    let mut listeners: Vec<Value> = Vec::new();
    let mut secrets = BTreeSet::new();
    let proxies = proxies(writer, gateway);
    for server in &gateway.servers {
        for section in sections_of(writer, server, &sections) {
            let listener = listener(writer, &section, server, &proxies, gateway, &mut secrets);
            listeners.push(listener);
            sections.push(section);
        }
    }
    if listeners.len() > MAX_LISTENERS {
        let message =
            format!("`servers`: it has {} hosts, and a Gateway has at most {MAX_LISTENERS} listeners", listeners.len());
        writer.refuse(&gateway.origin, message, "divide it, or use wildcards");
    }
    let mut spec = Map::new();
    spec.insert("gatewayClassName".to_owned(), "istio".into());
    match &proxies.service {
        Some(host) => {
            spec.insert("addresses".to_owned(), json!([{"type": "Hostname", "value": host.as_str()}]));
        }
        None => {
            if let Some(guard) = lost_guard(
                writer.snapshot,
                gateway,
                &proxies.namespace,
                &NewProxies::of(&gateway.namespace, &gateway.name),
            ) {
                let message = format!("no Service leads to its proxies, and {guard} would not select new ones");
                writer.refuse(
                    &gateway.origin,
                    message,
                    "add a Service that selects them and has all ports of `servers`",
                );
            }
            let message = "no Service leads to its proxies, so new ones are deployed for the Gateway that is written";
            writer.differs(&gateway.origin, message, "add a Service that selects them, and write the routes again");
        }
    }
    spec.insert("listeners".to_owned(), listeners.into());
    let document = object("Gateway", &gateway.namespace, &gateway.name, spec.into());
    PlannedGateway {
        name: gateway.name.clone(),
        namespace: gateway.namespace.clone(),
        object: writer.object.reference(),
        sections,
        document: (!writer.is_refused).then_some(document),
        secrets,
    }
}

/// Where the Pods that the selector selects are, and the Service in front of them.
fn proxies(writer: &mut Writer<'_>, gateway: &Gateway) -> Proxies {
    let selected: Vec<&Arc<Workload>> =
        writer.snapshot.workloads.iter().filter(|pod| gateway.selects(&***pod)).collect();
    if gateway.selector.is_empty() {
        let help = "give it the labels of the proxies that are to serve it";
        writer.refuse(&gateway.origin, "`selector`: without one all gateway proxies serve it", help);
    }
    let namespaces: BTreeSet<&Arc<str>> = selected.iter().map(|pod| &pod.namespace).collect();
    if namespaces.len() > 1 {
        let help = "select those of one namespace, with a Gateway for each";
        writer.refuse(&gateway.origin, "`selector`: proxies of several namespaces serve it", help);
    }
    let namespace = namespaces.first().map_or_else(|| gateway.namespace.clone(), |namespace| (*namespace).clone());
    let has_ports = |service: &Service| gateway.servers.iter().all(|server| service.port(server.port).is_some());
    let leads_there = |service: &&Arc<Service>| {
        let selects =
            |pod: &&Arc<Workload>| service.selector.iter().all(|(name, value)| pod.labels.get(name) == Some(value));
        service.namespace == namespace
            && !service.selector.is_empty()
            && !selected.is_empty()
            && selected.iter().all(selects)
    };
    let mut services = writer.snapshot.services.iter().filter(leads_there);
    let service = services
        .find(|service| has_ports(service) && writer.is_of_kubernetes(service))
        .map(|service| service.host.clone());
    Proxies { namespace, service }
}

fn sections_of(writer: &mut Writer<'_>, server: &Server, before: &[Section]) -> Vec<Section> {
    let tls_mode = server.tls.as_ref().map(|tls| &tls.mode);
    let kind = match (server.protocol, tls_mode) {
        (_, Some(ServerTlsMode::Passthrough)) => SectionKind::Passthrough,
        (_, Some(ServerTlsMode::AutoPassthrough)) => {
            let message = "`tls.mode: AUTO_PASSTHROUGH`: the Gateway API does not route by the names of clusters";
            writer.refuse(&server.origin, message, "leave this Gateway (it connects networks)");
            SectionKind::Passthrough
        }
        (ServerProtocol::Http | ServerProtocol::Https, _) => SectionKind::Http,
        (ServerProtocol::Tls | ServerProtocol::Tcp | ServerProtocol::Udp, _) => SectionKind::Connections,
    };
    let mut all: Vec<Section> = Vec::new();
    for host in &server.hosts {
        let (namespace, host) = (host.value.namespace.clone(), host.value.host.clone());
        // Routes of TCP are not chosen by names.
        let host = if server.protocol == ServerProtocol::Tcp { Hostname::parse("*").unwrap_or(host) } else { host };
        let is_same = |other: &&Section| other.port == server.port && other.host == host;
        if let Some(other) = all.iter().find(is_same).or_else(|| before.iter().find(is_same)) {
            if other.namespace != namespace {
                let help = "write `*/` before the host, or use one namespace";
                writer.refuse(
                    &server.origin,
                    format!("`hosts`: several namespaces for `{host}` need several listeners"),
                    help,
                );
            }
            continue;
        }
        let wanted = section_name(server, all.len());
        let is_taken = |name: &String| before.iter().chain(&all).any(|section| section.name == *name);
        let mut names = std::iter::once(wanted.clone()).chain((2..).map(|number| format!("{wanted}-{number}")));
        let name = names.find(|name| !is_taken(name)).unwrap_or(wanted);
        let is_tls = server.tls.as_ref().is_some_and(|tls| tls.mode.terminates());
        all.push(Section { name, port: server.port, kind, is_tls, redirects: server.https_redirect, host, namespace });
    }
    all
}

/// The port's name in the form of names.
fn section_name(server: &Server, at: usize) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = server.port_name.chars().map(allowed).collect();
    let name = name.trim_matches('-');
    let name = if name.is_empty() { format!("port-{}", server.port) } else { name.to_owned() };
    if at == 0 { name } else { format!("{name}-{}", at + 1) }
}

fn listener(
    writer: &mut Writer<'_>,
    section: &Section,
    server: &Server,
    proxies: &Proxies,
    gateway: &Gateway,
    secrets: &mut BTreeSet<(Arc<str>, Arc<str>)>,
) -> Value {
    let span = &server.origin;
    if server.bind.is_some() {
        writer.refuse(span, "`bind`: a listener has no address of its own", "remove it");
    }
    if server.grpc_web {
        writer.refuse(span, "`protocol: GRPC-WEB` has no equal", "leave this Gateway");
    }
    let protocol = match (section.kind, server.protocol, section.is_tls) {
        (SectionKind::Passthrough, ..) => "TLS",
        (SectionKind::Http, _, true) => "HTTPS",
        (SectionKind::Http, _, false) => "HTTP",
        (SectionKind::Connections, _, true) => "TLS",
        (SectionKind::Connections, ..) => "TCP",
    };
    let mut listener = Map::new();
    listener.insert("name".to_owned(), section.name.as_str().into());
    listener.insert("port".to_owned(), section.port.into());
    listener.insert("protocol".to_owned(), protocol.into());
    if section.host.as_str() != "*" {
        listener.insert("hostname".to_owned(), section.host.as_str().into());
    }
    if let Some(tls) = &server.tls {
        listener.insert("tls".to_owned(), self::tls(writer, tls, server, proxies, gateway, secrets));
    }
    let namespaces = match &section.namespace {
        None => json!({"from": "All"}),
        Some(own) if *own == gateway.namespace => json!({"from": "Same"}),
        Some(own) => json!({"from": "Selector", "selector": {"matchLabels": {"kubernetes.io/metadata.name": &**own}}}),
    };
    listener.insert("allowedRoutes".to_owned(), json!({"namespaces": namespaces}));
    listener.into()
}

fn tls(
    writer: &mut Writer<'_>,
    tls: &ServerTls,
    server: &Server,
    proxies: &Proxies,
    gateway: &Gateway,
    secrets: &mut BTreeSet<(Arc<str>, Arc<str>)>,
) -> Value {
    let span = &server.origin;
    let limits = [
        (!tls.cipher_suites.is_empty(), "cipherSuites"),
        (!tls.ecdh_curves.is_empty(), "ecdhCurves"),
        (tls.min_version.is_some_and(|version| version > TlsVersion::V1_2), "minProtocolVersion"),
        (tls.max_version.is_some_and(|version| version < TlsVersion::V1_3), "maxProtocolVersion"),
        (!tls.alpn_protocols.is_empty(), "alpnProtocols"),
        (tls.clients != ClientChecks::default(), "subjectAltNames, hashes or revocation lists"),
    ];
    for (_, field) in limits.into_iter().filter(|(is_set, _)| *is_set) {
        let help = "set it for the whole mesh (`meshConfig.tlsDefaults`), or leave this Gateway";
        writer.refuse(span, format!("`tls`: a listener has no {field}"), help);
    }
    let mut mode = None;
    let certificates = match &tls.mode {
        ServerTlsMode::Passthrough | ServerTlsMode::AutoPassthrough => return json!({"mode": "Passthrough"}),
        ServerTlsMode::IstioMutual => {
            let message = "`tls.mode: ISTIO_MUTUAL`: a listener has no certificate of the mesh";
            writer.refuse(span, message, "leave this Gateway");
            return json!({});
        }
        ServerTlsMode::Simple(certificates) => certificates,
        ServerTlsMode::Mutual { certificates, roots, admitted } => {
            mode = Some(if *admitted == AdmittedClients::Verified { "MUTUAL" } else { "OPTIONAL_MUTUAL" });
            let is_own = match (certificates, roots) {
                (ServerCertificates::Secrets(names), ClientRoots::Secret(roots)) => {
                    names.iter().any(|name| name.value == roots.value)
                }
                _ => false,
            };
            if !is_own || *admitted == AdmittedClients::Any {
                let help = "put them into the Secret of the certificate, or into NAME-cacert";
                writer.refuse(span, "`tls`: the roots for clients are not in the Secret of the certificate", help);
            }
            certificates
        }
    };
    let ServerCertificates::Secrets(names) = certificates else {
        let help = "put the certificate into a Secret, and name it by `credentialName`";
        writer.refuse(span, "`tls`: a listener has no certificates in files", help);
        return json!({});
    };
    let mut references = Vec::new();
    for name in names {
        let (namespace, name) = match name.value.split_once('/') {
            Some((namespace, name)) => (namespace.into(), name.into()),
            None => (proxies.namespace.clone(), name.value.clone()),
        };
        let mut reference = Map::from_iter([("name".to_owned(), Value::from(&*name))]);
        if namespace != gateway.namespace {
            reference.insert("namespace".to_owned(), (*namespace).into());
            secrets.insert((namespace, name));
        }
        references.push(Value::Object(reference));
    }
    let mut written = Map::from_iter([("certificateRefs".to_owned(), Value::from(references))]);
    if let Some(mode) = mode {
        written.insert("options".to_owned(), json!({"gateway.istio.io/tls-terminate-mode": mode}));
    }
    written.into()
}

/// Adds the Gateways that written routes use, with what they need.
pub(super) fn finish(
    gateways: PlannedGateways,
    used: &BTreeSet<GatewayRef>,
    objects: &[&Object],
    documents: &mut Documents,
    written: &mut WrittenRoutes,
) {
    let remaining = written.remaining.clone();
    for (reference, gateway) in gateways {
        let (true, Some(document)) = (used.contains(&reference), gateway.document) else {
            written.remaining.push(gateway.object);
            continue;
        };
        documents.object(document);
        for (namespace, secret) in &gateway.secrets {
            documents.grant_secret(&gateway.namespace, namespace, secret);
        }
        redirects(&gateway.sections, &gateway.name, &gateway.namespace, documents);
        let uses_it = |object: &&&Object| {
            let evenkeel_api::Resource::VirtualService(service) = &object.resource else { return false };
            let names = |text: &evenkeel_base::Spanned<String>| GatewayRef::parse(text, &object.namespace) == reference;
            remaining.contains(&object.reference()) && service.spec.gateways.iter().any(names)
        };
        match objects.iter().find(uses_it) {
            Some(user) => {
                let message = format!(
                    "Istio's Gateway `{reference}` remains, too, because {user} does; hosts with TLS of both are served for the first of them"
                );
                let finding = evenkeel_base::Diagnostic::warning("not-quite", user.origin.clone(), message);
                written.findings.push(
                    finding.with_help("move the rest before you apply what was written").about(gateway.object.clone()),
                );
                written.remaining.push(gateway.object);
            }
            None => written.replaced.push(gateway.object),
        }
    }
}

/// The route that sends the requests of some listeners to HTTPS.
fn redirects(sections: &[Section], gateway: &str, namespace: &Arc<str>, documents: &mut Documents) {
    let redirecting = sections.iter().filter(|section| section.redirects);
    let parents: Vec<Value> =
        redirecting.map(|section| json!({"name": gateway, "sectionName": section.name})).collect();
    if parents.is_empty() {
        return;
    }
    let filter = json!({"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "statusCode": 301}});
    documents.route(RouteDocument {
        kind: "HTTPRoute",
        namespace: namespace.clone(),
        name: format!("{gateway}-https-redirect"),
        parents,
        hostnames: Vec::new(),
        rules: vec![Map::from_iter([("filters".to_owned(), json!([filter]))])],
        origin: evenkeel_base::Span::default(),
    });
}
