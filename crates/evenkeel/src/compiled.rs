//! Finds what proxies would refuse: generates the resources for one proxy of each kind and compiles them as a proxy
//! does.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use evenkeel_api::{Object, Resource};
use evenkeel_base::{Diagnostic, Diagnostics, Span};
use evenkeel_model::{AddressBook, Labels, MeshConfig};
use evenkeel_runtime_config::{Builder, Environment};
use evenkeel_tls::SecretStore;
use evenkeel_translate::{ClientKind, ProxyKind, ProxyView, Translator};
use evenkeel_xds::{Cause, ResourceSet, ResourceType, Version};

use crate::manifests;

/// Maximum number of proxies that are tried; proxies of one kind differ little.
const MAX_PROXIES: usize = 64;
/// Namespace of gateways that Istio installs.
const GATEWAYS: &str = "istio-system";
/// Addresses of workloads that do not run (RFC 5737).
const ADDRESS: [u8; 4] = [192, 0, 2, 1];

/// Returns what the proxies of these objects would reject, and what gRPC programs in their place cannot execute.
pub fn refusals(objects: &[Object]) -> Diagnostics {
    // Errors in the environment are reported by the commands that use it.
    refusals_in(objects, &manifests::mesh().unwrap_or_default())
}

/// Like [`refusals`], in a mesh with other options.
pub fn refusals_in(objects: &[Object], mesh: &MeshConfig) -> Diagnostics {
    let proxies = proxies(objects);
    // For the model a workload runs if it has a Pod.
    let pods: Vec<(Arc<str>, Arc<str>)> =
        proxies.iter().enumerate().map(|(n, (proxy, _))| (pod_file(n).into(), pod(proxy).into())).collect();
    let (pods, _) = evenkeel_api::load(&pods);
    let (snapshot, _) = evenkeel_model::build(objects.iter().chain(&pods), mesh, &mut AddressBook::default());
    let mut found = evenkeel_analyze::tokens_of_grpc_programs(objects, &snapshot);
    let mut told = BTreeSet::new();
    // Proxies share most resources: each is generated and compiled once, by one builder, because listeners refer to
    // clusters that were compiled for another proxy.
    let mut builder = Builder::new(Environment::process(), SecretStore::new());
    let mut translator = Translator::new(Arc::new(snapshot), Cause::default());
    let mut compiled = HashSet::new();
    for (number, (proxy, owner)) in proxies.into_iter().enumerate() {
        let set = translator.join(Arc::new(proxy)).set();
        let own = pod_file(number);
        for refusal in refused(&set, &mut builder, &mut compiled) {
            let origin = if *refusal.origin.file == *own { owner.clone() } else { refusal.origin.clone() };
            if told.insert((origin.clone(), refusal.message.clone())) {
                found.push(refusal.finding(origin));
            }
        }
    }
    found
}

/// Returns the file name of a Pod that stands for a workload that does not run.
fn pod_file(number: usize) -> String {
    format!("pod-{number}.yaml")
}

/// A resource that a proxy rejects.
struct Refused {
    /// The position in the user's files.
    origin: Span,
    /// What is wrong with it.
    message: String,
    /// Nothing but files that are not on this machine: proxies may run on another one, where they are.
    lacks_files: bool,
}

impl Refused {
    fn finding(self, origin: Span) -> Diagnostic {
        if self.lacks_files {
            Diagnostic::warning("refused-by-proxy", origin, self.message)
                .with_help("these files have to be where the proxies run, and nothing checks them here")
        } else {
            Diagnostic::error("refused-by-proxy", origin, self.message)
                .with_help("proxies keep the previous resource of this name, if they have one")
        }
    }
}

/// How a problem begins that a missing file is.
const CANNOT_READ: &str = "cannot read ";

/// Returns what a proxy rejects. `compiled`: resources that were compiled before.
fn refused(
    set: &ResourceSet,
    builder: &mut Builder,
    compiled: &mut HashSet<(ResourceType, Arc<str>, Version)>,
) -> Vec<Refused> {
    let mut all = Vec::new();
    for kind in ResourceType::ALL {
        for resource in set.of(kind).values() {
            if !compiled.insert((kind, resource.name.clone(), resource.version)) {
                continue;
            }
            let outcome = match kind {
                ResourceType::Cluster => builder.set_cluster(&resource.any()),
                ResourceType::Endpoint => builder.set_endpoints(&resource.any()),
                ResourceType::Listener => builder.set_listener(&resource.any()),
                ResourceType::Route => builder.set_route(&resource.any()),
                ResourceType::VirtualHost => builder.set_virtual_host(&resource.name, &resource.any()),
                ResourceType::ExtensionConfig => builder.set_extension(&resource.any()),
                ResourceType::Secret | ResourceType::NameTable | ResourceType::ProxyConfig => Ok(()),
            };
            let Err(rejection) = outcome else { continue };
            let origin = resource.origin.as_deref().map_or_else(Span::built_in, span);
            let message = format!("proxies refuse {} {}: {rejection}", kind.short_name(), resource.name);
            let lacks_files = rejection.problems.iter().all(|problem| problem.reason.starts_with(CANNOT_READ));
            all.push(Refused { origin, message, lacks_files });
        }
    }
    all
}

/// Parses a position as it is printed: `file:line:column`.
fn span(origin: &str) -> Span {
    let mut parts = origin.rsplitn(3, ':');
    let (column, line) = (parts.next().and_then(|n| n.parse().ok()), parts.next().and_then(|n| n.parse().ok()));
    match (parts.next(), line, column) {
        (Some(file), Some(line), Some(column)) => Span::at(file, line, column),
        _ => Span::whole_file(origin),
    }
}

/// Returns a sidecar for each Deployment, and a gateway for each selector of Gateways, with the position of that object.
fn proxies(objects: &[Object]) -> Vec<(ProxyView, Span)> {
    let mut all: Vec<(ProxyView, Span)> = Vec::new();
    for object in objects {
        let (kind, labels, namespaces): (_, Labels, Vec<&str>) = match &object.resource {
            Resource::Deployment(deployment) => {
                (ProxyKind::Sidecar, deployment.spec.template.labels(), vec![&object.namespace])
            }
            Resource::Gateway(gateway) => {
                (ProxyKind::Router, gateway.spec.selector.clone(), vec![&object.namespace, GATEWAYS])
            }
            _ => continue,
        };
        for namespace in namespaces {
            let view = |number: usize| ProxyView {
                locality: "".into(),
                kind,
                addresses: vec![ADDRESS.into()],
                pod: format!("evenkeel-validate-{number}").into(),
                namespace: namespace.into(),
                service_account: "default".into(),
                labels: labels.clone(),
                client_kind: ClientKind::EvenkeelFull,
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
            };
            let is_known =
                |known: &ProxyView| (known.kind, &*known.namespace, &known.labels) == (kind, namespace, &labels);
            if all.len() < MAX_PROXIES && !all.iter().any(|(known, _)| is_known(known)) {
                all.push((view(all.len()), object.origin.clone()));
            }
        }
    }
    all
}

/// The Pod of a proxy as YAML.
fn pod(proxy: &ProxyView) -> String {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": &*proxy.pod, "namespace": &*proxy.namespace, "labels": proxy.labels},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": "Running", "podIP": std::net::Ipv4Addr::from(ADDRESS).to_string()},
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Severity;

    use super::*;

    const APP: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80}]}
---
";

    fn check(more: &str, expected: &[&str]) {
        let (objects, found) = evenkeel_api::load(&[("app.yaml".into(), format!("{APP}{more}").into())]);
        assert!(!found.has_errors(), "{found}");
        let found = refusals(&objects);
        // Files are where the proxies run.
        assert!(found.iter().all(|found| (found.severity == Severity::Error) != found.message.contains("/nowhere/")));
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        found
            .iter()
            .zip(expected)
            .for_each(|(found, part)| assert!(found.contains(part), "{part:?} is not in {found}"));
        assert!(found.iter().all(|found| found.starts_with("app.yaml:")), "{found:?}");
    }

    #[test]
    fn what_a_proxy_refuses_is_found_with_its_place() {
        let head = "apiVersion: networking.istio.io/v1\nkind: ";
        check("", &[]);
        // Several workloads, one of them without a Service, refer to the same clusters.
        let other = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: job, namespace: shop}\nspec: {selector: {matchLabels: {app: job}}, template: {metadata: {labels: {app: job}}, spec: {containers: [{name: job}]}}}\n---\n";
        check(&format!("{other}{}", other.replace("job", "task")), &[]);
        let route = |value: &str| {
            format!(
                "{head}VirtualService\nmetadata: {{name: web, namespace: shop}}\n\
                 spec: {{hosts: [web], http: [{{headers: {{request: {{set: {{x-a: '{value}'}}}}}}, route: [{{destination: {{host: web}}}}]}}]}}\n"
            )
        };
        check(&route("%PROTOCOL%"), &[]);
        // It is sent as text, which is a finding of its own, so no proxy sees it.
        check(&route("%BOGUS%"), &[]);
        let gateway = "{head}Gateway\nmetadata: {name: gw, namespace: shop}\nspec:\n  selector: {istio: ingressgateway}\n  servers:\n    \
             - port: {number: 443, name: https, protocol: HTTPS}\n      hosts: ['*']\n      \
             tls: {mode: SIMPLE, serverCertificate: /nowhere/a.pem, privateKey: /nowhere/a.key}\n";
        check(&gateway.replace("{head}", head), &["/nowhere/a"]);
    }
}
