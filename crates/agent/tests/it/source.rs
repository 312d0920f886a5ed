//! Where certificates and roots come from: the control plane while the agent runs, another SDS server, files.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use evenkeel_ca::{Authority, PluggedFiles};
use evenkeel_xds::client::connection::Service;
use evenkeel_xds::client::{Client, Connection, Protocol};
use evenkeel_xds::pb::envoy::config::core::v3::data_source::Specifier;
use evenkeel_xds::pb::envoy::config::core::v3::{DataSource, Node};
use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret, TlsCertificate, secret::Type,
};
use evenkeel_xds::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use evenkeel_xds::pb::envoy::service::secret::v3::secret_discovery_service_server::{
    SecretDiscoveryService, SecretDiscoveryServiceServer,
};
use evenkeel_xds::{Any, ResourceType, type_url};
use prost::Message;
use rcgen::{CertificateParams, KeyPair, SanType};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use crate::sds::{channel, next};
use crate::support::{ControlPlane, PATIENCE, eventually, start};

/// A certificate for the workload, of an authority of its own: chain, key, roots.
fn material() -> [String; 3] {
    let now = SystemTime::now();
    let root: PluggedFiles = Authority::new_root("elsewhere", now).unwrap();
    let id = "spiffe://cluster.local/ns/default/sa/web";
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
    let csr = params.serialize_request(&key).unwrap();
    let authority = Authority::from_files(&root, now).unwrap();
    let issued = authority.sign(csr.der(), &id.parse().unwrap(), Duration::from_secs(3600), now).unwrap();
    [issued.chain.concat(), key.serialize_pem(), root.roots]
}

/// What the agent serves its proxy.
struct Served {
    client: Client,
    connection: Connection,
}

impl Served {
    async fn by(state: &Path) -> Self {
        let socket = state.join("sds.sock");
        eventually("the agent's SDS server", || socket.exists().then_some(())).await;
        let mut client = Client::new(Protocol::Delta, Node::default());
        client.set_names(ResourceType::Secret, ["default", "ROOTCA"]);
        client.on_connect();
        let first = client.poll_request().unwrap();
        let connection = Connection::open(channel(socket).await, Service::Secrets, first).await.unwrap();
        Self { client, connection }
    }

    /// The next change, accepted.
    async fn next(&mut self) -> Vec<String> {
        next(&mut self.client, &mut self.connection).await
    }
}

fn secrets([chain, _, roots]: &[String; 3]) -> Vec<String> {
    vec![format!("ROOTCA={roots}"), format!("default={chain}")]
}

#[tokio::test]
async fn roots_that_the_control_plane_adds_are_acknowledged_when_the_proxy_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let options = control.agent(&folder.path().join("agent"), &[]);
    let agent = start(options.clone());
    let mut served = Served::by(&options.state).await;
    let first = served.next().await;
    let own = std::fs::read_to_string(folder.path().join("ca-cert.pem")).unwrap();
    assert_eq!(first[0], format!("ROOTCA={own}"));

    // Nothing is acknowledged that the proxy does not have: this client answers only when it is asked to.
    let [.., added] = material();
    let version = control.trust(&format!("{own}{added}"));
    let mut trusted = control.trusted.clone();
    assert_ne!(*trusted.borrow_and_update(), Some(version));
    assert_eq!(served.next().await, [format!("ROOTCA={own}{added}")]);
    let acknowledged = trusted.wait_for(|trusted| *trusted == Some(version));
    timeout(PATIENCE, acknowledged).await.expect("an acknowledgement").unwrap();

    // What is no root is refused, and those in use stay.
    let bad = control.trust("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let back = control.trust(&format!("{own}{added}"));
    let version = timeout(PATIENCE, trusted.wait_for(|trusted| *trusted == Some(back))).await.unwrap().unwrap();
    assert_ne!(*version, Some(bad));
    drop(version);

    // A root that is retired is not trusted any more, though the file still has it.
    control.trust(&added);
    assert_eq!(served.next().await, [format!("ROOTCA={added}")]);
    agent.stop().await;
}

/// An SDS server like SPIRE's: state of the world, a stream per client, all secrets again when one changes.
struct Elsewhere {
    secrets: watch::Sender<Vec<Secret>>,
    refusals: Arc<Mutex<Vec<String>>>,
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl SecretDiscoveryService for Elsewhere {
    type StreamSecretsStream = Responses<DiscoveryResponse>;
    type DeltaSecretsStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_secrets(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamSecretsStream>, Status> {
        let (mut requests, mut secrets) = (request.into_inner(), self.secrets.subscribe());
        let (sender, responses) = mpsc::channel(4);
        let refusals = self.refusals.clone();
        tokio::spawn(async move {
            let (mut names, mut version) = (Vec::new(), 0);
            loop {
                tokio::select! {
                    request = requests.next() => {
                        let Some(Ok(request)) = request else { return };
                        if let Some(error) = request.error_detail {
                            refusals.lock().unwrap().push(error.message);
                            continue;
                        }
                        if request.resource_names == names {
                            continue;
                        }
                        names = request.resource_names;
                    }
                    changed = secrets.changed() => if changed.is_err() { return },
                }
                version += 1;
                let all = secrets.borrow_and_update().clone();
                let wanted = all.iter().filter(|secret| names.contains(&secret.name));
                let any = |secret: &Secret| Any { type_url: type_url::SECRET.into(), value: secret.encode_to_vec() };
                let response = DiscoveryResponse {
                    version_info: version.to_string(),
                    resources: wanted.map(any).collect(),
                    type_url: type_url::SECRET.into(),
                    nonce: version.to_string(),
                    ..DiscoveryResponse::default()
                };
                if sender.send(Ok(response)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }

    async fn delta_secrets(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaSecretsStream>, Status> {
        Err(Status::unimplemented("state of the world only"))
    }

    async fn fetch_secrets(&self, _: Request<DiscoveryRequest>) -> Result<Response<DiscoveryResponse>, Status> {
        Err(Status::unimplemented("streams only"))
    }
}

fn pair(names: (&str, &str), [chain, key, roots]: &[String; 3]) -> Vec<Secret> {
    let inline = |text: &str| {
        Some(DataSource { specifier: Some(Specifier::InlineBytes(text.as_bytes().to_vec())), ..DataSource::default() })
    };
    let certificate =
        TlsCertificate { certificate_chain: inline(chain), private_key: inline(key), ..Default::default() };
    let context = CertificateValidationContext { trusted_ca: inline(roots), ..Default::default() };
    vec![
        Secret { name: names.0.into(), r#type: Some(Type::TlsCertificate(certificate)) },
        Secret { name: names.1.into(), r#type: Some(Type::ValidationContext(context)) },
    ]
}

#[tokio::test]
async fn another_sds_server_is_followed_under_the_names_that_it_has() {
    for names in [("default", "ROOTCA"), ("spiffe://cluster.local/ns/default/sa/web", "spiffe://cluster.local")] {
        let folder = tempfile::tempdir().unwrap();
        let control = ControlPlane::start(folder.path()).await;
        let socket = folder.path().join("spire.sock");
        let first = material();
        let (secrets_of, refusals) = (watch::Sender::new(pair(names, &first)), Arc::<Mutex<Vec<String>>>::default());
        let server = Elsewhere { secrets: secrets_of.clone(), refusals: refusals.clone() };
        let listening = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let server = Server::builder().add_service(SecretDiscoveryServiceServer::new(server));
        tokio::spawn(server.serve_with_incoming(listening));

        let flags =
            ["--sds-socket", socket.to_str().unwrap(), "--sds-certificate-name", names.0, "--sds-roots-name", names.1];
        let options = control.agent(&folder.path().join("agent"), &flags);
        let agent = start(options.clone());
        let mut served = Served::by(&options.state).await;
        assert_eq!(served.next().await, secrets(&first));
        assert_eq!(*control.issued.borrow(), 0, "the control plane signs nothing");

        // A key of another certificate is refused, and what is in use stays.
        let second = material();
        let mixed = [second[0].clone(), first[1].clone(), first[2].clone()];
        secrets_of.send_replace(pair(names, &mixed));
        let refusal = eventually("a refusal", || refusals.lock().unwrap().pop()).await;
        assert!(refusal.contains("does not belong to the first certificate"), "{refusal}");

        secrets_of.send_replace(pair(names, &second));
        assert_eq!(served.next().await, secrets(&second));
        agent.stop().await;
    }
}

#[tokio::test]
async fn mounted_files_are_followed_and_halves_of_them_are_not_used() {
    let layouts = [
        ["certificates.pem", "private_key.pem", "ca_certificates.pem"],
        ["cert-chain.pem", "key.pem", "root-cert.pem"],
    ];
    for names in layouts {
        let folder = tempfile::tempdir().unwrap();
        let control = ControlPlane::start(folder.path()).await;
        let (mounted, written) = (folder.path().join("certs"), folder.path().join("out"));
        std::fs::create_dir(&mounted).unwrap();
        std::fs::create_dir(&written).unwrap();
        let write = |name: &str, text: &str| {
            let beside = mounted.join("beside");
            std::fs::write(&beside, text).unwrap();
            std::fs::rename(&beside, mounted.join(name)).unwrap();
        };
        let first = material();
        names.iter().zip(&first).for_each(|(name, text)| write(name, text));
        let flags = ["--mounted-certs", mounted.to_str().unwrap(), "--output-certs", written.to_str().unwrap()];
        let options = control.agent(&folder.path().join("agent"), &flags);
        let agent = start(options.clone());
        let mut served = Served::by(&options.state).await;
        assert_eq!(served.next().await, secrets(&first));
        assert_eq!(*control.issued.borrow(), 0, "the control plane signs nothing");
        assert_eq!(std::fs::read_to_string(written.join("cert-chain.pem")).unwrap(), first[0]);

        // The certificate comes before its key: the pair is used when it is complete.
        let second = material();
        write(names[0], &second[0]);
        write(names[2], &second[2]);
        write(names[1], &second[1]);
        assert_eq!(served.next().await, secrets(&second));
        agent.stop().await;
    }
}
