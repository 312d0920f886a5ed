//! A rotation of the authority as agents see it: what they are told, what it waits for, and what stays refused.

use std::path::Path;
use std::time::SystemTime;

use evenkeel_ca::rotation::BUNDLE_FILE;
use evenkeel_control::authorities::{self, Kind};
use evenkeel_xds::istio::mesh::ProxyConfig;
use evenkeel_xds::{ResourceType, unpack};
use rcgen::KeyPair;
use serde_json::Value;

use crate::certificates::{CLIENT, csr, request, stream, tls, token};
use crate::fixture::{Plane, Proxy};

/// Returns the state of the rotation.
async fn state(plane: &Plane) -> Value {
    plane.json("/debug/ca").await
}

async fn until_phase(plane: &Plane, phase: &str) -> Value {
    plane
        .until("/debug/ca", |page| {
            let status: Value = serde_json::from_str(page).ok()?;
            (status["state"]["phase"] == phase).then_some(status)
        })
        .await
}

/// An agent: a certificate, and a stream on which it receives roots.
struct Agent {
    chain: Vec<String>,
    stream: Proxy,
}

impl Agent {
    async fn new(plane: &Plane) -> Self {
        let (key, csr) = csr(CLIENT);
        let chain = request(plane, csr, Some(&token(plane))).await.expect("a certificate");
        let mut stream = Self::open(plane, &chain, &key).await;
        stream.until_held(ResourceType::ProxyConfig, "").await;
        Self { chain, stream }
    }

    async fn open(plane: &Plane, chain: &[String], key: &KeyPair) -> Proxy {
        let mut stream = stream(plane, tls(plane, Some((chain, key))), "shop", "client").await.expect("a stream");
        stream.want_roots().await;
        stream
    }

    /// Receives the next roots and acknowledges them.
    async fn roots(&mut self) -> String {
        let bundle = |update: &evenkeel_xds::client::Update| {
            let of_roots = update.added.iter().find(|resource| resource.any.type_url.ends_with("ProxyConfig"))?;
            let message: ProxyConfig = unpack(&of_roots.any).expect("a message");
            message.ca_certificates_pem.first().cloned()
        };
        self.stream.until(bundle).await
    }

    /// Gets another certificate, and presents it.
    async fn renew(&mut self, plane: &Plane) {
        *self = Self::new(plane).await;
    }
}

fn count(bundle: &str) -> usize {
    bundle.matches("BEGIN CERTIFICATE").count()
}

#[tokio::test]
async fn every_step_waits_for_the_agents_that_it_needs() {
    let plane = Plane::start(&[]).await;
    let mut agent = Agent::new(&plane).await;
    authorities::request(plane.state.path(), Kind::Root).expect("asked");
    // The agent has not acknowledged the new root: nothing is signed with it.
    let status = until_phase(&plane, "distributing").await;
    assert_eq!(status["waiting"]["workloads"], serde_json::json!(["client-0.shop"]));
    let before = status["state"]["active"]["id"].clone();
    let chain = request(&plane, csr(CLIENT).1, Some(&token(&plane))).await.expect("a certificate");
    assert_eq!(count(&chain.concat()), 3, "a leaf, and both roots");

    let both = agent.roots().await;
    assert_eq!(count(&both), 2);
    let status = until_phase(&plane, "replacing").await;
    assert_ne!(status["state"]["active"]["id"], before);
    // Its certificate is of the old authority until it has renewed it.
    assert_eq!(status["waiting"]["workloads"], serde_json::json!(["client-0.shop"]));
    let told = agent.roots().await;
    assert_eq!(count(&told), 2);
    assert_ne!(told.lines().next(), both.lines().next(), "whose certificates are current");
    agent.renew(&plane).await;
    let status = until_phase(&plane, "steady").await;
    assert_eq!(status["state"]["generation"], 5);
    assert_eq!(count(&agent.roots().await), 1);
    let bundle = std::fs::read_to_string(plane.state.path().join(BUNDLE_FILE)).expect("a bundle");
    assert_eq!(count(&bundle), 1);
    assert!(!plane.state.path().join("ca-key.pem").exists(), "the old key is deleted");
}

#[tokio::test]
async fn a_control_plane_that_is_stopped_in_the_middle_goes_on_after_its_start() {
    let plane = Plane::start(&[]).await;
    let agent = Agent::new(&plane).await;
    authorities::request(plane.state.path(), Kind::Root).expect("asked");
    let status = until_phase(&plane, "distributing").await;
    drop(agent);
    let (config, folder) = plane.stop().await;
    let plane = Plane::start_in(config, folder).await;
    let again = state(&plane).await;
    assert_eq!(again["state"], status["state"]);
    assert_eq!(again["waiting"]["workloads"], serde_json::json!(["client-0.shop"]), "it is not forgotten");
    let _agent = Agent::new(&plane).await;
    until_phase(&plane, "replacing").await;
}

#[tokio::test]
async fn an_intermediate_changes_without_new_roots() {
    let plane = Plane::start(&[]).await;
    let mut agent = Agent::new(&plane).await;
    authorities::request(plane.state.path(), Kind::Intermediate).expect("asked");
    until_phase(&plane, "replacing").await;
    assert_eq!(count(&agent.roots().await), 1);
    agent.renew(&plane).await;
    assert_eq!(agent.chain.len(), 3, "leaf, intermediate, root");
    until_phase(&plane, "steady").await;
}

#[tokio::test]
async fn what_cannot_be_asked_for_is_an_error() {
    assert!(authorities::request(Path::new("/nonexistent"), Kind::Root).is_err());
    let plane = Plane::start(&[]).await;
    let status = state(&plane).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    assert!(status["state"]["active"]["not_after"].as_u64().expect("a time") > now);
    assert_eq!(status["alarms"], serde_json::json!([]));
}
