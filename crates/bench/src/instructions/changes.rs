//! A change of one cluster's endpoints, from the resource to a worker's cluster, in proxies that hold few and many: it must cost
//! the same.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Result, ensure};
use evenkeel_runtime_config::{Builder, Config, Environment};
use evenkeel_stats::Registry;
use evenkeel_tls::SecretStore;
use evenkeel_upstream::{HealthManager, SharedClusters, Upstreams};
use evenkeel_xds::{Any, ResourceType};
use tokio::runtime;
use tokio::task::LocalSet;

use super::{Counts, callgrind};
use crate::control_plane::{cluster_name, endpoints, resources, routes};

/// Changes that are counted.
pub const ITERATIONS: u64 = 50;
const FEW: usize = 500;
const MANY: usize = 4000;
/// Names of the functions below in the record: endpoints, with few clusters.
pub const OF_FEW: &str = "change: endpoints of one of 500 clusters";
/// Endpoints, with many clusters.
pub const OF_MANY: &str = "change: endpoints of one of 4000 clusters";
/// A route table, with few clusters.
pub const ROUTES_OF_FEW: &str = "change: a route table beside 500 clusters";
/// A route table, with many clusters.
pub const ROUTES_OF_MANY: &str = "change: a route table beside 4000 clusters";
/// Growth from few to many that is allowed: trees become deeper.
const GROWTH: f64 = 1.2;

/// Returns complaints about how the counts grow with the number of resources.
pub fn complaints(counts: &Counts) -> Vec<String> {
    let pairs = [(OF_FEW, OF_MANY), (ROUTES_OF_FEW, ROUTES_OF_MANY)];
    let grown = pairs.iter().filter_map(|(few, many)| {
        let (few_count, many_count) = (*counts.get(*few)?, *counts.get(*many)?);
        let grows = many_count as f64 > few_count as f64 * GROWTH;
        grows.then(|| format!("{many}: {many_count}, more than {GROWTH} times the {few_count} of {few}"))
    });
    grown.collect()
}

/// Makes all changes; what callgrind looks at.
pub fn run() -> Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    // Clusters have tasks.
    LocalSet::new().block_on(&runtime, async {
        let (mut few, mut many) = (Proxy::new(FEW)?, Proxy::new(MANY)?);
        // Made before, so that what making them leaves to the allocator is not counted.
        let changes = (0..u32::try_from(ITERATIONS)?).map(|number| {
            let [.., a, b] = number.to_be_bytes();
            let assigned = endpoints(&cluster_name(1), SocketAddr::from(([10, 254, a, b], 80))).any();
            Ok((assigned, routes(number + 1)?.any()))
        });
        let changes = changes.collect::<Result<Vec<_>>>()?;
        callgrind::counted(|| {
            for (assigned, table) in &changes {
                ensure!(endpoints_of_few(&mut few, black_box(assigned)), "nothing changed");
                ensure!(endpoints_of_many(&mut many, black_box(assigned)), "nothing changed");
                ensure!(routes_of_few(&mut few, black_box(table)), "nothing changed");
                ensure!(routes_of_many(&mut many, black_box(table)), "nothing changed");
            }
            Ok(())
        })
    })
}

#[inline(never)]
fn endpoints_of_few(proxy: &mut Proxy, resource: &Any) -> bool {
    proxy.builder.set_endpoints(resource).is_ok() && proxy.settle()
}

#[inline(never)]
fn endpoints_of_many(proxy: &mut Proxy, resource: &Any) -> bool {
    proxy.builder.set_endpoints(resource).is_ok() && proxy.settle()
}

#[inline(never)]
fn routes_of_few(proxy: &mut Proxy, resource: &Any) -> bool {
    proxy.builder.set_route(resource).is_ok() && proxy.settle()
}

#[inline(never)]
fn routes_of_many(proxy: &mut Proxy, resource: &Any) -> bool {
    proxy.builder.set_route(resource).is_ok() && proxy.settle()
}

/// The parts of a proxy that follow its configuration.
struct Proxy {
    builder: Builder,
    config: Arc<Config>,
    health: HealthManager,
    upstreams: Upstreams,
}

impl Proxy {
    fn new(services: usize) -> Result<Self> {
        let (shared, registry) = (Arc::<SharedClusters>::default(), Registry::new());
        let mut proxy = Self {
            builder: Builder::new(Environment::process(), SecretStore::new()),
            config: Arc::default(),
            health: HealthManager::new(Arc::clone(&shared), Arc::clone(&registry)),
            upstreams: Upstreams::new(shared, registry, true),
        };
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        let set = resources(services, nowhere, nowhere)?;
        for resource in set.of(ResourceType::Cluster).values() {
            proxy.builder.set_cluster(&resource.any())?;
        }
        for resource in set.of(ResourceType::Endpoint).values() {
            proxy.builder.set_endpoints(&resource.any())?;
        }
        for resource in set.of(ResourceType::Listener).values() {
            proxy.builder.set_listener(&resource.any())?;
        }
        for resource in set.of(ResourceType::Route).values() {
            proxy.builder.set_route(&resource.any())?;
        }
        proxy.settle();
        ensure!(proxy.config.clusters.len() == services, "all clusters serve");
        Ok(proxy)
    }

    /// Does what the control thread and a worker do; returns true when there is another configuration.
    fn settle(&mut self) -> bool {
        let config = self.builder.build();
        black_box(self.builder.take_asked());
        if Arc::ptr_eq(&config, &self.config) {
            return false;
        }
        self.health.update(&config, &self.config);
        self.upstreams.apply(&config, &self.config);
        self.config = config;
        true
    }
}
