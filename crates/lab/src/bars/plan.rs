//! The runs that the bars need.

use std::path::Path;
use std::time::Duration;

use crate::mesh::ServiceKind;
use crate::options::Options;
use crate::proxy::Scope;
use crate::scenario::Scenario;

/// One run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Its name.
    pub name: &'static str,
    /// Its purpose.
    pub title: &'static str,
    /// The scenario.
    pub scenario: Scenario,
    services: usize,
    proxies: usize,
    scope: Scope,
    kind: ServiceKind,
    changes: usize,
    interval_ms: u64,
    gateway: bool,
    /// The mesh is written through an API server.
    pub through_api_server: bool,
    /// `PILOT_DEBOUNCE_AFTER` and `PILOT_DEBOUNCE_MAX`, in milliseconds; `None`: the control plane's own.
    debounce_ms: Option<u64>,
}

/// Sizes are not divided below this.
const LEAST: usize = 4;

impl Run {
    /// The options of its scenario, with sizes divided for a trial run.
    pub fn options(&self, divide: u32, programs: Option<&Path>) -> Options {
        let divided = |size: usize| (size / divide as usize).max(size.min(LEAST));
        Options {
            services: divided(self.services),
            proxies: divided(self.proxies),
            scope: self.scope,
            kind: self.kind,
            changes: divided(self.changes),
            interval: Duration::from_millis(self.interval_ms),
            no_gateway: !self.gateway,
            debounce: self.debounce_ms.map(Duration::from_millis),
            kubernetes: programs.filter(|_| self.through_api_server).map(Path::to_owned),
            keep: divided(100),
            ..Options::default()
        }
    }
}

const BASE: Run = Run {
    name: "",
    title: "",
    scenario: Scenario::Services,
    services: 1400,
    proxies: 200,
    scope: Scope::Full,
    kind: ServiceKind::ServiceEntry,
    changes: 100,
    interval_ms: 200,
    gateway: false,
    through_api_server: false,
    debounce_ms: None,
};

/// Through an API server, with the kinds of Kubernetes, and proxies that hold what they use.
const CLUSTER: Run =
    Run { proxies: 4, scope: Scope::Learned, kind: ServiceKind::Service, through_api_server: true, ..BASE };

/// All runs, in the order of execution.
pub const RUNS: &[Run] = &[
    Run { name: "full", title: "services added, every sidecar holds everything", ..BASE },
    Run { name: "full-service", title: "the same as Service and EndpointSlice", kind: ServiceKind::Service, ..BASE },
    Run { name: "learned", title: "services added that no sidecar uses", scope: Scope::Learned, ..BASE },
    Run {
        name: "route-ready",
        title: "1,400 services in sequence, each called through a real gateway",
        services: 1,
        changes: 1400,
        interval_ms: 50,
        gateway: true,
        ..BASE
    },
    Run {
        name: "endpoints",
        title: "endpoints replaced one by one",
        scenario: Scenario::Rollout,
        interval_ms: 100,
        ..BASE
    },
    Run {
        name: "endpoints-service",
        title: "the same as Service and EndpointSlice",
        scenario: Scenario::Rollout,
        kind: ServiceKind::Service,
        interval_ms: 100,
        ..BASE
    },
    Run {
        name: "routes",
        title: "VirtualServices changed one by one among 10,000 services",
        scenario: Scenario::Routes,
        services: 10_000,
        proxies: 4,
        scope: Scope::Learned,
        ..BASE
    },
    Run {
        name: "churn",
        title: "services and endpoints together, 20 a second",
        scenario: Scenario::Churn,
        changes: 400,
        interval_ms: 50,
        ..BASE
    },
    Run {
        name: "restart",
        title: "the control plane killed and started under load",
        scenario: Scenario::Restart,
        ..BASE
    },
    Run { name: "idle", title: "nothing happens", scenario: Scenario::Idle, ..BASE },
    Run { name: "shrink", title: "1,300 of 1,400 services removed", scenario: Scenario::Shrink, ..BASE },
    Run {
        name: "storm",
        title: "5,000 proxies connect at once",
        scenario: Scenario::Storm,
        proxies: 5000,
        scope: Scope::Learned,
        ..BASE
    },
    Run {
        name: "sidecar",
        title: "a real sidecar among 10,000 services uses 5",
        scenario: Scenario::Sidecar,
        services: 10_000,
        proxies: 4,
        scope: Scope::Learned,
        ..BASE
    },
    Run {
        name: "envoy",
        title: "services added, plain Envoy clients",
        scope: Scope::Envoy,
        changes: 15,
        interval_ms: 1500,
        ..BASE
    },
    Run { name: "services-100", title: "growth: 100 services", services: 100, ..BASE },
    Run { name: "services-350", title: "growth: 350 services", services: 350, ..BASE },
    Run { name: "services-5600", title: "growth: 5,600 services", services: 5600, ..BASE },
    Run { name: "proxies-50", title: "growth: 50 sidecars", proxies: 50, ..BASE },
    Run { name: "proxies-400", title: "growth: 400 sidecars", proxies: 400, ..BASE },
    Run {
        name: "learned-5600",
        title: "growth: 5,600 services, learned scope",
        services: 5600,
        scope: Scope::Learned,
        ..BASE
    },
    Run {
        name: "learned-1000",
        title: "growth: 1,000 sidecars, learned scope",
        proxies: 1000,
        scope: Scope::Learned,
        ..BASE
    },
    Run {
        name: "cluster-served",
        title: "200 Services created through an API server, each called through a real gateway, debounce 10 ms",
        services: 100,
        changes: 200,
        gateway: true,
        debounce_ms: Some(10),
        ..CLUSTER
    },
    Run {
        name: "cluster-sequence",
        title: "1,400 services in sequence through an API server, each called through a real gateway",
        services: 1,
        changes: 1400,
        interval_ms: 100,
        gateway: true,
        ..CLUSTER
    },
    Run {
        name: "cluster-labels",
        title: "10,000 changes of labels in an API server with 1,000 services and 2,000 endpoints",
        scenario: Scenario::Labels,
        services: 1000,
        changes: 10_000,
        interval_ms: 0,
        ..CLUSTER
    },
    Run {
        name: "cluster-start",
        title: "start beside an API server with 10,000 services",
        scenario: Scenario::Idle,
        services: 10_000,
        ..CLUSTER
    },
];

/// Runs in which each sidecar holds the whole mesh. Comparing them shows how the cost of a change grows.
pub const GROWTH_FULL: [&str; 6] =
    ["services-100", "services-350", "full", "services-5600", "proxies-50", "proxies-400"];
/// The runs of that series with learned scope.
pub const GROWTH_LEARNED: [&str; 3] = ["learned", "learned-5600", "learned-1000"];
/// The runs of growing numbers of services, with 200 sidecars.
pub const BY_SERVICES: [&str; 4] = ["services-100", "services-350", "full", "services-5600"];
