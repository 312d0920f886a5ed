//! The hosts of the local cluster: the proxies like this one, which share its work (`cluster_manager.local_cluster_name`).

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::FastMap;
use evenkeel_runtime_config::cluster::{Cluster, Health};

use crate::host::Host;

/// The local cluster's hosts by locality, for all clusters of a worker.
#[derive(Debug, Default)]
pub(crate) struct LocalHosts {
    version: Cell<u64>,
    counts: RefCell<LocalCounts>,
}

/// Counts of the local cluster's hosts.
#[derive(Debug, Default)]
pub(crate) struct LocalCounts {
    /// Healthy hosts by locality. A locality without healthy hosts has an entry, too.
    pub healthy: FastMap<Arc<str>, Size>,
    /// Whether a host is in the proxy's own locality.
    pub has_own: bool,
    /// Percentage of hosts that are healthy or degraded.
    pub usable_percent: f64,
}

/// The size of a group of hosts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// Number of hosts.
    pub hosts: u64,
    /// Sum of their weights.
    pub weight: u64,
}

impl Size {
    /// Adds a host.
    pub fn add(&mut self, host: &Host) {
        self.hosts += 1;
        self.weight += u64::from(host.weight());
    }

    /// By number, or by weight.
    pub fn measure(self, by_weight: bool) -> u64 {
        if by_weight { self.weight } else { self.hosts }
    }
}

impl LocalHosts {
    /// Replaces the hosts. Only those of the highest priority count, as in Envoy.
    pub fn set(&self, hosts: &[Rc<Host>], config: &Cluster) {
        let mut counts = LocalCounts::default();
        let (mut usable, mut all) = (0_u32, 0_u32);
        for host in hosts.iter().filter(|host| host.endpoint().priority == 0) {
            let locality = host.endpoint().locality.clone();
            counts.has_own |= config.own_locality.as_ref() == Some(&locality);
            let size = counts.healthy.entry(locality).or_default();
            let health = host.health();
            if health == Health::Healthy {
                size.add(host);
            }
            usable += u32::from(matches!(health, Health::Healthy | Health::Degraded));
            all += u32::from(!host.is_excluded(config));
        }
        counts.usable_percent = if all == 0 { 0.0 } else { 100.0 * f64::from(usable) / f64::from(all) };
        self.counts.replace(counts);
        self.version.set(self.version.get() + 1);
    }

    /// Changes whenever the hosts are replaced.
    pub fn version(&self) -> u64 {
        self.version.get()
    }

    /// The current counts.
    pub fn counts(&self) -> Ref<'_, LocalCounts> {
        self.counts.borrow()
    }
}
