//! Access log services: entries in batches over one gRPC stream of each worker and collector
//! (`envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs`), or in calls to a collector of OpenTelemetry ([`otlp`]).
//!
//! A request appends its entry to a buffer ([`buffer`]) and continues. A task of the worker sends buffered entries
//! ([`stream`]) when they are due and the service reads. While the service does not read, entries beyond the buffer's size
//! are dropped and counted.

mod buffer;
mod entry;
mod flags;
mod otlp;
mod stream;
mod tls;

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_filters::format::Record;
use evenkeel_runtime_config::grpc_access_log::{Collector, EntryKind, GrpcLog};
use evenkeel_stats::{Registry, ScopeName, Writer, layout};
use evenkeel_upstream::turn;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::buffer::Buffer;
use crate::callouts::WorkerCallouts;

layout! {
    /// `access_logs.grpc_access_log.`
    pub mod grpc_access_log {
        counters {
            /// Entries taken for an access log service.
            logs_written,
            /// Entries dropped because an access log service was away or too slow: before they were taken, or unsent when its stream ended.
            logs_dropped,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

/// A collector that gets no entries for this long is forgotten, and its stream ends: the configuration may have gone.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// State shared by a worker's collectors.
pub(super) struct Shared {
    callouts: WorkerCallouts,
    node: Arc<Node>,
    stats: Writer<grpc_access_log::Stats>,
}

/// The collectors that a worker has written to.
pub struct Collectors {
    callouts: WorkerCallouts,
    node: Arc<Node>,
    registry: Arc<Registry>,
    /// Made with the first collector, so that only proxies that need them have its statistics.
    shared: OnceCell<Rc<Shared>>,
    all: Vec<Active>,
}

/// A collector in use.
struct Active {
    config: Arc<Collector>,
    buffer: Rc<Buffer>,
    task: JoinHandle<()>,
    used: Instant,
    /// There were entries since [`Collectors::tick`].
    in_use: bool,
}

impl std::fmt::Debug for Collectors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.all.iter().map(|active| &active.config.log_name)).finish()
    }
}

impl Collectors {
    /// Creates a worker's collectors. `node`: the identity that the proxy reports.
    pub fn new(callouts: WorkerCallouts, node: Arc<Node>, registry: Arc<Registry>) -> Self {
        Self { callouts, node, registry, shared: OnceCell::new(), all: Vec::new() }
    }

    fn shared(&self) -> &Rc<Shared> {
        self.shared.get_or_init(|| {
            let stats = self.registry.scope(ScopeName::plain("access_logs.grpc_access_log.")).writer();
            Rc::new(Shared { callouts: self.callouts.clone(), node: Arc::clone(&self.node), stats })
        })
    }

    /// Appends an entry to the buffer of the log's collector, or drops it if there is no room.
    pub(super) fn write(&mut self, log: &GrpcLog, record: &Record<'_>) {
        let active = self.active(&log.collector);
        active.in_use = true;
        let taken = active.buffer.add(|out| match log.collector.kind {
            EntryKind::OpenTelemetry => otlp::append(log, record, out),
            EntryKind::Http | EntryKind::Tcp => entry::append(log, record, out),
        });
        self.shared().stats.inc(if taken {
            grpc_access_log::Counter::logs_written
        } else {
            grpc_access_log::Counter::logs_dropped
        });
    }

    fn active(&mut self, config: &Arc<Collector>) -> &mut Active {
        let same = |active: &Active| Arc::ptr_eq(&active.config, config);
        let known =
            self.all.iter().position(same).or_else(|| self.all.iter().position(|active| active.config == *config));
        let at = known.unwrap_or_else(|| {
            self.all.push(self.start(config));
            self.all.len() - 1
        });
        let active = &mut self.all[at];
        if !Arc::ptr_eq(&active.config, config) {
            // The newest configuration's is found fastest.
            active.config = Arc::clone(config);
        }
        active
    }

    fn start(&self, config: &Arc<Collector>) -> Active {
        let buffer = Rc::new(Buffer::new(config.buffer_bytes, config.flush_interval));
        let (own, shared) = (Rc::clone(&buffer), Rc::clone(self.shared()));
        let task = match config.kind {
            EntryKind::OpenTelemetry => turn::spawn(otlp::run(Arc::clone(config), own, shared)),
            EntryKind::Http | EntryKind::Tcp => turn::spawn(stream::run(Arc::clone(config), own, shared)),
        };
        Active { config: Arc::clone(config), buffer, task, used: turn::now(), in_use: true }
    }

    /// Forgets unused collectors; the worker calls this every second.
    pub(super) fn tick(&mut self, now: Instant) {
        self.all.retain_mut(|active| {
            if std::mem::take(&mut active.in_use) {
                active.used = now;
            }
            let is_used = now.saturating_duration_since(active.used) < FORGOTTEN_AFTER;
            if !is_used {
                active.buffer.close();
            }
            is_used
        });
    }

    /// Sends everything that is buffered. The tasks end when the services have it, or after a short time.
    pub(super) fn close(&mut self) -> Vec<JoinHandle<()>> {
        self.all
            .drain(..)
            .map(|active| {
                active.buffer.close();
                active.task
            })
            .collect()
    }
}
