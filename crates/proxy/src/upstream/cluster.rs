//! One worker's view of a cluster: its hosts with their idle connections, and who may be picked.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::Cluster;
use evenkeel_runtime_config::cluster::{Discovery, EndpointAddress, Health, Transport};
use evenkeel_stats::Writer;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::stats::{cluster, endpoint};
use crate::upstream::pool::IdleConnection;
use crate::upstream::shared::{ClusterCore, ClusterShared, EndpointShared};

/// Original destinations a worker remembers per cluster; beyond them idle ones are forgotten first.
const MAX_ORIGINAL_DESTINATIONS: usize = 4096;

/// One generation of a cluster on one worker. A request holds it to its end, so a change never disturbs it.
pub(crate) struct ClusterState {
    pub(crate) config: Arc<Cluster>,
    pub(crate) core: Arc<ClusterCore>,
    pub(crate) local: Rc<ClusterLocal>,
    /// Every host, in the order of the configuration.
    pub(crate) hosts: Vec<Rc<Host>>,
    /// Hosts that may be picked: indices into `hosts`.
    pub(crate) candidates: Vec<usize>,
    /// `candidates` includes unhealthy hosts since too few are healthy.
    pub(crate) panic: bool,
    /// Running sums of the candidates' weights; empty when all weigh the same.
    pub(crate) weight_sums: Vec<u64>,
}

/// What outlives a generation on this worker.
pub(crate) struct ClusterLocal {
    pub(crate) stats: Writer<cluster::Stats>,
    pub(crate) turn: Cell<usize>,
    /// Requests of this worker that wait for a connection.
    pub(crate) waiting: Cell<usize>,
    /// Told when an idle connection comes back while requests of this worker wait.
    pub(crate) returned: Notify,
    original_destinations: RefCell<FxHashMap<SocketAddr, Rc<Host>>>,
}

/// One endpoint on one worker.
pub(crate) struct Host {
    pub(crate) shared: Arc<EndpointShared>,
    pub(crate) stats: Writer<endpoint::Stats>,
    /// `ADDRESS:PORT`, for logs.
    pub(crate) text: Box<str>,
    /// Most recently used last.
    pub(crate) idle: RefCell<Vec<IdleConnection>>,
    pub(crate) hostname: Arc<str>,
    /// Index into the cluster's `transport_matches`.
    pub(crate) transport_index: Option<usize>,
    /// For smooth weighted round robin.
    pub(crate) current_weight: Cell<i64>,
    pub(crate) weight: u32,
    /// No longer in the cluster: connections are not kept.
    pub(crate) gone: Cell<bool>,
}

impl Host {
    fn new(shared: &Arc<EndpointShared>, hostname: Arc<str>, weight: u32, transport_index: Option<usize>) -> Rc<Self> {
        let text = match &shared.address {
            EndpointAddress::Socket(address) => address.to_string(),
            EndpointAddress::Pipe(path) => path.display().to_string(),
        };
        Rc::new(Self {
            stats: shared.scope.writer(),
            shared: Arc::clone(shared),
            text: text.into(),
            idle: RefCell::default(),
            hostname,
            transport_index,
            current_weight: Cell::new(0),
            weight,
            gone: Cell::new(false),
        })
    }
}

impl ClusterState {
    /// This worker's view of `shared`, taking over what it can from the generation before.
    pub(crate) fn next(shared: &ClusterShared, before: Option<&Rc<Self>>) -> Rc<Self> {
        let known: FxHashMap<&EndpointAddress, &Rc<Host>> =
            before.iter().flat_map(|before| &before.hosts).map(|host| (&host.shared.address, host)).collect();
        let transports_same = before.is_some_and(|before| same_transports(&before.config, &shared.cluster));
        let pairs = shared.cluster.endpoints.hosts.iter().zip(&shared.endpoints);
        let hosts: Vec<_> = pairs
            .map(|(endpoint, numbers)| {
                let keep = known.get(&endpoint.address).filter(|host| {
                    transports_same
                        && host.weight == endpoint.weight
                        && host.transport_index == endpoint.transport_index
                        && Arc::ptr_eq(&host.shared, numbers)
                });
                match keep {
                    Some(host) => Rc::clone(host),
                    None => {
                        Host::new(numbers, endpoint.hostname.clone(), endpoint.weight.max(1), endpoint.transport_index)
                    }
                }
            })
            .collect();
        if let Some(before) = before {
            let lost = before.hosts.iter().filter(|old| !hosts.iter().any(|host| Rc::ptr_eq(host, old)));
            lost.for_each(|host| host.retire());
            if !transports_same {
                before.local.original_destinations.borrow_mut().drain().for_each(|(_, host)| host.retire());
            }
        }
        let (candidates, panic) = candidates(&shared.cluster);
        let weight_sums = weight_sums(&hosts, &candidates);
        let local = before.map_or_else(|| ClusterLocal::new(&shared.core), |before| Rc::clone(&before.local));
        Rc::new(Self {
            config: Arc::clone(&shared.cluster),
            core: Arc::clone(&shared.core),
            local,
            hosts,
            candidates,
            panic,
            weight_sums,
        })
    }

    /// The host of an `ORIGINAL_DST` cluster for an address.
    pub(crate) fn original_destination(&self, address: SocketAddr) -> Rc<Host> {
        let mut known = self.local.original_destinations.borrow_mut();
        if let Some(host) = known.get(&address) {
            return Rc::clone(host);
        }
        if known.len() >= MAX_ORIGINAL_DESTINATIONS {
            known.retain(|_, host| Rc::strong_count(host) > 1 || !host.idle.borrow().is_empty());
            if known.len() >= MAX_ORIGINAL_DESTINATIONS {
                known.drain().for_each(|(_, host)| host.retire());
            }
        }
        let numbers = EndpointShared::new(EndpointAddress::Socket(address));
        let host = Host::new(&numbers, address.to_string().into(), 1, None);
        known.insert(address, Rc::clone(&host));
        host
    }

    /// All hosts with connections, known original destinations included.
    pub(crate) fn for_each_host(&self, mut f: impl FnMut(&Rc<Host>)) {
        self.hosts.iter().for_each(&mut f);
        self.local.original_destinations.borrow().values().for_each(f);
    }

    /// How bytes travel to `host`.
    pub(crate) fn transport(&self, host: &Host) -> &Transport {
        let matched = host.transport_index.and_then(|index| self.config.transport_matches.get(index));
        matched.map_or(&self.config.transport, |matched| &matched.transport)
    }

    pub(crate) fn stats(&self) -> &Writer<cluster::Stats> {
        &self.local.stats
    }

    /// Where the cluster's connections go is decided by the client's destination.
    pub(crate) fn is_original_dst(&self) -> bool {
        matches!(self.config.discovery, Discovery::OriginalDst(_))
    }

    /// The cluster is gone, or this worker ends.
    pub(crate) fn retire(&self) {
        self.for_each_host(|host| host.retire());
    }
}

impl ClusterLocal {
    fn new(core: &ClusterCore) -> Rc<Self> {
        Rc::new(Self {
            stats: core.scope.writer(),
            turn: Cell::new(0),
            waiting: Cell::new(0),
            returned: Notify::new(),
            original_destinations: RefCell::default(),
        })
    }
}

impl Host {
    fn retire(&self) {
        self.gone.set(true);
        self.idle.borrow_mut().clear();
    }
}

fn same_transports(a: &Cluster, b: &Cluster) -> bool {
    let same = |a: &Transport, b: &Transport| match (a, b) {
        (Transport::Raw, Transport::Raw) => true,
        (Transport::Tls(a), Transport::Tls(b)) => Arc::ptr_eq(a, b),
        _ => false,
    };
    a.bind == b.bind
        && a.tcp_keepalive == b.tcp_keepalive
        && same(&a.transport, &b.transport)
        && a.transport_matches.len() == b.transport_matches.len()
        && a.transport_matches.iter().zip(&b.transport_matches).all(|(a, b)| same(&a.transport, &b.transport))
}

/// Healthy hosts of the first priority that has any; degraded ones where there are no healthy ones; all of them when fewer
/// than the panic threshold are healthy.
fn candidates(cluster: &Cluster) -> (Vec<usize>, bool) {
    let hosts = &cluster.endpoints.hosts;
    let mut priorities: Vec<u32> = hosts.iter().map(|host| host.priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    let of = |priority: u32, health: Option<Health>| -> Vec<usize> {
        let fits = |at: &usize| hosts[*at].priority == priority && health.is_none_or(|health| hosts[*at].health == health);
        (0..hosts.len()).filter(fits).collect()
    };
    for health in [Health::Healthy, Health::Degraded] {
        for &priority in &priorities {
            let usable = of(priority, Some(health));
            if usable.is_empty() {
                continue;
            }
            let all = of(priority, None);
            let percent = usable.len() as f64 * 100.0 / all.len() as f64;
            let alone = priorities.len() == 1;
            let panic = health == Health::Healthy && alone && percent < cluster.panic_threshold_percent;
            return if panic { (all, true) } else { (usable, false) };
        }
    }
    match priorities.first() {
        Some(&first) if cluster.panic_threshold_percent > 0.0 => (of(first, None), true),
        _ => (Vec::new(), false),
    }
}

fn weight_sums(hosts: &[Rc<Host>], candidates: &[usize]) -> Vec<u64> {
    let weights = candidates.iter().map(|at| u64::from(hosts[*at].weight));
    let sums: Vec<_> = weights.scan(0, |sum, weight| { *sum += weight; Some(*sum) }).collect();
    let uniform = candidates.windows(2).all(|pair| hosts[pair[0]].weight == hosts[pair[1]].weight);
    if uniform { Vec::new() } else { sums }
}
