//! What the control plane counts, under Istio's names, as Prometheus text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use evenkeel_xds::evenkeel::Ages;
use evenkeel_xds::{ResourceType, ages};

/// Upper bounds of the convergence histogram's buckets, in seconds: Istio's, and below its first one finer ones.
const CONVERGENCE_BOUNDS: [f64; 15] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0, f64::INFINITY];
/// The same of the time a push takes until it is answered (Istio's, and finer below).
const PUSH_BOUNDS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0, 3.0, 5.0, 10.0, f64::INFINITY];

/// All counters and gauges.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Connected xDS streams.
    pub streams: AtomicI64,
    /// xDS streams that wait until others have got their first resources.
    pub waiting_streams: AtomicI64,
    /// Resources that differed from what is made from nothing.
    pub mismatches: AtomicU64,
    /// Streams refused because of who asked.
    pub refused_streams: AtomicU64,
    /// Services in the snapshot.
    pub services: AtomicI64,
    /// VirtualServices in the snapshot.
    pub virtual_services: AtomicI64,
    /// Times the configuration was acted on.
    pub config_pushes: AtomicU64,
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
    per_type: Mutex<BTreeMap<ResourceType, PerType>>,
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
    /// Of [`ages::BOUNDS_US`], not cumulative, and the sum in microseconds.
    ages: Vec<u64>,
    ages_us: u64,
}

#[derive(Debug)]
struct Histogram<const N: usize> {
    counts: [u64; N],
    total: u64,
    seconds: f64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self { counts: [0; N], total: 0, seconds: 0.0 }
    }
}

impl<const N: usize> Histogram<N> {
    fn observe(&mut self, bounds: &[f64; N], time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = bounds.iter().position(|bound| seconds <= *bound);
        if let Some(count) = bucket.and_then(|i| self.counts.get_mut(i)) {
            *count += 1;
        }
        self.total += 1;
        self.seconds += seconds;
    }

    fn write(&self, out: &mut String, name: &str, label: &str, bounds: &[f64; N]) {
        let counts = bounds.iter().copied().zip(self.counts);
        write_histogram(out, name, label, counts, self.seconds, self.total);
    }
}

impl Metrics {
    /// Responses were sent, with that many bytes of resources.
    pub fn pushed(&self, kind: ResourceType, pushes: u64, bytes: u64) {
        if pushes > 0 {
            self.of(kind, |of| {
                of.pushes += pushes;
                of.bytes += bytes;
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

    /// A proxy has acknowledged everything of a generation, this long after the configuration changed.
    pub fn converged(&self, after: Duration) {
        let mut all = self.convergence.lock().unwrap_or_else(PoisonError::into_inner);
        all.observe(&CONVERGENCE_BOUNDS, after);
    }

    /// A proxy's new resources were handed to its stream, this long after the configuration changed.
    pub fn queued(&self, after: Duration) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).observe(&CONVERGENCE_BOUNDS, after);
    }

    fn of(&self, kind: ResourceType, change: impl FnOnce(&mut PerType)) {
        change(self.per_type.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_default());
    }

    /// Prometheus text exposition format 0.0.4.
    pub fn prometheus_text(&self) -> String {
        let mut out = String::new();
        let mut gauge = |name: &str, value: i64| family(&mut out, name, "gauge", value);
        gauge("pilot_xds", self.streams.load(Relaxed));
        gauge("evenkeel_xds_waiting_streams", self.waiting_streams.load(Relaxed));
        gauge("pilot_services", self.services.load(Relaxed));
        gauge("pilot_virt_services", self.virtual_services.load(Relaxed));
        gauge("evenkeel_config_refused_files", self.refused_files.load(Relaxed));
        let mut counter = |name: &str, value: &AtomicU64| family(&mut out, name, "counter", value.load(Relaxed));
        counter("evenkeel_config_pushes", &self.config_pushes);
        counter("evenkeel_translation_mismatches", &self.mismatches);
        counter("evenkeel_xds_refused_streams", &self.refused_streams);
        counter("citadel_server_csr_count", &self.csr);
        counter("citadel_server_success_cert_issuance_count", &self.csr_issued);
        counter("citadel_server_csr_parsing_err_count", &self.csr_unreadable);
        counter("citadel_server_authentication_failure_count", &self.csr_unauthenticated);
        counter("evenkeel_csr_forbidden", &self.csr_forbidden);
        self.write_per_type(&mut out);
        let convergence = self.convergence.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(out, "# TYPE pilot_proxy_convergence_time histogram");
        convergence.write(&mut out, "pilot_proxy_convergence_time", "", &CONVERGENCE_BOUNDS);
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(out, "# TYPE pilot_proxy_queue_time histogram");
        queue.write(&mut out, "pilot_proxy_queue_time", "", &CONVERGENCE_BOUNDS);
        out
    }

    fn write_per_type(&self, out: &mut String) {
        let per_type = self.per_type.lock().unwrap_or_else(PoisonError::into_inner);
        let label = |kind: &ResourceType| format!("type=\"{}\"", kind.short_name().to_ascii_lowercase());
        // Writing to a String cannot fail.
        let mut by_type = |name: &str, value: fn(&PerType) -> u64| {
            let _ = writeln!(out, "# TYPE {name} counter");
            for (kind, of) in &*per_type {
                let _ = writeln!(out, "{name}{{{}}} {}", label(kind), value(of));
            }
        };
        by_type("pilot_xds_pushes", |of| of.pushes);
        by_type("evenkeel_xds_sent_bytes", |of| of.bytes);
        by_type("evenkeel_xds_divergences", |of| of.divergences);
        family(out, "pilot_total_xds_rejects", "counter", per_type.values().map(|of| of.rejects).sum::<u64>());
        for (kind, of) in &*per_type {
            family(out, &format!("pilot_xds_{}_reject", kind.short_name().to_ascii_lowercase()), "gauge", of.rejects);
        }
        let _ = writeln!(out, "# TYPE pilot_xds_push_time histogram");
        for (kind, of) in &*per_type {
            of.push_time.write(out, "pilot_xds_push_time", &label(kind), &PUSH_BOUNDS);
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
            "pilot_total_xds_rejects 1\n",
            "pilot_proxy_convergence_time_bucket{le=\"0.1\"} 0\n",
            "pilot_proxy_convergence_time_bucket{le=\"0.5\"} 1\n",
            "pilot_proxy_convergence_time_bucket{le=\"+Inf\"} 1\n",
            "pilot_proxy_convergence_time_count 1\n",
        ] {
            assert!(text.contains(expected), "{expected} not in\n{text}");
        }
    }
}
