//! Keys of issuers: fetched, sent in proxies' filters, and kept over an outage of the issuer and a restart.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use evenkeel_ca::{Authority, PluggedFiles};
use evenkeel_control::Options;
use evenkeel_control::jwks::settings::JwksSettings;
use evenkeel_testkit::jwt::{Signer, jwks};
use evenkeel_testkit::tls::{Identity, TlsServer};
use evenkeel_testkit::{Backend, Reply};
use rcgen::{CertificateParams, Issuer, KeyPair};

use crate::fixture::{PATIENCE, Plane, options};

fn authentication(uri: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: jwt, namespace: shop}}\n\
         spec: {{jwtRules: [{{issuer: me, jwksUri: '{uri}'}}]}}\n"
    )
}

/// Waits until keys are missing, or not.
async fn until_missing(plane: &Plane, missing: bool) {
    plane.until("/debug/diagnostics", |page| (page.contains("jwks-not-fetched") == missing).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetched_keys_survive_an_outage_and_a_restart() {
    let set = jwks(&[&Signer::ec("a", "P-256")]);
    let (serves, text) = (Arc::new(AtomicBool::new(true)), set.clone());
    let serving = Arc::clone(&serves);
    let backend = Backend::start(move |_| {
        if serving.load(Ordering::SeqCst) {
            Reply::text(text.clone())
        } else {
            Reply::Fixed(503, Vec::new(), Vec::new())
        }
    });
    let uri = |path: &str| format!("http://{}/{path}", backend.address());
    let plane = Plane::start(&[("a.yaml", authentication(&uri("a")))]).await;
    until_missing(&plane, false).await;

    // Another source, while the issuer is away: its tokens are refused, and the first keys stay.
    serves.store(false, Ordering::SeqCst);
    plane.write("b.yaml", &authentication(&uri("b")).replace("name: jwt", "name: other"));
    until_missing(&plane, true).await;
    let page = plane.page("/debug/diagnostics").await;
    assert!(page.contains("b.yaml") && page.contains(&uri("b")) && !page.contains(&uri("a")), "{page}");

    let (config, state) = plane.stop().await;
    std::fs::remove_file(config.path().join("b.yaml")).expect("a file");
    let plane = Plane::start_in(config, state).await;
    let page = plane.page("/debug/diagnostics").await;
    assert!(!page.contains("jwks-not-fetched"), "{page}");

    // It is back: what was missing is fetched.
    plane.write("b.yaml", &authentication(&uri("b")).replace("name: jwt", "name: other"));
    until_missing(&plane, true).await;
    until_counted(&plane, "fail").await;
    serves.store(true, Ordering::SeqCst);
    until_missing(&plane, false).await;
    until_counted(&plane, "success").await;
}

/// Waits until a fetch has ended so, by Istio's name for it.
async fn until_counted(plane: &Plane, how: &str) {
    let name = format!("pilot_jwks_resolver_network_fetch_{how}_total ");
    let count = |page: &str| page.lines().find_map(|line| line.strip_prefix(&*name)?.parse::<f64>().ok());
    plane.until("/metrics", |page| count(page).filter(|count| *count > 0.0)).await;
}

/// The keys that are in use, as they are stored.
fn stored(plane: &Plane) -> Option<String> {
    let files = std::fs::read_dir(plane.state.path().join("jwks")).ok()?;
    let names =
        files.flatten().map(|file| file.path()).find(|path| path.extension().is_some_and(|end| end == "json"))?;
    let object: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(names).ok()?).ok()?;
    object["data"]["jwks"].as_str().map(str::to_owned)
}

async fn until_stored(plane: &Plane, keys: &str) {
    let stored = || async {
        while stored(plane).as_deref() != Some(keys) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, stored()).await.expect("the keys in time");
}

/// A control plane that fetches keys again each second.
async fn impatient(files: &[(&str, String)], ca_certs: Option<PathBuf>) -> Plane {
    let (config, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    for (name, text) in files {
        std::fs::write(config.path().join(name), text).expect("a file");
    }
    let jwks = Some(JwksSettings { refresh: Duration::from_secs(1), ..JwksSettings::default() });
    let options = Options { jwks, ca_certs, ..options(config.path(), state.path()) };
    Plane::start_as(config, state, options).await
}

/// Keys that the issuer replaces arrive by themselves; whatever else it answers takes no good key away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_may_rotate_its_keys_and_fail_in_every_way() {
    let (first, second) = (Signer::ec("a", "P-256"), Signer::ec("b", "P-256"));
    let [first, both, second] = [vec![&first], vec![&first, &second], vec![&second]].map(|signers| jwks(&signers));
    // 100 MB, without a word about it before.
    let flood = || Reply::Chunked(200, Vec::new(), vec![vec![b' '; 64 * 1024]; 1_600]);
    let answer = Arc::new(Mutex::new(Reply::text(first.clone())));
    let serving = Arc::clone(&answer);
    let backend = Backend::start(move |_| serving.lock().expect("an answer").clone());
    let says = |reply: Reply| *answer.lock().expect("an answer") = reply;
    let file = authentication(&format!("http://{}/keys", backend.address()));
    let plane = impatient(&[("a.yaml", file)], None).await;
    until_stored(&plane, &first).await;
    for trouble in [
        Reply::Close,
        Reply::Fixed(500, Vec::new(), first.clone().into_bytes()),
        Reply::text("<html>"),
        Reply::text("{\"keys\":[]}"),
        Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"keys\":".to_vec()),
        Reply::Raw(b"\x16\x03\x01garbage\r\n\r\n".to_vec()),
        flood(),
    ] {
        says(trouble);
        let seen = backend.requests().len();
        // The second request begins when the first answer was judged.
        let asked = async {
            while backend.requests().len() < seen + 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, asked).await.expect("it is asked again");
        assert_eq!(stored(&plane).as_ref(), Some(&first));
    }
    for set in [&both, &second] {
        says(Reply::text(set.clone()));
        until_stored(&plane, set).await;
    }
    let page = plane.page("/debug/diagnostics").await;
    assert!(!page.contains("jwks-not-fetched"), "{page}");
}

/// The mesh gets a new root, which has signed the issuer's certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_root_of_the_mesh_is_trusted_without_a_restart() {
    let now = SystemTime::now();
    let [old, new] = [(); 2].map(|()| Authority::new_root("cluster.local", now).expect("a root"));
    let set = jwks(&[&Signer::ec("a", "P-256")]);
    let issuer = https_issuer(&certificate_of(&new), &set);
    let plugged = tempfile::tempdir().expect("a directory");
    plug(plugged.path(), &old);
    let folder = Some(plugged.path().to_owned());
    let plane = impatient(&[("a.yaml", authentication(&issuer))], folder).await;
    until_missing(&plane, true).await;
    assert_eq!(stored(&plane), None);
    plug(plugged.path(), &new);
    until_stored(&plane, &set).await;
    until_missing(&plane, false).await;
}

/// A certificate for `localhost`.
fn certificate_of(authority: &PluggedFiles) -> Identity {
    let key = KeyPair::from_pem(&authority.key).expect("a key");
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, key).expect("an issuer");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate");
    Identity { cert_pem: certificate.pem(), key_pem: key.serialize_pem() }
}

fn plug(folder: &Path, files: &PluggedFiles) {
    for (name, text) in
        [("ca-key.pem", &files.key), ("root-cert.pem", &files.roots), ("ca-cert.pem", &files.certificate)]
    {
        let beside = folder.join("beside");
        std::fs::write(&beside, text).expect("a file");
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600)).expect("a mode");
        std::fs::rename(&beside, folder.join(name)).expect("a renamed file");
    }
}

/// Serves the keys over TLS until the test ends.
fn https_issuer(identity: &Identity, set: &str) -> String {
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{set}", set.len()).into_bytes();
    let port = TlsServer::new(identity).answer_with(move || answer.clone());
    format!("https://localhost:{port}/keys")
}
