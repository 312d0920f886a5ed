//! Bundles come from real HTTPS servers, survive outages and restarts, and admit nobody when they are wrong.

use std::sync::Mutex;

use evenkeel_testkit::tls::{TestCa, TlsServer};
use serde_json::json;

use super::*;

/// Returns a bundle document with these roots.
fn document(roots: &[&TestCa], sequence: u64) -> String {
    let x5c = |ca: &TestCa| ca.root_pem().lines().filter(|line| !line.starts_with('-')).collect::<String>();
    let keys: Vec<_> = roots.iter().map(|ca| json!({"use": "x509-svid", "kty": "EC", "x5c": [x5c(ca)]})).collect();
    json!({"keys": keys, "spiffe_sequence": sequence, "spiffe_refresh_hint": 1}).to_string()
}

/// A bundle endpoint whose answer can be changed.
struct Served {
    url: Arc<str>,
    answer: Arc<Mutex<Vec<u8>>>,
}

impl Served {
    fn new(web: &TestCa) -> Self {
        let answer: Arc<Mutex<Vec<u8>>> = Arc::default();
        let current = answer.clone();
        let server = TlsServer::new(&web.for_dns(&["localhost"]));
        let port = server.answer_with(move || current.lock().expect("an answer").clone());
        Self { url: format!("https://localhost:{port}/bundle.json").into(), answer }
    }

    fn set(&self, status: &str, body: &str) {
        let text = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        *self.answer.lock().expect("an answer") = text.into_bytes();
    }
}

fn bundle_of(url: &Arc<str>, domains: &[&str]) -> FurtherRoots {
    let trust_domains = domains.iter().map(|&domain| domain.into()).collect();
    FurtherRoots { source: RootsSource::Bundle(url.clone()), trust_domains }
}

fn mesh(further_roots: Vec<FurtherRoots>, aliases: &[&str]) -> MeshConfig {
    let trust_domain_aliases = aliases.iter().map(|&alias| alias.into()).collect();
    MeshConfig { further_roots, trust_domain_aliases, ..MeshConfig::default() }
}

fn world_of(mesh: MeshConfig) -> World {
    let mut snapshot = evenkeel_model::Snapshot::default();
    snapshot.mesh = mesh;
    World::of(snapshot)
}

/// Returns the number of roots of each trust domain, and whether those of the mesh are used too.
fn told(federation: &Federation) -> Vec<(String, usize, bool)> {
    let domains = federation.subscribe().borrow().clone();
    let count = |domain: &TrustDomain| domain.roots_pem.matches("BEGIN CERTIFICATE").count();
    domains.iter().map(|domain| (domain.name.clone(), count(domain), domain.has_mesh_roots)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_is_followed_and_what_is_wrong_changes_nothing() {
    let (web, one, two) = (TestCa::new(), TestCa::new(), TestCa::new());
    let (served, state) = (Served::new(&web), tempfile::tempdir().expect("a folder"));
    let mesh = mesh(vec![bundle_of(&served.url, &["partner.example"])], &[]);
    let open = || Federation::new(state.path(), Client::new(&[web.root_pem()]));
    let own = ("cluster.local".to_owned(), 0, true);
    let partner = |roots: usize| vec![own.clone(), ("partner.example".to_owned(), roots, false)];
    let mut federation = open();
    let check = async |federation: &mut Federation, roots: usize, failures: u32, what: &str| {
        federation.follow(&mesh, Instant::now());
        let got = federation.client.get(&served.url).await.map_err(|error| error.to_string());
        federation.end(&served.url.clone(), got, Instant::now());
        federation.follow(&mesh, Instant::now());
        assert_eq!(told(federation), partner(roots), "{what}");
        assert_eq!(federation.endpoints[&served.url].failures, failures, "{what}");
    };
    served.set("503 Service Unavailable", "");
    check(&mut federation, 0, 1, "never there: no root stands in for it").await;
    served.set("200 OK", &document(&[&one], 5));
    check(&mut federation, 1, 0, "fetched").await;
    served.set("200 OK", &document(&[&one, &two], 6));
    check(&mut federation, 2, 0, "a rotation").await;
    for (failures, (status, body)) in (1..).zip([
        ("503 Service Unavailable", String::new()),
        ("200 OK", "<html>".to_owned()),
        ("200 OK", "{}".to_owned()),
        ("200 OK", " ".repeat(evenkeel_jwt::MAX_JWKS_BYTES + 1)),
        ("200 OK", document(&[&one], 4)),
        ("200 OK", document(&[&one], 7).replace("x5c\":[\"", "x5c\":[\"!")),
        ("302 Found\r\nlocation: http://localhost/", String::new()),
    ]) {
        served.set(status, &body);
        check(&mut federation, 2, failures, &format!("{status} {}", body.get(..20).unwrap_or(&body))).await;
    }
    // Another process has the stored bundles while the endpoint is down.
    federation = open();
    served.set("503 Service Unavailable", "");
    check(&mut federation, 2, 1, "after a restart").await;
    served.set("200 OK", &document(&[], 8));
    check(&mut federation, 0, 0, "emptied: nobody is accepted").await;
    federation = open();
    served.set("503 Service Unavailable", "");
    check(&mut federation, 0, 1, "emptied, and restarted").await;
    // An endpoint that is no longer named leaves nothing behind.
    federation.follow(&MeshConfig::default(), Instant::now());
    assert_eq!(told(&federation), []);
    assert_eq!(Store::from(state.path()).list(FOLDER).expect("names"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_cannot_prove_its_name_is_not_asked() {
    let (web, one) = (TestCa::new(), TestCa::new());
    let served = Served::new(&web);
    served.set("200 OK", &document(&[&one], 1));
    let error = Client::new(&[one.root_pem()]).get(&served.url).await.expect_err("no trust").to_string();
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_are_asked_again_by_themselves() {
    let (web, one) = (TestCa::new(), TestCa::new());
    let (served, state) = (Served::new(&web), tempfile::tempdir().expect("a folder"));
    served.set("200 OK", &document(&[], 1));
    let federation = Federation::new(state.path(), Client::new(&[web.root_pem()]));
    let mut domains = federation.subscribe();
    let mesh = mesh(vec![bundle_of(&served.url, &["partner.example"])], &[]);
    let (_world, worlds) = watch::channel(Arc::new(world_of(mesh)));
    let (roots, trusted) = watch::channel(Arc::from(web.root_pem()));
    let keeping = tokio::spawn(federation.keep(worlds, trusted));
    let mut until = async |roots: usize| {
        let has = |domains: &Arc<Vec<TrustDomain>>| {
            let partner = domains.iter().find(|domain| domain.name == "partner.example");
            partner.is_some_and(|partner| partner.roots_pem.matches("BEGIN").count() == roots)
        };
        tokio::time::timeout(Duration::from_secs(20), domains.wait_for(has)).await.expect("in time").expect("kept");
    };
    until(0).await;
    served.set("200 OK", &document(&[&one], 2));
    until(1).await;
    served.set("200 OK", &document(&[], 3));
    until(0).await;
    keeping.abort();
    drop(roots);
}

/// The mesh has a new root, which is that of the endpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_root_of_the_mesh_verifies_endpoints_without_a_restart() {
    let (web, other, one) = (TestCa::new(), TestCa::new(), TestCa::new());
    let (served, state) = (Served::new(&web), tempfile::tempdir().expect("a folder"));
    served.set("200 OK", &document(&[&one], 1));
    let mut federation = Federation::new(state.path(), Client::new(&[other.root_pem()]));
    let mesh = mesh(vec![bundle_of(&served.url, &["partner.example"])], &[]);
    // It has failed so often that the next retry would be minutes away.
    federation.follow(&mesh, Instant::now());
    let endpoint = federation.endpoints.values_mut().next().expect("an endpoint");
    (endpoint.failures, endpoint.due) = (10, Instant::now() + MAX_BACK_OFF);
    let mut domains = federation.subscribe();
    let (_world, worlds) = watch::channel(Arc::new(world_of(mesh)));
    let (roots, trusted) = watch::channel(Arc::from(other.root_pem()));
    // The roots may change before the loop begins.
    roots.send_replace(Arc::from(other.root_pem() + &web.root_pem()));
    let keeping = tokio::spawn(federation.keep(worlds, trusted));
    let has_roots = |domains: &Arc<Vec<TrustDomain>>| domains.iter().any(|domain| !domain.roots_pem.is_empty());
    tokio::time::timeout(Duration::from_secs(20), domains.wait_for(has_roots)).await.expect("in time").expect("kept");
    keeping.abort();
}

/// A fetch that began before the new root does not count.
#[tokio::test]
async fn an_endpoint_that_was_asked_with_old_roots_is_asked_again() {
    let (state, now) = (tempfile::tempdir().expect("a folder"), Instant::now());
    let mut federation = Federation::new(state.path(), Client::new(&[]));
    let url: Arc<str> = "https://partner.example/bundle.json".into();
    federation.follow(&mesh(vec![bundle_of(&url, &["partner.example"])], &[]), now);
    let mut check = |has_new_root: bool, is_due: bool| {
        federation.endpoints.values_mut().for_each(|endpoint| endpoint.fetching = true);
        if has_new_root {
            federation.trust(Client::new(&[]), now);
        }
        federation.end(&url, Err("no trust".to_owned()), now);
        assert_eq!(federation.endpoints[&url].due <= now, is_due, "with a new root: {has_new_root}");
    };
    check(false, false);
    check(true, true);
    check(false, false);
}

#[test]
fn each_trust_domain_has_the_roots_that_name_it() {
    let pem = |text: &str, domains: &[&str]| {
        let trust_domains = domains.iter().map(|&domain| domain.into()).collect();
        FurtherRoots { source: RootsSource::Pem(text.into()), trust_domains }
    };
    let check = |further: Vec<FurtherRoots>, aliases: &[&str], expected: &[(&str, &str, bool)]| {
        let found = trust_domains(&mesh(further, aliases), |url| url.contains("there").then(|| url.to_owned()));
        let found: Vec<_> = found.iter().map(|d| (d.name.as_str(), d.roots_pem.as_str(), d.has_mesh_roots)).collect();
        assert_eq!(found, expected);
    };
    check(vec![], &["old.example"], &[]);
    check(vec![pem("A", &["a.example"])], &[], &[("a.example", "A\n", false), ("cluster.local", "", true)]);
    // Roots for all trust domains, including those with roots of their own.
    check(
        vec![pem("A", &["a.example"]), pem("B", &[])],
        &[],
        &[("a.example", "A\nB\n", false), ("cluster.local", "B\n", true)],
    );
    // More roots for the mesh itself.
    check(vec![pem("A", &["cluster.local"])], &[], &[("cluster.local", "A\n", true)]);
    // An alias is the mesh's former name, unless it has roots of its own.
    check(vec![pem("B", &[])], &["old.example"], &[("cluster.local", "B\n", true), ("old.example", "B\n", true)]);
    check(
        vec![pem("A", &["old.example"])],
        &["old.example"],
        &[("cluster.local", "", true), ("old.example", "A\n", false)],
    );
    // Bundles, including a missing one.
    check(
        vec![bundle_of(&"https://there".into(), &["a.example"]), bundle_of(&"https://away".into(), &["b.example"])],
        &[],
        &[("a.example", "https://there\n", false), ("b.example", "", false), ("cluster.local", "", true)],
    );
}
