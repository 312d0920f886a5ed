//! The hosts that a load balancer has to choose from, and those that it passes over: for recent requests.

use evenkeel_runtime_config::cluster::Health;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::snapshot::HostSnapshot;

/// The hosts that a load balancer has to choose from.
#[derive(Debug, Clone, Default)]
pub struct HostChoice {
    /// All hosts of the cluster.
    pub hosts: usize,
    /// Those that take no requests.
    pub passed_over: usize,
    /// The first of these.
    pub first_passed_over: Vec<PassedOver>,
}

/// A host that takes no requests.
#[derive(Debug, Clone)]
pub struct PassedOver {
    /// The host.
    pub host: HostSnapshot,
    /// When outlier detection ejected it.
    pub ejected: Option<Instant>,
}

impl Cluster {
    /// The hosts to choose from now. `most`: how many of those that take no requests are listed.
    pub fn host_choice(&self, most: usize) -> HostChoice {
        let hosts = self.hosts.borrow();
        let mut choice = HostChoice { hosts: hosts.hosts.len(), ..HostChoice::default() };
        for host in hosts.hosts.iter().filter(|host| !matches!(host.health(), Health::Healthy | Health::Degraded)) {
            choice.passed_over += 1;
            if choice.first_passed_over.len() < most {
                let ejected = self.ejected(host);
                choice.first_passed_over.push(PassedOver { host: HostSnapshot::of(host), ejected });
            }
        }
        choice
    }
}
