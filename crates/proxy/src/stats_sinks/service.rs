//! The task of a metrics service: a stream of messages with the metrics of each flush
//! (`envoy.service.metrics.v3.MetricsService/StreamMetrics`).

use std::pin::Pin;
use std::sync::Arc;

use evenkeel_runtime_config::stats_sinks::MetricsService;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::envoy::service::metrics::v3::StreamMetricsMessage;
use evenkeel_xds::pb::envoy::service::metrics::v3::metrics_service_client::MetricsServiceClient;
use evenkeel_xds::pb::envoy::service::metrics::v3::stream_metrics_message::Identifier;
use evenkeel_xds::pb::io::prometheus::client::MetricFamily;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};

use super::{Counters, stats_sinks};
use crate::callouts::target;
use crate::state::Shared;
use crate::subscribe::channel::{self, ChannelError};

/// Flushes that may wait for the service; further ones are left out.
const MAX_WAITING_FLUSHES: usize = 1;
/// Messages that may wait in a stream.
const MAX_WAITING_MESSAGES: usize = 1;
/// Maximum number of metric families in a message, if the configuration sets none: some 2 MB, and gRPC's servers accept 4
/// MiB.
const MAX_FAMILIES: usize = 10_000;

/// Starts the task, and returns where it gets the metrics of a flush.
pub(super) fn start(
    config: &Arc<MetricsService>,
    node: &Node,
    shared: &Shared,
    counters: &Counters,
) -> mpsc::Sender<Vec<MetricFamily>> {
    let (sender, receiver) = mpsc::channel(MAX_WAITING_FLUSHES);
    let task = Service {
        config: Arc::clone(config),
        node: node.clone(),
        shared: shared.clone(),
        counters: Arc::clone(counters),
        open: None,
        attempt: 0,
        is_reported: false,
    };
    tokio::task::spawn_local(task.run(receiver));
    sender
}

/// Why a stream ended, or was not opened.
#[derive(Debug, thiserror::Error)]
enum ServiceError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("{0}")]
    Call(String),
    #[error("the service has ended the stream")]
    Ended,
}

struct Service {
    config: Arc<MetricsService>,
    node: Node,
    shared: Shared,
    counters: Counters,
    open: Option<Open>,
    attempt: usize,
    /// Whether its failure has been logged.
    is_reported: bool,
}

/// A stream.
struct Open {
    messages: mpsc::Sender<StreamMetricsMessage>,
    /// Number of families of the last flush that were sent.
    last: usize,
    /// Ends with the stream.
    call: Pin<Box<dyn Future<Output = ServiceError>>>,
}

impl Service {
    async fn run(mut self, mut flushes: mpsc::Receiver<Vec<MetricFamily>>) {
        loop {
            let families = match &mut self.open {
                None => flushes.recv().await,
                Some(open) => tokio::select! {
                    error = &mut open.call => {
                        self.ended(&error);
                        continue;
                    }
                    families = flushes.recv() => families,
                },
            };
            let Some(families) = families else { return };
            let mut rest = families.len();
            if let Err(error) = self.send(families, &mut rest).await {
                self.ended(&error);
                self.counters.add(stats_sinks::Counter::metrics_service_dropped, rest as u64);
            }
        }
    }

    /// Sends metrics. `rest`: how many were not sent.
    async fn send(&mut self, families: Vec<MetricFamily>, rest: &mut usize) -> Result<(), ServiceError> {
        let mut identifier = None;
        match self.open {
            None => {
                self.open = Some(self.open().await?);
                identifier = Some(Identifier { node: Some(self.node.clone()) });
            }
            // The one before has arrived, as far as anybody can tell.
            Some(_) => self.is_reported = false,
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        open.last = 0;
        let mut families = families.into_iter();
        while !families.as_slice().is_empty() {
            let size = self.config.batch_size.unwrap_or(MAX_FAMILIES);
            let envoy_metrics: Vec<_> = families.by_ref().take(size).collect();
            let count = envoy_metrics.len();
            let message = StreamMetricsMessage { identifier: identifier.take(), envoy_metrics };
            tokio::select! {
                error = &mut open.call => return Err(error),
                sent = open.messages.send(message) => sent.map_err(|_| ServiceError::Ended)?,
            }
            *rest -= count;
            open.last += count;
        }
        Ok(())
    }

    async fn open(&mut self) -> Result<Open, ServiceError> {
        let target = &self.config.target;
        self.attempt += 1;
        let channel = channel::connect(&self.shared, &target.call.cluster, self.attempt).await?;
        let authority = if target.authority.is_empty() { &target.call.cluster } else { &target.authority };
        let origin = format!("http://{authority}").parse().unwrap_or_else(|_| http::Uri::from_static("http://metrics"));
        let (messages, receiver) = mpsc::channel(MAX_WAITING_MESSAGES);
        let mut request = Request::new(ReceiverStream::new(receiver));
        for (_, name, value) in target::metadata(target).iter() {
            let named = AsciiMetadataKey::from_bytes(name).ok().zip(AsciiMetadataValue::try_from(value).ok());
            named.into_iter().for_each(|(name, value)| _ = request.metadata_mut().append(name, value));
        }
        let call = async move {
            match MetricsServiceClient::with_origin(channel, origin).stream_metrics(request).await {
                Ok(_) => ServiceError::Ended,
                Err(status) => ServiceError::Call(format!("{:?}: {}", status.code(), status.message())),
            }
        };
        Ok(Open { messages, last: 0, call: Box::pin(call) })
    }

    /// Drops the stream. If it has failed, the last message may not have arrived, and is counted as dropped.
    fn ended(&mut self, error: &ServiceError) {
        let lost = self.open.take().map_or(0, |open| open.last);
        if !matches!(error, ServiceError::Ended) {
            self.counters.add(stats_sinks::Counter::metrics_service_dropped, lost as u64);
        }
        let cluster = &*self.config.target.call.cluster;
        if !std::mem::replace(&mut self.is_reported, true) {
            tracing::warn!(cluster, %error, "metrics service: no stream; the next flush opens one");
        }
    }
}
