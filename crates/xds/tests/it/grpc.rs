//! Server and client over real sockets.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::client::connection::Service;
use evenkeel_xds::client::{Client, ClientResponse, Connection, Protocol, Rejected};
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::server::{AdsServer, Session, Source, Status};
use evenkeel_xds::{Resource, ResourceSet, ResourceType};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Endpoint, Server};

struct OneSet {
    resources: watch::Receiver<Arc<ResourceSet>>,
    status: watch::Sender<Status>,
}

impl Source for OneSet {
    async fn connect(&self, node: &Node, extensions: &tonic::Extensions) -> Result<Session, tonic::Status> {
        assert!(extensions.get::<tonic::transport::server::TcpConnectInfo>().is_some());
        if node.id != "known" {
            return Err(tonic::Status::permission_denied(format!("node {:?} is not known", node.id)));
        }
        let status = self.status.clone();
        Ok(Session::new(self.resources.clone()).observed(move |now| _ = status.send(now)))
    }
}

struct Harness {
    resources: watch::Sender<Arc<ResourceSet>>,
    status: watch::Receiver<Status>,
    channel: Channel,
}

async fn serve() -> Harness {
    let (resources, resources_rx) = watch::channel(clusters(1, &[("a", 1)]));
    let (status_tx, status) = watch::channel(Status::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = AdsServer::new(Arc::new(OneSet { resources: resources_rx, status: status_tx }));
    let server = Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    Harness { resources, status, channel }
}

fn clusters(generation: u64, items: &[(&str, u64)]) -> Arc<ResourceSet> {
    let mut set = ResourceSet::new(generation);
    for (name, timeout) in items {
        let cluster = Cluster { name: (*name).into(), alt_stat_name: timeout.to_string(), ..Default::default() };
        set.insert(
            ResourceType::Cluster,
            Arc::new(Resource::from_message(*name, &cluster).with_origin("dir/a.yaml:3:1")),
        );
    }
    Arc::new(set)
}

fn client(protocol: Protocol, id: &str) -> Client {
    let mut client = Client::new(protocol, Node { id: id.into(), ..Default::default() });
    client.subscribe_all(ResourceType::Cluster);
    client.on_connect();
    client
}

async fn exchange(protocol: Protocol) {
    let mut harness = serve().await;
    let mut client = client(protocol, "known");
    let first = client.poll_request().unwrap();
    let mut connection = Connection::open(harness.channel.clone(), Service::Aggregated, first).await.unwrap();

    let update = client.on_response(connection.next().await.unwrap()).unwrap();
    assert_eq!(update.added[0].name, "a");
    client.answer(&update, &[]);
    connection.send(client.poll_request().unwrap()).await.unwrap();
    harness.status.wait_for(|status| status.is_live(1)).await.unwrap();

    harness.resources.send(clusters(2, &[("a", 1), ("b", 9)])).unwrap();
    let response: ClientResponse = connection.next().await.unwrap();
    let update = client.on_response(response).unwrap();
    client.answer(&update, &[Rejected { name: "b".into(), reason: "Cluster \"b\": bad".into() }]);
    connection.send(client.poll_request().unwrap()).await.unwrap();
    let status = harness.status.wait_for(|status| status.types[0].nack.is_some()).await.unwrap().clone();
    let nack = status.types[0].nack.as_ref().unwrap();
    assert_eq!(nack.message, "Cluster \"b\": bad");
    assert_eq!(nack.resources.last().unwrap().origin.as_deref(), Some("dir/a.yaml:3:1"));
    assert_eq!(client.held(ResourceType::Cluster).map(|(name, _)| name).collect::<Vec<_>>(), ["a"]);
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("no answer in 20 s")
}

#[tokio::test]
async fn delta_accepts_and_refuses() {
    within(exchange(Protocol::Delta)).await;
}

#[tokio::test]
async fn state_of_the_world_accepts_and_refuses() {
    within(exchange(Protocol::Sotw)).await;
}

#[tokio::test]
async fn a_node_the_source_refuses_gets_the_reason() {
    within(async {
        let harness = serve().await;
        let first = client(Protocol::Delta, "stranger").poll_request().unwrap();
        let error = match Connection::open(harness.channel.clone(), Service::Aggregated, first).await {
            Ok(mut connection) => connection.next().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(error.to_string().contains("node \"stranger\" is not known"), "{error}");
    })
    .await;
}

/// Clients that take nothing off their connections, or take it and never answer: others do not wait for them, and what
/// they are owed is merged, not queued.
#[tokio::test]
async fn a_stuck_client_delays_no_one() {
    within(Box::pin(async {
        let mut harness = serve().await;
        let mut stuck = Vec::new();
        for _ in 0..20 {
            let mut client = client(Protocol::Delta, "known");
            let first = client.poll_request().unwrap();
            stuck.push(Connection::open(harness.channel.clone(), Service::Aggregated, first).await.unwrap());
        }
        // Half of them read one response, and do not answer it.
        for connection in stuck.iter_mut().take(10) {
            connection.next().await.unwrap();
        }
        let mut client = client(Protocol::Delta, "known");
        let first = client.poll_request().unwrap();
        let mut connection = Connection::open(harness.channel.clone(), Service::Aggregated, first).await.unwrap();
        let update = client.on_response(connection.next().await.unwrap()).unwrap();
        client.answer(&update, &[]);
        connection.send(client.poll_request().unwrap()).await.unwrap();
        for generation in 2..=100 {
            harness.resources.send(clusters(generation, &[("a", generation)])).unwrap();
            let update = client.on_response(connection.next().await.unwrap()).unwrap();
            assert_eq!((update.added.len(), &*update.added[0].name), (1, "a"));
            client.answer(&update, &[]);
            connection.send(client.poll_request().unwrap()).await.unwrap();
        }
        harness.status.wait_for(|status| status.is_live(100)).await.unwrap();
        // One that wakes up gets the first response it was owed, and after its answer only what is true by now.
        let mut connection = stuck.remove(10);
        let mut client = self::client(Protocol::Delta, "known");
        client.poll_request().unwrap();
        for expected in ["1", "100"] {
            let update = client.on_response(connection.next().await.unwrap()).unwrap();
            let cluster: Cluster = evenkeel_xds::unpack(&update.added[0].any).unwrap();
            assert_eq!(cluster.alt_stat_name, expected);
            client.answer(&update, &[]);
            connection.send(client.poll_request().unwrap()).await.unwrap();
        }
    }))
    .await;
}
