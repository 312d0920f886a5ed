//! What the tables of decisions cover: each records its YAML, its calls and the resources that it was about. Every field
//! that works appears, and stock Envoy accepts all of the resources. This executable runs the tables again for that,
//! unless it is told where they have recorded (`scripts/test.py`). The meshes and the calls are also tried for real, by
//! `crates/evenkeel/tests/it/up/agreement/tables.rs`.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use evenkeel_api::decode::{Decode, Field, Schema, Status};
use evenkeel_api::{Kind, Object, istio};
use evenkeel_base::Diagnostics;
use evenkeel_base::yaml::{self, Node};
use evenkeel_model::{AddressBook, MeshConfig};
use evenkeel_testkit::{TestCa, envoy_validate};
use evenkeel_translate::{ClientKind, ProxyView};
use evenkeel_xds::ResourceSet;
use serde_json::{Value, json};

use crate::bootstrap;
use crate::scenario::as_json;

/// Where to record, for the run that is recorded.
const FILE: &str = "EVENKEEL_TEST_RECORD";
/// Where an earlier run has recorded.
const RECORD: &str = "EVENKEEL_TEST_RECORDED";
/// The tests that are recorded.
const TABLES: [&str; 3] = ["decisions", "gateway_tls", "golden::resources"];
/// Tests that run one at a time have no threads of their own, by whose names they are told apart.
const THREADS: [&str; 2] = ["--test-threads", "2"];
/// Deeper than any supported kind.
const MAX_DEPTH: usize = 16;

thread_local! {
    /// A hash of what the test has loaded last.
    static MESH: Cell<u64> = const { Cell::new(0) };
}

/// The file to record to, for the tests that are recorded.
fn file() -> Option<&'static Mutex<File>> {
    static RECORD: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let open = || std::env::var_os(FILE).map(|path| Mutex::new(File::create(path).expect("a writable file")));
    RECORD.get_or_init(open).as_ref().filter(|_| is_of_tables())
}

/// Whether the test that runs is one of those that are recorded: their threads have their names.
fn is_of_tables() -> bool {
    let thread = std::thread::current();
    thread.name().is_some_and(|name| TABLES.iter().any(|table| name.starts_with(table)))
}

fn record(kind: &str, what: impl FnOnce() -> Vec<String>) {
    let Some(file) = file() else { return };
    let lines: String = what().iter().map(|line| format!("{kind} {line}\n")).collect();
    file.lock().expect("no panic").write_all(lines.as_bytes()).expect("a writable file");
}

/// Loads the objects of a test.
pub fn load(files: &[(Arc<str>, Arc<str>)]) -> (Vec<Object>, Diagnostics) {
    record("field", || files.iter().flat_map(|(name, text)| fields_of(name, text)).collect());
    let mut hash = DefaultHasher::new();
    files.hash(&mut hash);
    MESH.set(hash.finish());
    record("mesh", || {
        let texts: Vec<&str> = files.iter().map(|(_, text)| &**text).collect();
        vec![json!([MESH.get().to_string(), texts.join("\n---\n")]).to_string()]
    });
    evenkeel_api::load(files)
}

/// Notes a call whose decision is compared.
pub fn decided(call: &str) {
    record("decision", || {
        let mut hash = DefaultHasher::new();
        (MESH.get(), call).hash(&mut hash);
        vec![hash.finish().to_string()]
    });
}

/// Notes a call in plain text, for those who make it: the addresses of its connection, and its request (none: bytes).
pub fn called(from: SocketAddr, to: SocketAddr, request: &str) {
    record("call", || vec![json!([MESH.get().to_string(), from, to, request]).to_string()]);
}

/// A proxy's resources as JSON, which are compared.
pub fn compared(set: &ResourceSet) -> Value {
    decided("its resources");
    as_json(set)
}

/// Notes the resources of a proxy.
pub fn translated(view: &ProxyView, set: &ResourceSet) {
    if view.client_kind == ClientKind::Envoy && file().is_some() {
        let all = as_json(set);
        let of = |kind: &String, list: &Value| {
            let list = list.as_array().cloned().unwrap_or_default();
            list.iter().map(|resource| format!("{kind} {resource}")).collect::<Vec<_>>()
        };
        record("resource", || all.as_object().into_iter().flatten().flat_map(|(kind, list)| of(kind, list)).collect());
    }
}

/// The paths of the fields in these documents, after their kinds: `VirtualService spec.http[].match[].uri`.
fn fields_of(name: &Arc<str>, text: &str) -> Vec<String> {
    let (documents, _) = yaml::parse(name, text);
    let mut found = BTreeSet::new();
    for document in &documents {
        let kind = document.get("kind").and_then(Node::as_str).unwrap_or_default();
        paths(document, kind.to_owned() + " ", &mut found);
        // Settings are YAML within YAML.
        let mesh = document.at_path("data.mesh").and_then(Node::as_str);
        let annotations =
            [document.at_path("metadata.annotations"), document.at_path("spec.template.metadata.annotations")];
        let annotated = annotations.into_iter().flatten().filter_map(|all| all.get("proxy.istio.io/config")?.as_str());
        let settings = mesh.map(|text| ("MeshConfig ", text)).into_iter();
        for (kind, text) in settings.chain(annotated.map(|text| ("ProxyConfig ", text))) {
            for document in yaml::parse(name, text).0 {
                paths(&document, kind.to_owned(), &mut found);
            }
        }
    }
    found.into_iter().collect()
}

fn paths(node: &Node, path: String, found: &mut BTreeSet<String>) {
    for item in node.as_sequence().unwrap_or_default() {
        paths(item, format!("{path}[]"), found);
    }
    for entry in node.as_mapping().into_iter().flat_map(|mapping| mapping.iter()) {
        let dot = if path.ends_with(' ') { "" } else { "." };
        paths(&entry.value, format!("{path}{dot}{}", entry.key), found);
    }
    found.insert(path);
}

/// What the tables have recorded.
#[derive(Default)]
struct Recorded {
    fields: BTreeSet<String>,
    decisions: BTreeSet<String>,
    /// Distinct ones, by type.
    resources: BTreeMap<String, BTreeSet<String>>,
}

fn recorded() -> &'static Recorded {
    static RECORDED: OnceLock<Recorded> = OnceLock::new();
    RECORDED.get_or_init(|| {
        if let Some(path) = std::env::var_os(RECORD) {
            return read(Path::new(&path));
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("record");
        let mut run = Command::new(std::env::current_exe().expect("this executable"));
        let output = run.args(TABLES).args(THREADS).env(FILE, &path).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        read(&path)
    })
}

fn read(path: &Path) -> Recorded {
    let mut all = Recorded::default();
    for line in std::fs::read_to_string(path).expect("a record").lines() {
        match line.split_once(' ') {
            Some(("field", path)) => _ = all.fields.insert(path.to_owned()),
            // For those who make the calls.
            Some(("mesh" | "call", _)) => {}
            Some(("decision", hash)) => _ = all.decisions.insert(hash.to_owned()),
            Some(("resource", rest)) => {
                let (kind, json) = rest.split_once(' ').expect("a type and JSON");
                all.resources.entry(kind.to_owned()).or_default().insert(json.to_owned());
            }
            _ => panic!("{line}"),
        }
    }
    all
}

#[test]
fn there_are_three_hundred_at_least() {
    let known = recorded().decisions.len();
    assert!(known >= 300, "{known} decisions");
}

/// The kinds whose fields say what calls come to; the others describe workloads, or are read only for their metadata.
fn is_of_traffic(kind: Kind) -> bool {
    let group = kind.group();
    let names = ["Service", "EndpointSlice", "Ingress", "IngressClass", "Secret"];
    group == "networking.istio.io" || group == "security.istio.io" || names.contains(&kind.as_str())
}

/// What shows that a setting counts, or says that it does not.
enum Evidence {
    /// Agents are given other settings with this value, in ProxyConfig's YAML, and others again without any part of it.
    Agent(&'static str),
    /// The mesh has other settings with this value, in MeshConfig's YAML, and others again without any part of it.
    Mesh(&'static str),
    /// A client's proxy has other resources where this part is added to a document that ends with the other.
    Added(&'static str, &'static str),
    /// A finding of this code names a document's field, whose value is this.
    Finding(&'static str, &'static str),
    /// A test of another crate has this value: its file below `crates/`, its function, and a part of what that runs.
    Tested(&'static str, &'static str, &'static str),
}

use Evidence::{Added, Agent, Finding, Mesh, Tested};

/// A ServiceEntry without addresses.
const ENTRY: &str = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: e, namespace: shop}\n\
                     spec: {hosts: [e.test], ports: [{number: 80, name: tcp, protocol: TCP}], resolution: STATIC, endpoints: [{address: 10.0.0.9}]}\n";
/// A Service, and the machine that is its endpoint.
const MACHINE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {selector: {app: web}, ports: [{name: http, port: 80}]}\n---\n\
                       apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm, namespace: shop, annotations: {proxy.istio.io/health-checks-enabled: \"true\"}}\nspec: {address: 10.0.0.9, labels: {app: web}}\n";

/// Settings that no resource shows, and what shows them. A path stands for all paths that begin with it.
#[rustfmt::skip]
const NOT_SHOWN: &[(&str, Evidence)] = &[
    ("ServiceEntry status", Added(ENTRY, "status: {addresses: [{host: e.test, value: 240.240.7.7}]}\n")),
    ("MeshConfig ca", Mesh("ca: {address: 'a.test:1', requestTimeout: 3s, tlsSettings: {mode: SIMPLE}}")),
    ("MeshConfig ca", Finding("ca: {address: 'a.test:1', istiodSide: false}", "unsupported-value")),
    ("MeshConfig caCertificates", Mesh("caCertificates: [{spiffeBundleUrl: 'https://a.test/bundle', trustDomains: [a.test]}]")),
    ("MeshConfig defaultConfig.gatewayTopology.proxyProtocol", Tested("agent/tests/it/bootstrap.rs", "what_the_owner_says_of_the_proxy_goes_to_the_control_plane", "gatewayTopology")),
    ("MeshConfig defaultConfig.caCertificatesPem", Agent("caCertificatesPem: ['-----BEGIN CERTIFICATE-----']")),
    ("MeshConfig defaultConfig.drainDuration", Agent("drainDuration: 9s")),
    ("MeshConfig defaultConfig.extraStatTags", Agent("extraStatTags: [a]")),
    ("MeshConfig defaultConfig.fileFlushInterval", Agent("fileFlushInterval: 2s")),
    ("MeshConfig defaultConfig.fileFlushMinSizeKb", Agent("fileFlushMinSizeKb: 7")),
    ("MeshConfig defaultConfig.proxyAdminPort", Agent("proxyAdminPort: 15900")),
    ("MeshConfig defaultConfig.proxyStatsMatcher", Agent("proxyStatsMatcher: {inclusionPrefixes: [a]}")),
    ("MeshConfig defaultConfig.readinessProbe", Tested("agent/src/health/config.rs", "defaults_are_those_of_istios_agent", r#"{"readinessProbe": {}}"#)),
    ("MeshConfig defaultConfig.runtimeValues", Agent("runtimeValues: {overload.global_downstream_max_connections: '7'}")),
    ("MeshConfig defaultConfig.serviceCluster", Agent("serviceCluster: a")),
    ("MeshConfig defaultConfig.statusPort", Agent("statusPort: 15920")),
    ("MeshConfig defaultConfig.statsdUdpAddress", Agent("statsdUdpAddress: '10.0.0.1:8125'")),
    ("MeshConfig defaultConfig.envoyMetricsService", Agent("envoyMetricsService: {address: 'a.test:1'}")),
    ("MeshConfig defaultConfig.envoyAccessLogService", Agent("envoyAccessLogService: {address: 'a.test:1'}")),
    ("MeshConfig defaultConfig.zipkinAddress", Agent("zipkinAddress: 'a.test:9411'")),
    ("MeshConfig defaultConfig.tracing.zipkin", Agent("tracing: {zipkin: {address: 'a.test:9411'}}")),
    ("MeshConfig defaultConfig.tracing.tlsSettings", Agent("tracing: {zipkin: {address: 'a.test:9411'}, tlsSettings: {mode: SIMPLE}}")),
    ("MeshConfig defaultConfig.customConfigFile", Agent("customConfigFile: /a.yaml")),
    ("MeshConfig defaultConfig.proxyBootstrapTemplatePath", Agent("proxyBootstrapTemplatePath: /a.json")),
    ("MeshConfig defaultConfig.terminationDrainDuration", Tested("local/src/workloads/mod.rs", "proxies_have_the_settings_of_proxy_config", "terminationDrainDuration: 9s")),
    ("MeshConfig defaultConfig.tracingServiceName", Agent("tracingServiceName: CANONICAL_NAME_ONLY")),
    ("MeshConfig enablePrometheusMerge", Mesh("enablePrometheusMerge: false")),
    ("MeshConfig defaultProviders.metrics", Mesh("defaultProviders: {metrics: [p]}")),
    ("MeshConfig extensionProviders[].prometheus", Finding("extensionProviders: [{name: p, prometheus: {}}]", "no-effect")),
    ("MeshConfig extensionProviders[].lightstep", Finding("extensionProviders: [{name: p, lightstep: {service: a, port: 1}}]", "no-effect")),
    ("MeshConfig extensionProviders[].lightstep", Finding("extensionProviders: [{name: p, lightstep: {service: a, port: 1}}]\ndefaultProviders: {tracing: [p]}", "unsupported-provider")),
    ("MeshConfig extensionProviders[].datadog", Finding("extensionProviders: [{name: p, datadog: {service: a, port: 1}}]\ndefaultProviders: {tracing: [p]}", "unsupported-provider")),
    ("MeshConfig extensionProviders[].stackdriver", Finding("extensionProviders: [{name: p, stackdriver: {}}]\ndefaultProviders: {tracing: [p]}", "unsupported-provider")),
    ("MeshConfig extensionProviders[].opencensus", Finding("extensionProviders: [{name: p, opencensus: {service: a, port: 1}}]\ndefaultProviders: {tracing: [p]}", "unsupported-provider")),
    ("MeshConfig extensionProviders[].skywalking", Finding("extensionProviders: [{name: p, skywalking: {service: a, port: 1}}]\ndefaultProviders: {tracing: [p]}", "unsupported-provider")),
    ("MeshConfig extensionProviders[].zipkin", Finding("extensionProviders: [{name: p, zipkin: {service: a, port: 1, headers: [{name: x, envName: Y}]}}]\ndefaultProviders: {tracing: [p]}", "unsupported-field")),
    ("MeshConfig extensionProviders[].opentelemetry", Finding("extensionProviders: [{name: p, opentelemetry: {service: a, port: 1, dynatraceSampler: {}}}]\ndefaultProviders: {tracing: [p]}", "unsupported-field")),
    ("MeshConfig extensionProviders[].opentelemetry.resourceDetectors.dynatrace", Finding("extensionProviders: [{name: p, opentelemetry: {service: a, port: 1, resourceDetectors: {dynatrace: {}}}}]\ndefaultProviders: {tracing: [p]}", "unsupported-field")),
    ("MeshConfig extensionProviders[].sds", Finding("extensionProviders: [{name: p, sds: {service: a, port: 1, name: b}}]", "no-effect")),
    ("MeshConfig proxyInboundListenPort", Finding("proxyInboundListenPort: 15999", "unsupported-value")),
    ("MeshConfig serviceSettings", Tested("translate/tests/it/decisions_clusters.rs", "a_service_may_stay_within_its_cluster", "serviceSettings")),
    ("WorkloadEntry spec.network", Tested("translate/tests/it/decisions_clusters.rs", "another_network_is_reached_through_its_gateways", "network: n2")),
    ("WorkloadEntry status.conditions[]", Added(MACHINE, "status: {conditions: [{type: Healthy, status: \"True\"}]}\n")),
    ("Service status", Tested("model/tests/it/gateway_api_status.rs", "a_gateway_is_programmed_where_clients_reach_it", "{ip: 192.0.2.1}, {hostname: lb.example.com}")),
    ("WorkloadGroup spec", Tested("control/src/registration/tests.rs", "every_field_of_a_group_shows_in_its_entries", "serviceAccount: vm")),
    ("WorkloadGroup spec.metadata", Tested("control/src/registration/tests.rs", "every_field_of_a_group_shows_in_its_entries", "annotations: {note: hello}")),
    ("WorkloadGroup spec.template.", Tested("control/src/registration/tests.rs", "every_field_of_a_group_shows_in_its_entries", "ports: {http: 8080}")),
    ("WorkloadGroup spec.template.", Tested("control/src/registration/tests.rs", "every_field_of_a_group_shows_in_its_entries", "locality: s/1")),
    ("WorkloadGroup spec.probe", Tested("local/src/workloads/mod.rs", "groups_with_a_command_are_run_and_others_are_noted", "probe: {{tcpSocket: {{port: 90}}}}")),
];

/// The value without each of its parts, one at a time.
fn with_less(text: &str) -> Vec<String> {
    fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
        let inner: Vec<(String, &Value)> = match value {
            Value::Object(fields) => {
                fields.iter().map(|(name, field)| (format!("{at}/{}", name.replace('/', "~1")), field)).collect()
            }
            _ => Vec::new(),
        };
        if inner.is_empty() {
            found.push(at.to_owned());
        }
        inner.iter().for_each(|(at, field)| leaves(field, at, found));
    }
    let (documents, found) = yaml::parse(&"a.yaml".into(), text);
    assert!(found.is_empty(), "{text}");
    let whole = documents.first().map(Node::to_json).expect("a value");
    let mut all = Vec::new();
    leaves(&whole, "", &mut all);
    let without = |leaf: &String| {
        let mut less = whole.clone();
        let (above, name) = leaf.rsplit_once('/').expect("a field");
        less.pointer_mut(above).and_then(Value::as_object_mut).expect("its mapping").remove(&name.replace("~1", "/"));
        less.to_string()
    };
    all.iter().map(without).collect()
}

/// What a client's proxy has in the mesh of a document.
pub fn resources_of(document: &str) -> Value {
    let client = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: client-0, namespace: shop}\nspec: {containers: [{name: a}]}\n\
                  status: {podIP: 10.0.0.1, phase: Running}\n";
    let (objects, found) = evenkeel_api::load(&[("mesh.yaml".into(), format!("{document}{client}").into())]);
    assert!(!found.has_errors(), "{found}");
    let (snapshot, _) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
    compared(&crate::scenario::translate(&crate::scenario::view_of("sidecar client-0.shop", &snapshot), &snapshot))
}

/// The lines of a test that run: those of its function that are no comments.
pub fn test_in(file: &str, function: &str) -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of crates");
    let text = std::fs::read_to_string(crates.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let lines: Vec<&str> = text.lines().collect();
    let head = format!("fn {function}(");
    let at = lines.iter().position(|line| line.contains(&head)).unwrap_or_else(|| panic!("{file} has no {function}"));
    let is_test = lines[at.saturating_sub(1)].trim_start();
    assert!(is_test.starts_with("#[test]") || is_test.starts_with("#[tokio::test"), "{file}: {function} is no test");
    let indent = lines[at].len() - lines[at].trim_start().len();
    let end = format!("{}}}", " ".repeat(indent));
    let body = lines[at..].iter().take_while(|line| **line != end).filter(|line| !line.trim_start().starts_with("//"));
    body.map(|line| format!("{line}\n")).collect()
}

/// An entry above is not a way to forget a field: what it says is tried.
#[test]
fn what_no_resource_shows_counts_or_is_named() {
    let file: Arc<str> = "mesh.yaml".into();
    let mesh = |text: &str| {
        let text = text.replace('\n', "\n    ");
        let document = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |-\n    {text}\n"
        );
        let (objects, found) = evenkeel_api::load(&[(file.clone(), document.into())]);
        let mesh = MeshConfig::default();
        let (snapshot, of_model) = evenkeel_model::build(&objects, &mesh, &mut AddressBook::default());
        (snapshot.mesh, found.into_iter().chain(of_model).collect::<Diagnostics>())
    };
    let agent = |text: &str| {
        let text = evenkeel_base::Spanned::new(text.to_owned(), evenkeel_base::Span::whole_file("a.yaml"));
        let (config, found) = istio::ProxyConfig::of_annotation(&text);
        assert!(!found.has_errors(), "{found}");
        config.expect("settings").for_agent()
    };
    for (path, evidence) in NOT_SHOWN {
        match evidence {
            Agent(text) => {
                assert_ne!(agent(text), agent("{}"), "{path}: {text}");
                for less in with_less(text) {
                    assert_ne!(agent(&less), agent(text), "{path}: {less}");
                }
            }
            Mesh(text) => {
                let (changed, found) = mesh(text);
                assert!(!found.has_errors() && changed != mesh("{}").0, "{path}: {text}: {found}");
                for less in with_less(text) {
                    let (without, found) = mesh(&less);
                    assert!(without != changed || found.has_errors(), "{path}: {less}");
                }
            }
            Finding(text, code) => {
                let (_, found) = mesh(text);
                assert!(!found.has_errors(), "{path}: {found}");
                assert!(found.iter().any(|finding| finding.code == *code), "{path}: no `{code}`: {found}");
            }
            Added(document, part) => {
                assert_ne!(resources_of(&format!("{document}{part}")), resources_of(document), "{path}: {part}");
            }
            Tested(file, function, part) => {
                let body = test_in(file, function);
                assert!(
                    body.lines().any(|line| line.contains(part)),
                    "{path}: {part:?} is not in {function} of {file}"
                );
            }
        }
    }
}

#[test]
fn every_field_that_works_appears() {
    let mut tables = Tables::default();
    for kind in Kind::ALL.iter().filter(|kind| kind.is_supported() && is_of_traffic(**kind)) {
        tables.add(kind.as_str(), "", &kind.schema(), 0);
    }
    tables.add("MeshConfig", "", &istio::MeshConfig::schema(), 0);
    tables.add("ProxyConfig", "", &<istio::ProxyConfig as Decode>::schema(), 0);
    let missing: Vec<_> = tables.places.into_values().filter(|places| places.is_disjoint(&recorded().fields)).collect();
    let is_shown = |place: &&String| !NOT_SHOWN.iter().any(|(path, _)| place.starts_with(path));
    let missing: Vec<_> = missing.iter().filter_map(|places| places.first()).filter(is_shown).collect();
    assert!(missing.is_empty(), "in no decision: {missing:#?}");
}

/// The places where fields may stand, by their table and name: a type that stands in several places is the same.
#[derive(Default)]
struct Tables {
    places: BTreeMap<(usize, &'static str), BTreeSet<String>>,
}

impl Tables {
    fn add(&mut self, kind: &str, path: &str, schema: &Schema, depth: usize) {
        assert!(depth < MAX_DEPTH, "{path} is nested more than {MAX_DEPTH} deep");
        match schema {
            Schema::Object(fields) => fields.iter().for_each(|field| self.add_field(kind, path, fields, field, depth)),
            Schema::List(item) => self.add(kind, &format!("{path}[]"), item, depth + 1),
            // Any name.
            Schema::Map(_) => {}
            _ => {}
        }
    }

    fn add_field(&mut self, kind: &str, path: &str, table: &'static [Field], field: &Field, depth: usize) {
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{}", field.name);
        if let (Status::Works, Some(schema)) = (field.status, field.schema) {
            let id = (table.as_ptr() as usize, field.name);
            self.places.entry(id).or_default().insert(format!("{kind} {path}"));
            self.add(kind, &path, &schema(), depth + 1);
        }
    }
}

#[test]
fn envoy_accepts_every_resource_of_them() {
    let files = Files::new();
    let of = |kind: &str| {
        let all = recorded().resources.get(kind).into_iter().flatten();
        all.map(|json| files.stand_in(serde_json::from_str(json).expect("JSON"))).collect::<Vec<Value>>()
    };
    let mut resources = json!({ "RDS": of("RDS"), "EDS": of("EDS") });
    let listeners: Vec<Value> =
        of("LDS").into_iter().enumerate().map(|(at, listener)| moved(renamed(listener, at), at)).collect();
    // Envoy wants these to be there by their names.
    let mut called = BTreeSet::new();
    listeners.iter().for_each(|listener| collectors(listener, &mut called));
    // This one the bootstrap has.
    called.remove("sds-grpc");
    let collectors = called.iter().map(|name| json!({ "name": name, "type": "STATIC", "connect_timeout": "1s" }));
    let clusters = of("CDS").into_iter().enumerate().map(|(at, cluster)| renamed(cluster, at));
    resources["CDS"] = clusters.chain(collectors).collect();
    resources["LDS"] = listeners.into();
    let count = |kind: &str| resources[kind].as_array().map_or(0, Vec::len);
    let counts = ["CDS", "LDS", "RDS", "EDS"].map(count);
    assert!(counts.iter().all(|count| *count >= 50), "{counts:?}");
    let text = bootstrap::bootstrap(&resources, false).to_string();
    if let Err(said) = envoy_validate(&text) {
        panic!("Envoy refuses what a test of decisions translates ({counts:?}):\n{said}");
    }
}

/// The clusters that get spans and access logs.
fn collectors(json: &Value, found: &mut BTreeSet<String>) {
    let named = [&json["collector_cluster"], &json["envoy_grpc"]["cluster_name"], &json["http_uri"]["cluster"]];
    found.extend(named.into_iter().filter_map(Value::as_str).map(str::to_owned));
    match json {
        Value::Object(fields) => fields.values().for_each(|field| collectors(field, found)),
        Value::Array(items) => items.iter().for_each(|item| collectors(item, found)),
        _ => {}
    }
}

/// Several meshes have resources of the same name.
fn renamed(mut resource: Value, at: usize) -> Value {
    let name = resource["name"].as_str().unwrap_or_default();
    resource["name"] = format!("{at}-{name}").into();
    resource
}

/// Listeners of the same address are refused, and the ports from 20000 on are taken.
fn moved(mut listener: Value, at: usize) -> Value {
    if let Some(port) = listener.pointer_mut("/address/socket_address/port_value") {
        *port = (1_000 + at).into();
    }
    listener
}

/// Envoy opens the files that configuration names, which are elsewhere.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ca = TestCa::new();
        let identity = ca.for_dns(&["a.test"]);
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a writable folder");
        write("certificate_chain", &identity.cert_pem);
        write("private_key", &identity.key_pem);
        write("trusted_ca", &ca.root_pem());
        Self { folder }
    }

    /// The message with these files in place of those that it names.
    fn stand_in(&self, mut message: Value) -> Value {
        self.replace(&mut message);
        message
    }

    fn replace(&self, value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace(item)),
            Value::Object(fields) => {
                // A revocation list has to be one.
                fields.retain(|name, value| name != "crl" || value.get("filename").is_none());
                // Its clusters have other names here.
                if let Some(routes) = fields.get_mut("route_config") {
                    routes["validate_clusters"] = false.into();
                }
                for (name, value) in fields {
                    match value.get_mut("filename") {
                        Some(path) => *path = self.folder.path().join(name).display().to_string().into(),
                        None => self.replace(value),
                    }
                }
            }
            _ => {}
        }
    }
}
