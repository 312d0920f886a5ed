//! A proxy that learns its scope makes the same decisions as one that has everything: random calls in a random mesh, decided
//! by both. The learning one requests what it needs from the real server, name by name, over the delta protocol.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_filters::explain::{Call, Explainer, Explanation, Step};
use evenkeel_model::{AddressBook, MeshConfig, OutboundTrafficPolicy, Snapshot};
use evenkeel_runtime_config::cluster::Endpoint;
use evenkeel_runtime_config::filter_chain_match::ChainInput;
use evenkeel_runtime_config::hcm::RouteSource;
use evenkeel_runtime_config::listener::Terminal;
use evenkeel_runtime_config::view::{ConnectionView, PlainRequest};
use evenkeel_runtime_config::{Builder, Config, Demand, Source};
use evenkeel_testkit::{Random, cases};
use evenkeel_tls::SecretStore;
use evenkeel_translate::{ClientKind, ProxyView};
use evenkeel_xds::ResourceType;
use evenkeel_xds::client::delta::Client;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::envoy::service::discovery::v3::DeltaDiscoveryResponse;
use evenkeel_xds::server::Announcement;
use evenkeel_xds::server::delta::Stream;
use prost::Message as _;

use crate::own_proxy::{compile, environment};
use crate::scenario::{translate, view_of};

/// Calls that are decided together: what they lack is asked for at once.
const BATCH: usize = 1000;
const SERVICES: u32 = 48;

fn vip(index: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 96, 1, index as u8)
}

/// Services of all kinds, in two namespaces, half of them with routes and subsets.
fn mesh() -> String {
    let mut text = String::from(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: client-0, namespace: shop, labels: {app: client}}\n\
         spec: {serviceAccountName: client, containers: [{name: client}]}\n\
         status: {podIP: 10.244.9.1, conditions: [{type: Ready, status: \"True\"}]}\n",
    );
    for i in 0..SERVICES {
        let namespace = if i.is_multiple_of(3) { "other" } else { "shop" };
        let (name, vip) = (format!("s{i}"), vip(i));
        let kube = |ports: &str| {
            format!(
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
                 spec: {{clusterIP: {vip}, selector: {{app: {name}}}, ports: [{ports}]}}\n"
            )
        };
        let entry = |hosts: &str, rest: &str| {
            format!(
                "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\n\
                 metadata: {{name: {}, namespace: {namespace}}}\nspec: {{hosts: [\"{hosts}\"], {rest}}}\n",
                hosts.replace('*', "any").replace('.', "-"),
            )
        };
        let fixed = "resolution: STATIC, endpoints: [{address: 192.0.2.1}]";
        text += &match i % 8 {
            0 => kube("{name: http, port: 80}, {name: http-alt, port: 8080}"),
            1 => kube("{name: http, port: 80}, {name: tcp, port: 9000}"),
            2 => kube("{name: any, port: 7000}, {name: grpc, port: 8080}"),
            3 => entry(
                &format!("{name}.ext.test"),
                &format!("ports: [{{number: 80, name: http, protocol: HTTP}}], {fixed}"),
            ),
            4 => {
                let ports = "resolution: NONE, ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: tls, protocol: TLS}]";
                let inner = format!("ports: [{{number: 80, name: http, protocol: HTTP}}], {fixed}");
                entry(&format!("*.{name}.wild.test"), ports) + &entry(&format!("a.{name}.wild.test"), &inner)
            }
            5 => entry(
                &format!("{name}.tcp.test"),
                &format!("addresses: [{vip}], ports: [{{number: 9000, name: tcp, protocol: TCP}}], {fixed}"),
            ),
            6 => kube("{name: http, port: 80}")
                .replace("metadata: {", "metadata: {annotations: {networking.istio.io/exportTo: .}, "),
            _ => kube("{name: http, port: 80}, {name: tls, port: 443}"),
        };
        if i % 2 == 0 && i % 8 != 4 {
            _ = write!(
                text,
                "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
                 spec: {{host: {name}, trafficPolicy: {{connectionPool: {{http: {{http1MaxPendingRequests: {i}}}}}}}, \
                 subsets: [{{name: v1, labels: {{version: v1}}}}, {{name: v2, labels: {{version: v2}}}}]}}\n\
                 ---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
                 spec:\n  hosts: [{name}]\n  http:\n\
                 \x20 - match: [{{uri: {{prefix: /old}}, headers: {{x-canary: {{exact: \"yes\"}}}}}}]\n\
                 \x20   rewrite: {{uri: /new}}\n    timeout: {i}s\n    route: [{{destination: {{host: {name}, subset: v2}}}}]\n\
                 \x20 - match: [{{uri: {{exact: /moved}}}}]\n    redirect: {{uri: /there, redirectCode: 308}}\n\
                 \x20 - match: [{{method: {{exact: DELETE}}}}]\n    directResponse: {{status: 405}}\n\
                 \x20 - match: [{{uri: {{prefix: /gone}}}}]\n    route: [{{destination: {{host: missing.{namespace}.svc.cluster.local, port: {{number: 80}}}}}}]\n\
                 \x20 - retries: {{attempts: 1, retryOn: 5xx}}\n    route: [{{destination: {{host: {name}, subset: v1}}, weight: 70}}, {{destination: {{host: s1.shop.svc.cluster.local, port: {{number: 80}}}}, weight: 30}}]\n"
            );
        }
        if i % 8 == 7 {
            _ = write!(
                text,
                "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: unregistered-{i}, namespace: shop}}\n\
                 spec: {{hosts: [only{i}.routes.test], http: [{{route: [{{destination: {{host: s1.shop.svc.cluster.local, port: {{number: 80}}}}}}]}}]}}\n"
            );
        }
    }
    text + BESIDES
}

/// Two hosts at one address with TLS routes, HTTP on a port whose protocol others leave to detection, hosts of routes on ports
/// that their services lack, routes and rules that are exported to some, and settings of ports and subsets.
const BESIDES: &str = r#"---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shared, namespace: shop}
spec: {hosts: [a.shared.test, b.shared.test], addresses: [10.96.1.200], resolution: STATIC, endpoints: [{address: 192.0.2.7}], ports: [{number: 443, name: tls, protocol: TLS}, {number: 80, name: http, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shared, namespace: shop}
spec: {hosts: [b.shared.test], tls: [{match: [{port: 443, sniHosts: [b.shared.test]}], route: [{destination: {host: s7.shop.svc.cluster.local, port: {number: 443}}}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: http7000, namespace: shop}
spec: {clusterIP: 10.96.1.201, ports: [{name: http, port: 7000}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: lacking, namespace: shop}
spec: {hosts: [http7000, s8.shop.svc.cluster.local, "*.lacking.test"], http: [{route: [{destination: {host: s1.shop.svc.cluster.local, port: {number: 80}}}]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: near, namespace: other}
spec: {hosts: [s16.shop.svc.cluster.local], exportTo: [shop], http: [{directResponse: {status: 410}}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: ports, namespace: shop}
spec: {host: s1.shop.svc.cluster.local, exportTo: [other], trafficPolicy: {connectionPool: {tcp: {maxConnections: 9}}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: seven, namespace: shop}
spec:
  host: s7.shop.svc.cluster.local
  trafficPolicy: {tls: {mode: DISABLE}, portLevelSettings: [{port: {number: 443}, loadBalancer: {simple: RANDOM}}]}
  subsets: [{name: v1, labels: {version: v1}, trafficPolicy: {portLevelSettings: [{port: {number: 80}, connectionPool: {tcp: {connectTimeout: 3s}}}]}}]
"#;

/// Sidecars that hold for the calling workload: of its namespace, of the mesh, and of itself with ports, an address and an
/// egress proxy of its own.
const SIDECARS: [&str; 5] = [
    "",
    "metadata: {name: all, namespace: shop}
spec: {egress: [{hosts: [\"./*\", \"other/*.svc.cluster.local\", \"*/*.s4.wild.test\"]}]}",
    "metadata: {name: default, namespace: istio-system}
spec: {egress: [{hosts: [\"./*\"]}], outboundTrafficPolicy: {mode: REGISTRY_ONLY}}",
    "metadata: {name: client, namespace: shop}
spec:
  workloadSelector: {labels: {app: client}}
  egress:
    - port: {number: 8080, protocol: HTTP}
      bind: 10.96.1.2
      hosts: [\"*/*\"]
    - {port: {number: 9000, protocol: TCP}, hosts: [\"./*\", \"other/s9.other.svc.cluster.local\"]}
    - {port: {number: 7000, protocol: HTTP}, hosts: [\"./*\"]}
    - {hosts: [\"other/*\", \"./s10.shop.svc.cluster.local\", \"./*.routes.test\"]}
  outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: s1.shop.svc.cluster.local, port: {number: 80}}}",
    "metadata: {name: client, namespace: shop}
spec:
  workloadSelector: {labels: {app: client}}
  ingress: [{port: {number: 8080, protocol: HTTP}, captureMode: NONE, defaultEndpoint: \"127.0.0.1:8081\"}]
  egress:
    - {port: {number: 8080, protocol: HTTP}, bind: 10.96.1.3, captureMode: NONE, hosts: [\"*/*\"]}
    - {port: {number: 9000, protocol: TCP}, captureMode: NONE, hosts: [\"./*\"]}
    - {hosts: [\"*/*\"]}",
];

fn snapshot(policy: OutboundTrafficPolicy, sidecar: &str) -> Snapshot {
    let mut text = mesh();
    if !sidecar.is_empty() {
        _ = write!(text, "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\n{sidecar}\n");
    }
    let (objects, found) = evenkeel_api::load(&[("mesh.yaml".into(), text.into())]);
    assert!(!found.has_errors(), "{found}");
    let mesh = MeshConfig { outbound_traffic_policy: policy, ..MeshConfig::default() };
    evenkeel_model::build(&objects, &mesh, &mut AddressBook::default()).0
}

/// One call.
struct Case {
    destination: SocketAddr,
    server_name: Option<String>,
    request: Option<PlainRequest>,
    random: u64,
}

fn case(random: &mut Random) -> Case {
    let i = random.below(SERVICES as usize) as u32;
    let namespace = if i.is_multiple_of(3) { "other" } else { "shop" };
    let name = match random.below(18) {
        0 => format!("s{i}"),
        1 => format!("s{i}.{namespace}"),
        2 => format!("s{i}.{namespace}.svc"),
        3 => format!("s{i}.{namespace}.svc.cluster.local."),
        4 => format!("S{i}.{namespace}.SVC.cluster.local"),
        5 => vip(i).to_string(),
        6 => format!("s{i}.ext.test"),
        7 => format!("a.s{i}.wild.test"),
        8 => format!("b.s{i}.wild.test"),
        9 => format!("x.a.s{i}.wild.test"),
        10 => format!("unknown{}.test", i % 7),
        11 => format!("only{i}.routes.test"),
        12 => format!("203.0.113.{}", i % 5),
        13 => format!("[fd00::{i:x}]"),
        14 => random.pick(&["a.shared.test", "b.shared.test", "10.96.1.200"]).to_owned(),
        15 => random.pick(&["http7000", "s8", "x.lacking.test", "s16.shop.svc.cluster.local"]).to_owned(),
        _ => format!("s{i}.{namespace}.svc.cluster.local"),
    };
    let port = random.pick(&[80, 80, 80, 8080, 9000, 7000, 443, 81]);
    let authority = match random.below(3) {
        0 => format!("{name}:{port}"),
        _ => name.clone(),
    };
    let address = match random.below(5) {
        4 => Ipv4Addr::new(10, 96, 1, 200 + (i % 2) as u8),
        0 => Ipv4Addr::new(203, 0, 113, (i % 5) as u8),
        _ => vip(i),
    };
    let tcp = random.below(5) == 0;
    let method = random.pick(&["GET", "GET", "POST", "DELETE"]);
    let path = random.pick(&["/", "/old/page?x=1", "/moved", "/gone/by", "/api/v1"]);
    let mut request = PlainRequest::new(method, &authority, path);
    if random.below(2) == 0 {
        request = request.with_header("x-canary", random.pick(&["yes", "no"]));
    }
    Case {
        destination: (address, port).into(),
        server_name: (tcp && port == 443).then_some(name),
        request: (!tcp).then_some(request),
        random: random.bits(),
    }
}

/// What becomes of a call; the last step may be that something has to be asked for.
fn decide(explainer: &mut Explainer, config: &Config, case: &Case) -> Explanation {
    if let Some(demand) = config.unanswered_listeners(case.destination).into_iter().next() {
        return Explanation { steps: vec![Step::Unanswered { demand }], answer: None };
    }
    let names = evenkeel_runtime_config::demand::listeners_of(case.destination);
    let found = names.iter().find(|name| config.listeners.contains_key(*name));
    let listener = found.map_or("virtualOutbound", |name| name);
    let source: SocketAddr = "10.244.9.1:4000".parse().expect("a source");
    let connection = ConnectionView {
        server_name: case.server_name.as_deref().map(Into::into),
        ..ConnectionView::plaintext(source, case.destination)
    };
    let chain = ChainInput {
        destination: case.destination,
        source,
        direct_source: source,
        server_name: case.server_name.as_deref(),
        transport_protocol: if case.server_name.is_some() { "tls" } else { "raw_buffer" },
        application_protocols: if case.request.is_some() { &["http/1.1"] } else { &[] },
    };
    let call = Call { listener, chain, connection: &connection, request: case.request.as_ref(), random: case.random };
    explainer.explain(config, &call)
}

/// A proxy that asks the server for what it needs.
struct Learning {
    builder: Builder,
    client: Client,
    server: Stream,
    config: Arc<Config>,
}

impl Learning {
    fn start(view: &ProxyView, snapshot: &Snapshot) -> Self {
        let mut builder = Builder::new(environment(), SecretStore::new());
        builder.ask_by_name(["virtualInbound", "virtualOutbound"].map(Arc::from));
        let mut server = Stream::new(Announcement::default());
        server.on_snapshot(&Arc::new(translate(view, snapshot)));
        let mut learning = Self { builder, client: Client::new(Node::default()), server, config: Arc::default() };
        learning.settle();
        learning
    }

    fn demand(&mut self, demands: impl IntoIterator<Item = Demand>) {
        for demand in demands {
            self.builder.demand(demand);
        }
        self.settle();
    }

    /// Asks and applies until nothing more comes, as the proxy's control thread does.
    fn settle(&mut self) {
        loop {
            self.config = self.builder.build();
            for cluster in self.builder.dns_clusters() {
                for target in &cluster.targets {
                    self.builder.set_dns_endpoints(&cluster.cluster, &target.host, &[[192, 0, 2, 99].into()]);
                }
            }
            let missing = self.builder.missing();
            missing.secrets.iter().for_each(|secret| self.builder.give_up_secret(secret));
            self.config = self.builder.build();
            let interest = self.builder.interest();
            for (kind, references) in [
                (ResourceType::Cluster, &interest.clusters),
                (ResourceType::Endpoint, &interest.endpoints),
                (ResourceType::Listener, &interest.listeners),
                (ResourceType::Route, &interest.routes),
                (ResourceType::VirtualHost, &interest.virtual_hosts),
            ] {
                self.client.set_names(kind, references.iter().map(|reference| &*reference.name));
            }
            let mut moved = false;
            while let Some(request) = self.client.poll_request() {
                self.server.on_request(&request, Duration::ZERO).expect("a request the server takes");
                moved = true;
            }
            while let Some(response) = self.server.poll_response(Duration::ZERO) {
                let response =
                    DeltaDiscoveryResponse::decode(&*response.encode_to_vec()).expect("the same definitions");
                let update = self.client.on_response(response).expect("a response the client takes");
                for name in &update.removed {
                    self.remove(update.kind, name);
                }
                for received in &update.added {
                    let set = match update.kind {
                        ResourceType::Cluster => self.builder.set_cluster(&received.any),
                        ResourceType::Endpoint => self.builder.set_endpoints(&received.any),
                        ResourceType::Listener => self.builder.set_listener(&received.any),
                        ResourceType::Route => self.builder.set_route(&received.any),
                        ResourceType::VirtualHost => self.builder.set_virtual_host(&received.name, &received.any),
                        ResourceType::ExtensionConfig => self.builder.set_extension(&received.any),
                        ResourceType::Secret | ResourceType::NameTable | ResourceType::ProxyConfig => Ok(()),
                    };
                    set.unwrap_or_else(|rejection| panic!("{rejection}"));
                }
                self.client.answer(&update, &[]);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    fn remove(&mut self, kind: ResourceType, name: &str) {
        match kind {
            ResourceType::Cluster => self.builder.remove_cluster(name),
            ResourceType::Listener => self.builder.remove_listener(name),
            ResourceType::VirtualHost => self.builder.remove_virtual_host(name),
            ResourceType::Endpoint => {
                self.builder.remove_endpoints(name);
                let source = Source::Ads;
                let name = name.into();
                let reference = evenkeel_runtime_config::Reference { name, source, initial_fetch_timeout: None };
                self.builder.give_up_endpoints(&reference);
            }
            _ => {}
        }
    }
}

/// The virtual host that serves a request, whole, and the cluster it goes to: timeouts, retries, policies.
fn details(config: &Config, steps: &[Step], case: &Case) -> (String, String) {
    let table = steps.iter().find_map(|step| match step {
        Step::VirtualHost { table, .. } => Some(table),
        _ => None,
    });
    let host = table.zip(case.request.as_ref()).map(|(name, request)| {
        let own = || {
            let mut chains =
                config.listeners.values().flat_map(|l| l.filter_chains.iter().chain(&l.default_filter_chain));
            chains.find_map(|chain| match &chain.terminal {
                Terminal::Http(manager) => match &manager.routes {
                    RouteSource::Static(table) if table.name == *name => Some(table),
                    _ => None,
                },
                Terminal::Tcp(_) => None,
            })
        };
        let table = config.routes.get(name).or_else(own).expect("the table");
        let host = format!("{:?}", table.find_virtual_host(request.authority.as_bytes()));
        // In a whole table the first of several hosts at one address has it; asked by name, each says that it has it.
        match host.split_once("domains: [").and_then(|(name, rest)| Some((name, rest.split_once(']')?.1))) {
            Some((name, rest)) => format!("{name}{rest}"),
            None => host,
        }
    });
    let cluster = steps.iter().find_map(|step| match step {
        Step::Endpoints { cluster, .. } => config.clusters.get(cluster),
        _ => None,
    });
    // Only Evenkeel's proxies are told the workloads behind endpoints.
    let hosts = |hosts: &[Arc<Endpoint>]| -> Vec<Endpoint> {
        hosts.iter().map(|host| Endpoint { workload: None, ..(**host).clone() }).collect()
    };
    let cluster =
        cluster.map(|c| format!("{:?} {:?} {:?}", c.connect_timeout, c.load_balancer, hosts(&c.endpoints.hosts)));
    (host.unwrap_or_default(), cluster.unwrap_or_default())
}

#[test]
fn learned_scope_decides_as_full_configuration_does() {
    // Without Sidecar, over both outbound policies; as many more are shared by the Sidecars.
    let calls = cases(24_000, 100_000);
    let mut random = Random::new(0);
    let (mut sizes, mut explainer) = (BTreeSet::new(), Explainer::default());
    let policies = [OutboundTrafficPolicy::AllowAny, OutboundTrafficPolicy::RegistryOnly];
    for (sidecar, policy) in SIDECARS.into_iter().flat_map(|sidecar| policies.map(|policy| (sidecar, policy))) {
        let snapshot = snapshot(policy, sidecar);
        let envoy = view_of("sidecar client-0.shop", &snapshot);
        let (full, refused) = compile(&translate(&envoy, &snapshot));
        assert!(refused.is_empty(), "{refused:?}");
        let learner = ProxyView { client_kind: ClientKind::EvenkeelLearned, ..envoy };
        let mut learning = Learning::start(&learner, &snapshot);
        let begun_with = learning.config.clusters.len();
        // Whoever connects to a port of the proxy's own says nothing by which it could be learned.
        let bound = |config: &Config| -> BTreeSet<_> {
            config.listeners.values().filter(|l| l.bind_to_port).map(|l| l.name.clone()).collect()
        };
        assert_eq!(bound(&learning.config), bound(&full), "{sidecar}");
        let (mut decided, mut compared, mut outcomes) = (0, HashSet::new(), BTreeSet::new());
        let share = if sidecar.is_empty() { 1 } else { SIDECARS.len() - 1 };
        while decided < calls / (2 * share) {
            let batch: Vec<Case> = (0..BATCH).map(|_| case(&mut random)).collect();
            let mut open: Vec<usize> = (0..BATCH).collect();
            while !open.is_empty() {
                let mut demands = Vec::new();
                let config = learning.config.clone();
                open.retain(|index| {
                    let case = &batch[*index];
                    let learned = decide(&mut explainer, &config, case);
                    if let Some(Step::Unanswered { demand }) = learned.steps.last() {
                        demands.push(demand.clone());
                        return true;
                    }
                    let expected = decide(&mut explainer, &full, case);
                    let call = (case.destination, &case.server_name, &case.request);
                    assert_eq!(learned, expected, "{sidecar} {policy:?} {call:?}");
                    let key = format!("{:?} {:?}", expected.steps, case.request.as_ref().map(|r| &r.authority));
                    if compared.insert(key) {
                        let (theirs, ours) =
                            (details(&full, &expected.steps, case), details(&config, &learned.steps, case));
                        assert_eq!(ours, theirs, "{sidecar} {policy:?} {call:?}");
                        outcomes.extend(expected.steps.last().map(std::mem::discriminant).map(|d| format!("{d:?}")));
                    }
                    false
                });
                assert!(open.is_empty() || !demands.is_empty());
                learning.demand(demands);
            }
            decided += BATCH;
        }
        // The calls were about something, and less was held than there is.
        assert!(outcomes.len() >= 4, "{outcomes:?}");
        assert!(learning.config.clusters.len() > begun_with);
        assert!(learning.config.clusters.len() < full.clusters.len());
        assert!(learning.config.routes.values().any(|table| table.growing.is_some()));
        sizes.insert(full.clusters.len());
    }
    assert_eq!(sizes.len(), SIDECARS.len(), "each Sidecar imports something else: {sizes:?}");
}
