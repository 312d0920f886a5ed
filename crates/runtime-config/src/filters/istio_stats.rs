//! `istio.stats`, compiled: Istio's metrics of requests and connections.

use std::time;

use evenkeel_xds::istio::stats::{MetricConfig, PluginConfig, Reporter};
use evenkeel_xds::pb::google::protobuf::Duration;

use crate::compile::Cx;
use crate::compile::expression::expression;
use crate::expression::Expression;
use crate::filter_needs::FilterNeeds;
use crate::peer::Peer;
use crate::support::message::{MessageSupport, extension, part};

/// How often connections are reported while they live, if the configuration says nothing.
const TCP_INTERVAL: time::Duration = time::Duration::from_secs(5);

/// Most labels of a metric whose values are expressions.
const MAX_DIMENSIONS: usize = 32;

/// The filter's configuration.
#[derive(Debug)]
pub struct IstioStats {
    /// Whether a request's `Host` stands for a service that is not known.
    pub host_fallback: bool,
    /// How often connections are reported.
    pub tcp_interval: time::Duration,
    /// The metrics of each set of labels, one for each metric that is reported.
    pub groups: Vec<Group>,
    /// The workload of this proxy.
    pub own: std::sync::Arc<Peer>,
}

/// Metrics with the same labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The metrics.
    pub metrics: Metrics,
    /// Labels that they do not have.
    pub without: Vec<Box<str>>,
    /// Labels whose values are expressions, sorted by name; further ones, and replaced ones.
    pub values: Vec<Dimension>,
}

/// A label whose value is an expression.
#[derive(Debug, Clone)]
pub struct Dimension {
    /// The label's name.
    pub label: Box<str>,
    /// Its value.
    pub value: Expression,
}

impl PartialEq for Dimension {
    fn eq(&self, other: &Self) -> bool {
        self.label == other.label && self.value.compiled == other.value.compiled
    }
}

impl Eq for Dimension {}

/// A set of Istio's metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Metrics(u16);

/// Istio's metrics, by their names without `istio_`, in the order of the bits of [`Metrics`].
pub const METRICS: [&str; 10] = [
    "requests_total",
    "request_duration_milliseconds",
    "request_bytes",
    "response_bytes",
    "request_messages_total",
    "response_messages_total",
    "tcp_connections_opened_total",
    "tcp_connections_closed_total",
    "tcp_sent_bytes_total",
    "tcp_received_bytes_total",
];

impl Metrics {
    /// All of them.
    pub const ALL: Self = Self((1 << METRICS.len()) - 1);

    /// Those of requests.
    pub const OF_REQUESTS: Self = Self(0b11_1111);
    /// Those of connections.
    pub const OF_CONNECTIONS: Self = Self(0b11_1100_0000);

    /// The place of `requests_total` in [`METRICS`]; the others follow in order.
    pub const REQUESTS_TOTAL: usize = 0;
    #[allow(missing_docs)]
    pub const REQUEST_DURATION: usize = 1;
    #[allow(missing_docs)]
    pub const REQUEST_BYTES: usize = 2;
    #[allow(missing_docs)]
    pub const RESPONSE_BYTES: usize = 3;
    #[allow(missing_docs)]
    pub const REQUEST_MESSAGES: usize = 4;
    #[allow(missing_docs)]
    pub const RESPONSE_MESSAGES: usize = 5;
    #[allow(missing_docs)]
    pub const TCP_OPENED: usize = 6;
    #[allow(missing_docs)]
    pub const TCP_CLOSED: usize = 7;
    #[allow(missing_docs)]
    pub const TCP_SENT: usize = 8;
    #[allow(missing_docs)]
    pub const TCP_RECEIVED: usize = 9;

    fn named(name: &str) -> Option<Self> {
        METRICS.iter().position(|known| *known == name).map(|place| Self(1 << place))
    }

    /// Whether it has the metric at this place of [`METRICS`].
    pub fn has(self, place: usize) -> bool {
        self.0 & (1 << place) != 0
    }

    /// Whether it has one of the others.
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl FilterNeeds for IstioStats {
    fn why_once(&self) -> Option<&'static str> {
        Some("two would count everything twice")
    }
}

pub(crate) fn istio_stats(cx: &mut Cx<'_>, config: &PluginConfig) -> Option<IstioStats> {
    let interval = config.tcp_reporting_duration.as_ref();
    let interval = interval.map(|interval| Duration { seconds: interval.seconds, nanos: interval.nanos });
    let interval = cx.limit("tcp_reporting_duration", interval.as_ref(), Some(TCP_INTERVAL));
    if config.reporter != Reporter::Unspecified as i32 {
        return cx.fail_at("reporter", "there are no waypoints");
    }
    let changes = cx.each("metrics", &config.metrics, change);
    let is_complete = changes.len() == config.metrics.len();
    is_complete.then(|| IstioStats {
        host_fallback: !config.disable_host_header_fallback,
        tcp_interval: interval.unwrap_or(TCP_INTERVAL),
        groups: groups(&changes),
        own: cx.env.tracing.node.workload.clone(),
    })
}

/// A change of some metrics.
struct Change<'c> {
    metrics: Metrics,
    config: &'c MetricConfig,
    values: Vec<Dimension>,
}

fn change<'c>(cx: &mut Cx<'_>, config: &'c MetricConfig) -> Option<Change<'c>> {
    let metrics = if config.name.is_empty() { Some(Metrics::ALL) } else { Metrics::named(&config.name) };
    let Some(metrics) = metrics else {
        return cx.fail_at("name", format!("{} is none of Istio's metrics", config.name));
    };
    let mut named: Vec<(&String, &String)> = config.dimensions.iter().collect();
    named.sort_unstable();
    let mut values = Vec::new();
    for (label, text) in named {
        if !is_label(label) {
            return cx.fail_at("dimensions", format!("{label:?} is no name of a label"));
        }
        values.push(Dimension {
            label: label.as_str().into(),
            value: expression(cx, &format!("dimensions[{label:?}]"), text)?,
        });
    }
    if values.len() > MAX_DIMENSIONS {
        return cx.fail_at("dimensions", format!("there may be {MAX_DIMENSIONS} at most"));
    }
    Some(Change { metrics, config, values })
}

/// Prometheus' names of labels.
fn is_label(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && !name.starts_with(|first: char| first.is_ascii_digit()) && name.bytes().all(is_part)
}

/// Metrics with equal labels form one group.
fn groups(changes: &[Change<'_>]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for place in 0..METRICS.len() {
        let own = changes.iter().filter(|change| change.metrics.has(place));
        let (mut dropped, mut without) = (false, Vec::new());
        let mut values: Vec<Dimension> = Vec::new();
        for change in own {
            dropped = change.config.drop;
            without.extend(change.config.tags_to_remove.iter().map(|tag| Box::from(tag.as_str())));
            values.retain(|known| change.values.iter().all(|new| new.label != known.label));
            values.extend(change.values.iter().cloned());
        }
        values.sort_by(|a, b| a.label.cmp(&b.label));
        without.sort_unstable();
        without.dedup();
        if dropped {
            continue;
        }
        match groups.iter_mut().find(|group| group.without == without && group.values == values) {
            Some(group) => group.metrics.0 |= 1 << place,
            None => groups.push(Group { metrics: Metrics(1 << place), without, values }),
        }
    }
    groups
}

const NO_ROTATION: &str = "a series ends after an hour without traffic";

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    MessageSupport {
        no_effect: &[(NO_ROTATION, &["rotation_interval", "graceful_deletion_interval"])],
        ..extension("stats.PluginConfig",
            &["disable_host_header_fallback", "tcp_reporting_duration", "metrics", "reporter"])
    },
    part("stats.MetricConfig", &["name", "tags_to_remove", "drop", "dimensions"]),
];

/// The same for connections.
pub(crate) const NETWORK_FIELDS: &[MessageSupport] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_with_equal_labels_are_counted_together() {
        let check = |changes: &[(&str, &[&str], bool)], expected: &[(u16, &[&str])]| {
            let configs: Vec<MetricConfig> = changes
                .iter()
                .map(|(name, without, drop)| MetricConfig {
                    name: (*name).to_owned(),
                    tags_to_remove: without.iter().map(|tag| (*tag).to_owned()).collect(),
                    drop: *drop,
                    ..MetricConfig::default()
                })
                .collect();
            let all = |name: &str| if name.is_empty() { Some(Metrics::ALL) } else { Metrics::named(name) };
            let changes: Vec<_> = configs
                .iter()
                .map(|config| Change { metrics: all(&config.name).unwrap(), config, values: Vec::new() })
                .collect();
            let found = groups(&changes);
            let found: Vec<(u16, Vec<&str>)> =
                found.iter().map(|group| (group.metrics.0, group.without.iter().map(|tag| &**tag).collect())).collect();
            let expected: Vec<(u16, Vec<&str>)> = expected.iter().map(|(bits, tags)| (*bits, tags.to_vec())).collect();
            assert_eq!(found, expected);
        };
        check(&[], &[(0b11_1111_1111, &[])]);
        check(&[("", &["b", "a"], false)], &[(0b11_1111_1111, &["a", "b"])]);
        check(&[("requests_total", &["a"], false)], &[(1, &["a"]), (0b11_1111_1110, &[])]);
        check(&[("request_bytes", &[], true)], &[(0b11_1111_1011, &[])]);
        check(&[("", &[], true), ("requests_total", &[], false)], &[(1, &[])]);
    }
}
