//! Sidecar: which part of the mesh the proxies of a namespace see, and how connections reach their workloads.

use std::net::IpAddr;

use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::one_of;
use evenkeel_base::yaml::Node;
use evenkeel_base::{Span, Spanned};

use super::proxy_ports;
use super::server_tls::check_server_tls;
use super::server_tls::{ServerTlsMode, ServerTlsSettings};
use super::{ConnectionPool, Destination, LabelsSelector};
use crate::decode::{Context, Decode, Port, Schema, parsed};

object! {
    /// Which part of the mesh the proxies of a namespace see, and how connections reach their workloads.
    pub struct Sidecar {
        /// The specification.
        spec: SidecarSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// Which part of the mesh proxies see, and how connections reach their workloads.
    #[derive(Default)]
    pub struct SidecarSpec {
        /// The workloads; all of the namespace if not given.
        workload_selector: Option<LabelsSelector> = "workloadSelector",
        /// Ports of the workload; those of its Services if none are given.
        ingress: Vec<IngressListener> = "ingress",
        /// The hosts that the workload may call; everything that is exported to it if nothing is given.
        egress: Vec<Spanned<EgressListener>> = "egress",
        /// Settings of connections to the workload, for ports without their own.
        inbound_connection_pool: Option<ConnectionPool> = "inboundConnectionPool",
        /// How calls of unknown hosts are handled; the mesh's setting if not given.
        outbound_traffic_policy: Option<SidecarOutboundTrafficPolicy> = "outboundTrafficPolicy",
    }
    check: check;
}

object! {
    /// One port of the workload.
    pub struct IngressListener {
        /// The port clients call.
        port: SidecarPort = "port",
        /// The address to listen on, where nothing is redirected; the Pod's if not given.
        bind: Option<Spanned<IpAddr>> = "bind",
        /// How connections reach the proxy.
        capture_mode: Option<CaptureMode> = "captureMode",
        /// Where the workload listens: `127.0.0.1:PORT`, `0.0.0.0:PORT` (its own address) or `unix:///PATH`; the address and
        /// port that were called if not given.
        default_endpoint: Option<Spanned<String>> = "defaultEndpoint",
        /// Settings of connections to the workload.
        connection_pool: Option<ConnectionPool> = "connectionPool",
        /// TLS that the proxy terminates, for clients outside the mesh.
        tls: Option<Spanned<ServerTlsSettings>> = "tls",
    }
    check: check_ingress;
}

object! {
    /// The hosts that may be called on one port, or on all others.
    pub struct EgressListener {
        /// The port; all that no other entry names if not given.
        port: Option<EgressPort> = "port",
        /// The address it is called at; those of the services if not given, 127.0.0.1 where nothing is redirected. Or the
        /// Unix socket that the proxy listens on, `unix:///PATH` or `unix://@NAME`: everything imported can be called there.
        bind: Option<Spanned<EgressBind>> = "bind",
        /// How connections reach the proxy.
        capture_mode: Option<CaptureMode> = "captureMode",
        /// What may be called, each `NAMESPACE/HOST`: the namespace may be `.` (the workload's), `*` (any) or `~` (nothing), the
        /// host a wildcard.
        hosts: Vec<Spanned<String>> = "hosts",
    }
    check: check_egress;
}

object! {
    /// A port.
    pub struct SidecarPort {
        /// Its number.
        number: Spanned<Port> = "number",
        /// Its protocol.
        protocol: Spanned<String> = "protocol",
        /// Its name.
        name: Option<String> = "name",
    }
    removed: ["targetPort" = "remove it; `defaultEndpoint` says where the workload listens"];
    check: check_port;
}

object! {
    /// A port that is called.
    pub struct EgressPort {
        /// Its number; 0 or none for a Unix socket.
        number: Option<Spanned<u32>> = "number",
        /// Its protocol.
        protocol: Spanned<String> = "protocol",
        /// Its name.
        name: Option<String> = "name",
    }
    removed: ["targetPort" = "remove it"];
    check: check_egress_port;
}

/// The address of an egress listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EgressBind {
    /// At an address.
    Address(IpAddr),
    /// On a Unix socket; `@NAME` is an abstract one.
    Unix(String),
}

impl Decode for EgressBind {
    fn schema() -> Schema {
        Schema::String("an IP address or `unix:///PATH`")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        parsed(node, cx, "bad-address", "an IP address such as `127.0.0.1`, or `unix:///run/egress.sock`", |text| {
            let Some(path) = text.strip_prefix("unix://") else {
                return text.parse().map(Self::Address).map_err(|_| format!("`{text}` is not an IP address"));
            };
            match path {
                "@" => Err("an abstract socket needs a name after the `@`".to_owned()),
                path if !path.starts_with(['/', '@']) => Err(format!("`{path}` is not an absolute path")),
                path if path.contains('\0') => Err("a path has no zero byte".to_owned()),
                path if path.len() > MAX_SOCKET_PATH_BYTES => Err(too_long(path)),
                path => Ok(Self::Unix(path.to_owned())),
            }
        })
    }
}

fn too_long(path: &str) -> String {
    let length = path.len();
    format!("the path of a Unix socket has {MAX_SOCKET_PATH_BYTES} bytes at most, and this one has {length}")
}

choices! {
    /// How connections reach the proxy.
    pub enum CaptureMode {
        /// The default: they are redirected to it.
        Default = "DEFAULT",
        /// They are redirected to it.
        Iptables = "IPTABLES",
        /// Clients connect to it directly: it listens on a port of its own.
        None = "NONE",
    }
}

object! {
    /// How calls of unknown hosts are handled.
    pub struct SidecarOutboundTrafficPolicy {
        /// Whether such calls pass; REGISTRY_ONLY if not given, as in Istio.
        mode: Option<OutboundTrafficPolicyMode> = "mode",
        /// The egress proxy that such calls are sent to.
        egress_proxy: Option<Spanned<Destination>> = "egressProxy",
    }
    check: check_policy;
}

choices! {
    /// How calls of unknown hosts are handled. Unlike the mesh's, it has no `ALLOW_ANY_DYNAMIC_DNS`, as in Istio.
    pub enum OutboundTrafficPolicyMode {
        /// Calls pass.
        AllowAny = "ALLOW_ANY",
        /// Calls are refused.
        RegistryOnly = "REGISTRY_ONLY",
    }
}

/// Protocols of a port, in Istio's spelling.
const PROTOCOLS: &[&str] = &["HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTPS", "TLS", "TCP", "MONGO", "MYSQL", "REDIS"];
/// An explicit proxy: requests name their destination, and only egress listeners have it.
const HTTP_PROXY: &str = "HTTP_PROXY";

/// A parsed entry of an egress listener's `hosts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressHost<'t> {
    /// Whether it takes hosts away from what the other entries import.
    pub excludes: bool,
    /// The namespace: `.`, `*`, `~` (none, and no exclusion) or a name.
    pub namespace: &'t str,
    /// The host; may be a wildcard.
    pub host: Hostname,
}

impl EgressPort {
    /// Whether it is that of an explicit proxy for HTTP.
    pub fn is_http_proxy(&self) -> bool {
        self.protocol.eq_ignore_ascii_case(HTTP_PROXY)
    }

    /// Its number; `None` for a Unix socket.
    pub fn number(&self) -> Option<u16> {
        self.number.as_ref().and_then(|number| u16::try_from(number.value).ok()).filter(|number| *number > 0)
    }
}

impl EgressListener {
    /// The path of its Unix socket, if it has one.
    pub fn socket(&self) -> Option<&str> {
        match self.bind.as_deref() {
            Some(EgressBind::Unix(path)) => Some(path),
            _ => None,
        }
    }
}

impl<'t> EgressHost<'t> {
    /// Reads `NAMESPACE/HOST` or `~NAMESPACE/HOST`; an error says what is wrong.
    pub fn parse(text: &'t str) -> Result<Self, String> {
        let Some((namespace, name)) = text.split_once('/') else {
            return Err(format!("`{text}` does not name a namespace"));
        };
        let host = Hostname::parse(name).map_err(|error| error.to_string())?;
        // `~/*` imports nothing, `~NAMESPACE/HOST` excludes, and so does `~/HOST`, in all namespaces.
        let (excludes, namespace) = match namespace.strip_prefix('~') {
            Some("") if host.as_str() == "*" => (false, "~"),
            Some("") => (true, "*"),
            Some(excluded) => (true, excluded),
            None => (false, namespace),
        };
        let named = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !matches!(namespace, "." | "*" | "~") && (namespace.is_empty() || !namespace.chars().all(named)) {
            return Err(format!("`{namespace}` is not a namespace"));
        }
        Ok(Self { excludes, namespace, host })
    }
}

fn check(spec: &SidecarSpec, node: &Node, cx: &mut Context) {
    if spec.workload_selector.as_ref().is_some_and(|selector| selector.labels.is_empty()) {
        let help = "add labels, or remove `workloadSelector` to select the whole namespace";
        cx.error("empty-selector", node.span_of_path("workloadSelector"), "the selector has no labels", help);
    }
    let is_empty = spec.ingress.is_empty()
        && spec.egress.is_empty()
        && spec.outbound_traffic_policy.is_none()
        && spec.inbound_connection_pool.is_none();
    if is_empty {
        let help = "add `egress: [{hosts: [\"./*\"]}]`, or remove the Sidecar";
        cx.error("missing-field", &node.span, "the Sidecar is empty", help);
    }
    for (index, listener) in spec.ingress.iter().enumerate() {
        let before = spec.ingress.iter().take(index);
        cx.at_field("ingress", |cx| {
            cx.at_index(index, |cx| {
                check_unique(listener.port.number.0, &listener.port.number.span, before.map(|i| i.port.number.0), cx)
            })
        });
    }
    for (index, listener) in spec.egress.iter().enumerate() {
        cx.at_field("egress", |cx| {
            cx.at_index(index, |cx| match &listener.port {
                _ if listener.socket().is_some() => check_socket_is_alone(listener, &spec.egress[..index], cx),
                Some(port) => {
                    let before = spec.egress.iter().take(index).filter_map(|e| e.port.as_ref()?.number());
                    if let (Some(number), Some(span)) = (port.number(), port.number.as_ref().map(|n| &n.span)) {
                        check_unique(number, span, before, cx);
                    }
                }
                None if index + 1 < spec.egress.len() => {
                    let message = "an entry without `port` applies to all other ports and must come last";
                    cx.error("conflict", &listener.span, message, "move it to the end; only one such entry is allowed");
                }
                None => {}
            });
        });
    }
}

fn check_unique(number: u16, span: &Span, mut before: impl Iterator<Item = u16>, cx: &mut Context) {
    if before.any(|other| other == number) {
        cx.error("port-conflict", span, format!("port {number} appears twice"), "merge the two entries");
    }
}

fn check_socket_is_alone(listener: &EgressListener, before: &[Spanned<EgressListener>], cx: &mut Context) {
    let Some(bind) = listener.bind.as_ref().filter(|_| before.iter().any(|other| other.socket() == listener.socket()))
    else {
        return;
    };
    cx.error("conflict", &bind.span, "another entry has the same Unix socket", "merge the two entries");
}

fn check_port(port: &SidecarPort, _: &Node, cx: &mut Context) {
    if port.protocol.eq_ignore_ascii_case(HTTP_PROXY) {
        let message =
            "only the workload's own requests go through an HTTP proxy, so it is a protocol of `egress` alone";
        cx.at_field("protocol", |cx| cx.error("bad-value", &port.protocol.span, message, "write `HTTP`"));
        return;
    }
    check_protocol(&port.protocol, PROTOCOLS.iter().copied(), cx);
}

fn check_egress_port(port: &EgressPort, _: &Node, cx: &mut Context) {
    if let Some(number) = port.number.as_ref().filter(|number| number.value > u16::MAX.into()) {
        let message = format!("{} is not a port", number.value);
        cx.at_field("number", |cx| cx.error("bad-value", &number.span, message, "expected 1 to 65535"));
    }
    check_protocol(&port.protocol, PROTOCOLS.iter().copied().chain([HTTP_PROXY]), cx);
}

fn check_protocol<'n>(written: &Spanned<String>, known: impl Iterator<Item = &'n str> + Clone, cx: &mut Context) {
    if known.clone().any(|name| name.eq_ignore_ascii_case(written)) {
        return;
    }
    let message = format!("`{}` is not a protocol", written.value);
    let help = format!("allowed: {}", one_of(known));
    cx.at_field("protocol", |cx| cx.error("bad-value", &written.span, message, help));
}

fn check_egress(listener: &EgressListener, node: &Node, cx: &mut Context) {
    if listener.capture_mode == Some(CaptureMode::None) && listener.port.is_none() {
        let help = "add `port`, or remove `captureMode`";
        let message = "`captureMode: NONE` needs a port to listen on";
        cx.error("missing-field", node.span_of_path("captureMode"), message, help);
    }
    if let Some(port) = listener.port.as_ref().filter(|_| listener.capture_mode == Some(CaptureMode::None))
        && let (Some(number), Some(written)) = (port.number(), &port.number)
    {
        let check = |cx: &mut Context| proxy_ports::check(proxy_ports::OF_SIDECARS, number, &written.span, cx);
        cx.at_field("port", |cx| cx.at_field("number", check));
    }
    check_egress_bind(listener, node, cx);
    if let Some(port) = listener.port.as_ref().filter(|port| port.is_http_proxy())
        && listener.socket().is_none()
        && listener.capture_mode != Some(CaptureMode::None)
    {
        let message = "connections to 127.0.0.1 are never redirected, so programs cannot use it as their proxy";
        let help = "add `captureMode: NONE`: then the proxy listens on the port itself";
        cx.at_field("port", |cx| cx.warning("no-effect", &port.protocol.span, message, help));
    }
    if listener.hosts.is_empty() {
        let help = "add `./*` for this namespace, `*/*` for all, `~/*` for none";
        cx.at_field("hosts", |cx| cx.error("missing-field", &node.span, "at least one host is needed", help));
    }
    let parsed: Vec<_> = listener.hosts.iter().map(|host| EgressHost::parse(host)).collect();
    for (index, (written, host)) in listener.hosts.iter().zip(&parsed).enumerate() {
        cx.at_field("hosts", |cx| {
            cx.at_index(index, |cx| match host {
                Err(error) => {
                    let help = "expected `NAMESPACE/HOST`, such as `./*`, `*/*`, `istio-system/*`, `shop/web.shop.svc.cluster.local` or `*/*.example.com`";
                    cx.error("bad-host", &written.span, error, help);
                }
                Ok(host) => {
                    let wider = parsed.iter().flatten().find(|other| {
                        let same_place = other.namespace == "*" || other.namespace == host.namespace;
                        *other != host && same_place && other.host.covers(&host.host) && host.namespace != "~"
                    });
                    if let Some(wider) = wider {
                        let message = format!("`{}/{}` includes it already", wider.namespace, wider.host);
                        cx.note("no-effect", &written.span, message, "remove it");
                    }
                }
            });
        });
    }
}

/// As Istio's `validateSidecarEgressPortBindAndCaptureMode`: a Unix socket has no port number, and nothing is redirected
/// to it.
fn check_egress_bind(listener: &EgressListener, node: &Node, cx: &mut Context) {
    let number = listener.port.as_ref().and_then(|port| port.number.as_ref()).filter(|number| number.value > 0);
    let Some(bind) = listener.bind.as_ref().filter(|_| listener.socket().is_some()) else {
        if listener.port.is_some() && number.is_none() {
            let message = "a port needs its `number`, unless `bind` is a Unix socket";
            cx.error("missing-field", node.span_of_path("port"), message, "add `number: PORT`");
        }
        return;
    };
    if let Some(number) = number {
        let message = "a Unix socket has no port number";
        cx.at_field("port", |cx| cx.error("conflict", &number.span, message, "remove `number`, as in Istio"));
    }
    if listener.port.is_none() {
        let message = "a Unix socket needs the protocol that is spoken on it";
        cx.error("missing-field", &bind.span, message, "add `port: {protocol: HTTP}`");
    }
    if listener.capture_mode == Some(CaptureMode::Iptables) {
        let message = "no connection is redirected to a Unix socket";
        cx.error("conflict", node.span_of_path("captureMode"), message, "write `captureMode: NONE`");
    }
}

/// The target of an ingress listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IngressEndpoint {
    /// On its loopback address.
    Loopback(IpAddr, u16),
    /// On the Pod's address.
    Own(u16),
    /// On a Unix socket.
    Unix(String),
}

impl IngressEndpoint {
    /// Parses a `defaultEndpoint`; `None` if it has another form.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix://") {
            return path.starts_with(['/', '@']).then(|| Self::Unix(path.to_owned()));
        }
        let (address, port) = text.rsplit_once(':')?;
        let port = port.parse::<u16>().ok().filter(|port| *port > 0)?;
        let address = address.strip_prefix('[').and_then(|a| a.strip_suffix(']')).unwrap_or(address);
        match address.parse::<IpAddr>() {
            Ok(address) if address.is_unspecified() => Some(Self::Own(port)),
            Ok(IpAddr::V4(address)) => {
                (address.octets() == [127, 0, 0, 1]).then(|| Self::Loopback(address.into(), port))
            }
            Ok(IpAddr::V6(address)) => address.is_loopback().then(|| Self::Loopback(address.into(), port)),
            Err(_) => None,
        }
    }
}

fn check_ingress(listener: &IngressListener, node: &Node, cx: &mut Context) {
    check_ingress_tls(listener, node, cx);
    let is_captured = listener.capture_mode != Some(CaptureMode::None);
    if let Some(bind) = listener.bind.as_ref().filter(|_| is_captured) {
        let message = "`bind` has no effect: connections are redirected to the proxy whatever address they are for";
        let help = "remove it, or add `captureMode: NONE`";
        cx.at_field("bind", |cx| cx.warning("no-effect", &bind.span, message, help));
    }
    if !is_captured {
        let number = &listener.port.number;
        let check = |cx: &mut Context| proxy_ports::check(proxy_ports::OF_SIDECARS, number.0, &number.span, cx);
        cx.at_field("port", |cx| cx.at_field("number", check));
    }
    if !is_captured && listener.default_endpoint.is_none() {
        let message = "`captureMode: NONE` needs `defaultEndpoint`, the address to send connections to";
        cx.error("missing-field", node.span_of_path("captureMode"), message, "add `defaultEndpoint: 127.0.0.1:PORT`");
    }
    if let Some(endpoint) = listener.default_endpoint.as_ref().filter(|e| IngressEndpoint::parse(e).is_none()) {
        let message = format!("`{}` is not an endpoint of the workload", endpoint.value);
        let help = "expected `127.0.0.1:PORT`, `[::1]:PORT`, `0.0.0.0:PORT`, `[::]:PORT` or `unix:///PATH`";
        cx.at_field("defaultEndpoint", |cx| cx.error("bad-address", &endpoint.span, message, help));
    }
    if let Some(endpoint) = &listener.default_endpoint
        && let Some(path) = endpoint.strip_prefix("unix://").filter(|path| path.len() > MAX_SOCKET_PATH_BYTES)
    {
        let message = too_long(path);
        cx.at_field("defaultEndpoint", |cx| cx.error("bad-address", &endpoint.span, message, "use a shorter path"));
    }
}

/// As Istio's `validateSidecarIngressTLS`: certificates in files, for ports of HTTPS and TLS.
fn check_ingress_tls(listener: &IngressListener, node: &Node, cx: &mut Context) {
    let Some(tls) = &listener.tls else { return };
    let field = |name: &str| node.span_of_path(&format!("tls.{name}"));
    let protocol = listener.port.protocol.to_uppercase();
    if !matches!(protocol.as_str(), "HTTPS" | "TLS") {
        let message = format!("a port with protocol {protocol} does not use TLS");
        cx.error("conflict", &tls.span, message, "use the protocol HTTPS or TLS, or remove `tls`");
    }
    let modes = [Some(ServerTlsMode::Simple), Some(ServerTlsMode::Mutual), Some(ServerTlsMode::OptionalMutual)];
    if !modes.contains(&tls.mode) {
        let message = "the proxy of a workload can only terminate TLS with certificates of its own";
        cx.error("bad-value", field("mode"), message, "set `mode: SIMPLE`, `MUTUAL` or `OPTIONAL_MUTUAL`");
        return;
    }
    let secrets = [
        ("credentialName", tls.credential_name.is_some()),
        ("credentialNames", !tls.credential_names.is_empty()),
        ("caCertCredentialName", tls.ca_cert_credential_name.is_some()),
    ];
    for (name, _) in secrets.into_iter().filter(|(_, given)| *given) {
        let help = "mount the certificate, and name its files in `serverCertificate` and `privateKey`";
        cx.error("conflict", field(name), "Secrets are sent to gateways only, as in Istio", help);
    }
    if secrets.iter().all(|(_, given)| !given) {
        cx.at_field("tls", |cx| check_server_tls(&tls.value, node.get("tls").unwrap_or(node), cx));
    }
}

/// Maximum length of a Unix socket's path, in bytes (unix(7)).
const MAX_SOCKET_PATH_BYTES: usize = 107;

fn check_policy(policy: &SidecarOutboundTrafficPolicy, node: &Node, cx: &mut Context) {
    let Some(proxy) = &policy.egress_proxy else { return };
    if policy.mode != Some(OutboundTrafficPolicyMode::AllowAny) {
        let message = "`egressProxy` needs `mode: ALLOW_ANY`: without it no traffic passes to the egress proxy";
        cx.error("conflict", node.span_of_path("egressProxy"), message, "add `mode: ALLOW_ANY`");
    }
    check_egress_proxy(proxy, cx);
}

/// Traffic for an egress proxy may have come to any port, so that of the proxy must be given.
pub(super) fn check_egress_proxy(proxy: &Spanned<Destination>, cx: &mut Context) {
    if proxy.port.is_none() {
        cx.at_field("egressProxy", |cx| {
            cx.error("missing-field", &proxy.span, "an egress proxy needs a `port`", "add `port: {number: 80}`");
        });
    }
}
