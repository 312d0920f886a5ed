//! A service that proxies report to, built on Envoy's published API: access logs and metrics.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_xds::pb::envoy::service::accesslog::v3 as als;
use evenkeel_xds::pb::envoy::service::accesslog::v3::access_log_service_server::{
    AccessLogService, AccessLogServiceServer,
};
use evenkeel_xds::pb::envoy::service::metrics::v3 as metrics;
use evenkeel_xds::pb::envoy::service::metrics::v3::metrics_service_server::{MetricsService, MetricsServiceServer};
use evenkeel_xds::server::grpc::Services;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

/// A running service; dropping it ends its streams.
pub struct Collector {
    pub port: u16,
    received: Received,
    runtime: Option<Runtime>,
}

/// What has been received, by stream.
#[derive(Default, Clone)]
struct Received(Arc<Mutex<Vec<Stream>>>);

/// A stream, with the metadata of its call and its messages.
#[derive(Debug, Clone)]
pub struct Stream {
    pub metadata: Vec<(String, String)>,
    pub logs: Vec<als::StreamAccessLogsMessage>,
    pub metrics: Vec<metrics::StreamMetricsMessage>,
}

impl Collector {
    pub fn start() -> Self {
        Self::start_on(0)
    }

    /// On that port; 0: any.
    pub fn start_on(port: u16) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread");
        let bind = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let listener = runtime.block_on(bind).expect("the port is free");
        let port = listener.local_addr().expect("bound").port();
        let received = Received::default();
        let logs = AccessLogServiceServer::new(received.clone()).max_decoding_message_size(64 * 1024 * 1024);
        let metrics = MetricsServiceServer::new(received.clone()).max_decoding_message_size(64 * 1024 * 1024);
        runtime.spawn(
            Server::builder()
                .serve_with_incoming(Services::default().with(logs).with(metrics), TcpListenerStream::new(listener)),
        );
        Self { port, received, runtime: Some(runtime) }
    }

    /// All streams so far.
    pub fn streams(&self) -> Vec<Stream> {
        self.received.lock().clone()
    }

    /// The number of entries so far.
    pub fn entries(&self) -> usize {
        self.received.lock().iter().flat_map(|stream| &stream.logs).map(count).sum()
    }

    /// Forgets all streams, so that those still open are not followed any more.
    pub fn forget(&self) {
        self.received.lock().clear();
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn count(message: &als::StreamAccessLogsMessage) -> usize {
    use als::stream_access_logs_message::LogEntries;
    match &message.log_entries {
        Some(LogEntries::HttpLogs(logs)) => logs.log_entry.len(),
        Some(LogEntries::TcpLogs(logs)) => logs.log_entry.len(),
        None => 0,
    }
}

impl Received {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Stream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn text_of(metadata: &tonic::metadata::MetadataMap) -> Vec<(String, String)> {
    let headers = metadata.clone().into_headers();
    headers
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect()
}

impl Received {
    /// Follows a stream to its end.
    async fn follow<M>(
        &self,
        request: Request<Streaming<M>>,
        keep: impl Fn(&mut Stream, M) + Send,
    ) -> Result<(), Status> {
        let stream = Stream { metadata: text_of(request.metadata()), logs: Vec::new(), metrics: Vec::new() };
        let place = {
            let mut streams = self.lock();
            streams.push(stream);
            streams.len() - 1
        };
        let mut messages = request.into_inner();
        while let Some(message) = messages.message().await? {
            if let Some(stream) = self.lock().get_mut(place) {
                keep(stream, message);
            }
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl AccessLogService for Received {
    async fn stream_access_logs(
        &self,
        request: Request<Streaming<als::StreamAccessLogsMessage>>,
    ) -> Result<Response<als::StreamAccessLogsResponse>, Status> {
        self.follow(request, |stream, message| stream.logs.push(message)).await?;
        Ok(Response::new(als::StreamAccessLogsResponse {}))
    }
}

#[tonic::async_trait]
impl MetricsService for Received {
    async fn stream_metrics(
        &self,
        request: Request<Streaming<metrics::StreamMetricsMessage>>,
    ) -> Result<Response<metrics::StreamMetricsResponse>, Status> {
        self.follow(request, |stream, message| stream.metrics.push(message)).await?;
        Ok(Response::new(metrics::StreamMetricsResponse {}))
    }
}
