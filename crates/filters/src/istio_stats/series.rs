//! The series: which there may be, and how a worker finds them.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::istio_stats::{Group, IstioStats, Metrics};
use evenkeel_stats::{Families, FamiliesOptions, Layout, Registry, Reported, SeriesHandles, Writer, layout};

use super::facts::{CONNECTION_LABELS, END, Facts, LABELS, Labels, UNKNOWN};
use crate::cel;
use crate::format::Record;

/// Maximum number of series of requests, and of those of connections, of a proxy: together 10,000. Further ones are counted together.
const MAX_SERIES: usize = 5_000;

const REQUESTS: FamiliesOptions = FamiliesOptions {
    name: "istio_requests",
    prefix: "istio_",
    labels: &LABELS,
    max_series: MAX_SERIES,
    expire_after: Some(Duration::from_secs(3600)),
    reported: Reported::Everywhere,
};
const CONNECTIONS: FamiliesOptions =
    FamiliesOptions { name: "istio_connections", labels: LABELS.split_at(CONNECTION_LABELS).0, ..REQUESTS };

layout! {
    /// `istio_`: requests.
    pub mod requests {
        counters {
            /// Requests that have ended.
            requests_total,
            /// Messages of gRPC calls from clients.
            request_messages_total,
            /// Messages of gRPC calls to clients.
            response_messages_total,
        }
        gauges {}
        histograms {
            /// From the first byte of a request to the last byte of its response.
            request_duration_milliseconds,
            /// Sizes of requests.
            request_bytes,
            /// Sizes of responses.
            response_bytes,
        }
        statuses None
        ; once_counted true
    }
}

layout! {
    /// `istio_`: connections.
    pub mod connections {
        counters {
            /// Connections that have been opened.
            tcp_connections_opened_total,
            /// Connections that have been closed.
            tcp_connections_closed_total,
            /// Bytes to clients.
            tcp_sent_bytes_total,
            /// Bytes from clients.
            tcp_received_bytes_total,
        }
        gauges {}
        histograms {}
        statuses None
        ; once_counted true
    }
}

/// The series of one filter and worker, for the groups of metrics with equal labels.
pub(super) struct SeriesOf<L> {
    config: Arc<IstioStats>,
    groups: Vec<(usize, SeriesHandles<Vec<u8>, L>)>,
    key: RefCell<Vec<u8>>,
}

impl<L> fmt::Debug for SeriesOf<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SeriesOf")
    }
}

impl SeriesOf<requests::Stats> {
    pub(super) fn requests(config: Arc<IstioStats>, registry: &Registry) -> Self {
        Self::new(config, &registry.families(REQUESTS), Metrics::OF_REQUESTS)
    }
}

impl SeriesOf<connections::Stats> {
    pub(super) fn connections(config: Arc<IstioStats>, registry: &Registry) -> Self {
        Self::new(config, &registry.families(CONNECTIONS), Metrics::OF_CONNECTIONS)
    }
}

impl<L: Layout> SeriesOf<L> {
    fn new(config: Arc<IstioStats>, families: &Families<L>, of: Metrics) -> Self {
        let used = config.groups.iter().enumerate().filter(|(_, group)| group.metrics.meets(of));
        let groups = used.map(|(index, _)| (index, families.handles())).collect();
        Self { config, groups, key: RefCell::default() }
    }

    /// The filter's configuration.
    pub(super) fn config(&self) -> &IstioStats {
        &self.config
    }

    /// Calls `count` with the series of each group, and the group's metrics.
    pub(super) fn count(&self, facts: &Facts<'_>, record: &Record<'_>, count: impl Fn(Metrics, &Writer<L>)) {
        let mut key = self.key.borrow_mut();
        facts.write_key(&mut key);
        let length = key.len();
        for (index, handles) in &self.groups {
            let Some(group) = self.config.groups.get(*index) else { continue };
            let values = values(group, record);
            key.truncate(length);
            for value in &values {
                key.extend_from_slice(value.as_bytes());
                key.push(END);
            }
            let labels = Labels { without: &group.without, dimensions: &group.values, values: &values };
            let series: Rc<Writer<L>> =
                handles.get(key.as_slice(), |out| facts.write_labels(&self.config.own, &labels, out));
            count(group.metrics, &series);
        }
    }
}

/// The values of the labels that are expressions. As in Istio, one that has none is `unknown`.
fn values(group: &Group, record: &Record<'_>) -> Vec<String> {
    let values = group.values.iter().map(|dimension| cel::evaluate(&dimension.value, record));
    values.map(|value| value.map_or_else(|_| UNKNOWN.to_owned(), |value| shortened(value.to_text()))).collect()
}

/// The longest value of a label, in bytes.
const MAX_VALUE_BYTES: usize = 1024;

fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_VALUE_BYTES));
    text
}
