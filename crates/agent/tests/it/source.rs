//! Sources of certificates and roots: the control plane while the agent runs, another SDS server, files.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use evenkeel_agent::Options;
use evenkeel_agent::source::{CertificatePlace, MountedFiles};
use evenkeel_ca::{Authority, PluggedFiles, Workload};
use evenkeel_xds::client::connection::Service;
use evenkeel_xds::client::{Client, Connection, Protocol};
use evenkeel_xds::istio::mesh::TrustDomain;
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
async fn roots_of_other_trust_domains_reach_the_proxy_each_for_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let options = control.agent(&folder.path().join("agent"), &[]);
    let agent = start(options.clone());
    let mut served = Served::by(&options.state).await;
    let own = std::fs::read_to_string(folder.path().join("ca-cert.pem")).unwrap();
    assert_eq!(served.next().await[0], format!("ROOTCA={own}"));
    let [.., partner] = material();
    let [.., legacy] = material();
    let domain = |name: &str, roots: &str, has_mesh_roots: bool| TrustDomain {
        name: name.to_owned(),
        roots_pem: roots.to_owned(),
        has_mesh_roots,
    };
    let mesh = || domain("cluster.local", "", true);
    // What the agent acknowledges its proxy has taken over, which is Evenkeel's.
    let acknowledged = async |version| {
        let mut trusted = control.trusted.clone();
        timeout(PATIENCE, trusted.wait_for(|trusted| *trusted == Some(version))).await.expect("in time").unwrap();
    };
    let version = control.trust_domains(&own, vec![mesh(), domain("partner.example", &partner, false)]);
    assert_eq!(served.next().await, [format!("ROOTCA=[cluster.local]{own}[partner.example]{partner}")]);
    acknowledged(version).await;

    // One whose bundle is empty is not there, and no other root stands in for it.
    let version = control.trust_domains(
        &own,
        vec![mesh(), domain("legacy.example", &legacy, true), domain("partner.example", "", false)],
    );
    assert_eq!(served.next().await, [format!("ROOTCA=[cluster.local]{own}[legacy.example]{own}{legacy}")]);
    acknowledged(version).await;

    // An agent that starts again knows them before a control plane says so.
    agent.stop().await;
    drop(served);
    let silent = ControlPlane::start(folder.path()).await;
    let again = Options { discovery_address: silent.address.to_string(), ..options.clone() };
    let agent = start(again);
    let mut served = Served::by(&options.state).await;
    assert_eq!(served.next().await[0], format!("ROOTCA=[cluster.local]{own}[legacy.example]{own}{legacy}"));
    agent.stop().await;
    drop(served);
    let agent = start(options.clone());
    let mut served = Served::by(&options.state).await;
    assert_eq!(served.next().await[0], format!("ROOTCA=[cluster.local]{own}[legacy.example]{own}{legacy}"));

    // What cannot be used is refused, and what is in use stays; then there is nothing to tell apart any more.
    let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    control.trust_domains(&own, vec![mesh(), domain("partner.example", bad, false)]);
    control.trust_domains(&own, vec![mesh(), domain("Partner.example", &partner, false)]);
    let version = control.trust_domains(&own, Vec::new());
    assert_eq!(served.next().await, [format!("ROOTCA={own}")]);
    acknowledged(version).await;
    agent.stop().await;
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

/// The names of what a certificate's key is on: the curve's object identifier is in its DER form (RFC 5480 section 2.1.1.1).
fn is_p384(chain: &str) -> bool {
    let leaf = pem::parse(chain).unwrap();
    leaf.contents().windows(5).any(|bytes| bytes == [0x2b, 0x81, 0x04, 0x00, 0x22])
}

#[tokio::test]
async fn another_certificate_service_signs_if_it_is_trusted() {
    for by_environment in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (own, elsewhere) = (folder.path().join("own"), folder.path().join("elsewhere"));
        std::fs::create_dir_all(&own).unwrap();
        std::fs::create_dir_all(&elsewhere).unwrap();
        let (control, service) = (ControlPlane::start(&own).await, ControlPlane::start(&elsewhere).await);
        let options = |roots: &Path| {
            let (address, roots) = (service.address.to_string(), roots.display().to_string());
            let flags = ["--ca-address", address.as_str(), "--ca-root-cert", roots.as_str(), "--key-curve", "p384"];
            let mut options =
                control.agent(&folder.path().join("agent"), if by_environment { &flags[4..] } else { &flags });
            if by_environment {
                options.environment.push(("CA_ADDR".to_owned(), address));
                options.environment.push(("CA_ROOT_CA".to_owned(), roots));
            }
            // A token that the other service knows.
            let token = Workload { namespace: "default".into(), service_account: "web".into(), pod: "web-0".into() };
            let token = service.tokens.mint(&token, Duration::from_secs(600), SystemTime::now()).unwrap();
            std::fs::write(&options.token, token).unwrap();
            options
        };
        // Roots that do not verify it: nothing is signed by anybody.
        let agent = start(options(&own.join("ca-cert.pem")));
        let mut issued = service.issued.clone();
        assert!(timeout(Duration::from_secs(2), issued.wait_for(|count| *count > 0)).await.is_err());
        assert_eq!(*control.issued.borrow(), 0, "nor does the control plane sign");
        agent.ended.abort();

        let options = options(&elsewhere.join("ca-cert.pem"));
        let agent = start(options.clone());
        let mut served = Served::by(&options.state).await;
        let found = served.next().await;
        assert_eq!((*service.issued.borrow(), *control.issued.borrow()), (1, 0), "who signs");
        assert!(is_p384(found[1].strip_prefix("default=").unwrap()));
        let root = std::fs::read_to_string(elsewhere.join("ca-cert.pem")).unwrap();
        assert!(found[0].contains(root.trim()), "{}", found[0]);
        agent.stop().await;
    }
}

#[tokio::test]
async fn files_are_mounted_where_istio_expects_them() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let check = |environment: &[(&str, &str)], expected: CertificatePlace| {
        let mut options = control.agent(&folder.path().join("agent"), &[]);
        options.environment.extend(environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        assert_eq!(CertificatePlace::of(&options), expected, "{environment:?}");
    };
    let mounted = || CertificatePlace::Files(MountedFiles::of_mounted(Path::new("/etc/certs")));
    check(&[], CertificatePlace::ControlPlane);
    check(&[("FILE_MOUNTED_CERTS", "true")], mounted());
    check(&[("FILE_MOUNTED_CERTS", "1")], mounted());
    check(&[("FILE_MOUNTED_CERTS", "false")], CertificatePlace::ControlPlane);
    let mut options = control.agent(&folder.path().join("agent"), &[]);
    let metadata = serde_json::json!({"FILE_MOUNTED_CERTS": "true"});
    options.proxy_config.insert("proxyMetadata".to_owned(), metadata);
    assert_eq!(CertificatePlace::of(&options), mounted());
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
        let service = SecretDiscoveryServiceServer::new(server);
        tokio::spawn(Server::builder().serve_with_incoming(service, listening));

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
