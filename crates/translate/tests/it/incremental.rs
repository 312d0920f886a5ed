//! What is kept up to date is what would be made from nothing, after every change; and a change is little work.

use std::path::Path;
use std::sync::Arc;

use evenkeel_model::{AddressBook, Builder, MeshConfig, Snapshot};
use evenkeel_translate::{ClientKind, ProxyKind, ProxyView, Translator};
use evenkeel_xds::{Cause, ResourceType};

/// Steps of one random run.
const STEPS: u32 = 60;
/// Names of each kind, of which a run picks.
const NAMES: u32 = 4;

/// A mesh of one object per file.
struct Mesh {
    builder: Builder,
    generation: u64,
}

impl Mesh {
    fn new() -> Self {
        Self { builder: Builder::new(MeshConfig::default(), AddressBook::default()).checked(false), generation: 0 }
    }

    /// Writes files (no text: removes them), and gives the next snapshot and its cause.
    fn write<'a>(&mut self, files: impl IntoIterator<Item = (String, &'a str)>) -> (Arc<Snapshot>, Cause) {
        let changed = files.into_iter().map(|(name, text)| {
            let (objects, found) = evenkeel_api::load(&[(name.as_str().into(), text.into())]);
            assert!(!found.has_errors(), "{name}:\n{found}\n{text}");
            (Path::new(&name).into(), objects.into_iter().map(Arc::new).collect())
        });
        let snapshot = self.builder.apply(changed.collect::<Vec<_>>()).snapshot;
        self.generation += 1;
        (snapshot, Cause { generation: self.generation, time_us: 0 })
    }
}

fn view(kind: ProxyKind, name: &str, address: &str, labels: &[(&str, &str)]) -> ProxyView {
    let (pod, namespace) = name.split_once('.').expect("POD.NAMESPACE");
    ProxyView {
        kind,
        addresses: vec![address.parse().expect("an address")],
        pod: pod.into(),
        namespace: namespace.into(),
        service_account: "default".into(),
        labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        client_kind: ClientKind::Envoy,
    }
}

/// Proxies of every kind: with labels that selectors choose and without, in several namespaces.
fn views() -> Vec<ProxyView> {
    let mut all = envoys();
    let kinds = [ClientKind::EvenkeelFull, ClientKind::EvenkeelLearned, ClientKind::EvenkeelFull];
    let own =
        all.iter().zip(kinds.into_iter().cycle()).map(|(view, client_kind)| ProxyView { client_kind, ..view.clone() });
    let own: Vec<_> = own.collect();
    all.extend(own);
    all
}

fn envoys() -> Vec<ProxyView> {
    vec![
        view(ProxyKind::Sidecar, "a-0.shop", "10.0.0.1", &[("app", "a")]),
        view(ProxyKind::Sidecar, "b-0.shop", "10.0.0.2", &[("app", "b")]),
        view(ProxyKind::Sidecar, "c-0.shop", "10.0.0.3", &[("app", "c"), ("version", "v1")]),
        view(ProxyKind::Sidecar, "a-0.other", "10.0.0.4", &[("app", "a")]),
        view(ProxyKind::Router, "edge-0.istio-system", "10.0.0.5", &[("istio", "ingressgateway")]),
        view(ProxyKind::Router, "inner-0.shop", "10.0.0.6", &[("istio", "inner")]),
    ]
}

/// xorshift64*: small, seeded, and good enough to pick edits.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32) % end
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len() as u32) as usize]
    }
}

const HOSTS: [&str; 9] = [
    "s0.shop.svc.cluster.local",
    "s1.shop.svc.cluster.local",
    "s2.other.svc.cluster.local",
    "*.shop.svc.cluster.local",
    "e0.example.com",
    "e1.example.com",
    "*.example.com",
    "x.example.com",
    "nowhere.test",
];

/// One object of some kind, written at random; empty: it is gone.
fn edit(random: &mut Random) -> (String, String) {
    let n = random.below(NAMES);
    let namespace = random.of(&["shop", "shop", "other", "istio-system"]);
    let (host, other) =
        (random.of(&HOSTS), random.of(&["s0.shop.svc.cluster.local", "e0.example.com", "s1.shop.svc.cluster.local"]));
    let app = random.of(&["a", "b", "c"]);
    let (kind, text) = match random.below(12) {
        0 | 1 => {
            let ports = random.of(&[
                "[{name: http, port: 80}]",
                "[{name: http, port: 80}, {name: tcp, port: 9000}]",
                "[{name: any, port: 7000}, {name: grpc, port: 80}]",
                "[{name: tls, port: 443}]",
            ]);
            let address = random.of(&["None", &format!("10.96.0.{n}"), "10.96.0.1"]).to_owned();
            let spec = format!("{{clusterIP: {address}, selector: {{app: {app}}}, ports: {ports}}}");
            let text =
                format!("apiVersion: v1\nkind: Service\nmetadata: {{name: s{n}, namespace: NS}}\nspec: {spec}\n");
            ("service", text)
        }
        2 | 3 => {
            let ports = random.of(&[
                "[{number: 80, name: http, protocol: HTTP}]",
                "[{number: 443, name: tls, protocol: TLS}]",
                "[{number: 9000, name: tcp, protocol: TCP}, {number: 80, name: http, protocol: HTTP}]",
            ]);
            let own = format!("e{n}.example.com");
            let entry_host = random.of(&[&own, "*.example.com", "*.wild.test"]).to_owned();
            let (resolution, endpoints) = match random.below(3) {
                0 => ("STATIC", "endpoints: [{address: 192.0.2.1}, {address: 192.0.2.2, locality: north/a}]"),
                1 if !entry_host.starts_with('*') => ("DNS", "endpoints: []"),
                _ => ("NONE", ""),
            };
            let visible = random.of(&["", "exportTo: [\".\"], "]);
            let spec = format!(
                "{{hosts: [\"{entry_host}\"], {visible}ports: {ports}, resolution: {resolution}, {endpoints}}}"
            );
            let head = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry";
            ("entry", format!("{head}\nmetadata: {{name: e{n}, namespace: NS}}\nspec: {spec}\n"))
        }
        4 => {
            let (pod, labels) = (
                random.of(&["a-0", "b-0", "c-0", "z-0"]),
                random.of(&["", ", version: v1", ", topology.kubernetes.io/region: north"]),
            );
            let address = match (pod, namespace) {
                ("a-0", "shop") => "10.0.0.1",
                ("b-0", "shop") => "10.0.0.2",
                ("c-0", "shop") => "10.0.0.3",
                ("a-0", "other") => "10.0.0.4",
                _ => "10.0.0.99",
            };
            let ready = random.of(&["True", "False"]);
            let text = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, namespace: NS, labels: {{app: {app}{labels}}}}}\n\
                 spec: {{serviceAccountName: default, containers: [{{name: {app}}}]}}\n\
                 status: {{podIP: {address}, conditions: [{{type: Ready, status: \"{ready}\"}}]}}\n"
            );
            return (
                format!("{namespace}-pod-{pod}.yaml"),
                gone_or(random, text.replace("namespace: NS", &format!("namespace: {namespace}"))),
            );
        }
        5 | 6 => {
            let condition = random.of(&[
                "",
                "match: [{headers: {x: {exact: y}}}], ",
                "match: [{sourceLabels: {app: a}}], ",
                "match: [{sourceNamespace: other}], ",
            ]);
            let gateways =
                random.of(&["", "gateways: [istio-system/g0], ", "gateways: [mesh, istio-system/g0, shop/g1], "]);
            let routes = random.of(&["http", "http", "tcp", "tls"]);
            let routes = match routes {
                "http" => format!(
                    "http: [{{{condition}route: [{{destination: {{host: {other}}}}}]}}, {{route: [{{destination: {{host: {other}, subset: v1}}}}], timeout: {n}s}}]"
                ),
                "tcp" => format!("tcp: [{{route: [{{destination: {{host: {other}, port: {{number: 9000}}}}}}]}}]"),
                _ => format!(
                    "tls: [{{match: [{{sniHosts: [\"{host}\"]}}], route: [{{destination: {{host: {other}, port: {{number: 443}}}}}}]}}]"
                ),
            };
            let head = "apiVersion: networking.istio.io/v1\nkind: VirtualService";
            (
                "routes",
                format!(
                    "{head}\nmetadata: {{name: v{n}, namespace: NS}}\nspec: {{hosts: [\"{host}\"], {gateways}{routes}}}\n"
                ),
            )
        }
        7 | 8 => {
            let policy = random.of(&[
                "loadBalancer: {simple: ROUND_ROBIN}",
                "tls: {mode: ISTIO_MUTUAL}",
                "loadBalancer: {consistentHash: {httpHeaderName: x}}",
                "loadBalancer: {localityLbSetting: {enabled: true, distribute: [{from: \"north/*\", to: {\"north/*\": 100}}]}}",
            ]);
            let selector = random.of(&["", "", "workloadSelector: {matchLabels: {app: a}}, "]);
            let subsets = random.of(&["", ", subsets: [{name: v1, labels: {version: v1}}]"]);
            let head = "apiVersion: networking.istio.io/v1\nkind: DestinationRule";
            (
                "rule",
                format!(
                    "{head}\nmetadata: {{name: d{n}, namespace: NS}}\nspec: {{host: \"{host}\", {selector}trafficPolicy: {{{policy}}}{subsets}}}\n"
                ),
            )
        }
        9 => {
            let selector = random.of(&["{istio: ingressgateway}", "{istio: inner}"]);
            let servers = random.of(&[
                "[{port: {number: 80, name: http, protocol: HTTP}, hosts: [\"*\"]}]",
                "[{port: {number: 80, name: http, protocol: HTTP}, hosts: [\"*.example.com\"], tls: {httpsRedirect: true}}]",
                "[{port: {number: 9000, name: tcp, protocol: TCP}, hosts: [\"*\"]}, {port: {number: 8088, name: http-b, protocol: HTTP}, hosts: [e0.example.com]}]",
                "[{port: {number: 9443, name: tls, protocol: TLS}, hosts: [\"*.example.com\"], tls: {mode: PASSTHROUGH}}]",
            ]);
            let head = "apiVersion: networking.istio.io/v1\nkind: Gateway";
            (
                "gateway",
                format!(
                    "{head}\nmetadata: {{name: g{n}, namespace: NS}}\nspec: {{selector: {selector}, servers: {servers}}}\n"
                ),
            )
        }
        10 => {
            let selector = random.of(&["", "selector: {matchLabels: {app: a}}, "]);
            let mode = random.of(&["STRICT", "DISABLE", "PERMISSIVE"]);
            let head = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication";
            (
                "peers",
                format!(
                    "{head}\nmetadata: {{name: p{n}, namespace: NS}}\nspec: {{{selector}mtls: {{mode: {mode}}}}}\n"
                ),
            )
        }
        _ => match random.below(4) {
            0 => {
                let policy = random.of(&["ALLOW_ANY", "REGISTRY_ONLY"]);
                let mesh = format!("    outboundTrafficPolicy:\n      mode: {policy}\n");
                let text = format!(
                    "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n{mesh}"
                );
                return ("mesh.yaml".to_owned(), gone_or(random, text));
            }
            _ => {
                let (action, selector) =
                    (random.of(&["ALLOW", "DENY"]), random.of(&["", "selector: {matchLabels: {app: b}}, "]));
                let head = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy";
                let rules = "[{from: [{source: {namespaces: [shop]}}]}]";
                (
                    "policy",
                    format!(
                        "{head}\nmetadata: {{name: z{n}, namespace: NS}}\nspec: {{{selector}action: {action}, rules: {rules}}}\n"
                    ),
                )
            }
        },
    };
    (
        format!("{namespace}-{kind}-{n}.yaml"),
        gone_or(random, text.replace("namespace: NS", &format!("namespace: {namespace}"))),
    )
}

fn gone_or(random: &mut Random, text: String) -> String {
    if random.below(4) == 0 { String::new() } else { text }
}

#[test]
fn after_every_change_it_is_as_if_made_from_nothing() {
    for seed in 1..=6 {
        let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
        let mut mesh = Mesh::new();
        let (snapshot, cause) = mesh.write([]);
        let mut translator = Translator::new(snapshot, cause);
        let views = views();
        for step in 0..STEPS {
            let (name, text) = edit(&mut random);
            let (snapshot, cause) = mesh.write([(name.clone(), text.as_str())]);
            let told = translator.update(snapshot, cause);
            // Proxies come while the mesh changes, and one goes and comes back.
            if let Some(view) = views.get(step as usize / 3) {
                translator.join(view);
            }
            if step % 16 == 15 {
                translator.leave(&views[1]);
                translator.join(&views[1]);
            }
            let (mismatches, _) = translator.verify();
            let names: Vec<String> = mismatches.iter().map(ToString::to_string).collect();
            assert!(names.is_empty(), "seed {seed}, step {step}, {name}:\n{text}\n{}", names.join("\n"));
            for change in told {
                assert_eq!(change.now.generation, cause.generation);
                assert!(change.now.diff(&change.before).next().is_some(), "{}: nothing changed", change.view.pod);
            }
        }
    }
}

/// A service as `make bench-control` has it: two endpoints, a VirtualService and a DestinationRule.
fn service(n: u32) -> (String, String) {
    let host = format!("s{n}.example.com");
    let text = format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: s{n}, namespace: shop}}\n\
         spec: {{hosts: [{host}], addresses: [10.{}.{}.1], ports: [{{number: 80, name: http, protocol: HTTP}}], resolution: STATIC, \
         endpoints: [{{address: 192.0.2.1}}, {{address: 192.0.2.2}}]}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: s{n}, namespace: shop}}\n\
         spec: {{hosts: [{host}], gateways: [mesh, g], http: [{{match: [{{headers: {{x: {{exact: y}}}}}}], route: [{{destination: {{host: {host}}}}}], \
         timeout: 3s, retries: {{attempts: 2}}}}]}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: s{n}, namespace: shop}}\n\
         spec: {{host: {host}, trafficPolicy: {{loadBalancer: {{simple: ROUND_ROBIN}}, connectionPool: {{tcp: {{maxConnections: 10}}}}, \
         outlierDetection: {{consecutive5xxErrors: 5}}}}}}\n",
        100 + n / 250,
        n % 250
    );
    (format!("s{n:05}.yaml"), text)
}

const GATEWAY: &str = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g, namespace: shop}\n\
    spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [\"*\"]}]}\n";

#[test]
fn what_a_change_costs_does_not_depend_on_the_mesh() {
    let units_for = |services: u32, sidecars: u8, client_kind: ClientKind| {
        let mut mesh = Mesh::new();
        let files: Vec<_> =
            (0..services).map(service).chain([("gateway.yaml".to_owned(), GATEWAY.to_owned())]).collect();
        let (snapshot, cause) = mesh.write(files.iter().map(|(name, text)| (name.clone(), text.as_str())));
        let mut translator = Translator::new(snapshot, cause);
        for n in 0..sidecars {
            let sidecar = view(ProxyKind::Sidecar, &format!("w-{n}.shop"), &format!("10.1.0.{n}"), &[("app", "w")]);
            translator.join(&ProxyView { client_kind, ..sidecar });
        }
        translator.join(&ProxyView { client_kind, ..envoys().remove(4) });
        let mut counts = Vec::new();
        let mut step = |files: &[(String, String)], changed: usize| {
            let (snapshot, cause) = mesh.write(files.iter().map(|(name, text)| (name.clone(), text.as_str())));
            let before = translator.units_made();
            let told = translator.update(snapshot, cause);
            assert_eq!(told.len(), changed);
            counts.push(translator.units_made() - before);
            told
        };
        let everybody = usize::from(sidecars) + 1;
        let (name, text) = service(services);
        let told = step(&[(name.clone(), text.clone())], everybody);
        for change in &told {
            let names: Vec<String> =
                change.now.diff(&change.before).map(|d| format!("{} {}", d.kind, d.name)).collect();
            let own = |kind: ResourceType| format!("{kind} outbound|80||s{services}.example.com");
            for kind in [ResourceType::Cluster, ResourceType::Endpoint] {
                assert!(names.contains(&own(kind)), "{names:?}");
            }
            assert!(names.len() <= 4, "{names:?}");
        }
        // Another endpoint, then another route, then none of it.
        let moved = text.replace("192.0.2.2", "192.0.2.3");
        step(&[(name.clone(), moved.clone())], everybody);
        step(&[(name.clone(), moved.replace("timeout: 3s", "timeout: 4s"))], everybody);
        step(&[(name, String::new())], everybody);
        // Comments are nothing.
        let (first, written) = service(0);
        step(&[(first, written + "# a comment\n")], 0);
        counts
    };
    for kind in [ClientKind::Envoy, ClientKind::EvenkeelFull] {
        let small = units_for(30, 3, kind);
        assert!(small.iter().all(|units| *units <= 12), "{small:?}");
        assert_eq!(small, units_for(90, 3, kind));
        assert_eq!(small, units_for(30, 9, kind), "sidecars that see the same share what is made");
    }
}

#[test]
fn proxies_that_see_the_same_share_it_and_nothing_stays_behind() {
    let mut mesh = Mesh::new();
    let files: Vec<_> = (0..20).map(service).collect();
    let (snapshot, cause) = mesh.write(files.iter().map(|(name, text)| (name.clone(), text.as_str())));
    let mut translator = Translator::new(snapshot, cause);
    let sidecar = |n: u8| view(ProxyKind::Sidecar, &format!("w-{n}.shop"), &format!("10.1.0.{n}"), &[("app", "w")]);
    let first = translator.join(&sidecar(1));
    let made = translator.units_made();
    let second = translator.join(&sidecar(2));
    assert_eq!(translator.units_made() - made, 1, "only what leads to its own workload");
    let name = "outbound|80||s7.example.com";
    let cluster = |set: &evenkeel_xds::ResourceSet| set.get(ResourceType::Cluster, name).cloned().expect("the cluster");
    assert!(Arc::ptr_eq(&cluster(&first), &cluster(&second)));

    let kept = Arc::downgrade(&cluster(&first));
    drop((first, second));
    let (snapshot, cause) = mesh.write(files.iter().map(|(name, _)| (name.clone(), "")));
    drop(translator.update(snapshot, cause));
    assert_eq!(kept.strong_count(), 0, "a service that is gone is forgotten");
}
