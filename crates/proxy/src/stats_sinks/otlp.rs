//! The task of a collector of OpenTelemetry: a call with the metrics of each flush
//! (`opentelemetry.proto.collector.metrics.v1.MetricsService/Export`, or a POST of the same message).

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::ext_authz::GrpcTarget;
use evenkeel_runtime_config::stats_sinks::{OtlpMetrics, OtlpTarget};
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::mpsc;
use tonic::client::Grpc;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::otlp_http::{self, HttpError};
use super::otlp_message::{Batch, Export, Exported};
use super::{Counters, stats_sinks};
use crate::callouts::target;
use crate::state::Shared;
use crate::subscribe::channel::{self, ChannelError};

const METHOD: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
/// Flushes that may wait for the collector; further ones are left out.
const MAX_WAITING_FLUSHES: usize = 1;
/// Maximum number of metrics in a request, if the configuration sets none: collectors accept 4 MiB.
const MAX_METRICS: usize = 2_000;
/// Time limit of a call without one: a collector that does not answer must not hold a flush for ever.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Starts the task, and returns where it gets the metrics of a flush.
pub(super) fn start(config: &Arc<OtlpMetrics>, shared: &Shared, counters: &Counters) -> mpsc::Sender<Batch> {
    let (sender, receiver) = mpsc::channel(MAX_WAITING_FLUSHES);
    let task = Collector {
        config: Arc::clone(config),
        shared: shared.clone(),
        counters: Arc::clone(counters),
        client: None,
        attempt: 0,
        is_reported: false,
    };
    tokio::task::spawn_local(task.run(receiver));
    sender
}

/// Why metrics did not arrive.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("{0}")]
    NotReady(#[from] tonic::transport::Error),
    #[error("{:?}: {}", .0.code(), .0.message())]
    Call(#[from] Status),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("no answer in time")]
    Late,
    #[error("{0} data points were refused: {1}")]
    Refused(i64, String),
}

struct Collector {
    config: Arc<OtlpMetrics>,
    shared: Shared,
    counters: Counters,
    client: Option<Grpc<Channel>>,
    attempt: usize,
    /// Whether its failure has been logged.
    is_reported: bool,
}

impl Collector {
    async fn run(mut self, mut flushes: mpsc::Receiver<Batch>) {
        while let Some(batch) = flushes.recv().await {
            let most = self.config.batch_size.unwrap_or(MAX_METRICS);
            for (request, count) in batch.requests(&Arc::clone(&self.config), most) {
                let limit = self.config.target.timeout().unwrap_or(CALL_LIMIT);
                let exported = tokio::time::timeout(limit, self.export(request)).await;
                match exported.unwrap_or(Err(ExportError::Late)) {
                    Ok(()) => self.is_reported = false,
                    Err(error) => self.failed(&error, count),
                }
            }
        }
    }

    async fn export(&mut self, export: Export) -> Result<(), ExportError> {
        let config = Arc::clone(&self.config);
        let answer = match &config.target {
            OtlpTarget::Grpc(target) => self.call(target, export).await?,
            OtlpTarget::Http(target) => {
                self.attempt += 1;
                otlp_http::post(&self.shared, target, self.attempt, export.encode_to_vec()).await?
            }
        };
        match answer.partial_success {
            Some(partial) if partial.rejected_data_points > 0 => {
                Err(ExportError::Refused(partial.rejected_data_points, partial.error_message))
            }
            _ => Ok(()),
        }
    }

    async fn call(&mut self, target: &GrpcTarget, export: Export) -> Result<Exported, ExportError> {
        if self.client.is_none() {
            self.attempt += 1;
            let channel = channel::connect(&self.shared, &target.call.cluster, self.attempt).await?;
            let authority = if target.authority.is_empty() { &target.call.cluster } else { &target.authority };
            let origin = format!("http://{authority}").parse();
            let origin = origin.unwrap_or_else(|_| http::Uri::from_static("http://collector"));
            self.client = Some(Grpc::with_origin(channel, origin));
        }
        let Some(client) = &mut self.client else { return Ok(Exported::default()) };
        let mut request = Request::new(export);
        for (_, name, value) in target::metadata(target).iter() {
            let named = AsciiMetadataKey::from_bytes(name).ok().zip(AsciiMetadataValue::try_from(value).ok());
            named.into_iter().for_each(|(name, value)| _ = request.metadata_mut().append(name, value));
        }
        client.ready().await?;
        let codec = ProstCodec::<Export, Exported>::default();
        Ok(client.unary(request, PathAndQuery::from_static(METHOD), codec).await?.into_inner())
    }

    /// Counts what did not arrive. The next call makes a new connection, unless the collector has answered.
    fn failed(&mut self, error: &ExportError, count: usize) {
        if !matches!(error, ExportError::Refused(..)) {
            self.client = None;
        }
        self.counters.add(stats_sinks::Counter::open_telemetry_dropped, count as u64);
        let cluster = &**self.config.target.cluster();
        if !std::mem::replace(&mut self.is_reported, true) {
            tracing::warn!(cluster, %error, "a collector did not take metrics; the next flush tries again");
        }
    }
}
