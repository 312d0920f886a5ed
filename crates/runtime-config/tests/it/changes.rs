//! Random changes, applied one by one, end in the same state as a builder that gets everything at once. Debug builds also
//! examine everything after each build (`builder/check.rs`), so every step in between is compared, too.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_runtime_config::builder::SubscriptionChange;
use evenkeel_runtime_config::{Builder, Config, Demand, Reference, RouteTable, Source};
use evenkeel_testkit::{Random, TestCa, cases};
use evenkeel_xds::{Any, ResourceType};

use crate::input;

/// Changes of one seed, and how many come between two builds at most.
const CHANGES: usize = 60;
const MOST_AT_ONCE: usize = 4;
/// Builds until what one answer asks for has been answered, too.
const MOST_ROUNDS: usize = 50;
const HOSTS: [&str; 3] = ["a.test", "b.test", "c.test"];

/// What the control plane has: by type and name, the version of each.
type World = BTreeMap<(ResourceType, String), usize>;

/// Names there may be of each type.
fn universe() -> Vec<(ResourceType, String)> {
    let mut all = Vec::new();
    for number in 0..4 {
        all.push((ResourceType::Cluster, format!("c{number}")));
        all.push((ResourceType::Endpoint, format!("c{number}")));
        all.push((ResourceType::Listener, format!("l{number}")));
    }
    for number in 0..3 {
        all.push((ResourceType::Route, format!("r{number}")));
        all.extend(HOSTS.map(|host| (ResourceType::VirtualHost, format!("r{number}/{host}"))));
    }
    all.push((ResourceType::Secret, "ROOTCA".to_owned()));
    all
}

fn cluster(name: &str, version: usize) -> String {
    let eds = "{ eds_config: { ads: {}, resource_api_version: V3 } }";
    let seconds = 1 + version;
    match version % 5 {
        0 => format!("name: {name}\nload_assignment: {{ cluster_name: {name} }}\nconnect_timeout: {seconds}s"),
        1 => format!(
            "name: {name}\ntype: STRICT_DNS\nload_assignment: {{ endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: \
             {{ socket_address: {{ address: {name}.test, port_value: {seconds} }} }} }} }}] }}] }}"
        ),
        2 => format!(
            "name: {name}\ntype: EDS\neds_cluster_config: {eds}\nconnect_timeout: {seconds}s
transport_socket:
  name: tls
  typed_config:
    \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
    common_tls_context:
      validation_context_sds_secret_config: {{ name: ROOTCA, sds_config: {{ ads: {{}}, resource_api_version: V3 }} }}"
        ),
        _ => format!("name: {name}\ntype: EDS\neds_cluster_config: {eds}\nconnect_timeout: {seconds}s"),
    }
}

fn endpoints(name: &str, version: usize) -> String {
    let hosts: Vec<_> = (0..version % 3)
        .map(|n| {
            format!(
                "{{ endpoint: {{ address: {{ socket_address: {{ address: 10.0.{n}.{version}, port_value: 80 }} }} }} }}"
            )
        })
        .collect();
    format!("cluster_name: {name}\nendpoints: [{{ lb_endpoints: [{}] }}]", hosts.join(", "))
}

fn listener(name: &str, version: usize, by_name: bool) -> String {
    let port = 1000 + u16::from(name.as_bytes()[1]);
    let (route, cluster) = (version % 3, version % 4);
    // None names one that leads back to it: they would keep each other.
    let companion = match name.as_bytes()[1] - b'0' {
        number @ 0..3 if by_name => {
            let other = number + 1;
            format!("metadata: {{ filter_metadata: {{ evenkeel.dev: {{ listeners: \"l{other}\" }} }} }}\n")
        }
        _ => String::new(),
    };
    let http = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let filter = match version % 4 {
        0 => format!("\"@type\": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
      stat_prefix: s{version}
      cluster: c{cluster}"),
        1 => format!("\"@type\": type.googleapis.com/{http}
      stat_prefix: s{version}
      route_config: {{ name: own, validate_clusters: false, virtual_hosts: [{{ name: h, domains: [\"*\"], routes: [{{ match: {{ prefix: / }}, route: {{ cluster: c{cluster} }} }}] }}] }}
      http_filters: [{{ name: r, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }} }}]"),
        _ => format!("\"@type\": type.googleapis.com/{http}
      stat_prefix: s{version}
      rds: {{ route_config_name: r{route}, config_source: {{ ads: {{}}, resource_api_version: V3 }} }}
      http_filters:
      - {{ name: d, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.on_demand.v3.OnDemand }} }}
      - {{ name: r, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }} }}"),
    };
    format!(
        "name: {name}
address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
{companion}filter_chains:
- filters:
  - name: f
    typed_config:
      {filter}
"
    )
}

fn route(name: &str, version: usize) -> String {
    format!(
        "name: {name}\nvhds: {{ config_source: {{ ads: {{}} }} }}\nvirtual_hosts: [{{ name: v{version}, domains: [\"*\"], \
         routes: [{{ match: {{ prefix: / }}, route: {{ cluster: c{} }} }}] }}]",
        version % 4
    )
}

fn virtual_host(name: &str, version: usize) -> String {
    let (_, host) = name.split_once('/').expect("TABLE/HOST");
    format!(
        "name: {host}{version}\ndomains: [{host}]\nroutes: [{{ match: {{ prefix: / }}, route: {{ cluster: c{} }} }}]",
        version % 4
    )
}

/// Makes resources, each once.
struct Maker {
    made: RefCell<HashMap<(ResourceType, String, usize), Any>>,
    by_name: bool,
    roots: String,
}

impl Maker {
    fn make(&self, kind: ResourceType, name: &str, version: usize) -> Any {
        let key = (kind, name.to_owned(), version);
        if let Some(any) = self.made.borrow().get(&key) {
            return any.clone();
        }
        let any = match kind {
            ResourceType::Cluster => input::cluster(&cluster(name, version)),
            ResourceType::Endpoint => input::endpoints(&endpoints(name, version)),
            ResourceType::Listener => input::listener(&listener(name, version, self.by_name)),
            ResourceType::Route => input::route(&route(name, version)),
            ResourceType::VirtualHost => {
                input::resource("envoy.config.route.v3.VirtualHost", &virtual_host(name, version))
            }
            ResourceType::Secret => input::secret(&self.roots),
            ResourceType::ExtensionConfig | ResourceType::NameTable | ResourceType::ProxyConfig => {
                unreachable!("nothing is made of it")
            }
        };
        self.made.borrow_mut().insert(key, any.clone());
        any
    }
}

/// A builder and the control plane it is subscribed to.
struct Subscriber<'m> {
    builder: Builder,
    maker: &'m Maker,
    asked: Vec<SubscriptionChange>,
    resolved: BTreeSet<Arc<str>>,
}

impl<'m> Subscriber<'m> {
    fn new(maker: &'m Maker) -> Self {
        let mut builder = input::builder();
        if maker.by_name {
            builder.ask_by_name(["l0".into(), "l1".into()]);
        }
        Self { builder, maker, asked: Vec::new(), resolved: BTreeSet::new() }
    }

    fn build(&mut self) -> Arc<Config> {
        let config = self.builder.build();
        self.asked.extend(self.builder.take_asked());
        config
    }

    /// All of the type comes without being asked for by name.
    fn comes_whole(&self, kind: ResourceType) -> bool {
        !self.maker.by_name
            && matches!(kind, ResourceType::Cluster | ResourceType::Listener | ResourceType::VirtualHost)
    }

    /// What the control plane has under this name now, if that is of interest.
    fn tell(&mut self, world: &World, kind: ResourceType, name: &str) {
        if !self.comes_whole(kind) && !self.builder.asks_for(kind, name) {
            return;
        }
        let builder = &mut self.builder;
        let reference = Reference { name: name.into(), source: Source::Ads, initial_fetch_timeout: None };
        match world.get(&(kind, name.to_owned())) {
            Some(version) => {
                let any = self.maker.make(kind, name, *version);
                match kind {
                    ResourceType::VirtualHost => builder.set_virtual_host(name, &any).expect("good"),
                    _ => input::set(builder, &any).expect("good"),
                }
            }
            None => match kind {
                ResourceType::Cluster => builder.remove_cluster(name),
                ResourceType::Listener => builder.remove_listener(name),
                ResourceType::Endpoint => {
                    builder.remove_endpoints(name);
                    builder.give_up_endpoints(&reference);
                }
                ResourceType::Route => builder.give_up_route(&reference),
                ResourceType::Secret => builder.give_up_secret(&reference),
                ResourceType::VirtualHost => builder.remove_virtual_host(name),
                ResourceType::ExtensionConfig | ResourceType::NameTable | ResourceType::ProxyConfig => {}
            },
        }
    }

    /// Answers whatever is asked until nothing is asked any more.
    fn settle(&mut self, world: &World) -> Arc<Config> {
        for _ in 0..MOST_ROUNDS {
            let before = self.build();
            let asked = std::mem::take(&mut self.asked);
            asked.iter().filter(|asked| asked.wanted).for_each(|asked| self.tell(world, asked.kind, &asked.name));
            if self.builder.take_dns_changed() {
                let clusters: BTreeSet<_> = self.builder.dns_clusters().into_iter().map(|dns| dns.cluster).collect();
                for cluster in clusters.difference(&self.resolved) {
                    let address = IpAddr::from([10, 9, 9, cluster.as_bytes()[1]]);
                    self.builder.set_dns_endpoints(cluster, &format!("{cluster}.test"), &[address]);
                }
                self.resolved = clusters;
            }
            let now = self.build();
            if asked.is_empty() && self.asked.is_empty() && Arc::ptr_eq(&before, &now) {
                let missing = self.builder.missing();
                assert_eq!(missing, Default::default(), "all has been answered");
                return now;
            }
        }
        panic!("there is always more to ask: {:?}", self.builder.missing());
    }
}

/// Everything a configuration says, but for what a control plane that was asked in another order may have said of what does
/// not exist.
fn render(config: &Config) -> BTreeMap<String, String> {
    let table = |table: &RouteTable| {
        let host = |host: &str| {
            let found = table.find_virtual_host(host.as_bytes()).map(|found| format!("{found:?}"));
            format!("{host}: {found:?}, asks: {:?}\n", table.unanswered(host.as_bytes()))
        };
        let hosts: String = HOSTS.iter().chain(&["other.test"]).map(|name| host(name)).collect();
        format!("{:?}\n{hosts}", table.virtual_hosts)
    };
    let clusters = config.clusters.iter().map(|(name, cluster)| (format!("cluster {name}"), format!("{cluster:#?}")));
    let listeners =
        config.listeners.iter().map(|(name, listener)| (format!("listener {name}"), format!("{listener:#?}")));
    let routes = config.routes.iter().map(|(name, route)| (format!("routes {name}"), table(route)));
    let absent = config.absent.iter().map(|demand| (format!("no {demand}"), String::new()));
    clusters.chain(listeners).chain(routes).chain(absent).collect()
}

/// A change of the world, or of what is demanded of it.
fn change(random: &mut Random, world: &mut World, told: &mut Subscriber<'_>, demanded: &mut BTreeSet<Demand>) {
    if told.maker.by_name && random.once_in(4) {
        let demand = match random.below(3) {
            0 => Demand::Cluster(format!("c{}", random.below(4)).into()),
            1 => Demand::Listener(format!("l{}", random.below(4)).into()),
            _ => {
                Demand::VirtualHost { table: format!("r{}", random.below(3)).into(), host: random.pick(&HOSTS).into() }
            }
        };
        if !demanded.remove(&demand) {
            demanded.insert(demand.clone());
            told.builder.demand(demand);
        } else {
            told.builder.withdraw(&demand);
        }
        return;
    }
    let all = universe();
    let (kind, name) = all[random.below(all.len())].clone();
    // What is in use of these stays when it is gone; a server that never had it is another story.
    let stays = matches!(kind, ResourceType::Route | ResourceType::Secret);
    if random.once_in(3) && !(stays && told.builder.asks_for(kind, &name)) {
        world.remove(&(kind, name.clone()));
    } else {
        world.insert((kind, name.clone()), random.below(12));
    }
    told.tell(world, kind, &name);
    if random.once_in(10) {
        let missing = told.builder.missing();
        missing.endpoints.iter().for_each(|eds| told.builder.give_up_endpoints(eds));
    }
}

fn check(seed: u64, maker: &Maker) {
    let mut random = Random::new(seed);
    let (mut world, mut demanded) = (World::new(), BTreeSet::new());
    let mut told = Subscriber::new(maker);
    let mut left = CHANGES;
    while left > 0 {
        let count = 1 + random.below(MOST_AT_ONCE);
        for _ in 0..count {
            change(&mut random, &mut world, &mut told, &mut demanded);
            if random.once_in(3) {
                told.build();
            }
        }
        left = left.saturating_sub(count);
        let followed = told.settle(&world);
        let mut fresh = Subscriber::new(maker);
        let ones: Vec<_> = world.keys().filter(|(kind, _)| fresh.comes_whole(*kind)).cloned().collect();
        demanded.iter().for_each(|demand| _ = fresh.builder.demand(demand.clone()));
        ones.iter().for_each(|(kind, name)| fresh.tell(&world, *kind, name));
        let expected = fresh.settle(&world);
        let (followed, expected) = (render(&followed), render(&expected));
        let names = |rendered: &BTreeMap<String, String>| rendered.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&followed), names(&expected), "seed {seed}, {left} changes left: {world:?} {demanded:?}");
        for (name, text) in &expected {
            assert_eq!(followed[name], *text, "seed {seed}, {left} changes left: {name}");
        }
    }
}

#[test]
fn changes_lead_where_everything_at_once_leads() {
    let roots = format!(
        "name: ROOTCA\nvalidation_context:\n  trusted_ca:\n    inline_string: |\n{}",
        input::indent(&TestCa::new().root_pem(), 6)
    );
    for by_name in [false, true] {
        let maker = Maker { made: RefCell::default(), by_name, roots: roots.clone() };
        (0..cases(15, 40) as u64).for_each(|seed| check(seed, &maker));
    }
}
