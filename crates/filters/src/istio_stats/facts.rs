//! What Istio's labels tell of a request or connection.

use std::fmt::Write;

use evenkeel_base::grpc::is_grpc;
use evenkeel_runtime_config::istio_stats::{Dimension, IstioStats};
use evenkeel_runtime_config::listener::TrafficDirection;
use evenkeel_runtime_config::peer::{DestinationService, Peer};
use evenkeel_stats::LabelValues;
use evenkeel_tls::{PeerCertificate, Session};

use crate::format::Record;
use crate::info::{ResponseFlags, StateObject};
use crate::peer_metadata::{DOWNSTREAM, UPSTREAM, namespace_of};

/// The value of a label that is not known.
pub(super) const UNKNOWN: &str = "unknown";
/// The revision of a workload that names none.
const LATEST: &str = "latest";
/// Clusters that stand for no service; the label of the service names them.
const WITHOUT_SERVICE: [&str; 3] = ["BlackHoleCluster", "PassthroughCluster", "InboundPassthroughCluster"];
/// Ends a value in a key. No text in UTF-8 has this byte.
pub(super) const END: u8 = 0xff;

/// The labels of series of requests.
pub(super) const LABELS: [&str; 25] = [
    "reporter",
    "source_workload",
    "source_canonical_service",
    "source_canonical_revision",
    "source_workload_namespace",
    "source_principal",
    "source_app",
    "source_version",
    "source_cluster",
    "destination_workload",
    "destination_workload_namespace",
    "destination_principal",
    "destination_app",
    "destination_version",
    "destination_service",
    "destination_canonical_service",
    "destination_canonical_revision",
    "destination_service_name",
    "destination_service_namespace",
    "destination_cluster",
    "request_protocol",
    "response_flags",
    "connection_security_policy",
    "response_code",
    "grpc_response_status",
];

/// The labels of series of connections: they have no response.
pub(super) const CONNECTION_LABELS: usize = LABELS.len() - 2;

/// What the labels tell.
pub(super) struct Facts<'r> {
    /// The server reports; otherwise the client.
    by_server: bool,
    /// The workload behind the other end.
    peer: Other<'r>,
    /// The SPIFFE ids of both ends; empty: not known.
    peer_principal: &'r str,
    own_principal: &'r str,
    cluster: &'r str,
    service: Option<&'r DestinationService>,
    /// The `Host` that stands for a service that is not known.
    host: &'r [u8],
    flags: ResponseFlags,
    /// `None`: it is a connection.
    response: Option<Response<'r>>,
}

/// The workload behind the other end.
#[derive(Clone, Copy)]
enum Other<'r> {
    Unknown,
    /// As it has announced.
    Announced(&'r Peer),
    /// As the control plane says, in the endpoint's metadata.
    Listed(&'r str),
}

/// How the labels of a group differ from Istio's.
pub(super) struct Labels<'l> {
    /// Those that it does not have.
    pub(super) without: &'l [Box<str>],
    /// Those whose values are expressions.
    pub(super) dimensions: &'l [Dimension],
    /// Their values.
    pub(super) values: &'l [String],
}

impl Labels<'_> {
    fn is_removed(&self, name: &str) -> bool {
        self.without.iter().any(|removed| **removed == *name)
    }

    fn value_of(&self, name: &str) -> Option<&str> {
        let place = self.dimensions.iter().position(|dimension| *dimension.label == *name)?;
        self.values.get(place).map(String::as_str)
    }
}

/// The response to a request.
struct Response<'r> {
    status: u16,
    /// Of a gRPC call: its status, empty if there was none.
    grpc: Option<&'r [u8]>,
}

impl<'r> Facts<'r> {
    pub(super) fn of_request(record: &Record<'r>, config: &IstioStats) -> Self {
        let call = record.request.lookup("content-type").is_some_and(is_grpc);
        let status = || record.trailers.lookup("grpc-status").or_else(|| record.response.lookup("grpc-status"));
        Self {
            host: record.request.lookup(":authority").filter(|_| config.host_fallback).unwrap_or_default(),
            response: Some(Response { status: record.status, grpc: call.then(|| status().unwrap_or_default()) }),
            ..Self::of_connection(record)
        }
    }

    pub(super) fn of_connection(record: &Record<'r>) -> Self {
        let direction = record.connection.listener.as_ref().map(|listener| listener.direction);
        let by_server = direction == Some(TrafficDirection::Inbound);
        let upstream = record.upstream;
        let session = if by_server {
            record.connection.session.as_deref()
        } else {
            upstream.and_then(|upstream| upstream.session)
        };
        let (peer_principal, own_principal) = session.map(principals).unwrap_or_default();
        Self {
            by_server,
            peer: Other::of(record, by_server, peer_principal),
            peer_principal,
            own_principal,
            cluster: record.stream.cluster_name.as_deref().unwrap_or_default(),
            service: record.stream.service.as_deref(),
            host: b"",
            flags: record.stream.flags,
            response: None,
        }
    }

    /// Whether it is a gRPC call.
    pub(super) fn is_grpc(&self) -> bool {
        self.response.as_ref().is_some_and(|response| response.grpc.is_some())
    }

    /// Writes what tells its series from others of the same filter.
    pub(super) fn write_key(&self, key: &mut Vec<u8>) {
        key.clear();
        key.push(u8::from(self.by_server));
        let mut add = |text: &str| {
            key.extend_from_slice(text.as_bytes());
            key.push(END);
        };
        match self.peer {
            Other::Unknown => add(""),
            Other::Listed(text) => add(text),
            Other::Announced(peer) => peer.parts().into_iter().for_each(&mut add),
        }
        [self.peer_principal, self.own_principal, self.cluster].into_iter().for_each(add);
        if let Some(service) = self.service {
            key.extend_from_slice(service.host.as_bytes());
        }
        key.push(END);
        key.extend_from_slice(self.host);
        key.push(END);
        key.extend_from_slice(&self.flags.number().to_le_bytes());
        if let Some(response) = &self.response {
            key.extend_from_slice(&response.status.to_le_bytes());
            key.push(u8::from(response.grpc.is_some()));
            key.extend_from_slice(response.grpc.unwrap_or_default());
        }
    }

    /// Writes the labels.
    pub(super) fn write_labels(&self, own: &Peer, changed: &Labels<'_>, labels: &mut LabelValues) {
        let values = self.values(own);
        let count = if self.response.is_some() { LABELS.len() } else { CONNECTION_LABELS };
        let standard = LABELS.iter().zip(values).take(count);
        for (name, value) in standard.filter(|(name, _)| !changed.is_removed(name)) {
            labels.named(name, changed.value_of(name).unwrap_or(&value));
        }
        let further = changed.dimensions.iter().zip(changed.values);
        for (dimension, value) in further.filter(|(dimension, _)| !changed.is_removed(&dimension.label)) {
            if !LABELS.iter().take(count).any(|known| **known == *dimension.label) {
                labels.named(&dimension.label, value);
            }
        }
    }

    /// The values of [`LABELS`].
    fn values(&self, own: &Peer) -> Vec<String> {
        let peer = match self.peer {
            Other::Unknown => Peer::default(),
            Other::Announced(peer) => peer.clone(),
            Other::Listed(text) => Peer::parse(text).unwrap_or_default(),
        };
        let peer_namespace = namespace_of(self.peer_principal).unwrap_or(&peer.namespace);
        let own_end = End { peer: own, namespace: &own.namespace, principal: self.own_principal };
        let peer_end = End { peer: &peer, namespace: peer_namespace, principal: self.peer_principal };
        let (source, destination) = if self.by_server { (&peer_end, &own_end) } else { (&own_end, &peer_end) };
        let reporter = if self.by_server { "destination" } else { "source" };
        let mut values = vec![reporter.to_owned()];
        values.extend(source.values());
        let [workload, service, revision, namespace, principal, app, version, cluster] = destination.values();
        let [host, name, of_service] = self.service_of(own);
        values.extend([workload, namespace, principal, app, version]);
        values.extend([host, service, revision, name, of_service, cluster]);
        values.extend([self.protocol().to_owned(), flags_text(self.flags), self.security().to_owned()]);
        if let Some(response) = &self.response {
            let grpc = String::from_utf8_lossy(response.grpc.unwrap_or_default()).into_owned();
            values.extend([response.status.to_string(), grpc]);
        }
        values
    }

    /// Host, name and namespace of the destination's service.
    fn service_of(&self, own: &Peer) -> [String; 3] {
        let host = String::from_utf8_lossy(self.host);
        let (mut host, mut name, mut namespace) = (host.to_string(), host.into_owned(), String::new());
        if WITHOUT_SERVICE.contains(&self.cluster) || self.cluster.starts_with("InboundPassthroughCluster") {
            name = self.cluster.to_owned();
        } else if let Some(service) = self.service {
            (host, name) = (service.host.to_string(), service.name.to_string());
            namespace = service.namespace.to_string();
        }
        // A server without a service is called by its own name.
        let default: &str = if self.by_server { &own.canonical_service } else { "" };
        if self.by_server {
            namespace = own.namespace.to_string();
        }
        [or(&host, or_str(default, UNKNOWN)), or(&name, or_str(default, UNKNOWN)), or(&namespace, UNKNOWN)]
    }

    fn protocol(&self) -> &'static str {
        match &self.response {
            None => "tcp",
            Some(Response { grpc: Some(_), .. }) => "grpc",
            Some(_) => "http",
        }
    }

    /// Only the server tells.
    fn security(&self) -> &'static str {
        if !self.by_server {
            UNKNOWN
        } else if self.peer_principal.is_empty() || self.own_principal.is_empty() {
            "none"
        } else {
            "mutual_tls"
        }
    }
}

impl<'r> Other<'r> {
    /// `principal`: its identity; what it tells counts only if that was proved.
    fn of(record: &Record<'r>, by_server: bool, principal: &str) -> Self {
        let announced = record.stream.object(if by_server { DOWNSTREAM } else { UPSTREAM });
        let announced = announced.and_then(StateObject::peer).filter(|_| !principal.is_empty());
        let announced =
            announced.filter(|peer| namespace_of(principal).is_none_or(|namespace| *namespace == *peer.namespace));
        let listed = record.upstream.filter(|_| !by_server);
        let listed = listed.and_then(|upstream| upstream.endpoint.workload.as_deref());
        match (announced, listed) {
            (Some(peer), _) => Self::Announced(peer),
            (None, Some(text)) => Self::Listed(text),
            (None, None) => Self::Unknown,
        }
    }
}

/// One end of the traffic.
struct End<'e> {
    peer: &'e Peer,
    namespace: &'e str,
    principal: &'e str,
}

impl End<'_> {
    /// Workload, canonical service and revision, namespace, principal, app, version, cluster.
    fn values(&self) -> [String; 8] {
        let Self { peer, namespace, principal } = self;
        [
            or(&peer.workload, UNKNOWN),
            or(&peer.canonical_service, UNKNOWN),
            or(&peer.canonical_revision, LATEST),
            or(namespace, UNKNOWN),
            or(principal, UNKNOWN),
            or(&peer.app, UNKNOWN),
            or(&peer.version, UNKNOWN),
            or(&peer.cluster, UNKNOWN),
        ]
    }
}

fn or_str<'t>(text: &'t str, default: &'t str) -> &'t str {
    if text.is_empty() { default } else { text }
}

fn or(text: &str, default: &str) -> String {
    or_str(text, default).to_owned()
}

/// The first URIs of both certificates, the peer's first.
fn principals(session: &Session) -> (&str, &str) {
    (principal(session.peer.as_deref()), principal(session.local.as_deref()))
}

fn principal(certificate: Option<&PeerCertificate>) -> &str {
    certificate.and_then(|certificate| certificate.uri_sans.first()).map_or("", |uri| uri.as_str())
}

fn flags_text(flags: ResponseFlags) -> String {
    let mut text = String::new();
    for name in flags.short_names() {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a text does not fail.
        _ = write!(text, "{comma}{name}");
    }
    or(&text, "-")
}
