//! Per-worker counters, gauges and histograms; pages for Prometheus.
//!
//! - A [`Layout`] lists the metrics of one kind of object. [`layout!`] declares it.
//! - A [`Scope`] is a layout with a name and labels: the metrics of one cluster, one listener, one edge between services. In
//!   Prometheus' terms it has one series in the metric family of each of its metrics.
//! - A [`Writer`] is one thread's shard of a scope. No other thread writes it, so counting is a plain load and store: no
//!   lock, no read-modify-write, no shared cache line, no allocation. A page adds up the shards. Several threads can count
//!   with a [`SharedWriter`], which is not meant for the request path.
//! - The [`Registry`] has all scopes. The origin of a scope's name decides how long it lives:
//!
//! | names come from | made by | a scope lives |
//! | --- | --- | --- |
//! | configuration or code | [`Registry::scope`] | until its last owner drops it |
//! | traffic | [`Registry::families`] | until it has been unused for some time; their number is limited |
//!
//! [`Families`] count everything beyond the limit in one series whose labels have the value `other`, so that sums stay right;
//! `evenkeel_metric_series_refused_total` counts how often that happened. A worker keeps its writers in [`SeriesHandles`], and
//! those of configured scopes in [`ScopeHandles`]:
//!
//! ```
//! use evenkeel_stats::{Exemplar, Exposition, FamiliesOptions, Registry, Reported};
//!
//! evenkeel_stats::layout! {
//!     /// Requests between two services.
//!     pub mod edge {
//!         counters {
//!             /// Requests.
//!             requests_total,
//!         }
//!         gauges {}
//!         histograms { request_duration_milliseconds }
//!         statuses None
//!     }
//! }
//!
//! let registry = Registry::new();
//! let edges = registry.families::<edge::Stats>(FamiliesOptions {
//!     name: "edges",
//!     prefix: "shop_",
//!     labels: &["source", "destination"],
//!     max_series: 10_000,
//!     expire_after: Some(std::time::Duration::from_secs(900)),
//!     reported: Reported::Everywhere,
//! });
//! // Once per worker.
//! let handles = edges.handles::<u64>();
//! // For each request: 7 is what the worker calls this edge.
//! let series = handles.get(&7, |labels| {
//!     labels.push("web");
//!     labels.push("cart");
//! });
//! series.inc(edge::Counter::requests_total);
//! let exemplar = Exemplar { trace_id: [0xab; 16], span_id: [0; 8], unix_ms: 1_700_000_000_000 };
//! series.record_traced(edge::Histogram::request_duration_milliseconds, 12, &exemplar);
//! let page = registry.exposition(Exposition::OpenMetrics, None);
//! assert!(page.contains("shop_requests_total{source=\"web\",destination=\"cart\"} 1\n"));
//! ```
//!
//! There is no lock in this crate. Scopes, series and shards are published by compare-and-swap (`list.rs`). Creating one only
//! looks at those in the same hash bucket, so that a worker may do it while it serves.

// Nothing here panics on bytes from outside: what cannot be is an error, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

mod buckets;
mod exemplar;
mod exposition;
mod families;
mod histogram;
mod layout;
mod lifetime;
mod list;
mod native;
mod protobuf;
mod registry;
mod render;
mod sample;
mod scope;
mod scope_handles;
mod shard;
mod tags;
mod writer;

pub use buckets::{BucketSetting, Matches};
pub use exemplar::Exemplar;
pub use exposition::Exposition;
pub use families::{Families, FamiliesOptions, LabelValues, OTHER, Reported, SeriesHandles, metric_series};
pub use histogram::{ENVOY_BUCKETS, HistogramSnapshot, quantile_of};
pub use layout::{Layout, Metric};
pub use protobuf::{PROTOBUF, prefers_protobuf};
pub use registry::Registry;
pub use sample::{Sample, TaggedSample, Value};
pub use scope::{Scope, ScopeName};
pub use scope_handles::ScopeHandles;
pub use tags::{DefaultTags, Extractor, Find, Found, Tagging, label_name};
pub use writer::{SharedWriter, Writer};
