//! What the control plane counts, under Istio's names, as Prometheus text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use evenkeel_xds::ResourceType;

/// Upper bounds of the convergence histogram's buckets, in seconds (Istio's).
const CONVERGENCE_BOUNDS: [f64; 9] = [0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0, f64::INFINITY];

/// All counters and gauges.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Connected xDS streams.
    pub streams: AtomicI64,
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
    convergence: Mutex<Convergence>,
}

#[derive(Debug, Default)]
struct PerType {
    pushes: u64,
    rejects: u64,
}

#[derive(Debug, Default)]
struct Convergence {
    counts: [u64; CONVERGENCE_BOUNDS.len()],
    total: u64,
    seconds: f64,
}

impl Metrics {
    /// A response was sent.
    pub fn pushed(&self, kind: ResourceType) {
        self.of(kind, |of| of.pushes += 1);
    }

    /// A proxy refused a response.
    pub fn rejected(&self, kind: ResourceType) {
        self.of(kind, |of| of.rejects += 1);
    }

    /// A proxy has acknowledged everything of a generation, this long after the configuration changed.
    pub fn converged(&self, after: Duration) {
        let seconds = after.as_secs_f64();
        let mut all = self.convergence.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = CONVERGENCE_BOUNDS.iter().position(|bound| seconds <= *bound);
        if let Some(count) = bucket.and_then(|i| all.counts.get_mut(i)) {
            *count += 1;
        }
        all.total += 1;
        all.seconds += seconds;
    }

    fn of(&self, kind: ResourceType, change: impl FnOnce(&mut PerType)) {
        change(self.per_type.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_default());
    }

    /// Prometheus text exposition format 0.0.4.
    pub fn prometheus_text(&self) -> String {
        let mut out = String::new();
        let mut gauge = |name: &str, value: i64| family(&mut out, name, "gauge", value);
        gauge("pilot_xds", self.streams.load(Relaxed));
        gauge("pilot_services", self.services.load(Relaxed));
        gauge("pilot_virt_services", self.virtual_services.load(Relaxed));
        gauge("evenkeel_config_refused_files", self.refused_files.load(Relaxed));
        let mut counter = |name: &str, value: &AtomicU64| family(&mut out, name, "counter", value.load(Relaxed));
        counter("evenkeel_config_pushes", &self.config_pushes);
        counter("evenkeel_xds_refused_streams", &self.refused_streams);
        counter("citadel_server_csr_count", &self.csr);
        counter("citadel_server_success_cert_issuance_count", &self.csr_issued);
        counter("citadel_server_csr_parsing_err_count", &self.csr_unreadable);
        counter("citadel_server_authentication_failure_count", &self.csr_unauthenticated);
        counter("evenkeel_csr_forbidden", &self.csr_forbidden);
        self.write_per_type(&mut out);
        self.write_convergence(&mut out);
        out
    }

    fn write_per_type(&self, out: &mut String) {
        let per_type = self.per_type.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# TYPE pilot_xds_pushes counter");
        for (kind, of) in &*per_type {
            let name = kind.short_name().to_ascii_lowercase();
            let _ = writeln!(out, "pilot_xds_pushes{{type=\"{name}\"}} {}", of.pushes);
        }
        family(out, "pilot_total_xds_rejects", "counter", per_type.values().map(|of| of.rejects).sum::<u64>());
        for (kind, of) in &*per_type {
            family(out, &format!("pilot_xds_{}_reject", kind.short_name().to_ascii_lowercase()), "gauge", of.rejects);
        }
    }

    fn write_convergence(&self, out: &mut String) {
        let all = self.convergence.lock().unwrap_or_else(PoisonError::into_inner);
        let name = "pilot_proxy_convergence_time";
        let _ = writeln!(out, "# TYPE {name} histogram");
        let mut cumulative = 0;
        for (bound, count) in CONVERGENCE_BOUNDS.iter().zip(all.counts) {
            cumulative += count;
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {cumulative}");
        }
        let _ = writeln!(out, "{name}_sum {}\n{name}_count {}", all.seconds, all.total);
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
        metrics.pushed(ResourceType::Cluster);
        metrics.rejected(ResourceType::Listener);
        metrics.converged(Duration::from_millis(300));
        let text = metrics.prometheus_text();
        for expected in [
            "# TYPE pilot_xds gauge\npilot_xds 2\n",
            "pilot_xds_pushes{type=\"cds\"} 1\n",
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
