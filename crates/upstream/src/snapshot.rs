//! Snapshot of one worker's clusters, for `/clusters`.

use std::sync::Arc;

use evenkeel_runtime_config::cluster::Health;

use super::health::HealthFlags;
use super::host::Host;

/// One worker's view of a cluster.
#[derive(Debug, Clone)]
pub struct ClusterSnapshot {
    /// The cluster's name.
    pub name: Arc<str>,
    /// Hosts in configured order; original destinations last.
    pub hosts: Vec<HostSnapshot>,
}

/// One worker's view of a host, as `/clusters` shows it.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct HostSnapshot {
    pub address: Arc<str>,
    pub hostname: Arc<str>,
    /// Health from service discovery; the flags hold the rest.
    pub discovered: Health,
    pub health_flags: HealthFlags,
    pub weight: u32,
    pub cx_total: u64,
    pub cx_active: u64,
    pub cx_connect_fail: u64,
    pub rq_total: u64,
    pub rq_active: u64,
    pub rq_success: u64,
    pub rq_error: u64,
    pub rq_timeout: u64,
}

impl HostSnapshot {
    /// Whether it takes requests: not if checks fail, if it is ejected, or if discovery says so.
    pub fn takes_requests(&self) -> bool {
        let out = HealthFlags::FAILED_ACTIVE_HC.and(HealthFlags::FAILED_OUTLIER_CHECK);
        !self.health_flags.has(out) && matches!(self.discovered, Health::Healthy | Health::Degraded)
    }

    pub(super) fn of(host: &Host) -> Self {
        let counts = &host.counts;
        Self {
            address: host.label.clone(),
            hostname: host.hostname.clone(),
            discovered: host.endpoint().health,
            health_flags: host.shared.flags(),
            weight: host.weight(),
            cx_total: counts.cx_total.get(),
            cx_active: counts.cx_active.get(),
            cx_connect_fail: counts.cx_connect_fail.get(),
            rq_total: counts.rq_total.get(),
            rq_active: u64::from(host.active.get()),
            rq_success: counts.rq_success.get(),
            rq_error: counts.rq_error.get(),
            rq_timeout: counts.rq_timeout.get(),
        }
    }
}
