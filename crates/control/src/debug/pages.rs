//! Contents of the debug pages.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_admin::clusters::RemoteClusters;
use evenkeel_admin::diagnostics::{self, Finding};
use evenkeel_admin::settle::{Cause, LastChange, Settled, Ticket};
use evenkeel_admin::syncz::{NotRegistered, Syncz};
use evenkeel_admin::{authorities, clusters, settle, syncz};
use evenkeel_api::definition::GAPS;
use evenkeel_base::{Diagnostic, ObjectRef, Severity, suggest};
use evenkeel_model::{EndpointAddress, Service};
use evenkeel_stats::Exposition;
use evenkeel_store::Store;
use evenkeel_xds::{ResourceType, Schema, json};
use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::access::{Access, CLIENTS, Extent, OF_A_PROXY};
use super::query::parameter;
use super::{cluster, convergence, sync_status};
use crate::authentication::TokenAuthenticator;
use crate::authorities::Authorities;
use crate::barrier::Barrier;
use crate::history::answer::AnswerError;
use crate::history::{self, HistoryError, HistoryQuery};
use crate::metrics::{Metrics, plane};
use crate::proxies::{Proxies, StreamReport};
use crate::registration::Registrations;
use crate::source::{Refused, SOURCE_OUTAGE};
use crate::world::World;

/// The pages, with the data that they show.
#[derive(Debug)]
pub struct Pages {
    world: watch::Receiver<Arc<World>>,
    proxies: Arc<Proxies>,
    metrics: Arc<Metrics>,
    store: Store,
    barrier: Arc<Barrier>,
    registrations: Arc<Registrations>,
    authorities: Option<Arc<Authorities>>,
    remote_clusters: Option<watch::Receiver<RemoteClusters>>,
    access: Access,
}

/// A proxy that has not answered a response for this long counts as not responding.
const ACK_TIMEOUT: Duration = Duration::from_secs(15);

/// The metrics.
pub(super) const METRICS: &str = "/metrics";
/// The page that reads the history on disk.
pub(super) const HISTORY: &str = "/debug/history";
/// The version in the form of istiod's page, which Kiali reads: version, revision, state of the sources.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-evenkeel-Clean");
/// The page for readiness probes.
pub(super) const READY: &str = "/ready";

/// Status, content type, body.
pub(super) type Page = (StatusCode, &'static str, String);

/// Paths, and what their pages show.
const INDEX: [(&str, &str); 19] = [
    ("/metrics", "counters, gauges and histograms for Prometheus"),
    ("/ready", "200 once the configuration is read and served"),
    ("/version", "the control plane's version, as istiod's page has it"),
    ("/debug/proxies", "for a browser: which proxies are in sync, and how old changes were when each applied them"),
    ("/debug/syncz", "each proxy: what it was sent, accepted and refused, how old that was (`evenkeel proxy-status`)"),
    ("/debug/diagnostics", "what is wrong with the configuration, with file, line and column"),
    ("/debug/registryz", "services"),
    ("/debug/endpointz", "endpoints of the services"),
    (
        "/debug/endpoint?address=IP",
        "whether requests are sent to an address, and which proxies have not yet heard the latest",
    ),
    (
        "/debug/settle",
        "a ticket; with `?ticket=N`: whether what was written then is read, and which proxies do not run it yet",
    ),
    (
        "/debug/cluster?generation=N",
        "Services with their addresses and ready endpoints; only the generation if it is still this one",
    ),
    ("/debug/configz", "routing and policy objects in force"),
    ("/debug/config_dump?proxyID=POD.NAMESPACE", "the resources of one proxy"),
    ("/debug/history", "which changes there were, and what they changed in files (`evenkeel history`)"),
    ("/debug/history?proxyID=POD.NAMESPACE&at=TIME", "what a proxy ran then, and what made it so (`evenkeel history`)"),
    ("/debug/adsz", "connected proxies"),
    ("/debug/clusterz", "remote clusters, and how far their objects are known (`evenkeel remote-clusters`)"),
    (
        "/debug/pprof/profile?seconds=N",
        "where the control plane's CPU time goes; `/debug/pprof/heap`: what it allocates (`evenkeel profile`)",
    ),
    ("/debug/ca", "the certificate authorities, their rotation, and certificates that end soon (`evenkeel ca status`)"),
];

impl Pages {
    /// Creates pages that show this data.
    pub fn new(
        world: watch::Receiver<Arc<World>>,
        proxies: Arc<Proxies>,
        metrics: Arc<Metrics>,
        (store, barrier, registrations): (Store, Arc<Barrier>, Arc<Registrations>),
    ) -> Self {
        let access = Access::new(None);
        let (authorities, remote_clusters) = (None, None);
        Self { world, proxies, metrics, store, barrier, registrations, authorities, remote_clusters, access }
    }

    /// Adds the page about remote clusters.
    #[must_use]
    pub fn with_remote_clusters(self, remote_clusters: Option<watch::Receiver<RemoteClusters>>) -> Self {
        Self { remote_clusters, ..self }
    }

    /// Adds the page about the certificate authorities.
    #[must_use]
    pub fn with_authorities(self, authorities: Arc<Authorities>) -> Self {
        Self { authorities: Some(authorities), ..self }
    }

    /// Lets clients from other machines read pages only with tokens.
    #[must_use]
    pub fn with_tokens(self, tokens: Option<Arc<dyn TokenAuthenticator>>) -> Self {
        Self { access: Access::new(tokens), ..self }
    }

    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    pub(super) fn root_namespace(&self) -> Arc<str> {
        self.world.borrow().snapshot.mesh.root_namespace.clone()
    }

    /// Returns the page at a path, of what a client may read.
    pub(super) fn page_within(&self, extent: &Extent, path: &str, query: &str, accept: Option<&str>) -> Page {
        match path {
            OF_A_PROXY => self.config_dump(extent, query),
            syncz::PATH => json_page(&self.syncz(extent)),
            CLIENTS => json_page(&self.adsz(extent)),
            diagnostics::PATH => json_page(&self.diagnostics(extent)),
            _ if *extent == Extent::All => self.page(path, query, accept),
            _ => (StatusCode::FORBIDDEN, "text/plain", "this page is about the whole mesh\n".to_owned()),
        }
    }

    /// Returns the page at a path, except [`HISTORY`]. `accept`: the request's header of that name.
    pub fn page(&self, path: &str, query: &str, accept: Option<&str>) -> Page {
        match path {
            METRICS => {
                let format = Exposition::negotiate(accept);
                (StatusCode::OK, format.content_type(), self.metrics(format))
            }
            READY => (StatusCode::OK, "text/plain", "ready\n".to_owned()),
            "/version" => (StatusCode::OK, "text/plain", format!("{VERSION}\n")),
            "/debug" | "/debug/" | "/" => (StatusCode::OK, "text/plain", index()),
            "/debug/proxies" => {
                (StatusCode::OK, "text/html; charset=utf-8", convergence::page(&self.syncz(&Extent::All)))
            }
            syncz::PATH => json_page(&self.syncz(&Extent::All)),
            CLIENTS => json_page(&self.adsz(&Extent::All)),
            diagnostics::PATH => json_page(&self.diagnostics(&Extent::All)),
            "/debug/registryz" => json_page(&self.registryz()),
            "/debug/endpointz" => json_page(&self.endpointz()),
            "/debug/configz" => json_page(&self.configz()),
            "/debug/cluster" => self.cluster(query),
            authorities::PATH => self.authorities(),
            clusters::PATH => json_page(&self.remote_clusters().clusters),
            "/debug/endpoint" => self.endpoint(query),
            settle::PATH => self.settle(query),
            OF_A_PROXY => self.config_dump(&Extent::All, query),
            _ => (StatusCode::NOT_FOUND, "text/plain", format!("there is no page `{path}`; there are:\n{}", index())),
        }
    }

    fn world(&self) -> Arc<World> {
        self.world.borrow().clone()
    }

    fn metrics(&self, format: Exposition) -> String {
        let late = |report: &StreamReport| {
            report
                .status
                .types
                .iter()
                .any(|s| sync_status::waiting(&report.client, s).is_some_and(|waiting| waiting > ACK_TIMEOUT))
        };
        let late = self.proxies.reports().iter().filter(|report| late(report)).count();
        self.metrics.plane.set(plane::Gauge::evenkeel_xds_unanswered, i64::try_from(late).unwrap_or(i64::MAX));
        let world = self.world();
        let outages = world.diagnostics.iter().filter(|finding| finding.code == SOURCE_OUTAGE).count();
        self.metrics.plane.set(plane::Gauge::evenkeel_source_outages, i64::try_from(outages).unwrap_or(i64::MAX));
        let remote = self.remote_clusters().clusters.len();
        self.metrics.plane.set(plane::Gauge::evenkeel_remote_clusters, i64::try_from(remote).unwrap_or(i64::MAX));
        let gaps = world.diagnostics.iter().filter(|finding| GAPS.contains(&finding.code)).count();
        self.metrics.plane.set(plane::Gauge::evenkeel_definition_gaps, i64::try_from(gaps).unwrap_or(i64::MAX));
        self.metrics.page_of(&world.snapshot, format)
    }

    /// The streams that a client may read about: for one namespace, those whose identity is of it.
    fn reports(&self, extent: &Extent) -> Vec<StreamReport> {
        let mut reports = self.proxies.reports();
        let is_of = |report: &StreamReport| {
            report.client.identity.as_ref().is_some_and(|identity| extent.includes(identity.namespace()))
        };
        reports.retain(|report| *extent == Extent::All || is_of(report));
        reports
    }

    fn syncz(&self, extent: &Extent) -> Syncz {
        let world = self.world();
        let is_all = *extent == Extent::All;
        let refused = self.registrations.refusals().into_iter().filter(|_| is_all);
        let alarms = self.authorities.as_ref().filter(|_| is_all).map(|authorities| authorities.alarms());
        Syncz {
            control_plane: crate::discovery::identifier().to_owned(),
            generation: self.proxies.published(),
            proxies: self.reports(extent).iter().map(sync_status::proxy).collect(),
            refused: refused_findings(&world, extent),
            not_ready: not_ready(&world, extent),
            certificates_ending: alarms.unwrap_or_default(),
            not_registered: refused.map(|(proxy, reason)| NotRegistered { proxy, reason }).collect(),
            failing: None,
        }
    }

    fn adsz(&self, extent: &Extent) -> Value {
        let one = |report: &StreamReport| {
            json!({
                "proxy": report.client.node,
                "address": report.client.peer.map(|address| address.to_string()),
                "identity": report.client.identity.as_ref().map(ToString::to_string),
                "connected_at": report.client.since.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
                "resources": report.resources().len(),
            })
        };
        json!({ "proxies": self.reports(extent).iter().map(one).collect::<Vec<_>>() })
    }

    fn remote_clusters(&self) -> RemoteClusters {
        self.remote_clusters.as_ref().map(|known| known.borrow().clone()).unwrap_or_default()
    }

    fn authorities(&self) -> Page {
        let status = self.authorities.as_ref().map(|authorities| authorities.status(SystemTime::now()));
        match status {
            Some(Ok(status)) => json_page(&status),
            Some(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n")),
            None => (StatusCode::NOT_FOUND, "text/plain", "there is no certificate authority\n".to_owned()),
        }
    }

    fn diagnostics(&self, extent: &Extent) -> diagnostics::Page {
        let world = self.world();
        let is_all = *extent == Extent::All;
        let refused = |wanted: &dyn Fn(&Refused) -> bool| {
            world
                .refused
                .iter()
                .filter(|refused| is_all && wanted(refused))
                .map(|refused| refused.entry.to_string())
                .collect()
        };
        let one = |d: &Diagnostic| Finding {
            severity: d.severity.as_str().to_owned(),
            code: d.code.to_owned(),
            message: d.message.clone(),
            file: d.span.path().to_owned(),
            line: d.span.line,
            column: d.span.column,
            object: d.object.as_ref().map(|object| object_of(object)),
            help: d.help.clone(),
            rendered: d.render(&world.sources, false),
        };
        diagnostics::Page {
            generation: world.generation,
            refused_files: refused(&|_| true),
            never_accepted: refused(&|refused| refused.never_accepted),
            diagnostics: world.diagnostics.iter().filter(|d| is_about(d, extent)).map(one).collect(),
        }
    }

    fn registryz(&self) -> Value {
        let one = |service: &Arc<Service>| {
            let port = |p: &evenkeel_model::ServicePort| json!({ "name": &*p.name, "number": p.number, "protocol": p.protocol.as_str() });
            json!({
                "host": service.host.as_str(),
                "namespace": &*service.namespace,
                "addresses": service.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "headless": service.headless,
                "external": service.external,
                "ports": service.ports.iter().map(port).collect::<Vec<_>>(),
                "origin": service.origin.to_string(),
            })
        };
        Value::Array(self.world().snapshot.services.iter().map(one).collect())
    }

    fn endpointz(&self) -> Value {
        let world = self.world();
        let mut all = Vec::new();
        for service in world.snapshot.services.iter() {
            for port in &service.ports {
                let one = |e: &evenkeel_model::Endpoint| {
                    json!({
                        "address": e.address.to_string(),
                        "port": e.port,
                        "ready": e.ready,
                        "labels": e.labels,
                        "workload": &*e.workload_name,
                        "cluster": if e.cluster.is_empty() { &*world.snapshot.mesh.cluster } else { &*e.cluster },
                        "network": &*e.network,
                        "identity": e.identity.as_ref().map(ToString::to_string),
                        "mtls": e.mtls,
                    })
                };
                let endpoints = world.snapshot.endpoints(service, port.number);
                all.push(json!({
                    "service": format!("{}:{}", service.host, port.number),
                    "endpoints": endpoints.iter().map(one).collect::<Vec<_>>(),
                }));
            }
        }
        Value::Array(all)
    }

    fn cluster(&self, query: &str) -> Page {
        let world = self.world();
        let known = parameter(query, "generation").and_then(|text| text.parse().ok());
        let value = cluster::page(&world.snapshot, world.generation, known);
        // Without white space: it is asked for often, and not read by people.
        (StatusCode::OK, "application/json", value.to_string())
    }

    fn configz(&self) -> Value {
        let world = self.world();
        let snapshot = &world.snapshot;
        let mut all = Vec::new();
        let mut add = |kind: &str, namespace: &str, name: &str, origin: &evenkeel_base::Span| {
            all.push(json!({ "kind": kind, "namespace": namespace, "name": name, "origin": origin.to_string() }));
        };
        snapshot.route_sets.iter().for_each(|o| add(o.kind.as_str(), &o.namespace, &o.name, &o.origin));
        snapshot.destination_rules.iter().for_each(|o| add(o.kind.as_str(), &o.namespace, &o.name, &o.origin));
        snapshot.gateways.iter().for_each(|o| add("Gateway", &o.namespace, &o.name, &o.origin));
        snapshot.sidecars.iter().for_each(|o| add("Sidecar", &o.namespace, &o.name, &o.origin));
        snapshot.peer_authentications.iter().for_each(|o| add("PeerAuthentication", &o.namespace, &o.name, &o.origin));
        let policies = &snapshot.authorization_policies;
        policies.iter().for_each(|o| add("AuthorizationPolicy", &o.namespace, &o.name, &o.origin));
        all.push(json!({
            "kind": "MeshConfig",
            "namespace": &*snapshot.mesh.root_namespace,
            "name": "istio",
            "outbound_traffic_policy": snapshot.mesh.outbound_traffic_policy.as_str(),
        }));
        Value::Array(all)
    }

    /// Whether requests are sent to an address. None are when it does not serve and no proxy is behind: the program there may
    /// then end.
    fn endpoint(&self, query: &str) -> Page {
        let Some(address) = parameter(query, "address").and_then(|text| text.parse::<IpAddr>().ok()) else {
            let text = "say which: /debug/endpoint?address=IP\n".to_owned();
            return (StatusCode::BAD_REQUEST, "text/plain", text);
        };
        let world = self.world();
        let snapshot = &world.snapshot;
        let mut endpoints = snapshot
            .services
            .iter()
            .flat_map(|service| service.ports.iter().map(move |port| (service, port)))
            .flat_map(|(service, port)| snapshot.endpoints(service, port.number));
        let serves = endpoints.any(|e| e.ready && matches!(&e.address, EndpointAddress::Ip(ip) if *ip == address));
        // A proxy is behind from the publication of a world until it has answered; before the publication it is unknown which
        // proxies will be behind.
        let told = self.proxies.published() >= world.generation;
        let reports = self.proxies.reports();
        let behind = reports.iter().filter(|report| report.status.settled_generation < report.told);
        json_page(&json!({
            "address": address.to_string(),
            "serves": serves || !told,
            "behind": behind.map(|report| &report.client.node).collect::<Vec<_>>(),
        }))
    }

    /// Whether the files of a ticket have been read, and which proxies do not run them yet.
    fn settle(&self, query: &str) -> Page {
        let Some(ticket) = parameter(query, "ticket") else {
            return json_page(&Ticket { ticket: self.barrier.ask() });
        };
        let Ok(ticket) = ticket.parse::<u64>() else {
            let text = "a ticket is a number: ask for one at /debug/settle\n".to_owned();
            return (StatusCode::BAD_REQUEST, "text/plain", text);
        };
        // The order matters: files read by now were published before, and proxies told of them are behind from then on.
        let is_read = self.barrier.has_served(ticket);
        let world = self.world();
        let told = self.proxies.published() >= world.generation;
        let reports = self.proxies.reports();
        let behind = reports.iter().filter(|report| report.status.settled_generation < report.told);
        json_page(&Settled {
            read: is_read && told,
            generation: world.generation,
            behind: behind.map(|report| report.client.node.clone()).collect(),
            refusing: reports.iter().filter_map(sync_status::refusing).collect(),
            refused: refused_findings(&world, &Extent::All),
            change: change(&world, &reports),
        })
    }

    /// Returns what a proxy ran at some time. This reads and replays files, which may take seconds.
    pub(super) fn history(&self, query: &str) -> Page {
        let [proxy, at, since] = ["proxyID", "at", "since"].map(|name| parameter(query, name));
        let asked = HistoryQuery { proxy: proxy.as_deref(), at: at.as_deref(), since: since.as_deref() };
        match history::answer(&self.store, asked) {
            Ok(past) => json_page(&past),
            Err(error) => {
                let status = match error {
                    AnswerError::Time(_) => StatusCode::BAD_REQUEST,
                    AnswerError::History(HistoryError::Read { .. }) => StatusCode::INTERNAL_SERVER_ERROR,
                    AnswerError::History(_) => StatusCode::NOT_FOUND,
                };
                (status, "text/plain", format!("{error}\n"))
            }
        }
    }

    fn config_dump(&self, extent: &Extent, query: &str) -> Page {
        let Some(wanted) = parameter(query, "proxyID") else {
            return say_which(OF_A_PROXY);
        };
        let reports = self.reports(extent);
        let is_wanted = |r: &&StreamReport| {
            let view = &r.client.view;
            r.client.node == wanted || wanted == format!("{}.{}", view.pod, view.namespace) || *wanted == *view.pod
        };
        let Some(report) = reports.iter().find(is_wanted) else {
            let name = |r: &StreamReport| format!("{}.{}", r.client.view.pod, r.client.view.namespace);
            let names: BTreeSet<String> = reports.iter().map(name).collect();
            let known = suggest::instead(&wanted, names.iter().map(String::as_str));
            let text = format!("no proxy `{wanted}` is connected; {known}\n");
            return (StatusCode::NOT_FOUND, "text/plain", text);
        };
        let schema = Schema::acquire();
        let mut dump = serde_json::Map::new();
        let resources = report.resources();
        dump.insert("proxy".to_owned(), json!(report.client.node));
        dump.insert("generation".to_owned(), json!(resources.generation));
        dump.insert("view".to_owned(), report.client.view.to_json());
        for kind in ResourceType::ALL {
            let one = |resource: &Arc<evenkeel_xds::Resource>| {
                json!({
                    "name": &*resource.name,
                    "version": resource.version.to_string(),
                    "origin": resource.origin.as_deref(),
                    "resource": public(json::any_to_json(&schema, &resource.any())),
                })
            };
            let all: Vec<Value> = resources.of(kind).values().map(one).collect();
            if !all.is_empty() {
                dump.insert(kind.short_name().to_owned(), Value::Array(all));
            }
        }
        json_page(&Value::Object(dump))
    }
}

/// `[redacted]` in base64, as Envoy prints it in place of private keys.
const REDACTED_BASE64: &str = "W3JlZGFjdGVkXQ==";

/// Returns a resource that may be shown: without private keys.
fn public(mut resource: Value) -> Value {
    if let Some(certificate) = resource.pointer_mut("/tls_certificate").and_then(Value::as_object_mut) {
        for field in ["private_key", "password"] {
            if let Some(source) = certificate.get_mut(field) {
                *source = json!({"inline_bytes": REDACTED_BASE64});
            }
        }
    }
    resource
}

/// Maximum number of errors, and of replicas, that the status lists.
const MAX_LISTED: usize = 100;

/// Whether a client may read a finding: for one namespace, those about its objects.
fn is_about(finding: &Diagnostic, extent: &Extent) -> bool {
    *extent == Extent::All || finding.object.as_ref().is_some_and(|object| extent.includes(&object.namespace))
}

/// Returns the files that are not in force, or only as a stand-in.
fn refused_findings(world: &World, extent: &Extent) -> Vec<String> {
    let matters = |d: &&Diagnostic| {
        (d.severity == Severity::Error || d.code == "closed" || d.code == SOURCE_OUTAGE) && is_about(d, extent)
    };
    world.diagnostics.iter().filter(matters).take(MAX_LISTED).map(ToString::to_string).collect()
}

/// Returns the replicas with a proxy that receive no traffic, as POD.NAMESPACE.
fn not_ready(world: &World, extent: &Extent) -> Vec<String> {
    let workloads = world.snapshot.workloads.iter().filter(|workload| extent.includes(&workload.namespace));
    let waiting = workloads.filter(|workload| workload.has_proxy && !workload.ready);
    waiting.take(MAX_LISTED).map(|workload| format!("{}.{}", workload.pod, workload.namespace)).collect()
}

fn say_which(page: &str) -> Page {
    (StatusCode::BAD_REQUEST, "text/plain", format!("say which proxy: {page}?proxyID=POD.NAMESPACE\n"))
}

fn index() -> String {
    let width = INDEX.iter().map(|(path, _)| path.len()).max().unwrap_or(0);
    INDEX.iter().map(|(path, what)| format!("{path:<width$}  {what}\n")).collect()
}

fn json_page(value: &impl Serialize) -> Page {
    let text = serde_json::to_string_pretty(value).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"));
    (StatusCode::OK, "application/json", text + "\n")
}

/// Returns the name of an object and its source.
fn object_of(object: &ObjectRef) -> diagnostics::Object {
    diagnostics::Object {
        group: object.group.to_string(),
        kind: object.kind.to_string(),
        namespace: object.namespace.to_string(),
        name: object.name.to_string(),
        source: object.source.name().to_string(),
    }
}

/// The last change: its objects, and which proxies run it, after which time.
fn change(world: &World, reports: &[StreamReport]) -> LastChange {
    let proxies: BTreeSet<&str> = reports.iter().map(|report| &*report.client.node).collect();
    let concerned = reports.iter().filter_map(|report| Some((report, report.converged?)));
    let concerned: Vec<(&str, Duration)> = concerned
        .filter(|(_, (generation, _))| *generation == world.generation)
        .map(|(report, (_, after))| (&*report.client.node, after))
        .collect();
    let cause = |cause: &crate::world::Cause| Cause {
        object: cause.name.to_string(),
        source: cause.object.source.name().to_string(),
        file: cause.place.file.to_string(),
    };
    let changed: BTreeSet<&str> = concerned.iter().map(|(node, _)| *node).collect();
    LastChange {
        causes: world.causes.iter().map(cause).collect(),
        proxies: proxies.len(),
        changed: changed.len(),
        after_ms: concerned.iter().map(|(_, after)| after.as_secs_f64() * 1e3).reduce(f64::max),
    }
}
