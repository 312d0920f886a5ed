//! An endpoint's state in the words of pages that people read.

use evenkeel_filters::explain::query::EndpointState;
use evenkeel_runtime_config::cluster::Health;
use evenkeel_upstream::HostSnapshot;

/// The state of a host as a worker sees it.
pub(crate) fn endpoint_state(host: &HostSnapshot) -> EndpointState {
    let discovered = match host.discovered {
        Health::Healthy => None,
        Health::Degraded => Some("eds_degraded"),
        Health::Draining => Some("draining"),
        Health::Unhealthy => Some("failed_eds_health"),
    };
    let flags = host.health_flags.names().map(|name| name.trim_start_matches('/'));
    EndpointState {
        address: host.address.to_string(),
        healthy: host.takes_requests(),
        flags: flags.chain(discovered).map(str::to_owned).collect(),
        active_requests: host.rq_active,
        ejected_us: None,
    }
}
