//! What the control plane counts, under Istio's names, as Prometheus text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use evenkeel_api::Kind;
use evenkeel_xds::evenkeel::Ages;
use evenkeel_xds::{ResourceType, ages};

use crate::process_metrics;

/// Upper bounds of the convergence histogram's buckets, in seconds: Istio's, and below its first one finer ones.
const CONVERGENCE_BOUNDS: [f64; 15] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0, f64::INFINITY];
/// The same of the time a push takes until it is answered (Istio's, and finer below).
const PUSH_BOUNDS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0, 3.0, 5.0, 10.0, f64::INFINITY];
/// The same of the bytes of one push, as Istio's.
const SIZE_BOUNDS: [f64; 7] = [1.0, 1e4, 1e6, 4e6, 1e7, 4e7, f64::INFINITY];

/// What became of an object of the user's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// It came.
    Add,
    /// It says something else, or stands elsewhere.
    Update,
    /// It went.
    Delete,
}

/// What made proxies be sent something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// Configuration, and perhaps endpoints with it.
    Config,
    /// Endpoints alone.
    Endpoint,
}

/// All counters and gauges.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Connected xDS streams.
    pub streams: AtomicI64,
    /// xDS streams that wait until others have got their first resources, or for the translator.
    pub waiting_streams: AtomicI64,
    /// Resources that differed from what is made from nothing.
    pub mismatches: AtomicU64,
    /// Times what was left of a configuration was built anew.
    pub rebuilds: AtomicU64,
    /// Streams refused because of who asked.
    pub refused_streams: AtomicU64,
    /// Streams ended because those of their identity kept too many names subscribed.
    pub streams_over_names: AtomicU64,
    /// Services in the snapshot.
    pub services: AtomicI64,
    /// VirtualServices in the snapshot.
    pub virtual_services: AtomicI64,
    config_triggers: AtomicU64,
    endpoint_triggers: AtomicU64,
    /// Files of which an older content is in force.
    pub refused_files: AtomicI64,
    /// Certificate requests.
    pub csr: AtomicU64,
    /// Certificates issued.
    pub csr_issued: AtomicU64,
    /// Certificate requests that could not be read.
    pub csr_unreadable: AtomicU64,
    /// Certificate requests without a valid token.
    pub csr_unauthenticated: AtomicU64,
    /// Certificate requests for another identity than the token's.
    pub csr_forbidden: AtomicU64,
    /// Certificate requests not looked at, because there were so many.
    pub csr_throttled: AtomicU64,
    per_type: Mutex<BTreeMap<ResourceType, PerType>>,
    events: Mutex<BTreeMap<(Kind, Event), u64>>,
    convergence: Mutex<Histogram<{ CONVERGENCE_BOUNDS.len() }>>,
    queue: Mutex<Histogram<{ CONVERGENCE_BOUNDS.len() }>>,
}

#[derive(Debug, Default)]
struct PerType {
    pushes: u64,
    bytes: u64,
    rejects: u64,
    divergences: u64,
    push_time: Histogram<{ PUSH_BOUNDS.len() }>,
    push_size: Histogram<{ SIZE_BOUNDS.len() }>,
    /// Of [`ages::BOUNDS_US`], not cumulative, and the sum in microseconds.
    ages: Vec<u64>,
    ages_us: u64,
}

#[derive(Debug)]
struct Histogram<const N: usize> {
    counts: [u64; N],
    total: u64,
    sum: f64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self { counts: [0; N], total: 0, sum: 0.0 }
    }
}

impl<const N: usize> Histogram<N> {
    fn observe(&mut self, bounds: &[f64; N], time: Duration) {
        self.add(bounds, time.as_secs_f64(), 1);
    }

    /// The same value so many times.
    fn add(&mut self, bounds: &[f64; N], value: f64, times: u64) {
        let bucket = bounds.iter().position(|bound| value <= *bound);
        if let Some(count) = bucket.and_then(|i| self.counts.get_mut(i)) {
            *count += times;
        }
        self.total += times;
        self.sum += value * times as f64;
    }

    fn write(&self, out: &mut String, name: &str, label: &str, bounds: &[f64; N]) {
        let counts = bounds.iter().copied().zip(self.counts);
        write_histogram(out, name, label, counts, self.sum, self.total);
    }
}

impl Metrics {
    /// Responses were sent, with that many bytes of resources.
    pub fn pushed(&self, kind: ResourceType, pushes: u64, bytes: u64) {
        if pushes > 0 {
            self.of(kind, |of| {
                of.pushes += pushes;
                of.bytes += bytes;
                of.push_size.add(&SIZE_BOUNDS, bytes as f64 / pushes as f64, pushes);
            });
        }
    }

    /// A proxy refused responses.
    pub fn rejected(&self, kind: ResourceType, rejects: u64) {
        if rejects > 0 {
            self.of(kind, |of| of.rejects += rejects);
        }
    }

    /// A proxy answered a response, this long after it was made.
    pub fn answered(&self, kind: ResourceType, after: Duration) {
        self.of(kind, |of| of.push_time.observe(&PUSH_BOUNDS, after));
    }

    /// A proxy told how old what it applied was.
    pub fn aged(&self, kind: ResourceType, ages: &Ages) {
        self.of(kind, |of| {
            of.ages.resize(ages::BOUNDS_US.len() + 1, 0);
            of.ages.iter_mut().zip(&ages.buckets).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
            of.ages_us = of.ages_us.saturating_add(ages.sum_us);
        });
    }

    /// A proxy held something else than it was sent.
    pub fn diverged(&self, kind: ResourceType) {
        self.of(kind, |of| of.divergences += 1);
    }

    /// Objects came, changed or went.
    pub fn noticed(&self, events: BTreeMap<(Kind, Event), u64>) {
        let mut all = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.into_iter().for_each(|(event, count)| *all.entry(event).or_default() += count);
    }

    /// Proxies are about to be told of a change.
    pub fn triggered(&self, by: Trigger) {
        match by {
            Trigger::Config => &self.config_triggers,
            Trigger::Endpoint => &self.endpoint_triggers,
        }
        .fetch_add(1, Relaxed);
    }

    /// A proxy has acknowledged everything of a generation, this long after the configuration changed.
    pub fn converged(&self, after: Duration) {
        let mut all = self.convergence.lock().unwrap_or_else(PoisonError::into_inner);
        all.observe(&CONVERGENCE_BOUNDS, after);
    }

    /// New resources were handed to the streams of so many proxies, this long after the configuration changed.
    pub fn queued(&self, after: Duration, proxies: u64) {
        let mut all = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        all.add(&CONVERGENCE_BOUNDS, after.as_secs_f64(), proxies);
    }

    fn of(&self, kind: ResourceType, change: impl FnOnce(&mut PerType)) {
        change(self.per_type.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_default());
    }

    /// Prometheus text exposition format 0.0.4.
    pub fn prometheus_text(&self) -> String {
        let mut out = String::new();
        let build = format!("component=\"pilot\",tag=\"{}\"", env!("CARGO_PKG_VERSION"));
        labelled(&mut out, "istio_build", "gauge", [(build, 1)]);
        let mut gauge = |name: &str, value: i64| family(&mut out, name, "gauge", value);
        gauge("pilot_xds", self.streams.load(Relaxed));
        gauge("evenkeel_xds_waiting_streams", self.waiting_streams.load(Relaxed));
        gauge("pilot_services", self.services.load(Relaxed));
        gauge("pilot_virt_services", self.virtual_services.load(Relaxed));
        gauge("evenkeel_config_refused_files", self.refused_files.load(Relaxed));
        let mut counter = |name: &str, value: &AtomicU64| family(&mut out, name, "counter", value.load(Relaxed));
        counter("pilot_total_xds_internal_errors", &self.mismatches);
        counter("evenkeel_config_rebuilds", &self.rebuilds);
        counter("evenkeel_xds_refused_streams", &self.refused_streams);
        counter("evenkeel_xds_streams_over_names", &self.streams_over_names);
        counter("citadel_server_csr_count", &self.csr);
        counter("citadel_server_success_cert_issuance_count", &self.csr_issued);
        counter("citadel_server_csr_parsing_err_count", &self.csr_unreadable);
        counter("citadel_server_authentication_failure_count", &self.csr_unauthenticated);
        counter("evenkeel_csr_forbidden", &self.csr_forbidden);
        counter("evenkeel_csr_throttled", &self.csr_throttled);
        let triggers = [("config", &self.config_triggers), ("endpoint", &self.endpoint_triggers)];
        let triggers = triggers.map(|(name, count)| (format!("type=\"{name}\""), count.load(Relaxed)));
        labelled(&mut out, "pilot_push_triggers", "counter", triggers);
        self.write_events(&mut out);
        self.write_per_type(&mut out);
        let convergence = self.convergence.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(out, "# TYPE pilot_proxy_convergence_time histogram");
        convergence.write(&mut out, "pilot_proxy_convergence_time", "", &CONVERGENCE_BOUNDS);
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(out, "# TYPE pilot_proxy_queue_time histogram");
        queue.write(&mut out, "pilot_proxy_queue_time", "", &CONVERGENCE_BOUNDS);
        process_metrics::read().into_iter().for_each(|(name, kind, value)| family(&mut out, name, kind, value));
        out
    }

    /// What came of the files, as Istio counts what comes of the cluster's API: the registry's kinds, and the mesh's.
    fn write_events(&self, out: &mut String) {
        let all = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, is_registry) in [("pilot_k8s_reg_events", true), ("pilot_k8s_cfg_events", false)] {
            let of = all.iter().filter(|((kind, _), _)| registry_name(*kind).is_some() == is_registry);
            let lines = of.map(|((kind, event), count)| {
                let event = match event {
                    Event::Add => "add",
                    Event::Update => "update",
                    Event::Delete => "delete",
                };
                let kind = registry_name(*kind).unwrap_or(kind.as_str());
                (format!("type=\"{kind}\",event=\"{event}\""), *count)
            });
            labelled(out, name, "counter", lines);
        }
    }

    fn write_per_type(&self, out: &mut String) {
        let per_type = self.per_type.lock().unwrap_or_else(PoisonError::into_inner);
        let label = |kind: &ResourceType| format!("type=\"{}\"", kind.short_name().to_ascii_lowercase());
        let mut by_type = |name: &str, value: fn(&PerType) -> u64| {
            labelled(out, name, "counter", per_type.iter().map(|(kind, of)| (label(kind), value(of))));
        };
        by_type("pilot_xds_pushes", |of| of.pushes);
        by_type("evenkeel_xds_sent_bytes", |of| of.bytes);
        by_type("evenkeel_xds_divergences", |of| of.divergences);
        by_type("pilot_total_xds_rejects", |of| of.rejects);
        for (kind, of) in &*per_type {
            family(out, &format!("pilot_xds_{}_reject", kind.short_name().to_ascii_lowercase()), "gauge", of.rejects);
        }
        let _ = writeln!(out, "# TYPE pilot_xds_push_time histogram");
        for (kind, of) in &*per_type {
            of.push_time.write(out, "pilot_xds_push_time", &label(kind), &PUSH_BOUNDS);
        }
        let _ = writeln!(out, "# TYPE pilot_xds_config_size_bytes histogram");
        for (kind, of) in &*per_type {
            of.push_size.write(out, "pilot_xds_config_size_bytes", &label(kind), &SIZE_BOUNDS);
        }
        let _ = writeln!(out, "# TYPE evenkeel_proxy_config_age_seconds histogram");
        for (kind, of) in per_type.iter().filter(|(_, of)| !of.ages.is_empty()) {
            let seconds = |us: u64| us as f64 / 1e6;
            let bounds = ages::BOUNDS_US.iter().map(|us| seconds(*us)).chain([f64::INFINITY]);
            let counts = bounds.zip(of.ages.iter().copied());
            let name = "evenkeel_proxy_config_age_seconds";
            write_histogram(out, name, &label(kind), counts, seconds(of.ages_us), of.ages.iter().sum());
        }
    }
}

fn write_histogram(
    out: &mut String,
    name: &str,
    label: &str,
    counts: impl Iterator<Item = (f64, u64)>,
    sum: f64,
    total: u64,
) {
    let mut cumulative = 0;
    let comma = if label.is_empty() { "" } else { "," };
    for (bound, count) in counts {
        cumulative += count;
        let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
        let _ = writeln!(out, "{name}_bucket{{{label}{comma}le=\"{bound}\"}} {cumulative}");
    }
    let braces = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
    let _ = writeln!(out, "{name}_sum{braces} {sum}\n{name}_count{braces} {total}");
}

/// Kinds of which Istio's registry counts events, by its names.
fn registry_name(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Service => Some("Services"),
        Kind::Pod => Some("Pods"),
        Kind::EndpointSlice => Some("EndpointSlice"),
        _ => None,
    }
}

/// A metric with labels. Writing to a String cannot fail.
fn labelled(out: &mut String, name: &str, kind: &str, values: impl IntoIterator<Item = (String, u64)>) {
    let _ = writeln!(out, "# TYPE {name} {kind}");
    for (labels, value) in values {
        let _ = writeln!(out, "{name}{{{labels}}} {value}");
    }
}

fn family(out: &mut String, name: &str, kind: &str, value: impl std::fmt::Display) {
    let _ = writeln!(out, "# TYPE {name} {kind}\n{name} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_prometheus_text() {
        let metrics = Metrics::default();
        metrics.streams.store(2, Relaxed);
        metrics.pushed(ResourceType::Cluster, 1, 700);
        metrics.rejected(ResourceType::Listener, 1);
        metrics.answered(ResourceType::Cluster, Duration::from_millis(4));
        metrics.diverged(ResourceType::Route);
        let mut ages = ages::Ages::default();
        ages.record(1, 1_501);
        metrics.aged(ResourceType::Endpoint, &ages.take().expect("ages"));
        metrics.converged(Duration::from_millis(300));
        let text = metrics.prometheus_text();
        for expected in [
            "# TYPE pilot_xds gauge\npilot_xds 2\n",
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
