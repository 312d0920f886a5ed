//! The effective settings of a host: the merged result of all objects that affect it, and the values that were overridden.

use std::sync::Arc;

use evenkeel_api::{Object, Resource};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::closest;
use evenkeel_base::yaml::{Node, Value};
use evenkeel_model::{GatewayRef, HttpAction, Labels, RouteSet, Selectable, Service, Viewer, Workload};
use serde::Serialize;

use crate::place::Source;
use crate::world::World;
use crate::{names, policies};

/// A setting that holds, where it is written, and what lost to it.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    /// The subject: `service`, `routes`, `destinationRule`, `subset v1`, `server`.
    pub section: String,
    /// The field.
    pub field: String,
    /// Its value.
    pub value: String,
    /// Where it is written; none = a default.
    pub source: Option<Source>,
    /// The values that it overrides.
    pub lost: Vec<Lost>,
}

/// A setting that does not hold.
#[derive(Debug, Clone, Serialize)]
pub struct Lost {
    /// Its value.
    pub value: String,
    /// Where it is written.
    pub source: Source,
    /// Why it lost.
    pub reason: String,
}

/// The effective settings of a host.
#[derive(Debug, Clone, Serialize)]
pub struct Effective {
    /// The host, as full name.
    pub host: String,
    /// The client: a workload, or any in the service's namespace.
    pub client: String,
    /// The settings, by section.
    pub settings: Vec<Setting>,
}

/// A client of the host.
struct Client {
    namespace: Arc<str>,
    labels: Labels,
}

impl Viewer for Client {
    fn is_in(&self, namespace: &Arc<str>) -> bool {
        self.namespace == *namespace
    }
}

impl Selectable for Client {
    fn selected_by(&self, selector: &Labels) -> bool {
        self.labels.selected_by(selector)
    }
}

impl World {
    /// Returns the effective settings of a host for a workload; without one, for a client in the service's namespace. The
    /// error names what is unknown.
    pub fn effective(&self, host: &str, workload: Option<&Workload>) -> Result<Effective, String> {
        let service = self.service_named(host, workload);
        let namespace = workload.map(|workload| workload.namespace.clone());
        let namespace = namespace.or_else(|| service.as_ref().map(|service| service.namespace.clone()));
        let client = Client {
            namespace: namespace.unwrap_or_else(|| "default".into()),
            labels: workload.map(|workload| workload.labels.clone()).unwrap_or_default(),
        };
        let full = match &service {
            Some(service) => service.host.clone(),
            None => Hostname::parse(host).map_err(|error| format!("`{host}` is not a host: {error}"))?,
        };
        let mut all = Vec::new();
        if service.is_none() && !self.is_named(&full) {
            let names = self.snapshot.services.iter().map(|service| service.host.to_string()).collect::<Vec<_>>();
            let near = closest(host, names.iter().map(String::as_str));
            let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            return Err(format!("nothing in these files is about the host `{host}`{near}"));
        }
        if let Some(service) = &service {
            self.service_settings(service, &mut all);
        }
        self.route_settings(&full, &client, &mut all);
        if let Some(service) = &service {
            self.rule_settings(service, &client, &mut all);
            self.server_settings(service, &mut all);
        }
        if all.is_empty() {
            return Err(format!("nothing in these files is about the host `{host}`"));
        }
        let client = workload.map_or_else(
            || format!("any workload in {}", client.namespace),
            |workload| format!("{}.{}", workload.workload_name, workload.namespace),
        );
        Ok(Effective { host: full.to_string(), client, settings: all })
    }

    /// Whether routes name the host, or a wildcard of its domain; those for every host are about none in particular.
    fn is_named(&self, host: &Hostname) -> bool {
        let mut hosts = self.snapshot.route_sets.iter().flat_map(|set| set.hosts.iter());
        hosts.any(|own| own.value.as_str() != "*" && own.value.covers(host))
    }

    fn service_named(&self, host: &str, workload: Option<&Workload>) -> Option<Arc<Service>> {
        if let Some(workload) = workload {
            return names::resolve(host, workload, None, &self.snapshot).service;
        }
        let domain = &self.snapshot.mesh.cluster_domain;
        let full = [host.to_owned(), format!("{host}.svc.{domain}"), format!("{host}.{domain}")];
        let exact = full.iter().find_map(|name| self.snapshot.services_of(name).first()).cloned();
        // A bare name means the Service of that name, wherever it is.
        exact.or_else(|| {
            self.snapshot.services.iter().find(|service| service.is_kubernetes() && *service.name == *host).cloned()
        })
    }

    fn service_settings(&self, service: &Service, all: &mut Vec<Setting>) {
        let object = |service: &Service| {
            let kind = if service.is_kubernetes() { "Service" } else { "ServiceEntry" };
            format!("{kind} {}/{}", service.namespace, service.name)
        };
        let source = Source::at(object(service), &service.origin);
        let others = self.snapshot.services_of(service.host.as_str()).iter();
        let lost = others
            .filter(|other| other.namespace != service.namespace)
            .map(|other| Lost {
                value: object(other),
                source: Source::at(object(other), &other.origin),
                reason: "another namespace's".to_owned(),
            })
            .collect();
        let mut add = |field: &str, value: String, lost: Vec<Lost>| {
            all.push(Setting {
                section: "service".to_owned(),
                field: field.to_owned(),
                value,
                source: Some(source.clone()),
                lost,
            });
        };
        add("host", service.host.to_string(), lost);
        let addresses: Vec<String> = service.vips().map(|vip| vip.to_string()).collect();
        if !addresses.is_empty() {
            add("address", addresses.join(", "), Vec::new());
        }
        for port in &service.ports {
            let ready = self.snapshot.endpoints(service, port.number).iter().filter(|endpoint| endpoint.ready).count();
            add(&format!("port {}", port.number), format!("{}, {ready} endpoints", port.protocol), Vec::new());
        }
    }

    /// The rules that requests to the host follow in the mesh, and at gateways.
    fn route_settings(&self, host: &Hostname, client: &Client, all: &mut Vec<Setting>) {
        let sets: Vec<&Arc<RouteSet>> =
            self.snapshot.route_sets.iter().filter(|set| set.hosts.iter().any(|own| own.value.covers(host))).collect();
        let first = self.snapshot.route_sets_for(&GatewayRef::Mesh, client, host).first().map(|set| Arc::clone(set));
        for set in sets {
            let object = format!("{} {}/{}", set.kind, set.namespace, set.name);
            let is_mesh = set.gateways.contains(&GatewayRef::Mesh);
            let is_first =
                first.as_ref().is_some_and(|first| (&first.namespace, &first.name) == (&set.namespace, &set.name));
            let gateways: Vec<String> =
                set.gateways.iter().filter(|gateway| **gateway != GatewayRef::Mesh).map(ToString::to_string).collect();
            if is_mesh && !is_first {
                let reason = match (set.export_to.seen_by(client), &first) {
                    (false, _) => format!("exportTo does not include the namespace {}", client.namespace),
                    (true, Some(first)) => format!("{}/{} serves the host first", first.namespace, first.name),
                    (true, None) => "it does not apply".to_owned(),
                };
                let lost = Lost { value: object.clone(), source: Source::at(object.clone(), &set.origin), reason };
                match all.iter_mut().find(|setting| setting.section == "routes") {
                    Some(setting) => setting.lost.push(lost),
                    None => all.push(Setting {
                        section: "routes".to_owned(),
                        field: "http".to_owned(),
                        value: "the mesh's default: all requests to the service".to_owned(),
                        source: None,
                        lost: vec![lost],
                    }),
                }
            }
            let section = match (is_mesh && is_first, gateways.is_empty()) {
                (true, _) => "routes".to_owned(),
                (false, false) => format!("routes at {}", gateways.join(", ")),
                (false, true) => continue,
            };
            for (at, http) in set.http.iter().enumerate() {
                let name = if http.name.is_empty() { String::new() } else { format!(" ({})", http.name) };
                all.push(Setting {
                    section: section.clone(),
                    field: format!("http[{at}]{name}"),
                    value: action(&http.action, http.matches.is_empty()),
                    source: Some(Source::at(object.clone(), &http.origin)),
                    lost: Vec::new(),
                });
            }
            let tls = set.tls.iter().enumerate().map(|(at, rule)| (format!("tls[{at}]"), "connections", &rule.origin));
            let tcp = set.tcp.iter().enumerate().map(|(at, rule)| (format!("tcp[{at}]"), "connections", &rule.origin));
            let udp = set.udp.iter().enumerate().map(|(at, rule)| (format!("udp[{at}]"), "datagrams", &rule.origin));
            for (field, value, span) in tls.chain(tcp).chain(udp) {
                let source = Some(Source::at(object.clone(), span));
                let (section, value) = (section.clone(), value.to_owned());
                all.push(Setting { section, field, value, source, lost: Vec::new() });
            }
        }
    }

    /// The settings of connections to the service: those of the DestinationRule that the client follows.
    fn rule_settings(&self, service: &Service, client: &Client, all: &mut Vec<Setting>) {
        let applied = self.snapshot.destination_rule_for(service, client, client).cloned();
        let domain = &self.snapshot.mesh.cluster_domain;
        let mut written: Vec<(&Object, bool)> = Vec::new();
        for object in self.objects().iter().filter(|object| object.refused.is_none()) {
            let Resource::DestinationRule(rule) = &object.resource else { continue };
            let host = Hostname::resolve(rule.spec.host.value.as_str(), &object.namespace, domain);
            if !host.is_ok_and(|host| host.covers(&service.host)) {
                continue;
            }
            let applies =
                applied.as_ref().is_some_and(|rule| rule.namespace == object.namespace && rule.name == object.name);
            written.push((object, applies));
        }
        written.sort_by_key(|(_, applies)| !applies);
        let start = all.len();
        for (object, applies) in written {
            let name = format!("DestinationRule {}/{}", object.namespace, object.name);
            // Of several rules for one host and namespace, the first one's policy applies, and the subsets of all.
            let is_merged = applied.as_ref().is_some_and(|rule| rule.namespace == object.namespace && !applies);
            if let Some(policy) = self.places.node(&object.origin, "spec.trafficPolicy") {
                for (field, value, span) in leaves(&policy) {
                    let source = Source::at(name.clone(), &span);
                    let known = all
                        .iter_mut()
                        .skip(start)
                        .find(|other| other.section == "destinationRule" && other.field == field);
                    let reason = || match &applied {
                        Some(rule) => format!("{}/{} applies", rule.namespace, rule.name),
                        None => "it applies to other clients".to_owned(),
                    };
                    match (applies, known) {
                        (true, _) => all.push(Setting {
                            section: "destinationRule".to_owned(),
                            field,
                            value,
                            source: Some(source),
                            lost: Vec::new(),
                        }),
                        (false, Some(known)) => known.lost.push(Lost { value, source, reason: reason() }),
                        (false, None) => all.push(Setting {
                            section: "destinationRule".to_owned(),
                            field,
                            value: "the default".to_owned(),
                            source: None,
                            lost: vec![Lost { value, source, reason: reason() }],
                        }),
                    }
                }
            }
            if !applies && !is_merged {
                continue;
            }
            let Some(subsets) = self.places.node(&object.origin, "spec.subsets") else { continue };
            for subset in subsets.as_sequence().unwrap_or_default() {
                let of = subset.get("name").and_then(Node::as_str).unwrap_or_default().to_owned();
                for (field, value, span) in leaves(subset).into_iter().filter(|(field, ..)| field != "name") {
                    let general = field.strip_prefix("trafficPolicy.").and_then(|field| {
                        all.iter().skip(start).find(|other| other.section == "destinationRule" && other.field == field)
                    });
                    let lost = general.and_then(|general| {
                        Some(Lost {
                            value: general.value.clone(),
                            source: general.source.clone()?,
                            reason: "the subset's overrides it".to_owned(),
                        })
                    });
                    all.push(Setting {
                        section: format!("subset {of}"),
                        field,
                        value,
                        source: Some(Source::at(name.clone(), &span)),
                        lost: lost.into_iter().collect(),
                    });
                }
            }
        }
    }

    /// Adds the settings of the service's own workloads.
    fn server_settings(&self, service: &Service, all: &mut Vec<Setting>) {
        let mut seen: Vec<(Arc<str>, Arc<str>, u16)> = Vec::new();
        for port in &service.ports {
            for endpoint in
                self.snapshot.endpoints(service, port.number).iter().filter(|endpoint| endpoint.identity.is_some())
            {
                let key = (endpoint.namespace.clone(), endpoint.workload_name.clone(), endpoint.port);
                if seen.contains(&key) {
                    continue;
                }
                seen.push(key);
                let evenkeel_model::EndpointAddress::Ip(ip) = endpoint.address else { continue };
                let Some(workload) = self.snapshot.workload_at(ip) else { continue };
                let section = format!("server {}", workload.workload_name);
                let peer = policies::authentication(self, workload, endpoint.port);
                all.push(Setting {
                    section: section.clone(),
                    field: format!("mutual TLS on port {}", endpoint.port),
                    value: peer.mode,
                    source: peer.source,
                    lost: Vec::new(),
                });
                for policy in self.snapshot.policies_for(&workload.namespace, &workload.labels) {
                    let object = policy.object();
                    let field = format!("authorization on port {}", endpoint.port);
                    let value = format!("{} {} rules", policy.action, policy.rules.len());
                    let source = Some(Source::at(object, &policy.origin));
                    all.push(Setting { section: section.clone(), field, value, source, lost: Vec::new() });
                }
            }
        }
    }
}

/// Summarizes the action of a rule.
fn action(action: &HttpAction, always: bool) -> String {
    let what = match action {
        HttpAction::Route { destinations, .. } => {
            let total: u32 = destinations.iter().map(|to| to.weight).sum();
            let one = |to: &evenkeel_model::WeightedDestination| {
                let subset =
                    to.destination.subset.as_ref().map(|subset| format!(" subset {subset}")).unwrap_or_default();
                let share = if destinations.len() > 1 {
                    format!("{} % ", u64::from(to.weight) * 100 / u64::from(total.max(1)))
                } else {
                    String::new()
                };
                format!("{share}{}{subset}", to.destination.host)
            };
            destinations.iter().map(one).collect::<Vec<_>>().join(", ")
        }
        HttpAction::Redirect(redirect) => format!("redirect {}", redirect.code),
        HttpAction::DirectResponse(response) => format!("answer {}", response.status),
    };
    if always { what } else { format!("{what}, if it matches") }
}

/// The leaves of a tree with their paths and positions.
fn leaves(node: &Node) -> Vec<(String, String, evenkeel_base::Span)> {
    fn walk(path: &str, node: &Node, span: &evenkeel_base::Span, all: &mut Vec<(String, String, evenkeel_base::Span)>) {
        match &node.value {
            Value::Scalar(scalar) => all.push((path.to_owned(), scalar.text.to_string(), span.clone())),
            Value::Sequence(items) => {
                for (at, item) in items.iter().enumerate() {
                    walk(&format!("{path}[{at}]"), item, &item.span, all);
                }
            }
            Value::Mapping(mapping) => {
                for entry in mapping.iter() {
                    let path = if path.is_empty() { entry.key.to_string() } else { format!("{path}.{}", entry.key) };
                    walk(&path, &entry.value, &entry.key_span, all);
                }
            }
        }
    }
    let mut all = Vec::new();
    walk("", node, &node.span, &mut all);
    all
}

impl Effective {
    /// The settings for people.
    pub fn to_text(&self) -> String {
        let mut out = format!("{}  for {}\n", self.host, self.client);
        let width = self.settings.iter().map(|setting| setting.field.chars().count()).max().unwrap_or(0).min(44);
        let mut section = "";
        for setting in &self.settings {
            if setting.section != section {
                section = &setting.section;
                out.push_str(&format!("\n{section}\n"));
            }
            let place = |source: &Source| match source.position() {
                Some(position) => format!("{}, {position}", source.object),
                None => source.object.clone(),
            };
            let source = setting.source.as_ref().map(|source| format!("  ({})", place(source))).unwrap_or_default();
            out.push_str(&format!("  {:<width$}  {}{source}\n", setting.field, setting.value));
            for lost in &setting.lost {
                out.push_str(&format!(
                    "  {:<width$}  lost: {}  ({}): {}\n",
                    "",
                    lost.value,
                    place(&lost.source),
                    lost.reason
                ));
            }
        }
        out
    }
}
