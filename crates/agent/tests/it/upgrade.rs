//! One agent takes over from another under load, and neither clients nor the workload notice.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use evenkeel_agent::{Options, Status};
use evenkeel_testkit::load::{Stop, on_new_connections, on_one_connection};
use evenkeel_testkit::{Backend, Connection, Reply};
use evenkeel_xds::ResourceType;
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::pb::envoy::config::listener::v3::Listener;
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::time::timeout;

use crate::support::{ControlPlane, PATIENCE, Running, eventually, start, status};

/// A control plane whose proxies listen for a program, and where.
async fn serving(folder: &Path, program: SocketAddr) -> (ControlPlane, SocketAddr) {
    let control = ControlPlane::start(folder).await;
    let [port] = evenkeel_testkit::free_ports();
    let cluster = format!(
        "{{name: web, type: STATIC, connect_timeout: 1s, load_assignment: {{cluster_name: web, endpoints: [{{lb_endpoints: \
         [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]}}}}",
        program.port()
    );
    control.add::<Cluster>(ResourceType::Cluster, "web", &cluster);
    let listener = format!(
        r#"
name: web
address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
filter_chains:
- filters:
  - name: http
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: web
      route_config:
        name: local
        virtual_hosts: [{{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, route: {{cluster: web}}}}]}}]
      http_filters:
      - name: router
        typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
"#
    );
    control.add::<Listener>(ResourceType::Listener, "web", &listener);
    (control, (Ipv4Addr::LOCALHOST, port).into())
}

fn web() -> Backend {
    Backend::start(|request| Reply::text(request.target.clone()))
}

async fn ended(agent: Running) {
    timeout(PATIENCE, agent.ended).await.expect("the agent before ends").expect("no panic").expect("a clean end");
}

/// What the workload sees of its agent beside the proxy: names, and that it is ready.
fn beside(options: &Options, stop: &AtomicBool, asked: &AtomicUsize) {
    let mut query = Message::query();
    query.add_query(Query::query(Name::from_ascii("info.").unwrap(), RecordType::A));
    let query = query.to_vec().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(options.dns_address.unwrap()).unwrap();
    // Less than a client's own patience, after which it asks again.
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    while !stop.load(Ordering::Relaxed) {
        asked.fetch_add(1, Ordering::Relaxed);
        socket.send(&query).expect("it listens");
        let mut buffer = [0; 512];
        let count = socket.recv(&mut buffer).expect("an answer");
        let answer = Message::from_vec(&buffer[..count]).unwrap();
        assert_eq!(answer.answers.len(), 1, "{answer:?}");
        assert!(Status::read(&options.state).expect("the status").ready);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_agents_take_over_from_each_other_under_load() {
    let (folder, web) = (tempfile::tempdir().unwrap(), web());
    let (control, address) = serving(folder.path(), web.address()).await;
    let state = folder.path().join("agent");
    let grpc = state.join("grpc.json");
    let options = control.agent(&state, &["--grpc-bootstrap", grpc.to_str().unwrap()]);
    let mut agent = start(options.clone());
    status(&state, "readiness", |status| status.ready).await;

    let (stop, asked) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; 3]);
    let upgrades = async {
        let _ending = Stop(&stop);
        for epoch in 1..=3 {
            let before = asked.each_ref().map(|asked| asked.load(Ordering::Relaxed));
            let next = start(options.clone());
            ended(std::mem::replace(&mut agent, next)).await;
            assert!(!agent.ended.is_finished(), "the new agent has ended");
            UnixStream::connect(state.join("xds.sock")).expect("programs reach the new agent");
            let sockets = ["sds.sock", "sds-1.sock", "sds-2.sock", "sds-3.sock"].map(|name| state.join(name));
            eventually("its own socket for secrets alone", || {
                let there = sockets.each_ref().map(|socket| socket.exists());
                (there == [0, 1, 2, 3].map(|one| one == epoch)).then_some(())
            })
            .await;
            eventually("load on the new agent", || {
                let more = |(asked, before): (&AtomicUsize, usize)| asked.load(Ordering::Relaxed) > before + 20;
                asked.iter().zip(before).all(more).then_some(())
            })
            .await;
        }
    };
    // Clients block, and have threads of their own; the upgrades stay with this test's runtime.
    let handle = tokio::runtime::Handle::current();
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let clients = [
                scope.spawn(|| on_one_connection(address, &stop, &asked[0])),
                scope.spawn(|| on_new_connections(address, &stop, &asked[1])),
                scope.spawn(|| beside(&options, &stop, &asked[2])),
            ];
            handle.block_on(upgrades);
            clients.into_iter().for_each(|client| client.join().expect("no failure"));
        });
    });
    agent.stop().await;
    let gone = |name: &str| !state.join(name).exists();
    eventually("its files to go", || {
        ["xds.sock", "sds-3.sock", "handover/proxy.sock"].iter().all(|name| gone(name)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_never_gets_ready_leaves_the_running_one_as_it_was() {
    let (folder, web) = (tempfile::tempdir().unwrap(), web());
    let (control, address) = serving(folder.path(), web.address()).await;
    let options = control.agent(&folder.path().join("agent"), &[]);
    let state = &options.state;
    let agent = start(options.clone());
    let ready = status(state, "readiness", |status| status.ready).await;
    let mut connection = Connection::open(address).expect("it accepts");
    let mut check = |path: &str| {
        let response = connection.get("test", path, "").expect("an answer");
        assert_eq!((response.text().as_str(), response.keeps_open()), (path, true));
        Status::read(state).unwrap()
    };
    assert_eq!(check("/before"), ready);

    let mut stranger = options.clone();
    stranger.id = "web-1.default".into();
    let refused =
        timeout(PATIENCE, start(stranger).ended).await.expect("at once").unwrap().expect_err("another workload");
    let running = "sidecar~127.0.0.1~web-0.default~default.svc.cluster.local";
    assert!(refused.to_string().contains(&format!("an agent of {running} runs with it")), "{refused}");
    assert_eq!(check("/refused"), ready);

    let mut waiting = options.clone();
    waiting.token = Path::new("/nonexistent").to_owned();
    let waiting = start(waiting);
    eventually("the next agent to begin", || {
        std::fs::read_to_string(state.join("bootstrap.json")).ok()?.contains("sds-1.sock").then_some(())
    })
    .await;
    assert_eq!(check("/meanwhile"), ready);
    waiting.stop().await;
    assert_eq!(check("/after"), ready);
    assert!(state.join("sds.sock").exists());

    let next = start(options.clone());
    ended(agent).await;
    assert!(check("/upgraded").ready);
    next.stop().await;
}
