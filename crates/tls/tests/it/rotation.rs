use evenkeel_tls::config::{CertificateSource, TrustSource, Validation};
use evenkeel_tls::secrets::SecretKind;
use evenkeel_tls::{DownstreamTls, HandshakeError, SdsSecret, SdsServer, SecretStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{INFO, TestCa, WEB, client, client_context, server_context, shake};

fn secret(name: &str) -> SdsSecret {
    SdsSecret { name: name.into(), server: SdsServer::Cluster("sds-grpc".into()) }
}

/// An inbound context whose secrets come over SDS, in a fresh store.
fn sds_server(ca: &TestCa) -> (DownstreamTls, SecretStore) {
    let store = SecretStore::new();
    let mut context = server_context(ca, &ca.workload(INFO));
    context.common.certificates = vec![CertificateSource::Sds(secret("default"))];
    context.common.validation =
        Validation::Chain { trust: TrustSource::Sds(secret("ROOTCA")), subject_alt_names: Vec::new() };
    let server = DownstreamTls::new(&context, &store).unwrap();
    (server, store)
}

#[tokio::test]
async fn secrets_are_wanted_awaited_and_forgotten() {
    let ca = TestCa::new("root");
    let (server, store) = sds_server(&ca);
    let wanted = vec![(secret("ROOTCA"), SecretKind::Trust), (secret("default"), SecretKind::Certificate)];
    assert_eq!(store.wanted(), wanted);
    assert_eq!(server.missing_secret(), Some(&secret("default")));

    let client = client(&client_context(&ca, &ca.workload(WEB), INFO));
    let (_, far) = shake(&client, &server).await;
    let error = far.err().unwrap();
    assert!(matches!(&error, HandshakeError::SecretMissing(missing) if missing.name == "default"), "{error}");
    assert!(error.is_local());

    let mut changes = store.changes();
    let info = ca.workload(INFO);
    store.set_identity(&secret("default"), info.chain.as_bytes(), info.key.as_bytes()).unwrap();
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    assert_eq!(server.missing_secret(), Some(&secret("ROOTCA")));
    store.set_trust(&secret("ROOTCA"), ca.pem().as_bytes()).unwrap();
    assert_eq!(server.missing_secret(), None);
    let (near, far) = shake(&client, &server).await;
    assert!(near.is_ok() && far.is_ok());

    drop(server);
    assert_eq!(store.wanted(), []);
}

#[tokio::test]
async fn a_new_certificate_serves_new_connections_and_keeps_the_old_ones() {
    let ca = TestCa::new("root");
    let (server, store) = sds_server(&ca);
    let (first, second) = (ca.workload(INFO), ca.workload(INFO));
    store.set_identity(&secret("default"), first.chain.as_bytes(), first.key.as_bytes()).unwrap();
    store.set_trust(&secret("ROOTCA"), ca.pem().as_bytes()).unwrap();
    let client = client(&client_context(&ca, &ca.workload(WEB), INFO));
    let (near, far) = shake(&client, &server).await;
    let (mut near, mut far) = (near.unwrap(), far.unwrap());
    let before = near.session().peer.as_ref().unwrap().sha256;

    store.set_identity(&secret("default"), second.chain.as_bytes(), second.key.as_bytes()).unwrap();
    far.write_all(b"still here").await.unwrap();
    let mut text = [0; 10];
    near.read_exact(&mut text).await.unwrap();
    assert_eq!(&text, b"still here");

    let (near, far) = shake(&client, &server).await;
    let near = near.unwrap();
    assert!(!far.unwrap().session().resumed, "a session of the old certificate must not be resumed");
    assert_ne!(near.session().peer.as_ref().unwrap().sha256, before);
}

#[tokio::test]
async fn a_bad_secret_leaves_the_good_one_in_place() {
    let ca = TestCa::new("root");
    let (server, store) = sds_server(&ca);
    let info = ca.workload(INFO);
    store.set_identity(&secret("default"), info.chain.as_bytes(), info.key.as_bytes()).unwrap();
    store.set_trust(&secret("ROOTCA"), ca.pem().as_bytes()).unwrap();
    let other = ca.workload(INFO);
    let error = store.set_identity(&secret("default"), info.chain.as_bytes(), other.key.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("does not belong"), "{error}");
    assert!(store.set_trust(&secret("ROOTCA"), b"nonsense").is_err());
    let client = client(&client_context(&ca, &ca.workload(WEB), INFO));
    let (near, far) = shake(&client, &server).await;
    assert!(near.is_ok() && far.is_ok());
}

#[tokio::test]
async fn a_root_that_is_taken_away_stops_resumption_too() {
    let (ca, new_ca) = (TestCa::new("root"), TestCa::new("new root"));
    let (server, store) = sds_server(&ca);
    let info = ca.workload(INFO);
    store.set_identity(&secret("default"), info.chain.as_bytes(), info.key.as_bytes()).unwrap();
    let both = ca.pem() + &new_ca.pem();
    store.set_trust(&secret("ROOTCA"), both.as_bytes()).unwrap();
    let client = client(&client_context(&ca, &ca.workload(WEB), INFO));
    let (near, far) = shake(&client, &server).await;
    far.unwrap().write_all(b"x").await.unwrap();
    near.unwrap().read_exact(&mut [0]).await.unwrap();

    store.set_trust(&secret("ROOTCA"), new_ca.pem().as_bytes()).unwrap();
    let (_, far) = shake(&client, &server).await;
    let error = far.err().unwrap().to_string();
    assert_eq!(error, "the peer's certificate was refused: it is not signed by a trusted root");
}
