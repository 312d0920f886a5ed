//! What the mesh makes of a Service or of a Pod: how it is reached, what holds for it, what protects it, and what was found about the
//! objects that say so.

use std::sync::Arc;

use evenkeel_base::ObjectRef;
use evenkeel_base::hostname::Hostname;
use evenkeel_model::{GatewayRef, HttpAction, RouteSet, Selectable, Service, WeightedDestination, Workload};
use serde::Serialize;

use crate::Effective;
use crate::place::Source;
use crate::protection::Protection;
use crate::stand_ins;
use crate::world::World;

/// A rule at a gateway that leads to a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Exposure {
    /// The Gateway, as `NAMESPACE/NAME`.
    pub gateway: String,
    /// The ports where it listens.
    pub ports: Vec<u16>,
    /// The hosts that the rule is for.
    pub hosts: Vec<String>,
    /// The rule, as `http[0]`.
    pub rule: String,
    /// Where it is written.
    pub source: Source,
}

/// A service, as its clients see it.
#[derive(Debug, Clone, Serialize)]
pub struct DescribedService {
    /// What holds for its host.
    pub effective: Effective,
    /// The subsets that the described Pod belongs to; none of them if a service is described.
    pub subsets: Vec<Subset>,
    /// The rules at gateways that lead to it.
    pub exposed: Vec<Exposure>,
}

/// A subset of a DestinationRule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Subset {
    /// Its name.
    pub name: String,
    /// Where it is written.
    pub source: Source,
}

/// A Service or a Pod, described.
#[derive(Debug, Clone, Serialize)]
pub struct Description {
    /// The object, as `KIND NAMESPACE/NAME`, and where it is written.
    pub object: Source,
    /// Whether it is a Pod that does not run, but would by its workload's template.
    pub template_only: bool,
    /// The addresses, as far as they are known.
    pub addresses: Vec<String>,
    /// The services: of a Pod those that select it.
    pub services: Vec<DescribedService>,
    /// What protects it: of a Service each of its workloads.
    pub protections: Vec<Protection>,
}

impl World {
    /// Describes a Service, as a client of its namespace sees it. The error names what is unknown.
    pub fn describe_service(&self, name: &str) -> Result<Description, String> {
        let effective = self.effective(name, None)?;
        let services = self.snapshot.services_of(&effective.host);
        let Some(service) = services.first() else {
            return Err(format!(
                "`{name}` is no Service or ServiceEntry; `effective {name}` says what holds for the host"
            ));
        };
        let mut workloads: Vec<Arc<Workload>> = Vec::new();
        for own in self.snapshot.workloads.iter().filter(|own| own.services.iter().any(|of| of.host == service.host)) {
            let is_same = |known: &Arc<Workload>| {
                (&known.namespace, &known.workload_name) == (&own.namespace, &own.workload_name)
            };
            if !workloads.iter().any(is_same) {
                workloads.push(Arc::clone(own));
            }
        }
        let kind = if service.is_kubernetes() { "Service" } else { "ServiceEntry" };
        Ok(Description {
            object: Source::at(format!("{kind} {}/{}", service.namespace, service.name), &service.origin),
            template_only: false,
            addresses: service.vips().map(|address| address.to_string()).collect(),
            protections: workloads.iter().map(|workload| self.protection(workload)).collect(),
            services: vec![DescribedService { effective, subsets: Vec::new(), exposed: self.exposures(service) }],
        })
    }

    /// Describes a Pod, or the Pods of a workload.
    pub fn describe_workload(&self, workload: &Arc<Workload>) -> Description {
        let service = |service: &Arc<Service>| {
            let effective = self.effective(service.host.as_str(), None).ok()?;
            let (subsets, exposed) = (self.subsets_of(service, workload), self.exposures(service));
            Some(DescribedService { effective, subsets, exposed })
        };
        let kind = if workload.is_entry { "WorkloadEntry" } else { "Pod" };
        let object = format!("{kind} {}/{}", workload.namespace, workload.pod);
        let template_only = &*workload.origin.file == stand_ins::FILE;
        // A stand-in's address is of no use to anybody.
        let addresses = if template_only { &[] } else { workload.addresses.as_slice() };
        Description {
            object: Source::at(object, &workload.origin),
            template_only,
            addresses: addresses.iter().map(ToString::to_string).collect(),
            services: workload.services.iter().filter_map(service).collect(),
            protections: vec![self.protection(workload)],
        }
    }

    /// The subsets of the service's DestinationRule, as clients of its namespace see it, that a workload belongs to.
    fn subsets_of(&self, service: &Service, workload: &Workload) -> Vec<Subset> {
        let Some(rule) = self.snapshot.destination_rule_for(service, &*service.namespace, workload) else {
            return Vec::new();
        };
        let object = format!("DestinationRule {}/{}", rule.namespace, rule.name);
        let own = rule.subsets.iter().filter(|subset| workload.labels.selected_by(&subset.labels));
        own.map(|subset| Subset { name: subset.name.to_string(), source: Source::at(object.clone(), &subset.origin) })
            .collect()
    }

    /// The rules at gateways that lead to a service.
    fn exposures(&self, service: &Service) -> Vec<Exposure> {
        let of_set = |set: &Arc<RouteSet>| {
            let gateways = set.gateways.iter().filter(|gateway| **gateway != GatewayRef::Mesh);
            let rules = rules_to(set, &service.host);
            gateways.flat_map(|gateway| rules.iter().map(|rule| self.exposure(set, gateway, rule))).collect::<Vec<_>>()
        };
        self.snapshot.route_sets.iter().flat_map(of_set).collect()
    }

    fn exposure(&self, set: &RouteSet, gateway: &GatewayRef, rule: &RuleTo) -> Exposure {
        let is_it = |own: &GatewayRef| own == gateway;
        let gateways = self.snapshot.gateways.iter();
        let own = gateways
            .filter(|own| is_it(&GatewayRef::Named { namespace: own.namespace.clone(), name: own.name.clone() }));
        let mut ports: Vec<u16> = own.flat_map(|own| &own.servers).map(|server| server.port).collect();
        ports.sort_unstable();
        ports.dedup();
        Exposure {
            gateway: gateway.to_string(),
            ports,
            hosts: set.hosts.iter().map(|host| host.value.to_string()).collect(),
            rule: rule.name.clone(),
            source: Source::at(format!("{} {}/{}", set.kind, set.namespace, set.name), &rule.origin),
        }
    }
}

/// A rule that leads to a service.
struct RuleTo {
    name: String,
    origin: evenkeel_base::Span,
}

/// The rules of a set with a destination at this host.
fn rules_to(set: &RouteSet, host: &Hostname) -> Vec<RuleTo> {
    let leads = |all: &[WeightedDestination]| all.iter().any(|to| to.destination.host == *host);
    let http = set.http.iter().enumerate().filter(|(_, rule)| match &rule.action {
        HttpAction::Route { destinations, .. } => leads(destinations),
        HttpAction::Redirect(_) | HttpAction::DirectResponse(_) => false,
    });
    let http = http.map(|(at, rule)| RuleTo { name: format!("http[{at}]"), origin: rule.origin.clone() });
    let tls = set.tls.iter().enumerate().filter(|(_, rule)| leads(&rule.destinations));
    let tls = tls.map(|(at, rule)| RuleTo { name: format!("tls[{at}]"), origin: rule.origin.clone() });
    let tcp = set.tcp.iter().enumerate().filter(|(_, rule)| leads(&rule.destinations));
    let tcp = tcp.map(|(at, rule)| RuleTo { name: format!("tcp[{at}]"), origin: rule.origin.clone() });
    let udp = set.udp.iter().enumerate().filter(|(_, rule)| leads(&rule.destinations));
    let udp = udp.map(|(at, rule)| RuleTo { name: format!("udp[{at}]"), origin: rule.origin.clone() });
    http.chain(tls).chain(tcp).chain(udp).collect()
}

impl Description {
    /// Whether a finding about this object matters to what is described: the object itself, or one that a part of it was read from.
    pub fn is_touched_by(&self, object: &ObjectRef) -> bool {
        let name = format!("{} {}/{}", object.kind, object.namespace, object.name);
        let settings = self.services.iter().flat_map(|service| &service.effective.settings);
        let of_settings =
            settings.flat_map(|setting| setting.source.iter().chain(setting.lost.iter().map(|lost| &lost.source)));
        let of_exposures = self.services.iter().flat_map(|service| service.exposed.iter().map(|one| &one.source));
        let of_policies = self.protections.iter().flat_map(|own| {
            let tokens = own.request_authentications.iter().map(|one| &one.source);
            let ports = own.ports.iter().filter_map(|port| port.source.as_ref());
            own.policies.iter().map(|policy| &policy.source).chain(tokens).chain(ports)
        });
        let mut all = of_settings.chain(of_exposures).chain(of_policies).chain([&self.object]);
        all.any(|source| source.object == name)
    }

    /// The text, for a terminal of this width.
    pub fn to_text_within(&self, width: usize) -> String {
        let place = self.object.position().map(|place| format!("  ({place})")).unwrap_or_default();
        let mut out = format!("{}{place}\n", self.object.object);
        if self.template_only {
            out.push_str("does not run; described by its workload's template\n");
        }
        if !self.addresses.is_empty() {
            out.push_str(&format!("addresses: {}\n", self.addresses.join(", ")));
        }
        if self.services.is_empty() {
            out.push_str("no Service selects it: clients reach it only by its address\n");
        }
        for service in &self.services {
            out.push_str(&format!("\n== how clients reach {}\n", service.effective.host));
            out.push_str(&service.effective.to_text());
            if !service.subsets.is_empty() {
                out.push_str("\nsubsets of this Pod\n");
                service
                    .subsets
                    .iter()
                    .for_each(|own| out.push_str(&format!("  {}  ({})\n", own.name, placed(&own.source))));
            }
            out.push_str("\nfrom outside\n");
            if service.exposed.is_empty() {
                out.push_str("  no rule of a gateway leads to it\n");
            }
            for one in &service.exposed {
                let ports = one.ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
                let hosts = one.hosts.join(", ");
                let Exposure { gateway, rule, source, .. } = one;
                out.push_str(&format!("  Gateway {gateway}, port {ports}, {hosts}: {rule}  ({})\n", placed(source)));
            }
        }
        out.push_str(&self.protections_within(width));
        crate::columns::filled(&out, width)
    }

    /// What protects each workload. Those of a Service are often protected alike: the same text is not repeated.
    fn protections_within(&self, width: usize) -> String {
        let mut out = String::new();
        let mut known: Vec<(String, String)> = Vec::new();
        for own in &self.protections {
            let name = format!("{}.{}", own.workload, own.namespace);
            let text = own.to_text_within(width);
            let text = text.strip_prefix(&name).unwrap_or(&text).to_owned();
            match known.iter().find(|(_, other)| *other == text) {
                Some((first, _)) => out.push_str(&format!("\n== what protects {name}: the same as {first}\n")),
                None => {
                    out.push_str(&format!("\n== what protects {name}\n{name}{text}"));
                    known.push((name, text));
                }
            }
        }
        out
    }
}

fn placed(source: &Source) -> String {
    match source.position() {
        Some(position) => format!("{}, {position}", source.object),
        None => source.object.clone(),
    }
}
