//! Decides which clients may open an xDS stream, and with which identity.

use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_translate::ProxyView;
use evenkeel_xds::evenkeel::CONFINEMENT_METADATA;
use evenkeel_xds::pb::envoy::config::core::v3::{Node, node::UserAgentVersionType};
use evenkeel_xds::pb::google::protobuf::value::Kind;
use evenkeel_xds::server::{Announcement, Session, Source};
use http::HeaderMap;
use tonic::{Extensions, Status};

use crate::authorities::Authorities;
use crate::certificates::{self, Certificates, StreamToken};
use crate::listen::Peer;
use crate::metrics::{Metrics, plane};
use crate::proxies::{Client, ConnectError, Proxies};
use crate::registration::{Registration, Registrations};

/// The ADS source for the connected proxies.
#[derive(Debug)]
pub struct Discovery {
    proxies: Arc<Proxies>,
    metrics: Arc<Metrics>,
    certificates: Arc<Certificates>,
    registrations: Arc<Registrations>,
    authorities: Option<Arc<Authorities>>,
    /// How this control plane identifies itself in each response.
    identifier: Arc<str>,
}

impl Discovery {
    /// Creates the ADS source for `proxies`.
    pub fn new(
        proxies: Arc<Proxies>,
        metrics: Arc<Metrics>,
        certificates: Arc<Certificates>,
        registrations: Arc<Registrations>,
    ) -> Self {
        Self { proxies, metrics, certificates, registrations, authorities: None, identifier: identifier().into() }
    }

    /// Records in `authorities` which certificates clients present.
    #[must_use]
    pub fn with_authorities(self, authorities: Arc<Authorities>) -> Self {
        Self { authorities: Some(authorities), ..self }
    }

    /// Registers the workload of a proxy that asks for it. As in Istio, the stream is refused if the workload may not
    /// register.
    fn register(&self, node: &Node, client: &mut Client) -> Result<Option<Registration>, Status> {
        let registration = self.registrations.connect(node, &client.view, client.identity.as_ref());
        let registration = registration.map_err(|error| {
            Status::failed_precondition(format!("the workload of `{}` is not registered: {error}", node.id))
        })?;
        if let Some(registration) = &registration {
            // Policies select the workload as they will once its WorkloadEntry is known.
            client.view.labels = registration.labels.clone();
        }
        Ok(registration)
    }

    /// The peer of a stream, with the identity that its certificate or else its token proves.
    async fn identified(&self, extensions: &Extensions) -> Result<Option<Peer>, Status> {
        let Some(peer) = extensions.get::<Peer>() else { return Ok(None) };
        let Some(token) = extensions.get::<StreamToken>().filter(|_| peer.secure && peer.identity.is_none()) else {
            return Ok(Some(peer.clone()));
        };
        let identity = self.certificates.identify(peer, token).await?;
        Ok(Some(Peer { identity: Some(identity), ..peer.clone() }))
    }

    fn authorize(node: &Node, peer: Option<&Peer>) -> Result<Client, Status> {
        let view = ProxyView::from_node(node).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let client = |identity: Option<SpiffeId>| Client {
            node: node.id.clone(),
            program: program(node),
            confinement: confinement(node),
            view: ProxyView { authenticated: identity.is_some(), ..view.clone() },
            peer: peer.map(|p| p.address),
            identity,
            since: SystemTime::now(),
            serial: peer.and_then(|p| p.serial.clone()),
        };
        match peer {
            Some(Peer { secure: true, identity: None, .. }) => Err(anonymous()),
            Some(Peer { secure: true, identity: Some(identity), .. }) => {
                if identity.namespace() != &*view.namespace {
                    return Err(Status::permission_denied(format!(
                        "node `{}` is of namespace `{}`, but the certificate's identity is `{identity}`",
                        node.id, view.namespace
                    )));
                }
                if identity.service_account() != &*view.service_account {
                    return Err(Status::permission_denied(format!(
                        "node `{}` says service account `{}` (metadata SERVICE_ACCOUNT), but the certificate's identity is `{identity}`",
                        node.id, view.service_account
                    )));
                }
                Ok(client(Some(identity.clone())))
            }
            // The plaintext port: only this machine reaches it unless the operator says otherwise.
            _ => Ok(client(None)),
        }
    }
}

/// Whether a call is a stream of aggregated discovery.
fn is_ads(path: &str) -> bool {
    path.starts_with("/envoy.service.discovery.v3.AggregatedDiscoveryService/")
}

/// Returns the error for a client without an identity.
fn anonymous() -> Status {
    Status::unauthenticated(
        "xDS over TLS needs the workload's certificate; get one from istio.v1.auth.IstioCertificateService",
    )
}

impl Source for Discovery {
    fn admit(&self, path: &str, metadata: &HeaderMap, extensions: &mut Extensions) -> Result<(), Status> {
        match extensions.get::<Peer>() {
            Some(peer) if peer.secure && path == certificates::METHOD => {
                let peer = peer.clone();
                self.certificates.admit(&peer, metadata, extensions)
            }
            // ADS alone has a way to verify a token before it serves anything.
            Some(peer @ Peer { secure: true, identity: None, .. }) if is_ads(path) => {
                let peer = peer.clone();
                self.certificates.admit_stream(&peer, metadata, extensions).inspect_err(|status| {
                    self.metrics.plane.inc(plane::Counter::evenkeel_xds_refused_streams);
                    tracing::debug!(address = %peer.address, path, reason = status.message(), "a call without an identity refused");
                })
            }
            Some(Peer { secure: true, identity: None, address, .. }) => {
                self.metrics.plane.inc(plane::Counter::evenkeel_xds_refused_streams);
                // Every client that reaches the port can cause any number of these, so they are logged at debug level only.
                tracing::debug!(%address, path, "a call without an identity refused");
                Err(anonymous())
            }
            _ => Ok(()),
        }
    }

    async fn connect(&self, node: &Node, extensions: &Extensions) -> Result<Session, Status> {
        let peer = self.identified(extensions).await.inspect_err(|_| {
            self.metrics.plane.inc(plane::Counter::evenkeel_xds_refused_streams);
        })?;
        let taken = Self::authorize(node, peer.as_ref())
            .and_then(|mut client| self.register(node, &mut client).map(|registration| (client, registration)));
        let (client, registration) = taken.inspect_err(|status| {
            self.metrics.plane.inc(plane::Counter::evenkeel_xds_refused_streams);
            tracing::warn!(node = node.id, reason = status.message(), "xDS stream refused");
        })?;
        let refused = |error: ConnectError| match error {
            ConnectError::TooMany | ConnectError::TooManyOfIdentity => Status::resource_exhausted(error.to_string()),
            ConnectError::Closed => Status::unavailable(error.to_string()),
        };
        let unheeded = evenkeel_translate::node_metadata::unheeded(node);
        if !unheeded.is_empty() {
            let names = unheeded.join(", ");
            tracing::info!(
                node = node.id,
                names,
                "this metadata of the node, which Istio's control plane reads, has no effect here"
            );
        }
        if let (Some(authorities), Some(serial)) = (&self.authorities, &client.serial) {
            authorities.shown(serial, SystemTime::now());
        }
        let admitted = self.proxies.admit(client.identity.as_ref()).await.map_err(refused)?;
        let session = self.proxies.connect(client, admitted).await.map_err(refused)?;
        let session = match registration {
            // The registration lasts as long as the session.
            Some(registration) => session.hears_health(move |health| registration.health(health)),
            None => session,
        };
        let causes = evenkeel_xds::evenkeel::is_evenkeel(node);
        Ok(session.announced(Announcement { identifier: self.identifier.clone(), causes }))
    }
}

/// Maximum length of a program's name and version, in bytes.
const MAX_PROGRAM_BYTES: usize = 128;

/// Returns the program and version that a node reports: `envoy 1.40.0`, `evenkeel 0.1.0`.
fn program(node: &Node) -> String {
    let version = match &node.user_agent_version_type {
        Some(UserAgentVersionType::UserAgentVersion(version)) => version.clone(),
        Some(UserAgentVersionType::UserAgentBuildVersion(build)) => {
            let of = |v: &evenkeel_xds::pb::envoy::r#type::v3::SemanticVersion| {
                format!("{}.{}.{}", v.major_number, v.minor_number, v.patch)
            };
            build.version.as_ref().map(of).unwrap_or_default()
        }
        None => String::new(),
    };
    let text = format!("{} {version}", node.user_agent_name);
    let text = text.trim();
    text.get(..text.floor_char_boundary(MAX_PROGRAM_BYTES)).unwrap_or_default().to_owned()
}

/// Maximum length of a node's text about its confinement, in bytes.
const MAX_CONFINEMENT_BYTES: usize = 512;

/// Returns how a node says that its process is confined, without control characters, as the text is printed to terminals.
fn confinement(node: &Node) -> Option<String> {
    let value = node.metadata.as_ref()?.fields.get(CONFINEMENT_METADATA)?;
    let Some(Kind::StringValue(text)) = &value.kind else { return None };
    let text = text.get(..text.floor_char_boundary(MAX_CONFINEMENT_BYTES)).unwrap_or_default();
    Some(text.chars().filter(|character| !character.is_control()).collect())
}

/// Returns the identifier of this control plane: `evenkeel/VERSION HOST.PROCESS`.
pub(crate) fn identifier() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let prefix = evenkeel_xds::evenkeel::IDENTIFIER_PREFIX;
    format!("{prefix}{} {}.{}", env!("CARGO_PKG_VERSION"), host.trim(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_xds::pb::google::protobuf::{Struct, Value, value::Kind};

    fn node(id: &str, account: &str) -> Node {
        let account = Value { kind: Some(Kind::StringValue(account.to_owned())) };
        let metadata = Struct { fields: [("SERVICE_ACCOUNT".to_owned(), account)].into() };
        Node { id: id.to_owned(), metadata: Some(metadata), ..Default::default() }
    }

    #[test]
    fn a_node_must_be_who_its_certificate_says() {
        let id = "sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local";
        let check = |secure: bool, identity: Option<&str>, account: &str, expected: Option<&str>| {
            let identity = identity.map(|text| text.parse().expect("a SPIFFE id"));
            let (address, refused) = (([127, 0, 0, 1], 1).into(), Arc::default());
            let peer = Peer { address, secure, identity, expires: None, serial: None, refused };
            let result = Discovery::authorize(&node(id, account), Some(&peer));
            match (result, expected) {
                (Ok(_), None) => {}
                (Err(status), Some(text)) => assert!(status.message().contains(text), "{status}"),
                (result, expected) => panic!("expected {expected:?}, got {result:?}"),
            }
        };
        check(true, Some("spiffe://cluster.local/ns/shop/sa/web"), "web", None);
        check(true, Some("spiffe://cluster.local/ns/shop/sa/other"), "web", Some("says service account `web`"));
        check(true, Some("spiffe://cluster.local/ns/other/sa/web"), "web", Some("is of namespace `shop`"));
        check(true, Some("spiffe://cluster.local/ns/shop/sa/web"), "", Some("says service account ``"));
        check(true, None, "web", Some("needs the workload's certificate"));
        check(false, None, "web", None);
    }
}
