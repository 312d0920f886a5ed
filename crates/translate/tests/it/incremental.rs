//! After every change the incremental result equals a full translation, and a change costs little work.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use evenkeel_api::{ObjectKey, load_object};
use evenkeel_base::{Rank, SourceId};
use evenkeel_model::{Address, AddressBook, Builder, MeshConfig, Snapshot, SourceEvent};
use evenkeel_testkit::objects::{GATEWAY, whole_service};
use evenkeel_testkit::{Random, cases};
use evenkeel_translate::{ClientKind, ProxyKind, ProxyView};
use evenkeel_xds::{Cause, ResourceType};

use crate::edits::edit;
use crate::fleet::Fleet;

/// A mesh of one object per file.
pub struct Mesh {
    builder: Builder,
    generation: u64,
    /// What comes from another source than files, by the file it would be in.
    served: BTreeMap<String, ObjectKey>,
}

impl Mesh {
    pub fn new() -> Self {
        let builder = Builder::new(MeshConfig::default(), AddressBook::default()).checked(false);
        Self { builder, generation: 0, served: BTreeMap::new() }
    }

    /// Writes the object of a file (no text: removes it) as a source without files tells of it.
    fn serve(&mut self, name: &str, text: &str) -> (Arc<Snapshot>, Cause) {
        let source = SourceId::new("served", Rank(200));
        let document = evenkeel_api::documents(&name.into(), text).pop();
        let served = document.map(|document| {
            let (objects, found) = load_object(&source, &document.json);
            assert!(!found.has_errors(), "{name}:\n{found}\n{text}");
            (ObjectKey::of_json(&document.json).expect("a kind that is known"), objects)
        });
        let before = self.served.remove(name);
        let gone = before.filter(|key| served.as_ref().is_none_or(|(now, _)| now != key));
        let gone = gone.map(|key| SourceEvent::Delete(Address::Object(key.into())));
        let came = served.map(|(key, objects)| {
            self.served.insert(name.to_owned(), key.clone());
            SourceEvent::of_object(key, 0, objects.into_iter().map(Arc::new).collect())
        });
        let events: Vec<_> = gone.into_iter().chain(came).map(|event| (source.clone(), event)).collect();
        let snapshot = self.builder.apply(events).snapshot;
        self.generation += 1;
        (snapshot, Cause { generation: self.generation, time_us: 0 })
    }

    /// Writes files (no text: removes them), and gives the next snapshot and its cause.
    pub fn write<'a>(&mut self, files: impl IntoIterator<Item = (String, &'a str)>) -> (Arc<Snapshot>, Cause) {
        let changed = files.into_iter().map(|(name, text)| {
            let (objects, found) = evenkeel_api::load(&[(name.as_str().into(), text.into())]);
            assert!(!found.has_errors(), "{name}:\n{found}\n{text}");
            (Path::new(&name).into(), objects.into_iter().map(Arc::new).collect())
        });
        let snapshot = self.builder.apply_files(changed.collect::<Vec<_>>()).snapshot;
        self.generation += 1;
        (snapshot, Cause { generation: self.generation, time_us: 0 })
    }
}

pub fn view(kind: ProxyKind, name: &str, address: &str, labels: &[(&str, &str)]) -> ProxyView {
    let (pod, namespace) = name.split_once('.').expect("POD.NAMESPACE");
    ProxyView {
        locality: "".into(),
        kind,
        addresses: vec![address.parse().expect("an address")],
        pod: pod.into(),
        namespace: namespace.into(),
        service_account: "default".into(),
        labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        client_kind: ClientKind::Envoy,
        takes_proxy_protocol: false,
        has_collector: false,
        has_log_service: false,
        proxy_config: "".into(),
        authenticated: true,
        captures_dns: true,
        interception: None,
        takes_hybrid_curve: false,
        cluster: "".into(),
        network: "".into(),
        peer_labels: None,
    }
}

/// Proxies of every kind: with labels that selectors choose and without, in several namespaces.
fn views() -> Vec<ProxyView> {
    let mut all = envoys();
    let kinds = [ClientKind::EvenkeelFull, ClientKind::EvenkeelLearned, ClientKind::EvenkeelFull];
    let own = all.iter().zip(kinds.into_iter().cycle()).map(|(view, client_kind)| ProxyView {
        client_kind,
        has_collector: true,
        has_log_service: true,
        ..view.clone()
    });
    let own: Vec<_> = own.collect();
    all.extend(own);
    let sidecars = envoys().into_iter().filter(|view| view.kind == ProxyKind::Sidecar);
    all.extend(sidecars.map(|view| ProxyView { client_kind: ClientKind::Grpc, ..view }));
    all
}

pub fn envoys() -> Vec<ProxyView> {
    vec![
        view(ProxyKind::Sidecar, "a-0.shop", "10.0.0.1", &[("app", "a")]),
        view(ProxyKind::Sidecar, "b-0.shop", "10.0.0.2", &[("app", "b")]),
        view(ProxyKind::Sidecar, "c-0.shop", "10.0.0.3", &[("app", "c"), ("version", "v1")]),
        view(ProxyKind::Sidecar, "a-0.other", "10.0.0.4", &[("app", "a")]),
        view(ProxyKind::Router, "edge-0.istio-system", "10.0.0.5", &[("istio", "ingressgateway")]),
        view(ProxyKind::Router, "inner-0.shop", "10.0.0.6", &[("istio", "inner")]),
    ]
}

#[test]
fn after_every_change_it_is_as_if_made_from_nothing() {
    // Steps of one random run.
    let steps = cases(40, 60);
    for seed in 1..=6 {
        let mut random = Random::new(seed);
        let mut mesh = Mesh::new();
        let (snapshot, cause) = mesh.write([]);
        let mut translator = Fleet::new(snapshot, cause);
        let mut views = views();
        // The agents of some do not answer DNS.
        views.iter_mut().step_by(3).for_each(|view| view.captures_dns = seed % 2 == 0);
        for step in 0..steps {
            let (name, text) = edit(&mut random);
            // In two runs each second object comes from another source.
            let (snapshot, cause) = if seed > 4 && step % 2 == 0 {
                mesh.serve(&name, &text)
            } else {
                mesh.write([(name.clone(), text.as_str())])
            };
            let told = translator.update(snapshot, cause);
            // Proxies come while the mesh changes, and one goes and comes back.
            if let Some(view) = views.get(step / 3) {
                translator.join(view);
            }
            if step % 16 == 15 {
                translator.leave(&views[1]);
                translator.join(&views[1]);
            }
            if step % 10 == 9 {
                is_the_same_anew(&mut mesh, &mut translator, &views);
            }
            let mismatches = translator.verify();
            let names: Vec<String> = mismatches.iter().map(ToString::to_string).collect();
            assert!(names.is_empty(), "seed {seed}, step {step}, {name}:\n{text}\n{}", names.join("\n"));
            for change in told {
                assert_eq!(change.now.generation, cause.generation);
            }
        }
    }
}

/// Built from nothing all is as it was, causes included, and nothing is shared with what was before.
fn is_the_same_anew(mesh: &mut Mesh, translator: &mut Fleet, views: &[ProxyView]) {
    let told = mesh.builder.events();
    let snapshot = mesh.builder.rebuild(told).snapshot;
    assert!(snapshot == *translator.snapshot() && !Arc::ptr_eq(&snapshot, translator.snapshot()));
    let before: Vec<_> =
        views.iter().filter_map(|view| Some((view, translator.view_of(view)?, translator.set_of(view)?))).collect();
    assert!(translator.rebuild(snapshot).is_empty());
    for (view, known, before) in before {
        assert!(Arc::ptr_eq(&translator.view_of(view).expect("it stays"), &known));
        let now = translator.set_of(view).expect("it stays");
        for kind in ResourceType::ALL {
            let (old, new) = (before.of(kind), now.of(kind));
            assert!(old.keys().eq(new.keys()));
            for (old, new) in old.values().zip(new.values()) {
                assert!(old == new && !Arc::ptr_eq(old, new), "{kind} {}", old.name);
                // Proxies that had it from different changes now have it from the first.
                assert!((1..=old.cause.generation).contains(&new.cause.generation), "{kind} {}", old.name);
            }
        }
    }
}

/// The age of a change that goes back to what was before is its own, not that of the first one.
#[test]
fn what_comes_back_has_a_new_cause() {
    let service = |port: u16| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: x, namespace: shop}}\n\
             spec: {{clusterIP: 10.96.0.9, ports: [{{name: http, port: 80, targetPort: {port}}}]}}\n---\n\
             apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: x, namespace: shop}}\n\
             spec: {{host: x, trafficPolicy: {{connectionPool: {{tcp: {{maxConnections: {port}}}}}}}}}\n"
        )
    };
    let (a, b) = (service(1), service(2));
    let mut mesh = Mesh::new();
    let (snapshot, cause) = mesh.write([("x.yaml".to_owned(), a.as_str())]);
    let mut translator = Fleet::new(snapshot, cause);
    let one = view(ProxyKind::Sidecar, "a-0.shop", "10.0.0.1", &[("app", "a")]);
    let other = view(ProxyKind::Sidecar, "b-0.shop", "10.0.0.2", &[("app", "b")]);
    translator.join(&one);
    translator.join(&other);
    // A stream that has not sent a change yet holds what was before.
    let mut held = vec![translator.set_of(&one).expect("it joined")];
    for text in [b.as_str(), a.as_str(), "", a.as_str()] {
        let (snapshot, cause) = mesh.write([("x.yaml".to_owned(), text)]);
        translator.update(snapshot, cause);
        let sets = [&one, &other].map(|view| translator.set_of(view).expect("it is there"));
        let clusters =
            sets.each_ref().map(|set| set.get(ResourceType::Cluster, "outbound|80||x.shop.svc.cluster.local"));
        match clusters {
            [None, None] => assert!(text.is_empty()),
            [Some(one), Some(other)] => {
                assert_eq!(one.cause.generation, cause.generation, "{text}");
                assert!(Arc::ptr_eq(one, other), "proxies share it");
            }
            found => panic!("{found:?}"),
        }
        held.extend(sets);
    }
}

#[test]
fn a_host_of_routes_that_gets_a_service_stays_known() {
    let host = "x.example.com";
    let routes = format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: x, namespace: shop}}\n\
         spec: {{hosts: [{host}], http: [{{directResponse: {{status: 200}}}}]}}\n"
    );
    let entry = format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: x, namespace: shop}}\n\
         spec: {{hosts: [{host}], ports: [{{number: 80, name: http}}], resolution: DNS}}\n"
    );
    let mut mesh = Mesh::new();
    let (snapshot, cause) = mesh.write([("routes.yaml".to_owned(), routes.as_str())]);
    let mut translator = Fleet::new(snapshot, cause);
    let sidecar = view(ProxyKind::Sidecar, "a-0.shop", "10.0.0.1", &[("app", "a")]);
    let learner = ProxyView { client_kind: ClientKind::EvenkeelLearned, ..sidecar };
    translator.join(&learner);
    for text in [entry.as_str(), "", entry.as_str()] {
        let (snapshot, cause) = mesh.write([("entry.yaml".to_owned(), text)]);
        translator.update(snapshot, cause);
        let set = translator.set_of(&learner).expect("it joined");
        assert!(set.get(ResourceType::VirtualHost, "80/x.example.com").is_some(), "{text}");
        assert_eq!(translator.verify(), []);
    }
}

pub fn service(n: usize) -> (String, String) {
    (format!("s{n:05}.yaml"), whole_service(n))
}

#[test]
fn what_a_change_costs_does_not_depend_on_the_mesh() {
    let units_for = |services: usize, sidecars: u8, client_kind: ClientKind| {
        let mut mesh = Mesh::new();
        let files: Vec<_> =
            (0..services).map(service).chain([("gateway.yaml".to_owned(), GATEWAY.to_owned())]).collect();
        let (snapshot, cause) = mesh.write(files.iter().map(|(name, text)| (name.clone(), text.as_str())));
        let mut translator = Fleet::new(snapshot, cause);
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
            let own = |kind: ResourceType| format!("{kind} outbound|80||s{services}.shop.example.com");
            for kind in [ResourceType::Cluster, ResourceType::Endpoint] {
                assert!(names.contains(&own(kind)), "{names:?}");
            }
            assert!(names.len() <= 4, "{names:?}");
        }
        // Another endpoint, then another route, then none of it.
        let moved = text.replace("198.51.", "203.0.");
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

/// A Pod is work for the proxy beside it and for its services, however many other Pods and proxies there are.
#[test]
fn what_a_pod_costs_does_not_depend_on_the_mesh() {
    let pod = |n: usize, address: &str, labels: &str, ready: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: w-{n}, namespace: shop, labels: {{app: w{n}{labels}}}}}\n\
             spec: {{containers: [{{name: w}}]}}\n\
             status: {{podIP: {address}, conditions: [{{type: Ready, status: \"{ready}\"}}]}}\n"
        );
        (format!("w-{n}.yaml"), text)
    };
    let work_for = |pods: usize, files: &[&str]| {
        let mut mesh = Mesh::new();
        let address = |n: usize| format!("10.1.0.{n}");
        let all = (0..pods).map(|n| pod(n, &address(n), "", "True"));
        let others = files.iter().enumerate().map(|(n, text)| (format!("other-{n}.yaml"), (*text).to_owned()));
        let all: Vec<_> = all.chain(others).collect();
        let (snapshot, cause) = mesh.write(all.iter().map(|(name, text)| (name.clone(), text.as_str())));
        let mut fleet = Fleet::new(snapshot, cause);
        for n in 0..pods {
            let sidecar = view(ProxyKind::Sidecar, &format!("w-{n}.shop"), &address(n), &[("app", &format!("w{n}"))]);
            fleet.join(&ProxyView { client_kind: ClientKind::EvenkeelLearned, ..sidecar });
        }
        let (name, _) = pod(1, "", "", "");
        let edits = [
            pod(1, &address(1), "", "False").1,
            pod(1, &address(1), ", version: v1", "True").1,
            pod(1, "10.1.1.1", "", "True").1,
            String::new(),
            pod(1, &address(1), ", topology.kubernetes.io/region: north", "True").1,
        ];
        edits.map(|text| {
            let before = (fleet.proxies_looked_up(), fleet.units_made());
            let (snapshot, cause) = mesh.write([(name.clone(), text.as_str())]);
            fleet.update(snapshot, cause);
            let work = (fleet.proxies_looked_up() - before.0, fleet.units_made() - before.1);
            assert_eq!(fleet.verify(), []);
            work
        })
    };
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: w, namespace: shop}\n\
                   spec: {selector: {app: w1}, ports: [{name: http, port: 80}]}\n";
    let sidecar = "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: s, namespace: shop}\n\
                   spec: {workloadSelector: {labels: {version: v1}}, egress: [{hosts: [\"./*\"]}]}\n";
    for files in [&[service][..], &[service, sidecar]] {
        let few = work_for(5, files);
        assert!(few.iter().all(|(looked_up, units)| (1..=2).contains(looked_up) && *units <= 24), "{few:?}");
        assert_eq!(few, work_for(50, files));
    }
}

#[test]
fn proxies_that_see_the_same_share_it_and_nothing_stays_behind() {
    let mut mesh = Mesh::new();
    let files: Vec<_> = (0..20).map(service).collect();
    let (snapshot, cause) = mesh.write(files.iter().map(|(name, text)| (name.clone(), text.as_str())));
    let mut translator = Fleet::new(snapshot, cause);
    let sidecar = |n: u8| view(ProxyKind::Sidecar, &format!("w-{n}.shop"), &format!("10.1.0.{n}"), &[("app", "w")]);
    let first = translator.join(&sidecar(1));
    let made = translator.units_made();
    let second = translator.join(&sidecar(2));
    assert_eq!(translator.units_made() - made, 1, "only what leads to its own workload");
    let name = "outbound|80||s7.shop.example.com";
    let cluster = |set: &evenkeel_xds::ResourceSet| set.get(ResourceType::Cluster, name).cloned().expect("the cluster");
    assert!(Arc::ptr_eq(&cluster(&first), &cluster(&second)));

    let kept = Arc::downgrade(&cluster(&first));
    drop((first, second));
    let (snapshot, cause) = mesh.write(files.iter().map(|(name, _)| (name.clone(), "")));
    drop(translator.update(snapshot, cause));
    assert_eq!(kept.strong_count(), 0, "a service that is gone is forgotten");
}

/// A Sidecar for what has the label `app: w`, importing services by number.
fn sidecar_for_w(services: &[u32]) -> String {
    let hosts: Vec<String> = services.iter().map(|n| format!("./s{n}.shop.example.com")).collect();
    format!(
        "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: w, namespace: shop}}\n\
         spec: {{workloadSelector: {{labels: {{app: w}}}}, egress: [{{hosts: [{}]}}]}}\n",
        hosts.join(", ")
    )
}

#[test]
fn a_sidecar_touches_only_the_proxies_it_selects() {
    let mut mesh = Mesh::new();
    let files: Vec<_> = (0..20).map(service).collect();
    let (snapshot, cause) = mesh.write(files.iter().map(|(name, text)| (name.clone(), text.as_str())));
    let mut translator = Fleet::new(snapshot, cause);
    let views = [("w-1.shop", "w"), ("w-2.shop", "w"), ("v-1.shop", "v"), ("w-1.other", "w")]
        .map(|(name, app)| view(ProxyKind::Sidecar, name, "10.1.0.1", &[("app", app)]));
    views.iter().for_each(|view| drop(translator.join(view)));
    let mut step = |translator: &mut Fleet, name: &str, text: &str, expected: &[&str]| {
        let (snapshot, cause) = mesh.write([(name.to_owned(), text)]);
        let told = translator.update(snapshot, cause);
        let mut names: Vec<&str> = told.iter().map(|change| &*change.view.pod).collect();
        names.sort_unstable();
        assert_eq!(names, expected, "{text}");
        assert!(translator.verify().is_empty());
        told
    };
    let before = views.each_ref().map(|view| translator.set_of(view).expect("joined"));
    step(&mut translator, "sidecar.yaml", &sidecar_for_w(&[7]), &["w-1", "w-2"]);
    let now = views.each_ref().map(|view| translator.set_of(view).expect("joined"));
    assert!(before[2].is_same(&now[2]) && before[3].is_same(&now[3]));
    let outbound = |n: u32| format!("outbound|80||s{n}.shop.example.com");
    let clusters = now[0].of(ResourceType::Cluster).keys().filter(|name| name.starts_with("outbound")).count();
    assert_eq!(clusters, 1, "only what is imported");
    for kind in [ResourceType::Cluster, ResourceType::Endpoint] {
        let shared = now.each_ref().map(|set| set.get(kind, &outbound(7)).expect("imported").clone());
        assert!(shared.iter().all(|resource| Arc::ptr_eq(resource, &shared[0])), "{kind} is made once");
    }

    let made = translator.units_made();
    let told = step(&mut translator, "sidecar.yaml", &sidecar_for_w(&[7, 8]), &["w-1", "w-2"]);
    for change in &told {
        let names: Vec<_> = change.now.diff(&change.before).map(|d| format!("{} {}", d.kind, d.name)).collect();
        assert!(names.len() <= 4 && names.iter().all(|name| !name.contains("s7")), "{names:?}");
    }
    assert!(translator.units_made() - made < 100, "the two share what is made: {}", translator.units_made() - made);
    // What is not imported concerns nobody who does not import it.
    let (name, text) = service(9);
    step(&mut translator, &name, &text.replace("timeout: 3s", "timeout: 4s"), &["v-1", "w-1"]);
    step(&mut translator, "sidecar.yaml", "", &["w-1", "w-2"]);
    let now = views.each_ref().map(|view| translator.set_of(view).expect("joined"));
    assert!(now[0].diff(&now[2]).all(|d| d.kind == ResourceType::Listener), "the same but for their own ports");
}

/// Which of two workloads send nothing, as a plugin comes, is for another one, and goes.
#[test]
fn what_stands_in_for_a_plugin_reaches_whom_it_selects() {
    let mut mesh = Mesh::new();
    let files: Vec<_> = (0..3).map(service).collect();
    let (snapshot, cause) = mesh.write(files.iter().map(|(name, text)| (name.clone(), text.as_str())));
    let mut translator = Fleet::new(snapshot, cause);
    let views = ["a", "b"].map(|app| view(ProxyKind::Sidecar, &format!("{app}-0.shop"), "10.1.0.1", &[("app", app)]));
    views.iter().for_each(|view| _ = translator.join(view));
    let mut check = |file: &str, text: &str, expected: &[&str]| {
        let (snapshot, cause) = mesh.write([(file.to_owned(), text)]);
        translator.update(snapshot, cause);
        let mismatches: Vec<String> = translator.verify().iter().map(ToString::to_string).collect();
        assert!(mismatches.is_empty(), "{text}\n{}", mismatches.join("\n"));
        let sends_nothing = |view: &&ProxyView| {
            let set = translator.set_of(view).expect("joined");
            let listener = set.lookup(ResourceType::Listener, "virtualOutbound").expect("every sidecar has it");
            let name = b"envoy.filters.network.rbac";
            listener.any().value.windows(name.len()).any(|part| part == name)
        };
        let found: Vec<&str> = views.iter().filter(sends_nothing).map(|view| &view.pod[..1]).collect();
        assert_eq!(found, expected, "{file} {text}");
    };
    let plugin = |spec: &str| {
        format!(
            "apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {{name: p, namespace: shop}}\n\
             spec: {{url: x, {spec}}}\n"
        )
    };
    check("p.yaml", &plugin("selector: {matchLabels: {app: a}}"), &["a"]);
    let (name, text) = service(3);
    check(&name, &text, &["a"]);
    check("p.yaml", &plugin("selector: {matchLabels: {app: b}}"), &["b"]);
    check("p.yaml", &plugin("match: [{mode: SERVER}]"), &[]);
    check("p.yaml", &plugin("match: [{mode: CLIENT}]"), &["a", "b"]);
    check("p.yaml", "", &[]);
}

/// A Service of a namespace: only its own clients call it by its bare name.
fn cluster_service(namespace: &str) -> (String, String) {
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: {namespace}}}\n\
         spec: {{clusterIP: 10.96.0.{}, ports: [{{name: http, port: 80}}]}}\n",
        namespace.len()
    );
    (format!("web-{namespace}.yaml"), text)
}

#[test]
fn namespaces_share_what_is_the_same_for_them() {
    let mut mesh = Mesh::new();
    let files: Vec<_> = (0..20).map(service).chain(["a", "bb"].map(cluster_service)).collect();
    let (snapshot, cause) = mesh.write(files.iter().map(|(name, text)| (name.clone(), text.as_str())));
    let mut translator = Fleet::new(snapshot, cause);
    let in_namespace = |namespace: &str| {
        let sidecar = view(ProxyKind::Sidecar, &format!("w.{namespace}"), "10.1.0.1", &[("app", "w")]);
        ProxyView { client_kind: ClientKind::EvenkeelFull, ..sidecar }
    };
    let mut join = |namespace: &str, expected: u64| {
        let before = translator.units_made();
        let set = translator.join(&in_namespace(namespace));
        let made = translator.units_made() - before;
        assert!(made <= expected, "{namespace}: {made}");
        let bare = set.lookup(ResourceType::VirtualHost, "80/web").map(|host| host.name.to_string());
        bare.unwrap_or_default()
    };
    // Its own, and the services of which it alone knows the bare names.
    assert_eq!(join("c", 100), "");
    assert_eq!(join("a", 2), "80/web.a.svc.cluster.local");
    assert_eq!(join("bb", 3), "80/web.bb.svc.cluster.local");
    for namespace in ["d", "e", "f", "g"] {
        assert_eq!(join(namespace, 1), "");
    }
    assert_eq!(translator.verify(), []);

    let mut change = |(name, text): (String, String)| {
        let (snapshot, cause) = mesh.write([(name, text.as_str())]);
        let before = translator.units_made();
        assert_eq!(translator.update(snapshot, cause).len(), 7, "everybody is told");
        assert_eq!(translator.verify(), []);
        translator.units_made() - before
    };
    assert!(change(service(20)) <= 8, "once for seven namespaces");
    let (name, text) = cluster_service("a");
    assert!(
        change((name, text.replace("10.96.0.1", "10.96.0.9"))) <= 3,
        "once for its own namespace and once for the others"
    );
    // A namespace that gets a Service of its own leaves the others.
    assert!(change(cluster_service("d")) <= 8);
    let set = translator.set_of(&in_namespace("d")).expect("it joined");
    assert!(set.lookup(ResourceType::VirtualHost, "80/web").is_some());
}

/// Resources of an object without lines say by its reference where they come from.
#[test]
fn what_comes_from_no_file_is_named_by_its_reference() {
    let mut mesh = Mesh::new();
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\nspec: {ports: [{name: http, port: 80}]}\n";
    let (snapshot, cause) = mesh.serve("a.yaml", text);
    let set = evenkeel_translate::resources(&views()[0], &snapshot, cause.generation);
    let cluster = set.get(ResourceType::Cluster, "outbound|80||a.shop.svc.cluster.local").expect("the Service's");
    assert_eq!(cluster.origin.as_deref(), Some("served/Service/shop/a"));
}
