//! Configurations under `golden/`, and the proxies they are translated for.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use evenkeel_base::{Diagnostic, Severity};
use evenkeel_model::{AddressBook, MeshConfig, Snapshot};
use evenkeel_translate::{ClientKind, ProxyKind, ProxyView, resources};
use evenkeel_xds::{ResourceSet, ResourceType, Schema, json};
use serde_json::{Map, Value};

/// All of them.
pub const SCENARIOS: [&str; 10] = [
    "balancing",
    "capitals",
    "protocols",
    "routing",
    "egress",
    "gateways",
    "datagrams",
    "networks",
    "sidecars",
    "grpc",
];

/// Findings that the scenarios are meant to cause.
const EXPECTED: [&str; 2] = ["missing-service", "selects-nothing"];

/// One configuration.
pub struct Scenario {
    pub folder: PathBuf,
    pub snapshot: Snapshot,
    pub proxies: Vec<ProxyView>,
}

impl Scenario {
    /// Reads `golden/NAME/input.yaml`, whose first line names the proxies.
    pub fn read(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(name);
        let text = std::fs::read_to_string(folder.join("input.yaml")).expect("an input file");
        let file: Arc<str> = "input.yaml".into();
        let (objects, found) = crate::recorded::load(&[(file, text.as_str().into())]);
        assert!(!found.has_errors(), "{name}:\n{found}");
        let mut book = AddressBook::default();
        let (snapshot, built) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut book);
        // What a scenario is about may be worth a warning; an object left out would make it a test of nothing.
        let expected = |d: &&Diagnostic| d.severity < Severity::Warning || EXPECTED.contains(&d.code);
        let unexpected: Vec<_> = built.iter().filter(|d| !expected(d)).collect();
        assert!(unexpected.is_empty(), "{name}: {unexpected:?}");
        let line = text.lines().next().and_then(|l| l.strip_prefix("# proxies: ")).expect("a line of proxies");
        let proxies = line.split(", ").map(|proxy| view_of(proxy, &snapshot)).collect();
        Self { folder, snapshot, proxies }
    }
}

/// `KIND POD.NAMESPACE` with `sidecar`, `router` or `grpc`; a `proxied-router` stands behind a load balancer that names clients,
/// a `self-discovering` sidecar has a local cluster.
pub fn view_of(text: &str, snapshot: &Snapshot) -> ProxyView {
    let (kind, name) = text.split_once(' ').expect("kind and name");
    let (pod, namespace) = name.split_once('.').expect("Pod and namespace");
    let workload = snapshot.workload(&namespace.into(), &pod.into()).unwrap_or_else(|| panic!("no Pod {name}"));
    ProxyView {
        locality: "".into(),
        kind: match kind {
            "router" | "proxied-router" => ProxyKind::Router,
            _ => ProxyKind::Sidecar,
        },
        addresses: workload.addresses.clone(),
        pod: pod.into(),
        namespace: namespace.into(),
        service_account: workload.service_account.clone(),
        labels: workload.labels.clone(),
        authenticated: true,
        client_kind: match kind {
            "grpc" => ClientKind::Grpc,
            _ => ClientKind::Envoy,
        },
        takes_proxy_protocol: kind == "proxied-router",
        has_collector: false,
        has_log_service: false,
        proxy_config: "".into(),
        captures_dns: true,
        interception: None,
        takes_hybrid_curve: false,
        cluster: "".into(),
        network: "".into(),
        peer_labels: (kind == "self-discovering").then(|| vec!["pod-template-hash".into()]),
    }
}

/// The descriptors, held by all tests: whoever needs them would load them anew otherwise.
pub static SCHEMA: LazyLock<Arc<Schema>> = LazyLock::new(Schema::acquire);

/// A proxy's resources as JSON, by type.
pub fn as_json(set: &ResourceSet) -> Value {
    let mut all = Map::new();
    for kind in ResourceType::ALL {
        let of = set.of(kind);
        if !of.is_empty() {
            let list = of.values().map(|r| json::any_to_json(&SCHEMA, &r.any())).collect();
            all.insert(kind.short_name().to_owned(), Value::Array(list));
        }
    }
    Value::Object(all)
}

/// A proxy's resources.
pub fn translate(view: &ProxyView, snapshot: &Snapshot) -> ResourceSet {
    let set = resources(view, snapshot, 1);
    crate::recorded::translated(view, &set);
    set
}
