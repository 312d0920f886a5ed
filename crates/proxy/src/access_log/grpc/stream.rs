//! Sends a collector's entries: opens a stream when there is something to send, and again after it has ended.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_filters::callouts::grpc::{GrpcMethod, GrpcStream};
use evenkeel_filters::callouts::{CallOptions, Purpose};
use evenkeel_runtime_config::grpc_access_log::{Collector, EntryKind};
use evenkeel_upstream::turn;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::envoy::service::accesslog::v3::stream_access_logs_message::Identifier;
use tokio::time::{Instant, timeout_at};

use super::buffer::{Batch, Buffer, Due};
use super::{Shared, grpc_access_log};
use crate::callouts::target;

const METHOD: &str = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";
/// The least time between the starts of two streams: a service that is away must not cost a call for each entry.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// How long the last entries may take once no more come.
const LAST_ENTRIES: Duration = Duration::from_secs(1);
/// Maximum size of a service's answer in bytes; it is empty.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Sends what the buffer has until it is closed.
pub(super) async fn run(config: Arc<Collector>, buffer: Rc<Buffer>, shared: Rc<Shared>) {
    let mut sender = Sender { config, shared, open: None, not_before: None };
    loop {
        sender.wait(&buffer).await;
        if buffer.due() == Due::Last {
            _ = timeout_at(turn::now() + LAST_ENTRIES, sender.finish(&buffer)).await;
            sender.ended();
            return sender.drop_all(&buffer);
        }
        sender.send(&buffer).await;
    }
}

struct Sender {
    config: Arc<Collector>,
    shared: Rc<Shared>,
    open: Option<Open>,
    /// When the next stream may start.
    not_before: Option<Instant>,
}

/// A stream, and the entries sent on it.
struct Open {
    stream: GrpcStream,
    /// Bytes of all messages.
    sent: usize,
    /// Messages that have perhaps not left: where each ends in `sent`, and its number of entries.
    unsent: VecDeque<(usize, u64)>,
    is_identified: bool,
}

impl Sender {
    /// Waits until entries are due and a stream may start. Meanwhile the stream may end.
    async fn wait(&mut self, buffer: &Buffer) {
        loop {
            let due = match (buffer.due(), self.not_before.filter(|_| self.open.is_none())) {
                (Due::Last, _) | (Due::Now, None) => return,
                (Due::Now, Some(then)) => Some(then),
                (Due::At(at), then) => Some(then.map_or(at, |then| then.max(at))),
                (Due::Never, _) => None,
            };
            if due.is_some_and(|due| due <= turn::now()) {
                return;
            }
            let changed = buffer.changed();
            let changed = async {
                match due {
                    Some(due) => _ = timeout_at(due, changed).await,
                    None => changed.await,
                }
            };
            let has_ended = match &mut self.open {
                Some(open) => {
                    tokio::select! {
                        () = changed => false,
                        () = open.end() => true,
                    }
                }
                None => {
                    changed.await;
                    false
                }
            };
            if has_ended {
                self.ended();
            }
        }
    }

    /// Sends buffered entries once the service reads, unless the buffer is closed meanwhile.
    async fn send(&mut self, buffer: &Buffer) {
        loop {
            tokio::select! {
                () = self.flush(buffer) => return,
                () = buffer.changed() => if buffer.due() == Due::Last { return },
            }
        }
    }

    /// Like [`send`](Self::send), without a time limit. More entries may be added meanwhile.
    async fn flush(&mut self, buffer: &Buffer) {
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                self.not_before = Some(turn::now() + RESTART_PAUSE);
                self.open.insert(open(&self.config, &self.shared))
            }
        };
        // The end of the call also wakes a task that waits for room.
        match poll_fn(|cx| open.stream.poll_ready(cx)).await {
            Ok(()) => {
                if let Some(batch) = buffer.take() {
                    open.push(batch, &self.config, &self.shared.node);
                }
            }
            Err(_) => self.ended(),
        }
    }

    /// Sends the last entries, and waits for the service to have them.
    async fn finish(&mut self, buffer: &Buffer) {
        if buffer.is_empty() && self.open.is_none() {
            return;
        }
        self.flush(buffer).await;
        if let Some(open) = &mut self.open {
            open.stream.half_close();
            open.end().await;
        }
    }

    /// Drops the stream, and counts the entries that were not sent.
    fn ended(&mut self) {
        if let Some(mut open) = self.open.take() {
            open.forget_sent();
            let lost = open.unsent.iter().map(|(_, count)| count).sum();
            self.shared.stats.add(grpc_access_log::Counter::logs_dropped, lost);
        }
    }

    /// Counts entries that were never sent.
    fn drop_all(&self, buffer: &Buffer) {
        let count = buffer.take().map_or(0, |batch| batch.count);
        self.shared.stats.add(grpc_access_log::Counter::logs_dropped, count);
    }
}

impl Open {
    /// Waits for the end of the call; answers are empty.
    async fn end(&mut self) {
        while let Ok(Some(_)) = self.stream.receive().await {}
    }

    fn push(&mut self, batch: Batch, config: &Collector, node: &Node) {
        let identifier = (!std::mem::replace(&mut self.is_identified, true))
            .then(|| Identifier { node: Some(node.clone()), log_name: config.log_name.to_string() });
        self.sent += self.stream.push(&message(identifier.as_ref(), config.kind, &batch));
        self.forget_sent();
        self.unsent.push_back((self.sent, batch.count));
    }

    fn forget_sent(&mut self) {
        let left = self.sent.saturating_sub(self.stream.waiting());
        while self.unsent.front().is_some_and(|(end, _)| *end <= left) {
            self.unsent.pop_front();
        }
    }
}

/// A `StreamAccessLogsMessage`.
fn message(identifier: Option<&Identifier>, kind: EntryKind, batch: &Batch) -> Vec<u8> {
    let mut message = Vec::with_capacity(batch.entries.len() + 16);
    if let Some(identifier) = identifier {
        prost::encoding::message::encode(1, identifier, &mut message);
    }
    let field = match kind {
        EntryKind::Http => 2,
        // Records of OpenTelemetry have calls of their own.
        EntryKind::Tcp | EntryKind::OpenTelemetry => 3,
    };
    prost::encoding::bytes::encode(field, &batch.entries, &mut message);
    message
}

fn open(config: &Collector, shared: &Shared) -> Open {
    let service = &config.target;
    let method = GrpcMethod {
        cluster: Arc::clone(&service.call.cluster),
        path: METHOD.into(),
        authority: Arc::clone(&service.authority),
        metadata: target::metadata(service),
        // As with Envoy, `timeout` and `retry_policy` are for unary calls.
        options: CallOptions {
            envoy_headers: !service.skip_envoy_headers,
            max_answer_bytes: service.max_message_bytes.unwrap_or(MAX_ANSWER_BYTES),
            purpose: Purpose::Telemetry,
            ..CallOptions::default()
        },
    };
    let stream = GrpcStream::open(&shared.callouts, &method);
    Open { stream, sent: 0, unsent: VecDeque::new(), is_identified: false }
}
