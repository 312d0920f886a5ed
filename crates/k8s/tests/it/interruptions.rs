//! The API server is killed, paused, restarted, or forgets the changes since; connections break. Nothing is lost, and nothing is
//! told twice.

use std::time::Duration;

use evenkeel_k8s::client::{ClusterOptions, ExecPlugins};
use evenkeel_k8s::last_objects::LastObjects;
use evenkeel_k8s::source::{self, Scope};
use evenkeel_model::Snapshot;
use evenkeel_store::Store;
use evenkeel_testkit::kubernetes::ApiServer;
use evenkeel_testkit::random::Random;

use crate::mesh::{Mesh, PATIENCE, Wire, hosts, pod, ready, service, set_ready, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_outage_changes_nothing_and_loses_nothing() {
    let server = ApiServer::start();
    let shop = server.namespace("shop");
    server.apply(&[service(&shop, "a", 80), pod(&shop, "a-0", "a"), service(&shop, "gone", 80)].concat());
    set_ready(&server, &shop, "a-0", "10.1.0.1", true);
    let wire = Wire::to(&server).await;
    let mut mesh = Mesh::start(wire.kubeconfig()).await;
    let [a, b, gone] = ["a", "b", "gone"].map(|name| format!("{name}.{shop}.svc.cluster.local"));
    let before = mesh.snapshot.clone();

    // A server that has just started may keep a watch waiting for a minute.
    // The server is killed and comes back: it no longer has the changes since, so all is listed again.
    server.kill();
    mesh.during(Duration::from_secs(3)).await;
    assert!(mesh.watching.progress().borrow().outage.is_some(), "an outage is known");
    server.restart();
    let mut progress = mesh.watching.progress();
    let is_over =
        tokio::time::timeout(Duration::from_secs(180), progress.wait_for(|progress| progress.outage.is_none()));
    let is_over = is_over.await.is_ok();
    assert!(is_over, "the outage ends: {:?}", mesh.watching.progress().borrow());
    mesh.during(Duration::from_secs(1)).await;
    assert_eq!((mesh.events, hosts(&mesh.snapshot)), (0, hosts(&before)));

    // It is paused: connections stay open, and get no answers.
    server.pause();
    mesh.during(Duration::from_secs(3)).await;
    server.resume();
    server.apply(&service(&shop, "b", 80));
    mesh.until("b", |snapshot| ready(snapshot, &b).is_some()).await;
    assert_eq!(mesh.events, 1);

    // Connections break, and what changes meanwhile is forgotten by the server.
    wire.set_open(false);
    server.kubectl(&["delete", "service", "gone", "-n", &shop]);
    server.kubectl(&["delete", "service", "b", "-n", &shop]);
    server.apply(&service(&shop, "b", 81));
    set_ready(&server, &shop, "a-0", "10.1.0.2", true);
    server.restart();
    mesh.during(Duration::from_secs(1)).await;
    assert_eq!(mesh.events, 1, "nothing is known of it yet");
    wire.set_open(true);
    mesh.until("what has changed meanwhile", |snapshot| {
        let has_port = snapshot.services_of(&b).first().is_some_and(|b| b.ports.iter().any(|port| port.number == 81));
        ready(snapshot, &gone).is_none() && has_port && hosts(snapshot).iter().any(|host| host.contains("10.1.0.2"))
    })
    .await;
    assert_eq!(ready(&mesh.snapshot, &a), Some(1));
    mesh.during(Duration::from_secs(1)).await;
    // The removed Service, the other Service of the same name, and the Pod.
    assert_eq!(mesh.events, 4, "each change once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn churn_over_breaking_connections_ends_in_the_same_state() {
    let server = ApiServer::start();
    let shop = server.namespace("shop");
    let wire = Wire::to(&server).await;
    let mut mesh = Mesh::start(wire.kubeconfig()).await;
    let mut random = Random::new(7);
    for round in 0..12 {
        let mut objects = String::new();
        for name in 0..4 {
            let name = format!("s{}", (random.below(12) + name) % 12);
            if random.below(3) == 0 {
                server.kubectl(&["delete", "service", &name, "-n", &shop, "--ignore-not-found"]);
            } else {
                objects += &service(&shop, &name, u16::try_from(80 + random.below(4)).expect("a port"));
            }
        }
        server.apply(&objects);
        match round % 4 {
            1 => wire.set_open(false),
            3 => wire.set_open(true),
            _ => mesh.during(Duration::from_millis(50)).await,
        }
        if round == 6 {
            server.restart();
        }
    }
    wire.set_open(true);
    let expected = hosts(&Mesh::start(&server.kubeconfig()).await.snapshot);
    mesh.until("the same state", |snapshot| hosts(snapshot) == expected).await;
    mesh.during(Duration::from_secs(1)).await;
    assert_eq!(hosts(&mesh.snapshot), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_start_without_the_server_begins_with_the_last_objects() {
    let server = ApiServer::start();
    let shop = server.namespace("shop");
    server.apply(&[service(&shop, "stays", 80), service(&shop, "goes", 80)].concat());
    let wire = Wire::to(&server).await;
    let state = tempfile::tempdir().expect("a directory");
    let last = LastObjects::new(Store::from(state.path()));
    let (watching, source) = start(wire.kubeconfig()).await;
    let keeping = tokio::spawn(watching.keep(last.clone()));
    let is_kept = async {
        while last.read().expect("readable").is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_kept).await.expect("objects are kept");
    keeping.abort();
    drop((watching, source));

    wire.set_open(false);
    server.kubectl(&["delete", "service", "goes", "-n", &shop]);
    server.apply(&service(&shop, "comes", 80));
    let options = ClusterOptions { kubeconfig: Some(wire.kubeconfig().to_owned()), context: None };
    let client = options.client(ExecPlugins::Refuse).await.expect("a client");
    let (mut watching, source) = source::start(client, &Scope::all("istio-system"));
    let started = tokio::time::timeout(PATIENCE, watching.synced_or_restored(&last)).await;
    started.expect("a start in time").expect("the source goes on");
    let keeping = tokio::spawn(watching.keep(last));
    let mut mesh = Mesh::of(watching, source);
    let host = |name: &str| format!("{name}.{shop}.svc.cluster.local");
    let has = |snapshot: &Snapshot, name: &str| !snapshot.services_of(&host(name)).is_empty();
    assert!(has(&mesh.snapshot, "stays") && has(&mesh.snapshot, "goes") && !has(&mesh.snapshot, "comes"));
    wire.set_open(true);
    mesh.until("what the server has", |snapshot| has(snapshot, "comes") && !has(snapshot, "goes")).await;
    assert!(has(&mesh.snapshot, "stays"));
    keeping.abort();
}
