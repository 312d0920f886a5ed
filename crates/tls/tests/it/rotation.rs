use std::fs;
use std::path::Path;
use std::time::SystemTime;

use evenkeel_tls::config::{CertificateSource, DataSource, PeerChecks, TrustSource, Validation};
use evenkeel_tls::sds::SecretKind;
use evenkeel_tls::{DownstreamTls, FileChange, HandshakeError, SdsSecret, SdsServer, SecretStore};
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
        Validation::Chain { trust: TrustSource::Sds(secret("ROOTCA")), checks: PeerChecks::default() };
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
    store.set_trust(&secret("ROOTCA"), ca.pem().as_bytes(), None).unwrap();
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
    store.set_trust(&secret("ROOTCA"), ca.pem().as_bytes(), None).unwrap();
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
    store.set_trust(&secret("ROOTCA"), ca.pem().as_bytes(), None).unwrap();
    let other = ca.workload(INFO);
    let error = store.set_identity(&secret("default"), info.chain.as_bytes(), other.key.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("does not belong"), "{error}");
    assert!(store.set_trust(&secret("ROOTCA"), b"nonsense", None).is_err());
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
    store.set_trust(&secret("ROOTCA"), both.as_bytes(), None).unwrap();
    let client = client(&client_context(&ca, &ca.workload(WEB), INFO));
    let (near, far) = shake(&client, &server).await;
    far.unwrap().write_all(b"x").await.unwrap();
    near.unwrap().read_exact(&mut [0]).await.unwrap();

    store.set_trust(&secret("ROOTCA"), new_ca.pem().as_bytes(), None).unwrap();
    let (_, far) = shake(&client, &server).await;
    let error = far.err().unwrap().to_string();
    assert_eq!(error, "the peer's certificate was refused: it is not signed by a trusted root");
}

/// What the last look at the files said: `replaced`, the reason of a refusal, or nothing.
fn look(store: &SecretStore) -> String {
    let said = |news: FileChange| match news {
        FileChange::Replaced { .. } => "replaced".to_owned(),
        FileChange::Refused { reason, .. } => reason,
    };
    store.look_at_files(SystemTime::now()).into_iter().map(said).collect::<Vec<_>>().join("; ")
}

#[test]
fn a_certificate_in_files_may_be_replaced_in_place() {
    let ca = TestCa::new("root");
    let folder = tempfile::tempdir().unwrap();
    let [chain_file, key_file] = ["tls.crt", "tls.key"].map(|name| folder.path().join(name));
    let write = |path: &Path, text: &str| {
        // As `mv` puts a file into place: whatever the clock's resolution, it is another file.
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    };
    let pairs = [ca.workload(INFO), ca.workload(WEB), ca.workload(INFO), ca.workload(WEB)];
    write(&chain_file, &pairs[0].chain);
    write(&key_file, &pairs[0].key);
    let store = SecretStore::new();
    let source = || CertificateSource::Static {
        chain: DataSource::File(chain_file.clone()),
        key: DataSource::File(key_file.clone()),
    };
    let slot = store.identity(&source()).unwrap();
    let serves = || slot.load().unwrap().certificate().uri_sans[0].clone();
    assert_eq!((look(&store), serves()), (String::new(), INFO.to_owned()));
    // One file after the other: half of a pair serves nobody, nor is it called wrong at once.
    let mut changes = store.changes();
    write(&chain_file, &pairs[1].chain);
    assert_eq!((look(&store), serves()), (String::new(), INFO.to_owned()));
    assert!(!changes.has_changed().unwrap());
    // Whoever compiles a context meanwhile has what serves.
    assert_eq!(store.identity(&source()).unwrap().load().unwrap().certificate().uri_sans[0], INFO);
    write(&key_file, &pairs[1].key);
    assert_eq!((look(&store), serves()), ("replaced".to_owned(), WEB.to_owned()));
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    // What is wrong, and stays so, is said once; the one before serves.
    for (text, reason) in [("no certificate", "holds no `BEGIN CERTIFICATE`"), (&pairs[2].chain, "does not belong to")]
    {
        write(&chain_file, text);
        assert_eq!(look(&store), "");
        let said = look(&store);
        assert!(said.contains(reason), "{said}");
        assert_eq!((look(&store), serves()), (String::new(), WEB.to_owned()));
    }
    fs::remove_file(&key_file).unwrap();
    look(&store);
    assert!(look(&store).contains("tls.key"));
    assert_eq!(serves(), WEB);
    write(&key_file, &pairs[2].key);
    assert_eq!((look(&store), serves()), ("replaced".to_owned(), INFO.to_owned()));
    // As a mounted Secret changes: a link to a folder leads to another.
    for (folder_name, pair) in [("1", &pairs[2]), ("2", &pairs[3])] {
        fs::create_dir(folder.path().join(folder_name)).unwrap();
        fs::write(folder.path().join(folder_name).join("tls.crt"), &pair.chain).unwrap();
        fs::write(folder.path().join(folder_name).join("tls.key"), &pair.key).unwrap();
    }
    let data = folder.path().join("..data");
    std::os::unix::fs::symlink("1", &data).unwrap();
    let [chain, key] = ["tls.crt", "tls.key"].map(|name| DataSource::File(data.join(name)));
    let mounted = store.identity(&CertificateSource::Static { chain, key }).unwrap();
    std::os::unix::fs::symlink("2", folder.path().join("..new")).unwrap();
    fs::rename(folder.path().join("..new"), &data).unwrap();
    assert_eq!(look(&store), "replaced");
    assert_eq!(mounted.load().unwrap().certificate().uri_sans[0], WEB);
    // What nobody uses any more is not looked at.
    drop((mounted, slot));
    write(&chain_file, &pairs[0].chain);
    assert_eq!(look(&store), "");
}
