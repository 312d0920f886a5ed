//! The meshes of the tables of decisions, in every mode of mutual TLS. Their Pods become Deployments whose program answers on
//! every port; meshes with the same workloads run one after the other in one `up`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::PoisonError;

use evenkeel_explain::World;
use evenkeel_explain::answer::{Endpoint, Outcome as Told};
use evenkeel_testkit::{Random, cases};
use serde_json::{Value, json};

use super::super::MACHINE;
use super::SHOWN;
use super::checks::{Round, tried, try_ask};
use super::fleet::{Call, Fleet, program};
use super::meshes::{MODES, application};
use super::recorded::{RecordedMesh, meshes};

/// Pods that one `up` starts at most: the tables about scale have thousands.
const MAX_PODS: usize = 12;
/// Calls of one mesh in one mode.
const MAX_CALLS: usize = 30;
/// Requests of a table that are made to every Service.
const MAX_HEADS: usize = 3;
/// Ports of a program.
const MAX_PORTS: usize = 24;
/// Ports that programs cannot have, because the proxy has them.
const OF_PROXIES: std::ops::RangeInclusive<u16> = 15_000..=15_100;
/// Kinds of documents that are left out: the Pods are made anew, and their owners with them.
const OF_PODS: [&str; 5] = ["Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"];

/// A Pod of a table that runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Workload {
    name: String,
    namespace: String,
    address: IpAddr,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    account: String,
    /// Names and numbers.
    ports: Vec<(String, u16)>,
    is_gateway: bool,
}

/// A mesh of a table that can run here.
#[derive(Debug)]
struct Table {
    workloads: Vec<Workload>,
    /// Everything else, one document of JSON each.
    objects: Vec<Value>,
    recorded: RecordedMesh,
}

fn text_at<'j>(value: &'j Value, pointer: &str) -> &'j str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn strings(value: Option<&Value>) -> BTreeMap<String, String> {
    let all = value.and_then(Value::as_object).into_iter().flatten();
    all.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

fn namespace(document: &Value) -> String {
    let own = text_at(document, "/metadata/namespace");
    if own.is_empty() { "default".to_owned() } else { own.to_owned() }
}

/// Whether routes of an object delay or abort only some requests: no explanation can say which.
fn fails_by_chance(document: &Value) -> bool {
    let routes = document.pointer("/spec/http").and_then(Value::as_array).into_iter().flatten();
    let faults = routes.flat_map(|route| ["abort", "delay"].map(|kind| &route["fault"][kind]["percentage"]["value"]));
    faults.filter_map(Value::as_f64).any(|share| share > 0.0 && share < 100.0)
}

impl Table {
    /// Reads a recorded mesh; or says why it cannot run here.
    fn read(recorded: RecordedMesh) -> Result<Self, &'static str> {
        let all: Vec<Value> = evenkeel_api::documents(&"mesh.yaml".into(), &recorded.text)
            .into_iter()
            .filter_map(|document| serde_json::from_str(&document.json.to_string()).ok())
            .collect();
        let is_of_pods = |document: &Value| OF_PODS.contains(&text_at(document, "/kind"));
        let selectors: Vec<(String, BTreeMap<String, String>)> = all
            .iter()
            .filter(|document| text_at(document, "/kind") == "Gateway")
            .map(|gateway| (namespace(gateway), strings(gateway.pointer("/spec/selector"))))
            .collect();
        let pods: Vec<&Value> = all.iter().filter(|document| text_at(document, "/kind") == "Pod").collect();
        let running = |pod: &&&Value| text_at(pod, "/status/podIP").parse::<IpAddr>().is_ok();
        let workloads: Vec<Workload> = pods.iter().filter(running).map(|pod| workload(pod, &selectors)).collect();
        if workloads.len() > MAX_PODS {
            return Err("more Pods than a test starts");
        }
        if !workloads.iter().any(|workload| !workload.is_gateway) {
            return Err("no Pod that calls");
        }
        if all.iter().any(|document| text_at(document, "/metadata/name") == "istio" && document["kind"] == "ConfigMap")
        {
            return Err("settings of the mesh, which replicas take when they start");
        }
        if recorded.text.contains("proxyProtocol") {
            return Err("a header before all bytes, which sidecars of servers do not read");
        }
        if all
            .iter()
            .any(|document| document["kind"] == "DestinationRule" && document.to_string().contains("\"tunnel\""))
        {
            return Err("tunnels, which the programs that they lead to do not offer");
        }
        if all.iter().any(fails_by_chance) {
            return Err("faults of a share of the requests");
        }
        let objects = all.into_iter().filter(|document| !is_of_pods(document)).collect();
        Ok(Self { workloads, objects, recorded })
    }

    /// Its objects with this mode, unless the table sets the mesh's itself.
    fn text(&self, mode: &str) -> String {
        let is_of_mesh = |document: &Value| {
            document["kind"] == "PeerAuthentication"
                && namespace(document) == "istio-system"
                && document.pointer("/spec/selector").is_none()
        };
        let mut text = String::new();
        if !self.objects.iter().any(is_of_mesh) {
            let _ = write!(
                text,
                "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: mode, namespace: istio-system}}\n\
                 spec: {{mtls: {{mode: {mode}}}}}\n"
            );
        }
        self.objects.iter().for_each(|document| text += &format!("---\n{document}\n"));
        text
    }

    fn of_kind(&self, kind: &'static str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |document| document["kind"] == kind)
    }

    /// The ports on which its programs have to listen.
    fn ports(&self) -> BTreeSet<u16> {
        let number = |value: &Value| value.as_u64().and_then(|number| u16::try_from(number).ok());
        let of_services = self.of_kind("Service").flat_map(|service| {
            let ports = service.pointer("/spec/ports").and_then(Value::as_array).cloned().unwrap_or_default();
            ports.into_iter().filter_map(move |port| number(&port["targetPort"]).or_else(|| number(&port["port"])))
        });
        let own = self.workloads.iter().flat_map(|workload| workload.ports.iter().map(|(_, number)| *number));
        of_services.chain(own).filter(|port| *port > 0 && !OF_PROXIES.contains(port)).collect()
    }

    /// The numbers of its Gateways' ports.
    fn gateway_ports(&self) -> BTreeSet<u16> {
        let servers = self.of_kind("Gateway").filter_map(|gateway| gateway.pointer("/spec/servers")?.as_array());
        let number =
            |server: &Value| server.pointer("/port/number")?.as_u64().and_then(|number| number.try_into().ok());
        servers.flatten().filter_map(number).collect()
    }

    /// The requests of the table: method, host, path and headers.
    fn heads(&self) -> Vec<Head> {
        self.recorded.calls.iter().filter_map(|(_, _, request)| head(request)).collect()
    }

    /// The calls: those of the table as far as real clients can make them, then its requests to every Service.
    fn calls(&self, fleet: &Fleet, random: &mut Random) -> Vec<Call> {
        let real: BTreeMap<IpAddr, IpAddr> =
            self.workloads.iter().map(|own| (own.address, fleet.address(&own.name, &own.namespace))).collect();
        let name = |own: &Workload| format!("{}.{}", own.name, own.namespace);
        let clients: Vec<String> = self.workloads.iter().filter(|own| !own.is_gateway).map(name).collect();
        let client_at = |address: IpAddr| {
            let own = self.workloads.iter().find(|own| own.address == address && !own.is_gateway);
            own.map(name).or_else(|| clients.first().cloned()).unwrap_or_default()
        };
        let mut all: Vec<Call> = Vec::new();
        for (from, to, request) in &self.recorded.calls {
            let Some((method, host, path, mut headers)) = head(request) else { continue };
            let to = SocketAddr::new(real.get(&to.ip()).copied().unwrap_or(to.ip()), to.port());
            headers.insert(0, ("host".to_owned(), host));
            all.push(Call { from: client_at(from.ip()), method, to: to.to_string(), path, headers });
        }
        let mut heads = self.heads();
        heads.dedup();
        heads.truncate(MAX_HEADS);
        heads.push(("GET".to_owned(), String::new(), "/".to_owned(), Vec::new()));
        let mut further: Vec<Call> = Vec::new();
        for service in self.of_kind("Service") {
            let host = format!("{}.{}", text_at(service, "/metadata/name"), namespace(service));
            for port in service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten() {
                let to = format!("{host}:{}", port["port"]);
                for (from, (method, _, path, headers)) in
                    clients.iter().flat_map(|from| heads.iter().map(move |head| (from, head)))
                {
                    let (method, path, headers) = (method.clone(), path.clone(), headers.clone());
                    further.push(Call { from: from.clone(), method, to: to.clone(), path, headers });
                }
            }
        }
        let edges = fleet.published();
        for (port, (method, host, path, headers)) in edges.iter().flat_map(|port| heads.iter().map(move |h| (port, h)))
        {
            let mut headers = headers.clone();
            if !host.is_empty() {
                headers.insert(0, ("host".to_owned(), host.clone()));
            }
            let (method, path) = (method.clone(), path.clone());
            further.push(Call { from: "outside".to_owned(), method, to: port.address.to_string(), path, headers });
        }
        sampled(&mut all, MAX_CALLS / 2, random);
        let rest = MAX_CALLS - all.len();
        sampled(&mut further, rest, random);
        all.extend(further);
        all
    }
}

/// Keeps this many, by chance.
fn sampled(calls: &mut Vec<Call>, count: usize, random: &mut Random) {
    while calls.len() > count {
        calls.swap_remove(random.below(calls.len()));
    }
}

/// A request's method, host, path and headers.
type Head = (String, String, String, Vec<(String, String)>);

/// `METHOD HOST PATH [NAME=VALUE]`, if curl can send it.
fn head(request: &str) -> Option<Head> {
    let words: Vec<&str> = request.split(' ').collect();
    let [method, host, path, headers @ ..] = words.as_slice() else { return None };
    let is_plain = path.starts_with('/')
        && path.is_ascii()
        && !path.contains('#')
        && method.chars().all(|c| c.is_ascii_uppercase());
    // Every value is one header here; those with blanks are not told in this form.
    let headers: Option<Vec<(String, String)>> = headers
        .iter()
        .map(|pair| pair.split_once('=').map(|(name, value)| (name.to_lowercase(), value.to_owned())))
        .collect();
    let headers = headers?.into_iter().filter(|(name, _)| !name.starts_with(':')).collect();
    (is_plain && *method != "CONNECT").then(|| ((*method).to_owned(), (*host).to_owned(), (*path).to_owned(), headers))
}

fn workload(pod: &Value, selectors: &[(String, BTreeMap<String, String>)]) -> Workload {
    let labels = strings(pod.pointer("/metadata/labels"));
    let is_selected = |(_, selector): &(String, BTreeMap<String, String>)| {
        !selector.is_empty() && selector.iter().all(|(name, value)| labels.get(name) == Some(value))
    };
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
    let ports =
        containers.into_iter().flatten().flat_map(|container| container["ports"].as_array().into_iter().flatten());
    let port =
        |port: &Value| Some((text_at(port, "/name").to_owned(), u16::try_from(port["containerPort"].as_u64()?).ok()?));
    let account = text_at(pod, "/spec/serviceAccountName");
    Workload {
        name: text_at(pod, "/metadata/name").to_owned(),
        namespace: namespace(pod),
        address: text_at(pod, "/status/podIP").parse().expect("an address"),
        is_gateway: selectors.iter().any(is_selected),
        annotations: strings(pod.pointer("/metadata/annotations")),
        account: if account.is_empty() { "default".to_owned() } else { account.to_owned() },
        ports: ports.filter_map(port).collect(),
        labels,
    }
}

/// The Deployments. `ports`: those of their programs.
fn deployments(workloads: &[Workload], ports: &BTreeSet<u16>, program: &str) -> String {
    let mut text = String::new();
    for own in workloads {
        let mut annotations = own.annotations.clone();
        let mut labels = own.labels.clone();
        // One of its own: several Pods of a table have the same labels.
        labels.insert("table-pod".to_owned(), own.name.clone());
        let mut listed: BTreeSet<u16> = own.ports.iter().map(|(_, number)| *number).collect();
        listed.extend(ports.iter().take(MAX_PORTS));
        if own.is_gateway {
            annotations.insert("inject.istio.io/templates".to_owned(), "gateway".to_owned());
        } else {
            let listed: Vec<u16> = listed.iter().copied().collect();
            let run =
                format!("exec {program} proxy --concurrency 1 --config-yaml '{}'", application(&own.name, &listed));
            annotations.insert("local.evenkeel.dev/run".to_owned(), run);
        }
        let named = |number: &u16| {
            let name = own.ports.iter().find(|(name, own)| own == number && !name.is_empty()).map(|(name, _)| name);
            name.map_or_else(|| json!({"containerPort": number}), |name| json!({"name": name, "containerPort": number}))
        };
        let container = if own.is_gateway {
            json!({"name": "istio-proxy", "image": "auto"})
        } else {
            json!({"name": "main", "ports": listed.iter().map(named).collect::<Vec<_>>()})
        };
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": own.name, "namespace": own.namespace},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels, "annotations": annotations},
                    "spec": {"serviceAccountName": own.account, "containers": [container]},
                },
            },
        });
        let _ = writeln!(text, "{deployment}\n---");
    }
    text
}

/// Whether a call stays among these replicas, so that what answers is known.
fn stays(world: &World, call: &Call, replicas: &BTreeSet<IpAddr>) -> bool {
    let Some(answer) = try_ask(world, call, 0) else { return false };
    if answer.verdict.outcome != Told::Forward || answer.verdict.status.is_some() {
        return true;
    }
    let is_replica = |endpoint: &Endpoint| {
        endpoint.address.parse().is_ok_and(|address: SocketAddr| replicas.contains(&address.ip()))
    };
    match answer.hops.last() {
        // It met no proxy: the address is that of a replica, or of nobody.
        None => answer.call.address.parse().is_ok_and(|address: SocketAddr| replicas.contains(&address.ip())),
        Some(hop) => {
            let mut endpoints = hop.clusters.iter().filter(|own| own.chosen).flat_map(|own| &own.endpoints).peekable();
            endpoints.peek().is_some() && endpoints.all(is_replica)
        }
    }
}

/// What has come of some meshes.
#[derive(Debug, Default)]
struct TableResults {
    calls: usize,
    records: usize,
    /// Why meshes could not be in force.
    refused: Vec<String>,
    /// What was told otherwise than it was.
    wrong: Vec<String>,
}

/// Runs the meshes of the same workloads.
fn run(workloads: &[Workload], tables: &[(&Table, &str)], random: &mut Random) -> TableResults {
    let folder = super::super::state();
    let ports: BTreeSet<u16> = tables.iter().flat_map(|(table, _)| table.ports()).collect();
    let gateway_ports: BTreeSet<u16> = tables.iter().flat_map(|(table, _)| table.gateway_ports()).collect();
    let text = deployments(workloads, &ports, &program(Path::new(folder.path())));
    let fleet = Fleet::start(&text, workloads.len(), &gateway_ports.into_iter().collect::<Vec<_>>());
    let replicas: BTreeSet<IpAddr> = workloads.iter().map(|own| fleet.address(&own.name, &own.namespace)).collect();
    let mut made = TableResults::default();
    for (table, mode) in tables {
        let text = table.text(mode);
        // Objects that are refused are in force nowhere.
        if let Err(said) = fleet.try_write(&text) {
            let said = said.lines().find(|line| line.starts_with("not in force")).unwrap_or(&said).to_owned();
            made.refused.push(said);
            continue;
        }
        let (world, _) = fleet.read().worlds("");
        let mut calls = table.calls(&fleet, random);
        calls.retain(|call| stays(&world, call, &replicas));
        let Round { kept, wrong, .. } = tried((&fleet, &world, &calls), |_| String::new());
        if !wrong.is_empty() {
            let shown = format!("──── {mode}\n{text}\n{wrong}");
            made.wrong.push(shown);
        }
        (made.calls, made.records) = (made.calls + calls.len(), made.records + kept.len());
    }
    fleet.end();
    made
}

#[test]
fn the_meshes_of_the_tables_are_explained_as_they_answer() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let mut left_out: BTreeMap<&'static str, usize> = BTreeMap::new();
    let mut groups: BTreeMap<Vec<Workload>, Vec<Table>> = BTreeMap::new();
    for recorded in meshes() {
        match Table::read(recorded) {
            Ok(table) => groups.entry(table.workloads.clone()).or_default().push(table),
            Err(why) => *left_out.entry(why).or_default() += 1,
        }
    }
    let count: usize = groups.values().map(Vec::len).sum();
    // Most of them run: a reason is not a way to run none.
    assert!(count >= 500 && left_out.values().sum::<usize>() < count, "{count} meshes; left out: {left_out:?}");
    let chosen = chosen(&groups);
    let meshes: usize = chosen.values().map(Vec::len).sum();
    let made = run_all(chosen);
    let shown: String = made.wrong.iter().take(SHOWN).cloned().collect();
    assert!(made.wrong.is_empty(), "{} meshes\n{shown}", made.wrong.len());
    assert!(made.calls > 0 && made.records > 0, "{made:?}");
    assert!(made.refused.len() <= meshes / 4, "of {meshes} meshes: {:#?}", made.refused);
}

/// Meshes and modes, by the workloads that they share.
type Chosen<'t> = BTreeMap<&'t [Workload], Vec<(&'t Table, &'static str)>>;

/// What is run: everything, or some of those with the most common workloads, of which the seed decides.
fn chosen(groups: &BTreeMap<Vec<Workload>, Vec<Table>>) -> Chosen<'_> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let mut random = Random::new(number("AGREEMENT_FIRST").unwrap_or(0));
    let most = groups.values().map(Vec::len).max().unwrap_or_default();
    let is_usual = cases(1, 2) == 1;
    let of_groups = groups.iter().filter(|(_, tables)| !is_usual || tables.len() == most);
    let mut all: Vec<(&[Workload], &Table, &'static str)> = of_groups
        .flat_map(|(own, tables)| tables.iter().flat_map(|table| MODES.map(|mode| (own.as_slice(), table, mode))))
        .collect();
    let wanted = number("AGREEMENT_COUNT").map_or(cases(24, usize::MAX), |count| usize::try_from(count).unwrap_or(24));
    while all.len() > wanted {
        all.swap_remove(random.below(all.len()));
    }
    let mut chosen = Chosen::new();
    all.into_iter().for_each(|(own, table, mode)| chosen.entry(own).or_default().push((table, mode)));
    chosen
}

fn run_all(chosen: Chosen<'_>) -> TableResults {
    let mut random = Random::new(0);
    let mut all = TableResults::default();
    for (workloads, tables) in chosen {
        let made = run(workloads, &tables, &mut random);
        (all.calls, all.records) = (all.calls + made.calls, all.records + made.records);
        all.refused.extend(made.refused);
        all.wrong.extend(made.wrong);
    }
    all
}
