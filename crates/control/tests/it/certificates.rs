//! The TLS port: who gets which certificate, and what it can be used for.

use std::time::{Duration, SystemTime};

use evenkeel_ca::{TokenKey, Workload};
use evenkeel_control::Options;
use evenkeel_xds::ResourceType;
use evenkeel_xds::client::{ConnectionError, Protocol};
use evenkeel_xds::istio::auth::IstioCertificateRequest;
use evenkeel_xds::istio::auth::istio_certificate_service_client::IstioCertificateServiceClient;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SanType};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::fixture::{PATIENCE, Plane, Proxy, cluster, node, options, pod, service, tls_channel};

pub const CLIENT: &str = "spiffe://cluster.local/ns/shop/sa/client";

/// Returns a key and a signing request for `name`.
pub fn csr(name: &str) -> (KeyPair, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(name.try_into().expect("a name"))];
    // The identity is in the URI alone; the library's default is a name.
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key).expect("a request").pem().expect("PEM");
    (key, request)
}

/// Returns a token for the service account `client` in `shop`.
pub fn token(plane: &Plane) -> String {
    let workload =
        Workload { namespace: "shop".to_owned(), service_account: "client".to_owned(), pod: "client-0".to_owned() };
    let key = TokenKey::open(plane.state.path()).expect("the control plane's key");
    key.mint(&workload, Duration::from_secs(60), SystemTime::now()).expect("a token")
}

fn roots(plane: &Plane) -> RootCertStore {
    let pem = std::fs::read(plane.state.path().join("ca-cert.pem")).expect("a root");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&pem).expect("a certificate")).expect("a root");
    roots
}

pub fn tls(plane: &Plane, identity: Option<(&[String], &KeyPair)>) -> ClientConfig {
    let provider = tokio_rustls::rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots(plane));
    let mut config = match identity {
        None => config.with_no_client_auth(),
        Some((chain, key)) => {
            // The last certificate of an answer is the root.
            let shown = &chain[..chain.len().saturating_sub(1).max(1)];
            let shown =
                shown.iter().map(|text| CertificateDer::from_pem_slice(text.as_bytes()).expect("a certificate"));
            let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("a key");
            config.with_client_auth_cert(shown.collect(), key).expect("an identity")
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

pub async fn request(plane: &Plane, csr: String, token: Option<&str>) -> Result<Vec<String>, Status> {
    request_over(connect(plane).await, csr, token).await
}

/// Connects as a client without a certificate.
pub async fn connect(plane: &Plane) -> Channel {
    tls_channel(plane.addresses.secure_grpc, tls(plane, None)).await.expect("a connection")
}

pub async fn request_over(channel: Channel, csr: String, token: Option<&str>) -> Result<Vec<String>, Status> {
    request_lasting(channel, csr, token, 3600).await
}

async fn request_lasting(
    channel: Channel,
    csr: String,
    token: Option<&str>,
    validity_duration: i64,
) -> Result<Vec<String>, Status> {
    let mut request = Request::new(IstioCertificateRequest { csr, validity_duration, metadata: None });
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("metadata"));
    }
    let response = IstioCertificateServiceClient::new(channel).create_certificate(request).await?;
    Ok(response.into_inner().cert_chain)
}

pub async fn stream(
    plane: &Plane,
    config: ClientConfig,
    namespace: &str,
    account: &str,
) -> Result<Proxy, ConnectionError> {
    let channel = tls_channel(plane.addresses.secure_grpc, config).await.expect("a connection");
    let mut proxy = Proxy::open(channel, Protocol::Delta, node(namespace, account)).await?;
    proxy.step(None).await?;
    Ok(proxy)
}

#[tokio::test]
async fn a_workload_does_not_choose_a_lifetime_beyond_the_control_planes() {
    let day = 24 * 3600;
    let check = async |max: Option<u64>, wished: i64, expected: u64| {
        let (config, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        let options = Options { max_certificate_ttl_s: max, ..options(config.path(), state.path()) };
        let plane = Plane::start_as(config, state, options).await;
        let chain = request_lasting(connect(&plane).await, csr(CLIENT).1, Some(&token(&plane)), wished).await;
        let chain = chain.expect("a certificate");
        let leaf = CertificateDer::from_pem_slice(chain[0].as_bytes()).expect("a certificate");
        let leaf = evenkeel_tls::PeerCertificate::parse(&[leaf]).expect("a certificate");
        let left = leaf.not_after().duration_since(std::time::SystemTime::now()).expect("it is valid").as_secs();
        assert!((expected - 60..=expected).contains(&left), "{max:?}, {wished}: {left}");
    };
    check(None, 90 * day, 24 * 3600).await;
    check(None, 0, 24 * 3600).await;
    check(None, 3600, 3600).await;
    check(Some(7200), 90 * day, 7200).await;
    check(Some(48 * 3600), 90 * day, 48 * 3600).await;
}

#[tokio::test]
async fn a_token_gets_a_certificate_and_the_certificate_a_stream() {
    let plane = Plane::start(&[("a.yaml", service("a"))]).await;
    let (key, csr) = csr(CLIENT);
    let chain = request(&plane, csr, Some(&token(&plane))).await.expect("a certificate");
    assert_eq!(chain.len(), 2, "leaf and root");
    let root = std::fs::read_to_string(plane.state.path().join("ca-cert.pem")).expect("a root");
    assert_eq!(chain[1].trim(), root.trim());

    let mut proxy = stream(&plane, tls(&plane, Some((&chain, &key))), "shop", "client").await.expect("a stream");
    proxy.until_held(ResourceType::Cluster, &cluster("a")).await;
    let adsz = plane.json("/debug/adsz").await;
    assert_eq!(adsz["proxies"][0]["identity"], CLIENT);

    for (namespace, account, expected) in
        [("other", "client", "is of namespace `other`"), ("shop", "admin", "says service account `admin`")]
    {
        let refused = stream(&plane, tls(&plane, Some((&chain, &key))), namespace, account).await;
        let Err(ConnectionError::Status(status)) = refused else { panic!("{namespace}/{account} was served") };
        assert_eq!(status.code(), Code::PermissionDenied);
        assert!(status.message().contains(expected) && status.message().contains(CLIENT), "{status}");
    }
}

#[tokio::test]
async fn a_stream_over_tls_needs_a_certificate() {
    let plane = Plane::start(&[]).await;
    let refused = stream(&plane, tls(&plane, None), "shop", "client").await;
    let Err(ConnectionError::Status(status)) = refused else { panic!("it was served") };
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(status.message().contains("needs the workload's certificate"), "{status}");
}

#[tokio::test]
async fn a_request_for_another_identity_is_refused_naming_both() {
    let plane = Plane::start(&[]).await;
    let token = token(&plane);
    let other = "spiffe://cluster.local/ns/shop/sa/admin";
    let status = request(&plane, csr(other).1, Some(&token)).await.expect_err("a refusal");
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains(other) && status.message().contains(CLIENT), "{status}");

    let check = async |csr: String, token: Option<&str>, code: Code, text: &str| {
        let status = request(&plane, csr, token).await.expect_err("a refusal");
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(text), "{status}");
    };
    check(csr(CLIENT).1, None, Code::Unauthenticated, "authorization: Bearer TOKEN").await;
    check(csr(CLIENT).1, Some("not.a.token"), Code::Unauthenticated, "the token is not accepted").await;
    check("nonsense".to_owned(), Some(&token), Code::InvalidArgument, "certificate signing request").await;
    let metrics = plane.page("/metrics").await;
    assert!(metrics.contains("citadel_server_csr_count 4\n"), "{metrics}");
    assert!(metrics.contains("citadel_server_authentication_failure_count 2\n"), "{metrics}");
    assert!(metrics.contains("evenkeel_csr_forbidden 1\n"), "{metrics}");
    assert!(metrics.contains("citadel_server_success_cert_issuance_count 0\n"), "{metrics}");
}

#[tokio::test]
async fn a_token_begins_and_ends_with_its_pod_where_that_is_asked_for() {
    let (config, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let options = Options { require_running_pod: true, ..options(config.path(), state.path()) };
    let plane = Plane::start_as(config, state, options).await;
    let token = token(&plane);
    let ask = async || request(&plane, csr(CLIENT).1, Some(&token)).await;
    // The request comes before the control plane knows the Pod: it waits a little, which may be too short on a busy machine.
    let mut asked_before = false;
    for _ in 0..10 {
        let (asked, ()) = tokio::join!(ask(), async { plane.write("client.yaml", &pod("client", "10.0.0.1")) });
        asked_before = asked.is_ok();
        if asked_before {
            break;
        }
        plane.write("client.yaml", &service("a"));
        until(async || ask().await.err().filter(is_unknown)).await;
    }
    assert!(asked_before, "whoever asks first gets nothing");
    let another_account = pod("client", "10.0.0.1").replace("serviceAccountName: client", "serviceAccountName: admin");
    for gone in [another_account, service("a")] {
        plane.write("client.yaml", &pod("client", "10.0.0.1"));
        until(async || ask().await.ok()).await;
        plane.write("client.yaml", &gone);
        let status = until(async || ask().await.err().filter(is_unknown)).await;
        assert!(status.message().contains("Pod shop/client-0 is not running as `client`"), "{status}");
    }
}

/// Whether the error says that the Pod is unknown, and not that too many certificates were requested.
fn is_unknown(status: &Status) -> bool {
    assert!([Code::Unauthenticated, Code::ResourceExhausted].contains(&status.code()), "{status}");
    status.code() == Code::Unauthenticated
}

async fn until<T>(look: impl AsyncFn() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("an answer like that")
}
