//! What protects a workload, and what does not: mutual TLS, tokens and policies, in the order in which its proxy evaluates
//! them.
//!
//! Rules are described from the user's YAML and not from the model's types, so that a new attribute is described without a
//! change here.

mod answer;
mod gaps;
mod text;
mod words;

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_api::annotations::is_dry_run;
use evenkeel_api::{Kind, Object, ProxyPlace, Resource};
use evenkeel_base::yaml::Node;
use evenkeel_model::authz_provider::AuthzProtocol;
use evenkeel_model::workload::InboundPort;
use evenkeel_model::{AuthorizationPolicy, Protocol, Selectable, Selection, Service, Workload};
use evenkeel_xds::json::any_to_json;
use evenkeel_xds::{ResourceType, Schema};

use crate::place::Source;
use crate::policies;
use crate::transport;
use crate::world::World;

pub use self::answer::{ClosedService, Policy, Port, Protection, RequestAuthentication, Rule, Running};

impl World {
    /// Returns what protects a workload.
    pub fn protection(&self, workload: &Arc<Workload>) -> Protection {
        let proxy = match (self.is_gateway(workload), workload.has_proxy) {
            (true, _) => "gateway",
            (false, true) => "sidecar",
            (false, false) => "none",
        };
        let enforced = proxy != "none";
        let policies = if enforced { self.policies_at(workload) } else { Vec::new() };
        let request_authentications = if enforced { self.token_rules_at(workload) } else { Vec::new() };
        let pods = self.snapshot.workloads.iter().filter(|own| is_same_workload(own, workload));
        let mut all = Protection {
            workload: workload.workload_name.to_string(),
            namespace: workload.namespace.to_string(),
            pods: pods.map(|own| own.pod.to_string()).collect(),
            identity: workload.identity.to_string(),
            proxy,
            ports: self.ports_of(workload, proxy, &policies),
            request_authentications,
            policies,
            closed_services: if enforced { self.closed_services_for(workload) } else { Vec::new() },
            not_protected: Vec::new(),
            running: None,
        };
        all.not_protected = gaps::of(&all);
        all
    }

    /// The Pods of a workload.
    pub fn pods_of(&self, workload: &Workload) -> Vec<Arc<Workload>> {
        self.snapshot.workloads.iter().filter(|own| is_same_workload(own, workload)).cloned().collect()
    }

    /// The names of the rules that a workload's proxy gets from these files, as its RBAC filters name them.
    pub fn rule_names(&self, workload: &Arc<Workload>) -> BTreeSet<String> {
        let proxy = self.proxy(workload);
        let mut names = BTreeSet::new();
        for listener in proxy.resources.of(ResourceType::Listener).values() {
            collect_rule_names(&any_to_json(&Schema::acquire(), &listener.any()), &mut names);
        }
        names
    }

    /// The services to which a workload's proxy refuses every call, with the policies that close them.
    fn closed_services_for(&self, workload: &Arc<Workload>) -> Vec<ClosedService> {
        let mut closed = self.snapshot.services.iter().filter(|service| service.is_closed()).peekable();
        if closed.peek().is_none() {
            return Vec::new();
        }
        let proxy = self.proxy(workload);
        let clusters = proxy.resources.of(ResourceType::Cluster);
        let is_called = |service: &&Arc<Service>| {
            service
                .ports
                .iter()
                .any(|port| clusters.contains_key(&*format!("outbound|{}||{}", port.number, service.host)))
        };
        let policies_of = |service: &Arc<Service>| {
            let place = transport::source_of(service);
            let policies = service.closed_by.iter().map(|by| Source::at(by.what.to_string(), &by.origin));
            policies.map(|policy| ClosedService { service: place.clone(), policy }).collect::<Vec<_>>()
        };
        closed.filter(is_called).flat_map(policies_of).collect()
    }

    fn ports_of(&self, workload: &Arc<Workload>, proxy: &str, policies: &[Policy]) -> Vec<Port> {
        let capture = self.capture_of(workload);
        let is_captured = |port: u16| {
            let included = capture.inbound_ports.as_ref().is_none_or(|ports| ports.contains(&port));
            included && !(capture.inbound_ports.is_none() && capture.except_inbound_ports.contains(&port))
        };
        let mut numbers: Vec<(u16, Option<InboundPort>)> = match proxy {
            "gateway" => {
                let gateways = self.snapshot.gateways_for(&**workload);
                gateways.iter().flat_map(|gateway| &gateway.servers).map(|server| (server.port, None)).collect()
            }
            _ => workload.inbound_ports().into_iter().map(|port| (port.port, Some(port))).collect(),
        };
        numbers.extend(workload.ports.iter().filter(|_| proxy != "gateway").map(|port| (port.number, None)));
        let named = self.snapshot.peer_authentications_of(&workload.namespace).iter();
        let named = named.filter(|p| proxy == "sidecar" && workload.labels.selected_by(&p.selector));
        numbers.extend(named.flat_map(|p| p.port_modes.keys().map(|port| (*port, None))));
        // A port that a service leads to says more than the same port of a container.
        numbers.sort_by_key(|(port, known)| (*port, known.is_none()));
        numbers.dedup_by_key(|(port, _)| *port);
        let port = |number: u16, known: Option<InboundPort>| {
            let peer = match proxy {
                "sidecar" => Some(policies::authentication(self, workload, number)),
                _ => None,
            };
            let protocol = match (&known, proxy) {
                (Some(known), _) => known.protocol.as_str().to_owned(),
                (None, "gateway") => "as its Gateway says".to_owned(),
                (None, _) => Protocol::Auto.as_str().to_owned(),
            };
            let service = known.as_ref().and_then(|known| known.service.as_ref());
            let is_http = known.as_ref().is_none_or(|known| may_be_http(known.protocol));
            let mutual_tls = peer.as_ref().map_or_else(|| "none".to_owned(), |peer| peer.mode.clone());
            let captured = proxy != "none" && (proxy == "gateway" || number == 0 || is_captured(number));
            Port {
                port: Some(number).filter(|number| *number > 0),
                protocol,
                service: service.map(|(service, port)| format!("{}/{}:{port}", service.namespace, service.name)),
                captured,
                who_may_call: gaps::callers((number, is_http, captured), &mutual_tls, policies),
                mutual_tls,
                source: peer.and_then(|peer| peer.source),
            }
        };
        let mut ports: Vec<Port> = numbers.into_iter().map(|(number, known)| port(number, known)).collect();
        if proxy == "sidecar" {
            // No container listens on port 0: it stands for all ports that no object names.
            ports.push(port(0, None));
        }
        ports
    }

    fn policies_at(&self, workload: &Workload) -> Vec<Policy> {
        let mut all: Vec<Policy> = self
            .snapshot
            .policies_for(&workload.namespace, &workload.labels)
            .into_iter()
            .filter(|policy| policy.unsupported.is_some() || !self.is_of_kind(policy, Kind::RequestAuthentication))
            .map(|policy| self.policy(policy, policies::called_at(self, workload)))
            .collect();
        // A stand-in has a policy for each set of ports.
        all.dedup_by(|next, own| {
            let is_same = own.unsupported.is_some() && own.unsupported == next.unsupported;
            own.is_of_callers |= is_same && next.is_of_callers;
            is_same
        });
        all.sort_by_key(|policy| match policy.action.as_str() {
            "CUSTOM" => 0,
            "DENY" => 1,
            "ALLOW" => 2,
            _ => 3,
        });
        all.iter_mut().zip(1..).for_each(|(policy, order)| policy.order = order);
        all
    }

    fn is_of_kind(&self, policy: &AuthorizationPolicy, kind: Kind) -> bool {
        self.objects().iter().any(|object| object.kind() == kind && object.origin == policy.origin)
    }

    fn policy(&self, policy: &AuthorizationPolicy, place: ProxyPlace) -> Policy {
        let object = policy.object();
        let written = self.places.node(&policy.origin, "spec.rules");
        let written = written.as_ref().and_then(Node::as_sequence).unwrap_or_default();
        let rule = |at: usize, node: &Node| {
            let source = self.source(object.clone(), &policy.origin, &format!("spec.rules[{at}]"));
            let needs_http = policy.rules.get(at).is_some_and(evenkeel_model::policy::Rule::needs_http);
            Rule {
                source,
                needs_http,
                text: words::rule(node),
                callers: words::callers(node),
                ports: words::ports(node),
            }
        };
        let provider = self.places.node(&policy.origin, "spec.provider.name");
        let dry_run = self.objects().iter().find(|object| object.origin == policy.origin);
        Policy {
            order: 0,
            action: policy.action.to_string(),
            source: Source::at(object.clone(), &policy.origin),
            scope: self.scope(&policy.namespace, policy.selection.is_everything()),
            dry_run: dry_run.is_some_and(|object| is_dry_run(&object.annotations)),
            refused: policy.refused,
            asks_about_requests: self.snapshot.mesh.authz_providers.iter().any(|provider| {
                policy.provider.as_deref() == Some(&*provider.name)
                    && matches!(provider.protocol, AuthzProtocol::Http(_))
            }),
            provider: provider.as_ref().and_then(Node::as_str).map(str::to_owned),
            rules: written.iter().enumerate().map(|(at, node)| rule(at, node)).collect(),
            unsupported: policy.unsupported.as_ref().map(|unsupported| unsupported.what.to_string()),
            closes: policy.closes(),
            is_of_callers: policy.is_for(place),
            notes: policy.unknown().into_iter().chain(self.findings_at(&policy.origin)).collect(),
        }
    }

    fn token_rules_at(&self, workload: &Workload) -> Vec<RequestAuthentication> {
        let root = &self.snapshot.mesh.root_namespace;
        let is_here = |object: &&Object| {
            object.kind() == Kind::RequestAuthentication
                && (object.namespace == workload.namespace || object.namespace == *root)
                && written_selection(object).includes(&object.namespace, &workload.namespace, &workload.labels)
        };
        let found = self.objects().iter().filter(is_here);
        let of = |object: &Object| {
            let rules = self.places.node(&object.origin, "spec.jwtRules");
            let rules = rules.as_ref().and_then(Node::as_sequence).unwrap_or_default();
            RequestAuthentication {
                source: Source::at(object.to_string(), &object.origin),
                scope: self.scope(&object.namespace, written_selection(object).is_everything()),
                issuers: rules.iter().map(words::issuer).collect(),
                notes: self.findings_at(&object.origin),
            }
        };
        found.map(of).collect()
    }

    fn scope(&self, namespace: &str, is_whole: bool) -> &'static str {
        match (is_whole, *namespace == *self.snapshot.mesh.root_namespace) {
            (false, _) => "workload",
            (true, true) => "mesh",
            (true, false) => "namespace",
        }
    }

    /// Returns the findings about the object that is written there.
    fn findings_at(&self, origin: &evenkeel_base::Span) -> Vec<String> {
        let about = self.diagnostics().iter().filter(|finding| finding.span == *origin);
        about.map(|finding| finding.message.clone()).collect()
    }
}

/// Returns the workloads that a RequestAuthentication selects; for a stand-in, those that could be read.
fn written_selection(object: &Object) -> Selection {
    match &object.resource {
        Resource::RequestAuthentication(authentication) => {
            authentication.spec.as_ref().map_or_else(Selection::everything, Selection::of_request_authentication)
        }
        _ => Selection::everything(),
    }
}

/// Whether the proxy may see requests on a port with this protocol.
fn may_be_http(protocol: Protocol) -> bool {
    use Protocol::{Auto, Grpc, GrpcWeb, Http, Http2};
    matches!(protocol, Http | Http2 | Grpc | GrpcWeb | Auto)
}

fn is_same_workload(own: &Workload, other: &Workload) -> bool {
    own.workload_name == other.workload_name && own.namespace == other.namespace
}

/// The names of policies in RBAC filters, wherever they are in a proxy's configuration as JSON.
pub fn collect_rule_names(json: &serde_json::Value, names: &mut BTreeSet<String>) {
    match json {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), value) {
                    ("policies", serde_json::Value::Object(policies)) => {
                        names.extend(policies.keys().filter(|name| name.starts_with("ns[")).cloned());
                    }
                    _ => collect_rule_names(value, names),
                }
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| collect_rule_names(item, names)),
        _ => {}
    }
}
