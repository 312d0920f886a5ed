//! A gRPC channel over one connection to a static cluster: TCP, TLS with the cluster's certificates, or a Unix socket.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_runtime_config::Cluster;
use evenkeel_upstream::alpn::WantedProtocol;
use evenkeel_upstream::stream::Stream;
use evenkeel_upstream::{ConnectError, Host, connect as connect_host};
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::state::Shared;

/// How long to wait for the cluster itself: its certificates or DNS results may not be there yet.
const CLUSTER_PATIENCE: Duration = Duration::from_secs(30);
/// Interval of HTTP/2 PINGs, which keep NAT mappings open and detect a dead server.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// A server that does not answer a ping for this long is dead.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a channel could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error("cluster {0:?} is not ready: its certificates or its addresses are missing")]
    NotReady(Arc<str>),
    #[error("cluster {0:?} has no endpoints")]
    NoEndpoints(Arc<str>),
    #[error("cannot connect to {address}: {error}")]
    Connect { address: String, error: ConnectError },
    #[error("HTTP/2 to {address}: {error}")]
    Http2 { address: String, error: tonic::transport::Error },
}

/// Connects to the cluster's endpoints in turn, one per attempt.
pub(crate) async fn connect(shared: &Shared, name: &Arc<str>, attempt: usize) -> Result<Channel, ChannelError> {
    let (stream, address) = open(shared, name, attempt, WantedProtocol::Http2).await?;
    over(stream).await.map_err(|error| ChannelError::Http2 { address, error })
}

/// As [`connect`], without a protocol on top.
pub(crate) async fn stream(
    shared: &Shared,
    name: &Arc<str>,
    attempt: usize,
    wanted: WantedProtocol,
) -> Result<Stream, ChannelError> {
    open(shared, name, attempt, wanted).await.map(|(stream, _)| stream)
}

/// A connection, and the address that it leads to.
async fn open(
    shared: &Shared,
    name: &Arc<str>,
    attempt: usize,
    wanted: WantedProtocol,
) -> Result<(Stream, String), ChannelError> {
    let cluster = ready_cluster(shared, name).await?;
    let hosts = &cluster.endpoints.hosts;
    let endpoint = hosts.get(attempt % hosts.len().max(1)).ok_or_else(|| ChannelError::NoEndpoints(name.clone()))?;
    let matched = endpoint.transport_index.and_then(|index| cluster.transport_matches.get(index));
    let transport = matched.map_or(&cluster.transport, |matched| &matched.transport);
    let address = endpoint.address.to_string();
    let host = Host::new(endpoint, transport.clone());
    match connect_host(&cluster, &host, wanted, None).await {
        Ok(stream) => Ok((stream, address)),
        Err(error) => Err(ChannelError::Connect { address, error }),
    }
}

/// Waits until the cluster is warm.
async fn ready_cluster(shared: &Shared, name: &Arc<str>) -> Result<Arc<Cluster>, ChannelError> {
    let ready = async {
        loop {
            let settled = shared.settled.notified();
            let cluster = shared.state.borrow().cluster(name);
            match cluster {
                Some(cluster) => return cluster,
                None => settled.await,
            }
        }
    };
    tokio::time::timeout(CLUSTER_PATIENCE, ready).await.map_err(|_| ChannelError::NotReady(name.clone()))
}

async fn over(stream: Stream) -> Result<Channel, tonic::transport::Error> {
    let stream = Arc::new(Mutex::new(stream.into_sendable().ok().map(TokioIo::new)));
    // The authority serves virtual hosting, which is not used between a proxy and its control plane.
    Endpoint::from_static("http://xds")
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_with_connector(service_fn(move |_| {
            // A channel has a single connection: when it breaks, the xDS stream's retry makes a new channel.
            let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
            std::future::ready(stream.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected)))
        }))
        .await
}
