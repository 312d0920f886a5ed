//! Statistics of the control thread, under Envoy's names.

use std::cell::Cell;

use evenkeel_stats::{Registry, Scope, ScopeName, Writer, layout};
use evenkeel_xds::ResourceType;
use evenkeel_xds::pb::envoy::config::core::v3::Node;

use crate::own_workload::{announce_version, version};

layout! {
    /// `server.`
    pub mod server {
        counters {}
        gauges { state, live, uptime, concurrency, total_connections }
        histograms {}
        statuses None
    }
}

layout! {
    /// `listener_manager.`
    pub mod listener_manager {
        counters { listener_create_failure }
        gauges { workers_started, total_listeners_active, total_listeners_warming }
        histograms {}
        statuses None
    }
}

layout! {
    /// `cluster_manager.`
    pub mod cluster_manager {
        counters {}
        gauges { active_clusters, warming_clusters }
        histograms {}
        statuses None
    }
}

layout! {
    /// `control_plane.`
    pub mod control_plane {
        counters { disconnects }
        gauges { connected_state }
        histograms {}
        statuses None
    }
}

layout! {
    /// `cluster_manager.cds.`, `listener_manager.lds.` and their like.
    pub mod discovery {
        counters { update_attempt, update_success, update_rejected }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// `on_demand.`: the contents of an on-demand scope, and how names were added and dropped.
    pub mod on_demand {
        counters { demanded, recalled, given_up, forgotten }
        gauges { virtual_hosts, listeners, clusters, absent }
        histograms {}
        statuses None
    }
}

layout! {
    /// `access_logs.file_access_log.`: lines dropped because the disk was full or too slow.
    pub mod file_access_log {
        counters { logs_dropped }
        gauges {}
        histograms {}
        statuses None
    }
}

/// The control thread's statistics writers.
pub(crate) struct ControlStats {
    pub server: Writer<server::Stats>,
    pub listeners: Writer<listener_manager::Stats>,
    pub clusters: Writer<cluster_manager::Stats>,
    pub control_plane: Writer<control_plane::Stats>,
    pub on_demand: Writer<on_demand::Stats>,
    file_access_log: Writer<file_access_log::Stats>,
    /// Dropped lines counted so far.
    logs_dropped: Cell<u64>,
    discovery: [Writer<discovery::Stats>; ResourceType::ALL.len()],
    /// Keeps `istio_build` on the page.
    _version: Option<Writer<version::Stats>>,
}

impl ControlStats {
    pub fn new(registry: &Registry, node: Option<&Node>) -> Self {
        Self {
            server: registry.scope(ScopeName::plain("server.")).writer(),
            listeners: registry.scope(ScopeName::plain("listener_manager.")).writer(),
            clusters: registry.scope(ScopeName::plain("cluster_manager.")).writer(),
            control_plane: registry.scope(ScopeName::plain("control_plane.")).writer(),
            on_demand: registry.scope(ScopeName::plain("on_demand.")).writer(),
            file_access_log: registry.scope(ScopeName::plain("access_logs.file_access_log.")).writer(),
            logs_dropped: Cell::new(0),
            discovery: ResourceType::ALL.map(|kind| {
                let scope: Scope<discovery::Stats> = registry.scope(ScopeName::plain(discovery_prefix(kind)));
                scope.writer()
            }),
            _version: node.and_then(|node| announce_version(registry, node)),
        }
    }

    /// Updates the count of access log lines dropped since the start.
    pub fn publish_dropped(&self, lines: u64) {
        let counted = self.logs_dropped.replace(lines);
        self.file_access_log.add(file_access_log::Counter::logs_dropped, lines.saturating_sub(counted));
    }

    pub fn discovery(&self, kind: ResourceType) -> &Writer<discovery::Stats> {
        &self.discovery[kind as usize]
    }
}

fn discovery_prefix(kind: ResourceType) -> &'static str {
    match kind {
        ResourceType::Cluster => "cluster_manager.cds.",
        ResourceType::Endpoint => "cluster_manager.eds.",
        ResourceType::Listener => "listener_manager.lds.",
        ResourceType::Route => "http.rds.",
        ResourceType::VirtualHost => "http.vhds.",
        ResourceType::Secret => "sds.",
        ResourceType::ExtensionConfig => "extension_config_discovery.",
        ResourceType::NameTable => "nds.",
        ResourceType::ProxyConfig => "pcds.",
    }
}
