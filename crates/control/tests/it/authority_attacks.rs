//! Attacks on the certificate service and on the TLS port: each fails, is counted, and does not affect other clients.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_ca::{Authority, PluggedFiles, TokenKey, Workload};
use evenkeel_control::Options;
use evenkeel_xds::client::Protocol;
use rcgen::{CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber};
use tokio_rustls::rustls::client::Resumption;
use tonic::Code;

use crate::certificates::{CLIENT, csr, request, tls, token};
use crate::fixture::{PATIENCE, Plane, Proxy, node, options, tls_channel};

const HOUR: Duration = Duration::from_secs(3600);

fn workload(account: &str) -> Workload {
    Workload { namespace: "shop".into(), service_account: account.into(), pod: format!("{account}-0") }
}

fn minted(folder: &Path, account: &str, at: SystemTime) -> String {
    TokenKey::open(folder).expect("a key").mint(&workload(account), Duration::from_secs(60), at).expect("a token")
}

#[tokio::test]
async fn forged_requests_get_no_certificate() {
    let plane = Plane::start(&[]).await;
    let good = token(&plane);
    let elsewhere = tempfile::tempdir().expect("a directory");
    let now = SystemTime::now();
    let changed = {
        let (head, signature) = good.rsplit_once('.').expect("a JWT");
        let (header, claims) = head.split_once('.').expect("a JWT");
        let other = minted(elsewhere.path(), "admin", now);
        let admin = other.split('.').nth(1).expect("claims").to_owned();
        assert_ne!(claims, admin);
        format!("{header}.{admin}.{signature}")
    };
    let expired = minted(plane.state.path(), "client", now - HOUR);
    let early = minted(plane.state.path(), "client", now + HOUR);
    let foreign = minted(elsewhere.path(), "client", now);
    let of_admin = minted(plane.state.path(), "admin", now);
    let other_domain = CLIENT.replace("cluster.local", "evil.example");
    let check = async |what: &str, identity: &str, token: &str, code: Code, text: &str| {
        let status = request(&plane, csr(identity).1, Some(token)).await.expect_err(what);
        assert_eq!(status.code(), code, "{what}: {status}");
        assert!(status.message().contains(text), "{what}: {status}");
    };
    check("another identity", "spiffe://cluster.local/ns/shop/sa/admin", &good, Code::PermissionDenied, "asks for")
        .await;
    check("another's token", CLIENT, &of_admin, Code::PermissionDenied, "asks for").await;
    check("another trust domain", &other_domain, &good, Code::PermissionDenied, "asks for").await;
    check("claims of another token", CLIENT, &changed, Code::Unauthenticated, "signature is not valid").await;
    check("a token replayed after its time", CLIENT, &expired, Code::Unauthenticated, "expired").await;
    check("a token before its time", CLIENT, &early, Code::Unauthenticated, "not valid yet").await;
    check("a token of another control plane", CLIENT, &foreign, Code::Unauthenticated, "signature is not valid").await;
    let metrics = plane.page("/metrics").await;
    for line in [
        "evenkeel_csr_forbidden 3\n",
        "citadel_server_authentication_failure_count 4\n",
        "citadel_server_success_cert_issuance_count 0\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
    assert_eq!(plane.json("/debug/ca").await["workloads"], 0, "nothing was issued");
}

#[tokio::test]
async fn one_pod_cannot_exhaust_the_authority_for_others() {
    let plane = Plane::start(&[]).await;
    let (token, other) = (token(&plane), minted(plane.state.path(), "other", SystemTime::now()));
    let csr_of_client = csr(CLIENT).1;
    let (mut issued, mut refused) = (0, 0);
    for _ in 0..60 {
        match request(&plane, csr_of_client.clone(), Some(&token)).await {
            Ok(_) => issued += 1,
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                refused += 1;
            }
        }
    }
    assert!(issued >= 30 && refused > 0, "{issued} issued, {refused} refused");
    let of_other = csr("spiffe://cluster.local/ns/shop/sa/other").1;
    request(&plane, of_other, Some(&other)).await.expect("another pod is served");
    let metrics = plane.page("/metrics").await;
    assert!(metrics.contains(&format!("evenkeel_csr_throttled {refused}\n")), "{metrics}");
}

/// Whether a client with this certificate gets a stream.
async fn is_served(plane: &Plane, chain: &[String], key: &KeyPair) -> bool {
    let Ok(channel) = tls_channel(plane.addresses.secure_grpc, tls(plane, Some((chain, key)))).await else {
        return false;
    };
    // With TLS 1.3 a client learns that its certificate was rejected when it first reads.
    match Proxy::open(channel, Protocol::Delta, node("shop", "client")).await {
        Ok(mut proxy) => proxy.step(None).await.is_ok(),
        Err(_) => false,
    }
}

#[tokio::test]
async fn certificates_that_have_expired_or_are_of_others_get_no_stream() {
    let plane = Plane::start(&[]).await;
    let elsewhere = tempfile::tempdir().expect("a directory");
    let now = SystemTime::now();
    let own = Authority::open(plane.state.path(), "cluster.local", now).expect("the control plane's");
    let foreign = Authority::open(elsewhere.path(), "cluster.local", now).expect("another one");
    let check_as = async |what: &str, id: &str, authority: &Authority, at: SystemTime, expected: bool| {
        let (key, csr) = csr(id);
        let chain = authority.sign(csr.as_bytes(), &id.parse().expect("an id"), Duration::from_secs(600), at);
        let chain = chain.expect("a certificate").chain;
        assert_eq!(is_served(&plane, &chain, &key).await, expected, "{what}");
    };
    let check = async |what: &str, authority: &Authority, at: SystemTime, expected: bool| {
        check_as(what, CLIENT, authority, at, expected).await;
    };
    check("one of the control plane", &own, now, true).await;
    check("one of another authority with the same name", &foreign, now, false).await;
    check("one that has expired", &own, now - HOUR, false).await;
    check("one of a time to come", &own, now + HOUR, false).await;
    // Two meshes may have the same root. Nothing behind the port is for the other one: no stream, no scope, no registration.
    let other = CLIENT.replace("cluster.local", "dev.example");
    check_as("one of another mesh below the same root", &other, &own, now, false).await;
}

/// Writes the authority's files. A further revocation list is newer than those that are there, and comes behind them.
fn write_authority(folder: &Path, files: &PluggedFiles, revoked: Option<&[u8]>) {
    let key = KeyPair::from_pem(&files.key).expect("a key");
    let issuer = Issuer::from_ca_cert_pem(&files.certificate, key).expect("an issuer");
    let now = SystemTime::now();
    let revoked_certs = revoked.iter().map(|serial| RevokedCertParams {
        serial_number: SerialNumber::from_slice(serial),
        revocation_time: now.into(),
        reason_code: None,
        invalidity_date: None,
    });
    let list = CertificateRevocationListParams {
        this_update: (now - if revoked.is_none() { HOUR } else { HOUR / 2 }).into(),
        next_update: (now + HOUR).into(),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: revoked_certs.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&issuer).expect("a list").pem().expect("PEM");
    let list = fs::read_to_string(folder.join("ca-crl.pem")).unwrap_or_default() + &list;
    for (name, text) in [
        ("ca-cert.pem", &files.certificate),
        ("ca-key.pem", &files.key),
        ("root-cert.pem", &files.roots),
        ("ca-crl.pem", &list),
    ] {
        let beside = folder.join("beside");
        fs::write(&beside, text).expect("a file");
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).expect("a mode");
        fs::rename(&beside, folder.join(name)).expect("a renamed file");
    }
}

fn serial(leaf: &str) -> Vec<u8> {
    use tokio_rustls::rustls::pki_types::CertificateDer;
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    let der = CertificateDer::from_pem_slice(leaf.as_bytes()).expect("a certificate");
    let parsed = evenkeel_tls::PeerCertificate::parse(&[der]).expect("a certificate");
    (0..parsed.serial.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&parsed.serial[at..at + 2], 16).expect("hex"))
        .collect()
}

#[tokio::test]
async fn a_revoked_certificate_gets_no_stream_and_others_do() {
    let plugged = tempfile::tempdir().expect("a directory");
    let files = Authority::new_root("corp", SystemTime::now()).expect("a root");
    write_authority(plugged.path(), &files, None);
    let (config, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let options = Options { ca_certs: Some(plugged.path().to_owned()), ..options(config.path(), state.path()) };
    let plane = Plane::start_as(config, state, options).await;
    // The file that tests read the root from.
    fs::write(plane.state.path().join("ca-cert.pem"), &files.roots).expect("a file");
    let certificate = async || {
        let (key, csr) = csr(CLIENT);
        (request(&plane, csr, Some(&token(&plane))).await.expect("a certificate"), key)
    };
    let ((stolen, its_key), (kept, kept_key)) = (certificate().await, certificate().await);
    assert!(is_served(&plane, &stolen, &its_key).await && is_served(&plane, &kept, &kept_key).await);
    write_authority(plugged.path(), &files, Some(&serial(&stolen[0])));
    let refused = async {
        while is_served(&plane, &stolen, &its_key).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, refused).await.expect("the list is taken over");
    assert!(is_served(&plane, &kept, &kept_key).await, "another one of the same identity is not revoked");
    assert_eq!(plane.json("/debug/ca").await["state"]["phase"], "steady", "lists are no rotation");
}

#[tokio::test]
async fn no_session_is_resumed_under_another_identity_or_none() {
    let plane = Plane::start(&[]).await;
    let (key, csr) = csr(CLIENT);
    let chain = request(&plane, csr, Some(&token(&plane))).await.expect("a certificate");
    let sessions = Resumption::in_memory_sessions(8);
    let mut of_client = tls(&plane, Some((&chain, &key)));
    of_client.resumption = sessions.clone();
    let channel = tls_channel(plane.addresses.secure_grpc, of_client).await.expect("a connection");
    let mut proxy = Proxy::open(channel, Protocol::Delta, node("shop", "client")).await.expect("a stream");
    proxy.step(None).await.expect("an answer");
    // A client without a certificate that has obtained the TLS session.
    let mut of_thief = tls(&plane, None);
    of_thief.resumption = sessions;
    let config = Arc::new(of_thief);
    let stream = tokio::net::TcpStream::connect(plane.addresses.secure_grpc).await.expect("a connection");
    let name = "istiod.istio-system.svc".try_into().expect("a name");
    let stream = tokio_rustls::TlsConnector::from(config.clone()).connect(name, stream).await.expect("a handshake");
    let kind = stream.get_ref().1.handshake_kind();
    assert_ne!(kind, Some(tokio_rustls::rustls::HandshakeKind::Resumed));
    let channel = tls_channel(plane.addresses.secure_grpc, Arc::unwrap_or_clone(config)).await.expect("a connection");
    let refused = Proxy::open(channel, Protocol::Delta, node("shop", "client")).await;
    let refused = match refused {
        Ok(mut proxy) => proxy.step(None).await.is_err(),
        Err(_) => true,
    };
    assert!(refused, "a session is no identity");
}
