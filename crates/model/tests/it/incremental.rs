//! An incremental build gives the same result as a full one, and leaves unchanged parts alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use evenkeel_api::{Kind, Object, ObjectKey, load_object};
use evenkeel_base::{Rank, SourceId};
use evenkeel_model::{
    Address, AddressBook, Builder, Built, Changes, List, MeshConfig, Snapshot, SourceEvent, Workload,
};
use evenkeel_testkit::Random;
use evenkeel_testkit::objects::{GATEWAY, whole_service};

/// Edits of one random run, in edits.
const EDITS: u32 = 120;
/// Files that runs write to; few, so that objects move between them and clash.
const FILES: usize = 6;

fn objects(path: &str, text: &str) -> Vec<Arc<Object>> {
    let (objects, _) = evenkeel_api::load(&[(path.into(), text.into())]);
    objects.into_iter().map(Arc::new).collect()
}

fn apply(builder: &mut Builder, path: &str, text: &str) -> Built {
    builder.apply_files([(Path::new(path).into(), objects(path, text))])
}

/// One document of any kind, with names few enough that they meet.
fn document(random: &mut Random) -> String {
    let namespaces = ["shop", "stock", "istio-system"];
    let names = ["a", "b", "c"];
    let (namespace, name, other) = (random.pick(&namespaces), random.pick(&names), random.pick(&names));
    let host = random.pick(&[
        "a",
        "b.shop",
        "c.stock.svc.cluster.local",
        "x.example.com",
        "*.example.com",
        "*.shop.svc.cluster.local",
        "nowhere",
    ]);
    let long = random.pick(&[
        "a.shop.svc.cluster.local",
        "x.example.com",
        "y.example.com",
        "*.example.com",
        "b.shop.svc.cluster.local",
    ]);
    let export = random.pick(&["", "", ", exportTo: ['.']", ", exportTo: ['stock']", ", exportTo: ['~']"]);
    let selector = random.pick(&["{app: a}", "{app: b}", "{app: a, v: '1'}", "{app: typo}"]);
    let number = random.below(3);
    let drawn = Drawn { namespace, name, other, host, long, export, selector, number };
    match random.below(16) {
        kind @ 0..6 if !random.once_in(6) => drawn.workload(kind, random),
        0..6 => match random.below(3) {
            0 => drawn.workload_entry(random),
            1 => drawn.ingress(random),
            _ => drawn.ingress_class(random),
        },
        kind @ 6..14 => drawn.traffic(kind, random),
        14 if random.once_in(3) => drawn.peer_authentication(random),
        14 => drawn.gateway_api(random),
        _ => drawn.of_the_mesh(random),
    }
}

/// API group and version of what Istio routes by.
const NETWORKING: &str = "networking.istio.io/v1";

/// What the dice say of a document before they say its kind.
struct Drawn {
    namespace: &'static str,
    name: &'static str,
    other: &'static str,
    host: &'static str,
    long: &'static str,
    export: &'static str,
    selector: &'static str,
    number: usize,
}

impl Drawn {
    fn meta(&self, kind: &str, api: &str) -> String {
        let Self { name, namespace, .. } = self;
        format!("apiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\n")
    }

    /// Services, what runs, and where.
    fn workload(&self, kind: usize, random: &mut Random) -> String {
        let Self { namespace, name, other, selector, number, .. } = self;
        match kind {
            0 => {
                let spec = random.pick(&[
                    "",
                    "clusterIP: None, ",
                    "clusterIP: 10.96.1.1, ",
                    "clusterIP: 10.97.0.1, ",
                    "type: ExternalName, externalName: far.example.com, ",
                    "type: ExternalName, externalName: a.shop.svc.cluster.local, ",
                    "type: ExternalName, externalName: b.shop.svc.cluster.local, ",
                ]);
                let ports = random.pick(&[
                    "{name: http, port: 80}",
                    "{name: tcp, port: 80}",
                    "{name: http, port: 80}, {name: grpc, port: 81, targetPort: named}",
                ]);
                format!("{}spec: {{{spec}selector: {selector}, ports: [{ports}]}}\n", self.meta("Service", "v1"))
            }
            1 => format!("{}spec: {{ports: [{{name: http, port: 80}}]}}\n", self.meta("Service", "v1")),
            2 => format!(
                "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{kubernetes.io/service-name: {other}}}}}\n\
             addressType: IPv4\nports: [{{name: http, port: 8080}}]\nendpoints: [{{addresses: [10.0.0.{number}], targetRef: {{kind: Pod, name: {other}, namespace: {namespace}}}}}]\n"
            ),
            3 | 4 => format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{app: {other}, v: '{number}'}}}}\n\
             spec: {{containers: [{{name: main, ports: [{{name: named, containerPort: 9000}}]}}]}}\n\
             status: {{podIP: 10.1.0.{number}, conditions: [{{type: Ready, status: '{}'}}]}}\n",
                random.pick(&["True", "False"])
            ),
            _ => format!(
                "{}spec: {{selector: {{matchLabels: {{app: {other}}}}}, template: {{metadata: {{labels: {{app: {other}}}}}, spec: {{containers: [{{name: main}}]}}}}}}\n",
                self.meta(random.pick(&["Deployment", "StatefulSet", "DaemonSet"]), "apps/v1")
            ),
        }
    }

    fn ingress(&self, random: &mut Random) -> String {
        let Self { name, other, .. } = self;
        let class = random.pick(&["ingressClassName: a", "ingressClassName: b", ""]);
        let host = random.pick(&["host: x.example.com, ", "host: '*.example.com', ", ""]);
        let port = random.pick(&["number: 80", "name: http"]);
        let meta = self.meta("Ingress", "networking.k8s.io/v1");
        format!(
            "{meta}spec:\n  rules: [{{{host}http: {{paths: [{{path: /{name}, pathType: Prefix, backend: {{service: {{name: {other}, port: {{{port}}}}}}}}}]}}}}]\n  {class}\n"
        )
    }

    /// Kinds of the Gateway API.
    fn gateway_api(&self, random: &mut Random) -> String {
        let Self { namespace, name, other, long, .. } = self;
        let version = "gateway.networking.k8s.io/v1";
        match random.below(12) {
            11 => self.listener_set(random),
            9..11 => self.backend_tls_policy(random),
            6..9 => {
                let kind = random.pick(&["GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"]);
                let parent = random.pick(&["{name: a, namespace: shop}", "{group: '', kind: Service, name: a}"]);
                let meta = self.meta(kind, version);
                format!(
                    "{meta}spec: {{parentRefs: [{parent}], rules: [{{backendRefs: [{{name: {other}, port: 80}}]}}]}}\n"
                )
            }
            0 => {
                let controller = random.pick(&["istio.io/gateway-controller", "example.com/other"]);
                format!(
                    "apiVersion: {version}\nkind: GatewayClass\nmetadata: {{name: a}}\nspec: {{controllerName: {controller}}}\n"
                )
            }
            1 => format!(
                "{}spec: {{from: [{{group: gateway.networking.k8s.io, kind: {}, namespace: stock}}], to: [{{group: '', kind: {}}}]}}\n",
                self.meta("ReferenceGrant", version),
                random.pick(&["HTTPRoute", "Gateway"]),
                random.pick(&["Service", "Secret"])
            ),
            2 | 3 => {
                let class = random.pick(&["istio", "a", "nowhere"]);
                let from = random.pick(&["All", "Same", "Selector, selector: {matchLabels: {n: '1'}}"]);
                let addresses = random.pick(&[
                    "",
                    "addresses: [{type: Hostname, value: a}], ",
                    "allowedListeners: {namespaces: {from: Same}}, ",
                    "allowedListeners: {namespaces: {from: All}}, ",
                ]);
                let listeners = random.pick(&[
                    "port: 80, protocol: HTTP",
                    "port: 80, protocol: HTTP, hostname: '*.example.com'",
                    "port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: a}, {name: a, namespace: shop}]}",
                    "port: 9000, protocol: TCP",
                ]);
                format!(
                    "{}spec: {{gatewayClassName: {class}, {addresses}listeners: [{{name: x, {listeners}, allowedRoutes: {{namespaces: {{from: {from}}}}}}}]}}\n",
                    self.meta("Gateway", version)
                )
            }
            _ => {
                let parent = random.pick(&[
                    "{name: a, namespace: shop}",
                    "{name: b, namespace: stock, sectionName: x}",
                    "{kind: ListenerSet, name: a}",
                    "{group: '', kind: Service, name: a, namespace: shop}",
                    "{group: networking.istio.io, kind: ServiceEntry, name: a}",
                ]);
                let hosts = if random.once_in(2) { String::new() } else { format!("hostnames: ['{}'], ", long) };
                format!(
                    "{}spec: {{parentRefs: [{parent}], {hosts}rules: [{{matches: [{{path: {{value: /{name}}}}}], backendRefs: [{{name: {other}, namespace: {namespace}, port: 80}}]}}]}}\n",
                    self.meta("HTTPRoute", version)
                )
            }
        }
    }

    fn listener_set(&self, random: &mut Random) -> String {
        let parent = random.pick(&["{name: a, namespace: shop}", "{name: b}", "{kind: Service, name: a}"]);
        let listener =
            random.pick(&["port: 80, protocol: HTTP", "port: 8080, protocol: HTTP, hostname: x.example.com"]);
        let meta = self.meta("ListenerSet", "gateway.networking.k8s.io/v1");
        format!("{meta}spec: {{parentRef: {parent}, listeners: [{{name: x, {listener}}}]}}\n")
    }

    /// TLS to backends, and roots for it.
    fn backend_tls_policy(&self, random: &mut Random) -> String {
        let Self { other, .. } = self;
        if random.once_in(4) {
            // Not those of any certificate.
            return format!("{}data: {{ca.crt: {other}}}\n", self.meta("ConfigMap", "v1"));
        }
        let target = random.pick(&[
            "group: '', kind: Service",
            "group: '', kind: Service, sectionName: http",
            "group: networking.istio.io, kind: ServiceEntry",
        ]);
        let roots = random
            .pick(&["wellKnownCACertificates: System", "caCertificateRefs: [{group: '', kind: ConfigMap, name: a}]"]);
        let meta = self.meta("BackendTLSPolicy", "gateway.networking.k8s.io/v1");
        format!(
            "{meta}spec: {{targetRefs: [{{{target}, name: {other}}}], validation: {{hostname: {other}.test, {roots}}}}}\n"
        )
    }

    fn ingress_class(&self, random: &mut Random) -> String {
        let controller = random.pick(&["istio.io/ingress-controller", "example.com/other"]);
        let name = self.name;
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: {name}}}\nspec: {{controller: {controller}}}\n"
        )
    }

    /// What runs elsewhere.
    fn workload_entry(&self, random: &mut Random) -> String {
        let Self { other, number, .. } = self;
        let rest =
            random.pick(&["", ", serviceAccount: vm", ", ports: {http: 8081}, weight: 2", ", locality: north/a"]);
        let health = random.pick(&["", "status: {conditions: [{type: Healthy, status: 'False'}]}\n"]);
        if random.once_in(4) {
            let meta = self.meta("WorkloadGroup", NETWORKING);
            return format!("{meta}spec: {{template: {{labels: {{app: {other}}}{rest}}}}}\n");
        }
        let meta = self.meta("WorkloadEntry", NETWORKING);
        let meta = if random.once_in(2) {
            meta.replacen("metadata: {", "metadata: {annotations: {proxy.istio.io/health-checks-enabled: 'true'}, ", 1)
        } else {
            meta
        };
        format!("{meta}spec: {{address: 10.1.0.{number}, labels: {{app: {other}}}{rest}}}\n{health}")
    }

    /// What is called, and how.
    fn traffic(&self, kind: usize, random: &mut Random) -> String {
        let Self { other, host, long, export, number, .. } = self;
        match kind {
            6 | 7 => {
                let rest = random.pick(&[
                    "resolution: STATIC, endpoints: [{address: 10.2.0.1}]",
                    "resolution: STATIC, location: MESH_INTERNAL, workloadSelector: {labels: {app: a}}",
                    "resolution: DNS",
                    "resolution: NONE",
                    "resolution: STATIC, addresses: [10.97.0.1], endpoints: [{address: 10.2.0.2}]",
                    "resolution: STATIC, addresses: [10.97.0.0/24], endpoints: [{address: 10.1.0.1, serviceAccount: a}]",
                    "resolution: NONE, workloadSelector: {labels: {app: a}}",
                ]);
                let port = random.pick(&["number: 80", "number: 80", "number: 81"]);
                format!(
                    "{}spec: {{hosts: ['{long}'], ports: [{{{port}, name: http}}], {rest}{export}}}\n",
                    self.meta("ServiceEntry", NETWORKING)
                )
            }
            8 if random.once_in(3) => {
                let meta = self.meta("VirtualService", NETWORKING);
                let condition = random.pick(&["", "match: [{uri: {prefix: /a}}], ", "match: [{uri: {prefix: /b}}], "]);
                let hosts = format!("hosts: ['{long}']{export}, ");
                if random.once_in(2) {
                    format!("{meta}spec: {{{hosts}http: [{{{condition}delegate: {{name: {other}}}}}]}}\n")
                } else {
                    format!("{meta}spec: {{http: [{{{condition}route: [{{destination: {{host: {other}}}}}]}}]}}\n")
                }
            }
            8 | 9 => {
                let gateways = random.pick(&["", ", gateways: [front]", ", gateways: [mesh, shop/b]"]);
                let subset = random.pick(&["", ", subset: one", ", port: {number: 81}"]);
                format!(
                    "{}spec: {{hosts: ['{long}', '{}']{gateways}{export}, http: [{{route: [{{destination: {{host: {}{subset}}}}}]}}]}}\n",
                    self.meta("VirtualService", NETWORKING),
                    random.pick(&["a.shop.svc.cluster.local", "z.example.com"]),
                    host.trim_start_matches("*."),
                )
            }
            10 | 11 => {
                let only = random.pick(&["", ", workloadSelector: {matchLabels: {app: a}}"]);
                let policy = random.pick(&["", ", trafficPolicy: {loadBalancer: {simple: RANDOM}}"]);
                format!(
                    "{}spec: {{host: '{host}'{export}{only}{policy}, subsets: [{{name: one, labels: {{v: '{number}'}}}}]}}\n",
                    self.meta("DestinationRule", NETWORKING)
                )
            }
            12 => format!(
                "{}spec: {{selector: {{app: {other}}}, servers: [{{port: {{number: {}, name: p, protocol: {}, hosts: ['{long}']}}]}}\n",
                self.meta("Gateway", NETWORKING),
                80 + number,
                random.pick(&[
                    "HTTP}",
                    "TCP}",
                    "HTTPS}, tls: {mode: SIMPLE, credentialName: a}",
                    "HTTPS}, tls: {mode: MUTUAL, credentialName: b}",
                ])
            ),
            _ => {
                let selector = random.pick(&["", "", "workloadSelector: {labels: {app: a}}, "]);
                let policy = random.pick(&[
                    "",
                    "",
                    "outboundTrafficPolicy: {mode: REGISTRY_ONLY}, ",
                    "outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: a, port: {number: 80}}}, ",
                ]);
                let hosts =
                    random.pick(&["./*", "*/*", "stock/*", "./b.shop.svc.cluster.local", "*/x.example.com", "~/*"]);
                format!(
                    "{}spec: {{{selector}{policy}ingress: [{{port: {{number: 80, protocol: HTTP}}, defaultEndpoint: '127.0.0.1:808{number}'}}], \
                 egress: [{{port: {{number: 81, protocol: TCP}}, hosts: ['shop/*']}}, {{hosts: ['{hosts}', 'istio-system/*']}}]}}\n",
                    self.meta("Sidecar", NETWORKING)
                )
            }
        }
    }

    fn peer_authentication(&self, random: &mut Random) -> String {
        format!(
            "{}spec: {{{}mtls: {{mode: {}}}}}\n",
            self.meta("PeerAuthentication", "security.istio.io/v1"),
            random.pick(&["", "selector: {matchLabels: {app: a}}, "]),
            random.pick(&["STRICT", "DISABLE", "PERMISSIVE"])
        )
    }

    fn telemetry(&self, random: &mut Random) -> String {
        format!(
            "{}spec: {{{}tracing: [{{providers: [{{name: {}}}]}}], accessLogging: [{{disabled: {}}}]}}\n",
            self.meta("Telemetry", "telemetry.istio.io/v1"),
            random.pick(&["", "selector: {matchLabels: {app: a}}, "]),
            random.pick(&["t", "envoy", "nowhere"]),
            random.pick(&["true", "false"])
        )
    }

    /// What concerns policies, or more than one namespace.
    fn of_the_mesh(&self, random: &mut Random) -> String {
        let Self { namespace, name, selector, number, .. } = self;
        match random.below(5) {
            0 => match random.below(4) {
                3 => self.telemetry(random),
                0 => format!(
                    "{}spec: {{selector: {{matchLabels: {selector}}}}}\n",
                    self.meta("AuthorizationPolicy", "security.istio.io/v1")
                ),
                1 => format!(
                    "{}spec: {{selector: {{matchLabels: {selector}}}, jwtRules: [{{issuer: me}}]}}\n",
                    self.meta("RequestAuthentication", "security.istio.io/v1")
                ),
                _ => format!(
                    "{}spec: {{selector: {{matchLabels: {selector}}}, concurrency: {number}}}\n",
                    self.meta("ProxyConfig", "networking.istio.io/v1beta1")
                ),
            },
            1 => {
                format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}, labels: {{n: '{number}'}}}}\n")
            }
            2 => format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata: {{mesh: '{}'}}\n",
                random.pick(&[
                    "trustDomain: td0.example",
                    "trustDomain: td1.example",
                    "proxyHttpPort: 15080",
                    "enableTracing: false",
                    "{defaultProviders: {tracing: [t]}, extensionProviders: [{name: t, zipkin: {service: a, port: 80}}]}",
                    "defaultServiceExportTo: [.]",
                    "discoverySelectors: [{matchLabels: {kubernetes.io/metadata.name: shop}}]",
                    "discoverySelectors: [{matchExpressions: [{key: n, operator: Exists}]}]",
                    "serviceEntryVisibility: {defaultVisibility: NAMESPACE, applyToSidecars: true}",
                ])
            ),
            3 => self.meta(random.pick(&["ServiceAccount", "Secret"]), "v1"),
            _ => format!(
                "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}, annotations: {{networking.istio.io/exportTo: '.'}}}}\nspec: {{ports: [{{port: 80}}]}}\n"
            ),
        }
    }
}

/// Changes one file at random: a document added, dropped, replaced, moved, or the whole file deleted.
fn edit(random: &mut Random, documents: &mut Vec<String>) {
    match (random.below(10), documents.len()) {
        (0, _) if random.once_in(3) => documents.clear(),
        (1 | 2, 1..) => {
            documents.remove(random.below(documents.len()));
        }
        (3 | 4, 1..) => {
            let at = random.below(documents.len());
            documents[at] = document(random);
        }
        (5, len @ 2..) => {
            let at = random.below(len);
            documents.swap(0, at);
        }
        _ => {
            let at = random.below(documents.len() + 1);
            documents.insert(at, document(random));
        }
    }
}

/// A kind that is never written is not compared with what is built anew.
#[test]
fn every_kind_is_written() {
    let mut random = Random::new(0);
    let documents = (0..1_000).map(|_| document(&mut random));
    let written: BTreeSet<Kind> =
        documents.flat_map(|text| objects("one.yaml", &text)).map(|object| object.resource.kind()).collect();
    let missing: Vec<_> = Kind::ALL.iter().filter(|kind| kind.is_supported() && !written.contains(*kind)).collect();
    assert!(missing.is_empty(), "`document` writes no {missing:?}");
}

#[test]
fn random_edits_build_what_building_anew_does() {
    for seed in 1..=4 {
        let mut random = Random::new(seed);
        let mut builder = Builder::new(MeshConfig::default(), AddressBook::default()).checked(true);
        let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
        // One run has no other source, in one it stands over files, in the others below.
        let mut served = (seed > 1).then(|| Served::new(if seed == 2 { Rank(1) } else { Rank(200) }));
        let mut last = builder.apply([]).snapshot;
        let mut steps_of_use = 0;
        for step in 0..EDITS {
            let changes = 1 + random.below(3);
            let mut changed = BTreeMap::new();
            for _ in 0..changes {
                let path = format!("{}.yaml", random.below(FILES));
                let documents = files.entry(path.clone()).or_default();
                edit(&mut random, documents);
                changed.insert(path, documents.join("---\n"));
            }
            let of_file = |(path, text): (&String, &String)| {
                (SourceId::files(), SourceEvent::of_file(Path::new(path).into(), objects(path, text)))
            };
            let mut events: Vec<_> = changed.iter().map(of_file).collect();
            if let Some(served) = &mut served {
                events.extend(served.edit(&mut random).into_iter().map(|event| (served.id.clone(), event)));
            }
            // A checked builder compares by itself, and panics.
            let built = builder.apply(events);
            if let Some(served) = served.as_ref().filter(|_| step % 10 == 0) {
                let in_files = files.iter().map(|(path, documents)| objects(path, &documents.join("---\n")).len());
                assert_eq!(builder.objects(), served.objects() + in_files.sum::<usize>());
            }
            equal_values_are_the_same(&last, &built.snapshot);
            last = built.snapshot;
            let is_of_use = last.services.len() > 3 && !last.route_sets.is_empty() && !last.sidecars.is_empty();
            steps_of_use += u32::from(is_of_use);
        }
        assert!(steps_of_use > EDITS / 8, "{seed}: the run is of no use in all but {steps_of_use} steps");
    }
}

/// A source that has no files: objects by their keys, some older than others.
struct Served {
    id: SourceId,
    known: BTreeMap<ObjectKey, (i64, serde_json::Value)>,
}

impl Served {
    fn new(rank: Rank) -> Self {
        Self { id: SourceId::new("served", rank), known: BTreeMap::new() }
    }

    /// Objects that come, change and go; now and then all is told once more.
    fn edit(&mut self, random: &mut Random) -> Vec<SourceEvent> {
        match random.below(6) {
            0 => Vec::new(),
            1 if !self.known.is_empty() => {
                let key = self.known.keys().nth(random.below(self.known.len())).cloned().expect("one of them");
                self.known.remove(&key);
                vec![SourceEvent::Delete(Address::Object(key.into()))]
            }
            // Some have gone unnoticed.
            2 => {
                self.known.retain(|_, _| !random.once_in(4));
                let told = self.known.iter().map(|(key, value)| self.upsert(key, value));
                std::iter::once(SourceEvent::Resync).chain(told).chain([SourceEvent::Synced]).collect()
            }
            3 => {
                self.known.retain(|_, _| !random.once_in(4));
                let told = self.known.iter().map(|(key, value)| self.upsert(key, value));
                let entries = told.filter_map(|event| match event {
                    SourceEvent::Upsert(entry) => Some(entry),
                    // It has a mistake.
                    _ => None,
                });
                vec![SourceEvent::Snapshot(entries.collect())]
            }
            _ => {
                let path: Arc<str> = "one.yaml".into();
                let json = evenkeel_api::documents(&path, &document(random)).remove(0).json;
                let key = ObjectKey::of_json(&json).expect("a kind that is known");
                let value = (i64::try_from(random.below(3)).expect("few"), json);
                let event = self.upsert(&key, &value);
                self.known.insert(key, value);
                vec![event]
            }
        }
    }

    /// How many there are, without those that have a mistake.
    fn objects(&self) -> usize {
        self.known.values().map(|(_, json)| load_object(&self.id, json).0.len()).sum()
    }

    fn upsert(&self, key: &ObjectKey, (created, json): &(i64, serde_json::Value)) -> SourceEvent {
        let (objects, _) = load_object(&self.id, json);
        SourceEvent::of_object(key.clone(), *created, objects.into_iter().map(Arc::new).collect())
    }
}

/// What is equal in both snapshots is the same in both, and if all of a list is, the list is.
fn equal_values_are_the_same(old: &Snapshot, new: &Snapshot) {
    fn list<T: PartialEq + std::fmt::Debug>(old: &List<T>, new: &List<T>) {
        same(old.iter(), new.iter(), old.same(new));
    }
    fn same<'a, T: PartialEq + std::fmt::Debug + 'a>(
        old: impl Iterator<Item = &'a Arc<T>>,
        new: impl Iterator<Item = &'a Arc<T>>,
        are_same: bool,
    ) {
        let (old, new): (Vec<_>, Vec<_>) = (old.collect(), new.collect());
        for value in &new {
            let equal: Vec<&&Arc<T>> = old.iter().filter(|other| *other == value).collect();
            assert!(equal.is_empty() || equal.iter().any(|other| Arc::ptr_eq(other, value)), "{value:?}");
        }
        let all = old.len() == new.len() && old.iter().zip(&new).all(|(a, b)| Arc::ptr_eq(a, b));
        assert!(!all || are_same);
    }
    same(old.services.iter(), new.services.iter(), old.services.same(&new.services));
    same(old.workloads.iter(), new.workloads.iter(), old.workloads.same(&new.workloads));
    let (of_old, of_new) = (&old.destination_rules, &new.destination_rules);
    same(of_old.iter(), of_new.iter(), of_old.same(of_new));
    list(&old.sidecars, &new.sidecars);
    list(&old.peer_authentications, &new.peer_authentications);
    list(&old.authorization_policies, &new.authorization_policies);
    for (key, endpoints) in &new.endpoints {
        if let Some(before) = old.endpoints.get(key).filter(|before| *before == endpoints) {
            assert!(Arc::ptr_eq(before, endpoints), "{key:?}");
        }
    }
}

#[test]
fn one_service_more_touches_nothing_else() {
    let mut builder = Builder::new(MeshConfig::default(), AddressBook::default());
    apply(&mut builder, "gateway.yaml", GATEWAY);
    for number in 0..40 {
        apply(&mut builder, &format!("s{number}.yaml"), &whole_service(number));
    }
    let before = apply(&mut builder, "none.yaml", "");
    let after = apply(&mut builder, "t.yaml", &whole_service(999));
    let (old, new) = (&before.snapshot, &after.snapshot);
    assert_eq!((old.services.len() + 1, old.route_sets.len() + 1), (new.services.len(), new.route_sets.len()));
    assert!(old.services.iter().all(|s| new.services.iter().any(|t| Arc::ptr_eq(s, t))));
    assert!(old.route_sets.iter().all(|s| new.route_sets.iter().any(|t| Arc::ptr_eq(s, t))));
    assert!(old.workloads.same(&new.workloads) && old.gateways.same(&new.gateways));
    assert!(old.endpoints.iter().all(|(key, e)| new.endpoints.get(key).is_some_and(|f| Arc::ptr_eq(e, f))));
    assert!(Arc::ptr_eq(&before.diagnostics, &after.diagnostics), "nothing new to say");

    let again = apply(&mut builder, "t.yaml", &format!("{}# a comment\n", whole_service(999)));
    assert!(Arc::ptr_eq(&after.snapshot, &again.snapshot), "a comment is no change");
    let moved = whole_service(999).replace("192.0.3.250", "192.0.3.251");
    let swapped = apply(&mut builder, "t.yaml", &moved);
    assert!(swapped.snapshot.services.same(&new.services), "other endpoints, the same services");
    assert!(!swapped.snapshot.endpoints.ptr_eq(&new.endpoints));
}

#[test]
fn one_pod_otherwise_touches_nothing_else() {
    let mut builder = Builder::new(MeshConfig::default(), AddressBook::default());
    let pod = |number: usize, address: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}, namespace: shop, labels: {{app: web}}}}\n\
             spec: {{containers: [{{name: web}}]}}\nstatus: {{podIP: {address}}}\n"
        )
    };
    for number in 0..40 {
        apply(&mut builder, &format!("p{number}.yaml"), &pod(number, &format!("10.0.0.{number}")));
    }
    let before = apply(&mut builder, "none.yaml", "");
    let after = apply(&mut builder, "p7.yaml", &pod(7, "10.0.1.7"));
    let (old, new) = (&before.snapshot, &after.snapshot);
    let is_kept = |one: &&Arc<Workload>| new.workloads.iter().any(|other| Arc::ptr_eq(one, other));
    assert_eq!((old.workloads.iter().filter(is_kept).count(), new.workloads.len()), (39, 40));
    let changes = Changes::between(old, new);
    assert_eq!(changes.pods.into_iter().collect::<Vec<_>>(), [("shop".into(), "p7".into())]);
    let addresses: Vec<String> = changes.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.7", "10.0.1.7"]);
}

/// Istio's Gateway and the Gateway API's have one name and are two kinds.
#[test]
fn two_kinds_of_one_name_live_side_by_side() {
    let text = |port: u16| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: front, namespace: shop}}\n\
             spec: {{selector: {{app: front}}, servers: [{{port: {{number: {port}, name: http, protocol: HTTP}}, hosts: ['*']}}]}}\n"
        )
    };
    let istio = |port| objects("istio.yaml", &text(port)).remove(0);
    let kubernetes = objects(
        "kubernetes.yaml",
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: front, namespace: shop}\n\
         spec: {gatewayClassName: other, listeners: [{name: a, port: 82, protocol: HTTP}]}\n",
    )
    .remove(0);
    let ports = |built: &Built| {
        assert!(built.diagnostics.iter().all(|found| found.code == "missing-class"), "neither takes the other's name");
        let gateways = &built.snapshot.gateways;
        gateways.iter().flat_map(|gateway| &gateway.servers).map(|server| server.port).collect::<Vec<_>>()
    };
    let mut builder = Builder::new(MeshConfig::default(), AddressBook::default()).checked(true);
    let file = |path: &str, objects: Vec<Arc<Object>>| (Arc::from(Path::new(path)), objects);
    let built = builder.apply_files([file("a.yaml", vec![kubernetes.clone()]), file("b.yaml", vec![istio(80)])]);
    assert_eq!((ports(&built), builder.objects()), (vec![80], 2));
    assert_eq!(ports(&builder.apply_files([file("b.yaml", vec![istio(81)])])), [81]);
    assert_eq!(ports(&builder.apply_files([file("a.yaml", Vec::new())])), [81]);
    assert_eq!(
        ports(&builder.apply_files([file("a.yaml", vec![kubernetes]), file("b.yaml", Vec::new())])),
        Vec::<u16>::new()
    );
}
