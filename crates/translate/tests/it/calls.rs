//! A small mesh to which a test adds objects, and calls in it.

use std::sync::Arc;

use evenkeel_filters::explain::{Call, Says, Step, explain};
use evenkeel_model::{AddressBook, MeshConfig, Snapshot};
use evenkeel_runtime_config::Config;
use evenkeel_runtime_config::filter_chain_match::ChainInput;
use evenkeel_runtime_config::view::{ConnectionView, PlainRequest};
use evenkeel_translate::{ClientKind, ProxyView};
use evenkeel_xds::ResourceSet;
use serde_json::Value;

use crate::decisions::{Client, outcome};
use crate::own_proxy::compile;
use crate::scenario::{as_json, translate, view_of};

/// Services of the namespace `shop`, with a client, and one of the namespace `stock`.
const BASE: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec:
  clusterIP: 10.96.0.1
  selector: {app: reviews}
  ports: [{name: http, port: 80}, {name: http-alt, port: 8080}, {name: tcp, port: 9000}, {name: tls, port: 9443}, {name: auto, port: 7000}]
---
apiVersion: v1
kind: Service
metadata: {name: ratings, namespace: shop}
spec: {clusterIP: 10.96.0.2, selector: {app: ratings}, ports: [{name: http, port: 80}, {name: tcp, port: 9000}]}
---
apiVersion: v1
kind: Service
metadata: {name: ledger, namespace: stock}
spec: {clusterIP: 10.96.0.3, selector: {app: ledger}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client-0, namespace: shop, labels: {app: client, tier: front}}
spec: {serviceAccountName: client, containers: [{name: client}]}
status: {podIP: 10.244.0.1, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: reviews-0, namespace: shop, labels: {app: reviews, version: v1}}
spec: {serviceAccountName: reviews, containers: [{name: reviews}]}
status: {podIP: 10.244.0.2, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: reviews-1, namespace: shop, labels: {app: reviews, version: v2}}
spec: {serviceAccountName: reviews, containers: [{name: reviews}]}
status: {podIP: 10.244.0.3, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: ratings-0, namespace: shop, labels: {app: ratings}}
spec: {serviceAccountName: ratings, containers: [{name: ratings}]}
status: {podIP: 10.244.0.4, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: ledger-0, namespace: stock, labels: {app: ledger}}
spec: {serviceAccountName: ledger, containers: [{name: ledger}]}
status: {podIP: 10.244.0.5, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: edge-0, namespace: shop, labels: {app: edge}}
spec: {serviceAccountName: edge, containers: [{name: edge}]}
status: {podIP: 10.244.0.6, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: front, namespace: shop}
spec:
  selector: {app: edge}
  servers:
    - {port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*.example.com"]}
    - {port: {number: 9000, name: tcp, protocol: TCP}, hosts: ["*"]}
    - {port: {number: 9443, name: tls, protocol: TLS}, hosts: ["*.example.com"], tls: {mode: PASSTHROUGH}}
"#;

/// The mesh with the objects of a test.
pub struct Mesh {
    pub snapshot: Snapshot,
    /// The codes of findings, sorted.
    pub codes: Vec<&'static str>,
}

impl Mesh {
    /// `objects` are whole documents.
    pub fn new(objects: &str) -> Self {
        let text = format!("{BASE}---\n{objects}");
        let (objects, found) = crate::recorded::load(&[("mesh.yaml".into(), text.as_str().into())]);
        assert!(!found.has_errors(), "{found}");
        let mut book = AddressBook::default();
        let (snapshot, built) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut book);
        let mut codes: Vec<_> = found.iter().chain(built.iter()).map(|finding| finding.code).collect();
        codes.sort_unstable();
        Self { snapshot, codes }
    }

    /// The mesh with a VirtualService for `reviews`.
    pub fn routed(spec: &str) -> Self {
        Self::new(&virtual_service("reviews", "shop", &format!("hosts: [reviews]\n{spec}")))
    }

    /// The resources of a sidecar (`sidecar POD.NAMESPACE`) or a gateway (`router POD.NAMESPACE`).
    pub fn resources(&self, proxy: &str) -> ResourceSet {
        translate(&view_of(proxy, &self.snapshot), &self.snapshot)
    }

    /// The proxy of the client.
    pub fn client(&self) -> Proxy {
        self.proxy("sidecar client-0.shop")
    }

    /// Another proxy.
    pub fn proxy(&self, proxy: &str) -> Proxy {
        Self::with(&self.resources(proxy))
    }

    /// The same as a client of this kind.
    pub fn proxy_of_kind(&self, proxy: &str, client_kind: ClientKind) -> Proxy {
        let view = ProxyView { client_kind, ..view_of(proxy, &self.snapshot) };
        Self::with(&translate(&view, &self.snapshot))
    }

    fn with(set: &ResourceSet) -> Proxy {
        let (config, refused) = compile(set);
        assert!(refused.is_empty(), "{refused:?}");
        Proxy { config, json: as_json(set) }
    }
}

/// A VirtualService.
pub fn virtual_service(name: &str, namespace: &str, spec: &str) -> String {
    object("VirtualService", name, namespace, spec)
}

/// A DestinationRule.
pub fn destination_rule(host: &str, spec: &str) -> String {
    object("DestinationRule", host, "shop", &format!("host: {host}\n{spec}"))
}

fn object(kind: &str, name: &str, namespace: &str, spec: &str) -> String {
    object_of("networking.istio.io/v1", kind, name, namespace, spec)
}

/// An object of any kind.
pub fn object_of(api: &str, kind: &str, name: &str, namespace: &str, spec: &str) -> String {
    let spec: String = spec.lines().map(|line| format!("  {line}\n")).collect();
    format!("apiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n{spec}---\n")
}

/// A proxy that decides calls.
pub struct Proxy {
    config: Arc<Config>,
    json: Value,
}

/// How a call arrives.
#[derive(Clone, Copy)]
pub struct Arrival {
    pub listener: &'static str,
    pub to: &'static str,
    pub from: &'static str,
    pub sni: Option<&'static str>,
    /// The result of random draws.
    pub random: u64,
}

/// A request to port 80.
pub const HTTP: Arrival =
    Arrival { listener: "0.0.0.0_80", to: "10.96.0.1:80", from: "10.244.0.1:4000", sni: None, random: 0 };

impl Proxy {
    /// The decision about a request to port 80: `METHOD HOST PATH [NAME=VALUE]`.
    pub fn http(&self, request: &str) -> String {
        self.decide(HTTP, request)
    }

    /// The decision about a call; without a request it is a connection of bytes.
    pub fn decide(&self, arrival: Arrival, request: &str) -> String {
        shown(&self.steps(arrival, request), false)
    }

    /// The same with limits and header edits.
    pub fn in_full(&self, arrival: Arrival, request: &str) -> String {
        shown(&self.steps(arrival, request), true)
    }

    fn steps(&self, arrival: Arrival, request: &str) -> Vec<Step> {
        let Arrival { listener, to, from, sni, random } = arrival;
        crate::recorded::decided(&format!("{listener} {to} {from} {sni:?} {random} {request}"));
        let source = arrival.from.parse().expect("a source");
        let destination = arrival.to.parse().expect("a destination");
        if sni.is_none() {
            crate::recorded::called(source, destination, request);
        }
        let words: Vec<&str> = request.split(' ').collect();
        let request = match words.as_slice() {
            [method, host, path, headers @ ..] => {
                let pairs = headers.iter().filter_map(|header| header.split_once('='));
                let request = PlainRequest::new(method, host, path);
                Some(pairs.fold(request, |request, (name, value)| request.with_header(name, value)))
            }
            _ => None,
        };
        let connection = ConnectionView {
            server_name: arrival.sni.map(Into::into),
            tls: arrival.sni.is_some(),
            ..ConnectionView::plaintext(source, destination)
        };
        let chain = ChainInput {
            destination,
            source,
            direct_source: source,
            server_name: arrival.sni,
            transport_protocol: if arrival.sni.is_some() { "tls" } else { "raw_buffer" },
            application_protocols: if request.is_some() { &["http/1.1"] } else { &[] },
        };
        let call = Call {
            listener: arrival.listener,
            chain,
            connection: &connection,
            request: request.as_ref(),
            random: arrival.random,
        };
        explain(&self.config, &call).steps
    }

    /// How a call ends, with the verdicts of policies.
    pub fn outcome(&self, listener: &str, client: &Client, to: &str, request: &str) -> String {
        outcome(&self.config, listener, client, to, request, 0)
    }

    /// The resource of a name among those of a type (`CDS`, `LDS`, `RDS`).
    pub fn resource(&self, kind: &str, name: &str) -> &Value {
        crate::recorded::decided("its resources");
        let all = self.json.get(kind).and_then(Value::as_array).expect("a list of resources");
        all.iter().find(|resource| resource["name"] == name).unwrap_or_else(|| panic!("no {name} in {kind}"))
    }

    /// The names of all resources of a type.
    pub fn names(&self, kind: &str) -> Vec<&str> {
        let all = self.json.get(kind).and_then(Value::as_array).expect("a list of resources");
        all.iter().filter_map(|resource| resource["name"].as_str()).collect()
    }

    /// The endpoints of a cluster, by locality.
    pub fn endpoints(&self, cluster: &str) -> &Vec<Value> {
        crate::recorded::decided("its resources");
        let all = self.json["EDS"].as_array().expect("a list of resources");
        let found = all.iter().find(|resource| resource["cluster_name"] == cluster).expect("the cluster's");
        found["endpoints"].as_array().expect("endpoints")
    }

    /// The routes of a virtual host of port 80.
    pub fn routes(&self, virtual_host: &str) -> &Vec<Value> {
        let table = self.resource("RDS", "80");
        let hosts = table["virtual_hosts"].as_array().expect("virtual hosts");
        let host = hosts.iter().find(|host| host["name"] == virtual_host).expect("the virtual host");
        host["routes"].as_array().expect("routes")
    }
}

fn shown(steps: &[Step], in_full: bool) -> String {
    let mut words = Vec::new();
    for step in steps {
        match step {
            Step::Filter { says: Says::Waits { limit, .. }, .. } => words.push(format!("waits {limit:?},")),
            Step::Filter { says: Says::Replies { status, details, .. }, .. } => {
                words.push(format!("{status} {details}"))
            }
            Step::Filter { says: Says::Remarks { text, .. }, .. } => words.push(format!("{text},")),
            Step::Limits { .. } | Step::Headers { .. } if in_full => words.push(format!("{step},")),
            Step::Redirect { status, location } => words.push(format!("{status} {location}")),
            Step::DirectResponse { status } => words.push(status.to_string()),
            Step::NoRoute => words.push("404".to_owned()),
            Step::NoFilterChain { .. } => words.push("closed".to_owned()),
            Step::NoListener { .. } => words.push("no listener".to_owned()),
            Step::NoCluster { status, .. } => words.push(format!("{status} no cluster")),
            Step::Forward { path, authority, .. } => words.push(format!("{authority}{path} to")),
            Step::Endpoints { cluster, .. } => words.push(short(cluster)),
            _ => {}
        }
    }
    words.join(" ")
}

/// `outbound|80|v1|reviews.shop.svc.cluster.local` as `reviews.shop:80/v1`.
fn short(cluster: &str) -> String {
    let parts: Vec<&str> = cluster.trim_end_matches("|tcp").split('|').collect();
    let [direction, port, subset, host] = parts.as_slice() else { return cluster.to_owned() };
    let host = host.trim_end_matches(".svc.cluster.local");
    let subset = if subset.is_empty() { String::new() } else { format!("/{subset}") };
    match *direction {
        "outbound" => format!("{host}:{port}{subset}"),
        _ => cluster.to_owned(),
    }
}
