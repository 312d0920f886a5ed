//! Metrics of the control plane, under Istio's names.

mod admission;
mod snapshot;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use evenkeel_api::Kind;
use evenkeel_model::Snapshot;
use evenkeel_stats::{
    Exposition, Families, FamiliesOptions, Layout, Registry, Reported, ScopeName, SharedWriter, layout,
};
use evenkeel_xds::evenkeel::Ages;
use evenkeel_xds::{ResourceType, ages};

pub use self::admission::Admission;
use self::snapshot::contents;
use crate::process_metrics::{self, process};

/// Upper bounds of the convergence histogram's buckets, in seconds: Istio's, with finer ones below the first.
const CONVERGENCE_BOUNDS: [f64; 14] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0];
/// Upper bounds for the time from a push to its answer, in seconds: Istio's, with finer ones below the first.
const PUSH_BOUNDS: [f64; 11] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0, 3.0, 5.0, 10.0];
/// Upper bounds for the size of one push, in bytes: Istio's.
const SIZE_BOUNDS: [f64; 6] = [1.0, 1e4, 1e6, 4e6, 1e7, 4e7];
/// Upper bounds for the time that changes wait to be merged, in seconds: Istio's, with finer ones below the first.
const DEBOUNCE_BOUNDS: [f64; 9] = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 3.0, 5.0, 10.0];
/// Upper bounds for the time that a snapshot takes, in seconds: Istio's, with finer ones below the first.
const SNAPSHOT_BOUNDS: [f64; 6] = [0.0001, 0.001, 0.01, 0.1, 0.5, 1.0];
/// Upper bounds for the age of the configuration that proxies applied, in seconds.
const AGE_BOUNDS: [f64; ages::BOUNDS_US.len()] = seconds(ages::BOUNDS_US);
/// Maximum number of series per kind and event; there are fewer.
const MAX_EVENTS: usize = 1_000;

layout! {
    /// The control plane's own.
    pub mod plane {
        counters {
            /// Resources that differed from those built from scratch.
            pilot_total_xds_internal_errors,
            /// Rebuilds of the configuration after most of it was removed.
            evenkeel_config_rebuilds,
            /// Streams refused because of who asked.
            evenkeel_xds_refused_streams,
            /// Streams ended because the streams of their identity subscribed to too many names.
            evenkeel_xds_streams_over_names,
            /// Fetches of issuers' keys (JWKS) that succeeded.
            pilot_jwks_resolver_network_fetch_success_total,
            /// Fetches of issuers' keys (JWKS) that failed.
            pilot_jwks_resolver_network_fetch_fail_total,
            /// Certificate requests.
            citadel_server_csr_count,
            /// Certificates issued.
            citadel_server_success_cert_issuance_count,
            /// Certificate requests that could not be read.
            citadel_server_csr_parsing_err_count,
            /// Certificate requests that could be read and were not signed.
            citadel_server_csr_sign_err_count,
            /// Certificate requests whose token names no identity.
            citadel_server_id_extraction_err_count,
            /// Certificate requests without a valid token.
            citadel_server_authentication_failure_count,
            /// Certificate requests for another identity than the token's.
            evenkeel_csr_forbidden,
            /// Certificate requests that the external signer did not answer, or refused.
            evenkeel_external_signer_failures,
            /// Answers of the external signer that did not match the request.
            evenkeel_external_signer_bad_answers,
            /// Certificate requests refused unread, because there were too many.
            evenkeel_csr_throttled,
            /// WorkloadEntries that were created for workloads that connected.
            auto_registration_success_total,
            /// WorkloadEntries of workloads that connected again.
            auto_registration_updates_total,
            /// Workloads that disconnected.
            auto_registration_unregister_total,
            /// WorkloadEntries that were deleted, because their workloads did not come back.
            auto_registration_deletes_total,
            /// Registrations that were refused, or could not be stored.
            auto_registration_errors_total,
        }
        gauges {
            /// Connected xDS streams.
            pilot_xds,
            /// xDS streams that wait for the first pushes of others, or for the translator.
            evenkeel_xds_waiting_streams,
            /// xDS streams that have not answered a response for too long.
            evenkeel_xds_unanswered,
            /// Clusters whose API server cannot be followed now: what it has said last is in force.
            evenkeel_source_outages,
            /// Remote clusters that Secrets name.
            evenkeel_remote_clusters,
            /// Kinds, versions and fields of a cluster's definitions that are not read; findings name them.
            evenkeel_definition_gaps,
            /// Services in the snapshot.
            pilot_services,
            /// VirtualServices in the snapshot.
            pilot_virt_services,
            /// Files of which an older content is in force.
            evenkeel_config_refused_files,
            /// Workloads whose certificate has less than 30 % of its life left.
            evenkeel_leaves_expiring,
            /// Certificate authorities whose certificate has less than 30 % of its life left.
            evenkeel_authorities_expiring,
            /// When the root certificate of the signing authority expires, in seconds since 1970.
            citadel_server_root_cert_expiry_timestamp,
            /// Seconds until then, at the last check; negative: it has expired.
            citadel_server_root_cert_expiry_seconds,
            /// When the signing authority's certificate expires, in seconds since 1970.
            citadel_server_cert_chain_expiry_timestamp,
            /// Seconds until then, at the last check; negative: it has expired.
            citadel_server_cert_chain_expiry_seconds,
            /// Seconds since the control plane started.
            istiod_uptime_seconds,
        }
        histograms {
            /// Seconds from a change of the configuration until it was taken over, merged with others.
            pilot_debounce_time in super::DEBOUNCE_BOUNDS,
            /// Seconds for the next snapshot.
            pilot_pushcontext_init_seconds in super::SNAPSHOT_BOUNDS,
            /// Seconds from a change of the configuration until a proxy has acknowledged all of it.
            pilot_proxy_convergence_time in super::CONVERGENCE_BOUNDS,
            /// Seconds from a change of the configuration until new resources were handed to a proxy's stream.
            pilot_proxy_queue_time in super::CONVERGENCE_BOUNDS,
        }
        statuses None
    }
}

layout! {
    /// The version of this program.
    pub mod build {
        counters {}
        gauges {
            /// Version of the control plane.
            istio_build,
        }
        histograms {}
        statuses None
    }
}

layout! {
    /// By what made proxies be sent something.
    pub mod triggers {
        counters {
            /// Times proxies were told of a change.
            pilot_push_triggers,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// By what changed.
    pub mod updates {
        counters {
            /// Changes of objects, by what they are about.
            pilot_inbound_updates,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// Events of objects of the mesh's kinds.
    pub mod mesh_events {
        counters {
            /// Changes of objects of the mesh's kinds.
            pilot_k8s_cfg_events,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// Events of objects of the registry's kinds.
    pub mod registry_events {
        counters {
            /// Changes of objects of the registry's kinds.
            pilot_k8s_reg_events,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// By the type of resources.
    pub mod resources {
        counters {
            /// Responses sent.
            pilot_xds_pushes,
            /// Bytes of resources sent.
            evenkeel_xds_sent_bytes,
            /// Times a proxy held something else than it was sent.
            evenkeel_xds_divergences,
            /// Responses that proxies refused.
            pilot_total_xds_rejects,
        }
        gauges {}
        histograms {
            /// Seconds until a proxy answered a response.
            pilot_xds_push_time in super::PUSH_BOUNDS,
            /// Bytes of resources in a response.
            pilot_xds_config_size_bytes in super::SIZE_BOUNDS,
        }
        statuses None
    }
}

layout! {
    /// `pilot_xds_TYPE_`.
    pub mod rejects {
        counters {}
        gauges {
            /// Responses of the type that proxies refused.
            reject,
        }
        histograms {}
        statuses None
    }
}

layout! {
    /// By the type of resources, once a proxy has told.
    pub mod applied {
        counters {}
        gauges {}
        histograms {
            /// Seconds from a change until a proxy applied it.
            evenkeel_proxy_config_age_seconds in super::AGE_BOUNDS,
        }
        statuses None
    }
}

/// What happened to an object of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// It was added.
    Add,
    /// Its content or its place changed.
    Update,
    /// It was deleted.
    Delete,
    /// An API server reported a change of it that no proxy can see.
    UpdateSame,
}

/// What caused a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// Configuration, possibly together with endpoints.
    Config,
    /// Endpoints only.
    Endpoint,
}

/// All metrics of the control plane.
#[derive(Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    /// Metrics without labels.
    pub plane: SharedWriter<plane::Stats>,
    /// Metrics of the admission webhooks.
    pub admission: Admission,
    contents: SharedWriter<contents::Stats>,
    started: Instant,
    process: SharedWriter<process::Stats>,
    /// Held so that it is exported.
    _build: SharedWriter<build::Stats>,
    config_triggers: SharedWriter<triggers::Stats>,
    endpoint_triggers: SharedWriter<triggers::Stats>,
    updates: Families<updates::Stats>,
    mesh_events: Families<mesh_events::Stats>,
    registry_events: Families<registry_events::Stats>,
    /// In the order of [`ResourceType::ALL`]; created when something of the type is first counted.
    per_type: [OnceLock<PerType>; ResourceType::ALL.len()],
}

#[derive(Debug)]
struct PerType {
    resources: SharedWriter<resources::Stats>,
    rejects: SharedWriter<rejects::Stats>,
    applied: OnceLock<SharedWriter<applied::Stats>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let build = labelled(&registry, "", &[("component", "pilot"), ("tag", env!("CARGO_PKG_VERSION"))]);
        build.set(build::Gauge::istio_build, 1);
        let events = |name, labels| FamiliesOptions {
            name,
            prefix: "",
            labels,
            max_series: MAX_EVENTS,
            expire_after: None,
            reported: Reported::Everywhere,
        };
        let by_event: &[&str] = &["type", "event"];
        Self {
            plane: labelled(&registry, "", &[]),
            process: labelled(&registry, "process_", &[]),
            _build: build,
            config_triggers: labelled(&registry, "", &[("type", "config")]),
            endpoint_triggers: labelled(&registry, "", &[("type", "endpoint")]),
            admission: Admission::new(&registry),
            contents: snapshot::contents(&registry),
            started: Instant::now(),
            updates: registry.families(events("pilot_inbound_updates", &["type"])),
            mesh_events: registry.families(events("pilot_k8s_cfg_events", by_event)),
            registry_events: registry.families(events("pilot_k8s_reg_events", by_event)),
            per_type: Default::default(),
            registry,
        }
    }
}

fn labelled<L: Layout>(registry: &Registry, prefix: &str, labels: &[(&'static str, &str)]) -> SharedWriter<L> {
    let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    SharedWriter::of(registry.scope(ScopeName::labelled(prefix, labels)).writer())
}

impl Metrics {
    /// Counts `pushes` responses with `bytes` bytes of resources.
    pub fn pushed(&self, kind: ResourceType, pushes: u64, bytes: u64) {
        if pushes > 0 {
            let of = &self.of(kind).resources;
            of.add(resources::Counter::pilot_xds_pushes, pushes);
            of.add(resources::Counter::evenkeel_xds_sent_bytes, bytes);
            of.record(resources::Histogram::pilot_xds_config_size_bytes, bytes as f64 / pushes as f64, pushes);
        }
    }

    /// Counts responses that a proxy rejected.
    pub fn rejected(&self, kind: ResourceType, rejects: u64) {
        if rejects > 0 {
            let of = self.of(kind);
            of.resources.add(resources::Counter::pilot_total_xds_rejects, rejects);
            of.rejects.shift(rejects::Gauge::reject, i64::try_from(rejects).unwrap_or(i64::MAX));
        }
    }

    /// Records the time `after` which a proxy answered a response.
    pub fn answered(&self, kind: ResourceType, after: Duration) {
        self.of(kind).resources.record(resources::Histogram::pilot_xds_push_time, after.as_secs_f64(), 1);
    }

    /// Records the ages that a proxy reported of the configuration it applied.
    pub fn aged(&self, kind: ResourceType, ages: &Ages) {
        let applied = self.of(kind).applied.get_or_init(|| labelled(&self.registry, "", &[("type", &name_of(kind))]));
        let seconds = ages.sum_us as f64 / 1e6;
        applied.merge(applied::Histogram::evenkeel_proxy_config_age_seconds, &ages.buckets, seconds);
    }

    /// Counts a proxy that held something else than it was sent.
    pub fn diverged(&self, kind: ResourceType) {
        self.of(kind).resources.inc(resources::Counter::evenkeel_xds_divergences);
    }

    /// Counts objects that were added, changed or deleted. As Istio counts events of the cluster's API, kinds of the registry
    /// and kinds of the mesh are counted apart.
    pub fn noticed(&self, events: BTreeMap<(Kind, Event), u64>) {
        for ((kind, event), count) in events {
            self.updates.shared(&[update_name(kind, event)]).add(updates::Counter::pilot_inbound_updates, count);
            let event = match event {
                Event::Add => "add",
                Event::Update => "update",
                Event::Delete => "delete",
                Event::UpdateSame => "updatesame",
            };
            match registry_name(kind) {
                Some(kind) => {
                    let series = self.registry_events.shared(&[kind, event]);
                    series.add(registry_events::Counter::pilot_k8s_reg_events, count);
                }
                None => {
                    let series = self.mesh_events.shared(&[kind.as_str(), event]);
                    series.add(mesh_events::Counter::pilot_k8s_cfg_events, count);
                }
            }
        }
    }

    /// Records the time that a change `noticed` then has waited to be taken over, and the time that its snapshot took.
    pub fn built(&self, noticed: Instant, begun: Instant) {
        let waited = begun.saturating_duration_since(noticed);
        self.plane.record(plane::Histogram::pilot_debounce_time, waited.as_secs_f64(), 1);
        self.plane.record(plane::Histogram::pilot_pushcontext_init_seconds, begun.elapsed().as_secs_f64(), 1);
    }

    /// Counts a push, before proxies are told of the change.
    pub fn triggered(&self, by: Trigger) {
        match by {
            Trigger::Config => &self.config_triggers,
            Trigger::Endpoint => &self.endpoint_triggers,
        }
        .inc(triggers::Counter::pilot_push_triggers);
    }

    /// Records the time `after` a change at which a proxy had acknowledged all of its generation.
    pub fn converged(&self, after: Duration) {
        self.plane.record(plane::Histogram::pilot_proxy_convergence_time, after.as_secs_f64(), 1);
    }

    /// Records the time `after` a change at which new resources were handed to the streams of `proxies` proxies.
    pub fn queued(&self, after: Duration, proxies: u64) {
        self.plane.record(plane::Histogram::pilot_proxy_queue_time, after.as_secs_f64(), proxies);
    }

    fn of(&self, kind: ResourceType) -> &PerType {
        self.per_type[kind as usize].get_or_init(|| {
            let name = name_of(kind);
            PerType {
                resources: labelled(&self.registry, "", &[("type", &name)]),
                rejects: labelled(&self.registry, &format!("pilot_xds_{name}_"), &[]),
                applied: OnceLock::new(),
            }
        })
    }

    /// Renders the page for Prometheus, with figures of the snapshot in force.
    pub fn page_of(&self, world: &Snapshot, format: Exposition) -> String {
        snapshot::count(world, &self.contents);
        self.page(format)
    }

    /// Renders the page for Prometheus.
    pub fn page(&self, format: Exposition) -> String {
        let uptime = i64::try_from(self.started.elapsed().as_secs()).unwrap_or(i64::MAX);
        self.plane.set(plane::Gauge::istiod_uptime_seconds, uptime);
        process_metrics::publish(&self.process);
        self.registry.expire(Instant::now());
        self.registry.exposition(format, None)
    }
}

/// Returns the label of a type, such as `cds`.
fn name_of(kind: ResourceType) -> String {
    kind.short_name().to_ascii_lowercase()
}

/// Returns the name that Istio's registry gives events of this kind, if it counts them.
fn registry_name(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Service => Some("Services"),
        Kind::Pod => Some("Pods"),
        Kind::EndpointSlice => Some("EndpointSlice"),
        _ => None,
    }
}

/// Returns Istio's name for what a change of an object of this kind is about.
fn update_name(kind: Kind, event: Event) -> &'static str {
    match (kind, event) {
        (Kind::Service, Event::Delete) => "svcdelete",
        (Kind::Service, _) => "svc",
        (Kind::Pod | Kind::EndpointSlice | Kind::WorkloadEntry, _) => "eds",
        _ => "config",
    }
}

const fn seconds<const N: usize>(microseconds: [u64; N]) -> [f64; N] {
    let (mut seconds, mut at) = ([0.0; N], 0);
    while at < N {
        seconds[at] = microseconds[at] as f64 / 1e6;
        at += 1;
    }
    seconds
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::exposition::parse;

    use super::*;

    #[test]
    fn writes_prometheus_text() {
        let metrics = Metrics::default();
        metrics.plane.set(plane::Gauge::pilot_xds, 2);
        metrics.pushed(ResourceType::Cluster, 1, 700);
        metrics.rejected(ResourceType::Listener, 1);
        metrics.answered(ResourceType::Cluster, Duration::from_millis(4));
        metrics.diverged(ResourceType::Route);
        let mut ages = ages::Ages::default();
        ages.record(1, 1_501);
        metrics.aged(ResourceType::Endpoint, &ages.take().expect("ages"));
        metrics.converged(Duration::from_millis(300));
        metrics.noticed(BTreeMap::from([((Kind::Pod, Event::Add), 3), ((Kind::Gateway, Event::Delete), 1)]));
        metrics.triggered(Trigger::Endpoint);
        let text = metrics.page(Exposition::Prometheus);
        parse(&text, false).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let open = metrics.page(Exposition::OpenMetrics);
        parse(&open, true).unwrap_or_else(|error| panic!("{error}\n{open}"));
        // Counters keep their Istio names, even those without `_total`.
        assert!(open.contains("# TYPE pilot_xds_pushes unknown\npilot_xds_pushes{type=\"cds\"} 1\n"), "{open}");
        for expected in [
            "# TYPE pilot_xds gauge\npilot_xds 2\n",
            "pilot_push_triggers{type=\"config\"} 0\n",
            "pilot_push_triggers{type=\"endpoint\"} 1\n",
            "pilot_k8s_reg_events{type=\"Pods\",event=\"add\"} 3\n",
            "pilot_k8s_cfg_events{type=\"Gateway\",event=\"delete\"} 1\n",
            "evenkeel_metric_series_kept{family=\"pilot_k8s_cfg_events\"} 1\n",
            "istio_build{component=\"pilot\",tag=\"",
            "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total ",
            "pilot_xds_lds_reject 1\n",
            "pilot_xds_pushes{type=\"cds\"} 1\n",
            "evenkeel_xds_sent_bytes{type=\"cds\"} 700\n",
            "evenkeel_xds_divergences{type=\"rds\"} 1\n",
            "pilot_xds_push_time_bucket{type=\"cds\",le=\"0.002\"} 0\n",
            "pilot_xds_push_time_bucket{type=\"cds\",le=\"0.005\"} 1\n",
            "pilot_xds_push_time_count{type=\"cds\"} 1\n",
            "evenkeel_proxy_config_age_seconds_bucket{type=\"eds\",le=\"0.001\"} 0\n",
            "evenkeel_proxy_config_age_seconds_bucket{type=\"eds\",le=\"0.002\"} 1\n",
            "evenkeel_proxy_config_age_seconds_sum{type=\"eds\"} 0.0015\n",
            "pilot_total_xds_rejects{type=\"lds\"} 1\n",
            "pilot_xds_config_size_bytes_bucket{type=\"cds\",le=\"1\"} 0\n",
            "pilot_xds_config_size_bytes_bucket{type=\"cds\",le=\"10000\"} 1\n",
            "pilot_xds_config_size_bytes_sum{type=\"cds\"} 700\n",
            "pilot_proxy_convergence_time_bucket{le=\"0.1\"} 0\n",
            "pilot_proxy_convergence_time_bucket{le=\"0.5\"} 1\n",
            "pilot_proxy_convergence_time_bucket{le=\"+Inf\"} 1\n",
            "pilot_proxy_convergence_time_count 1\n",
        ] {
            assert!(text.contains(expected), "{expected} not in\n{text}");
        }
    }
}
