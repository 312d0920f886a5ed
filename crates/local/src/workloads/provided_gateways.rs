//! Gateways that no file describes, and that run because Gateways select their labels: those of Istio's installation, and
//! others.

use std::collections::BTreeMap;

use evenkeel_api::annotations::CaptureRules;
use evenkeel_api::{Object, Resource};
use evenkeel_model::labels::selects;
use evenkeel_model::selection::GATEWAY_NAME;

use super::proxy_config::ProxyConfigs;
use super::{Sidecar, Workload, WorkloadKind};
use crate::lifecycle::Lifecycle;
use crate::probe::{Check, Probe};

/// The namespace of Istio's own gateways.
const NAMESPACE: &str = "istio-system";

/// A gateway of Istio's installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OfIstio {
    /// The name of its Deployment.
    pub name: &'static str,
    /// The value of its label `istio`.
    pub label: &'static str,
}

pub(super) const INGRESS: OfIstio = OfIstio { name: "istio-ingressgateway", label: "ingressgateway" };
pub(super) const EGRESS: OfIstio = OfIstio { name: "istio-egressgateway", label: "egressgateway" };

/// A gateway without a Deployment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Provided {
    name: String,
    namespace: String,
    service_account: String,
    labels: BTreeMap<String, String>,
}

impl Provided {
    /// The gateway for a selector. One of Istio's installation if that has the labels; else that of a Gateway of the Gateway API,
    /// with the name that Istio gives its Deployment and its service account; else the one that a Service with these
    /// labels in its selector leads to, under the Service's name and in its namespace; else one in the Gateway's own namespace,
    /// where the Secrets with its certificates are.
    pub fn of(selector: &BTreeMap<String, String>, namespace: &str, objects: &[Object]) -> Self {
        let of_istio = [INGRESS, EGRESS].into_iter().map(Self::of_istio);
        of_istio
            .into_iter()
            .find(|gateway| selects(selector, &gateway.labels))
            .or_else(|| Self::of_gateway_api(selector, namespace, objects))
            .or_else(|| Self::behind_a_service(selector, namespace, objects))
            .unwrap_or_else(|| Self::alone(selector, namespace))
    }

    /// With the labels that Istio gives it.
    fn of_istio(gateway: OfIstio) -> Self {
        let labels = [("app", gateway.name), ("istio", gateway.label)];
        Self {
            name: gateway.name.to_owned(),
            namespace: NAMESPACE.to_owned(),
            service_account: format!("{}-service-account", gateway.name),
            labels: labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        }
    }

    fn of_gateway_api(selector: &BTreeMap<String, String>, namespace: &str, objects: &[Object]) -> Option<Self> {
        let wanted = selector.get(GATEWAY_NAME)?;
        let class = objects.iter().find_map(|object| match &object.resource {
            Resource::KubernetesGateway(gateway) if *object.name == **wanted && *object.namespace == *namespace => {
                Some(gateway.spec.gateway_class_name.value.clone())
            }
            _ => None,
        })?;
        let name = format!("{wanted}-{class}");
        Some(Self { service_account: name.clone(), name, namespace: namespace.to_owned(), labels: selector.clone() })
    }

    /// Of several Services the one in the Gateway's namespace, then that in Istio's, then the first by name.
    fn behind_a_service(selector: &BTreeMap<String, String>, namespace: &str, objects: &[Object]) -> Option<Self> {
        let leads_to_it = |object: &&Object| matches!(&object.resource, Resource::Service(service) if selects(selector, &service.spec.selector));
        let rank = |object: &&Object| {
            let is_elsewhere = *object.namespace != *namespace;
            (
                is_elsewhere,
                is_elsewhere && *object.namespace != *NAMESPACE,
                object.namespace.clone(),
                object.name.clone(),
            )
        };
        let found = objects.iter().filter(leads_to_it).min_by_key(rank)?;
        let Resource::Service(service) = &found.resource else { return None };
        Some(Self {
            name: found.name.to_string(),
            namespace: found.namespace.to_string(),
            service_account: found.name.to_string(),
            labels: service.spec.selector.clone(),
        })
    }

    /// Its name comes from the labels: Istio's gateways are called after their label `istio`.
    fn alone(selector: &BTreeMap<String, String>, namespace: &str) -> Self {
        let by_istio = selector.get("istio").map(|label| format!("istio-{label}"));
        let name = by_istio.or_else(|| selector.values().next().cloned()).unwrap_or_else(|| "gateway".to_owned());
        let name: String =
            name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
        let name = name.trim_matches('-').to_ascii_lowercase();
        Self { service_account: name.clone(), name, namespace: namespace.to_owned(), labels: selector.clone() }
    }

    /// The workload, under a name that no other one of its namespace has.
    pub fn workload(mut self, proxies: &ProxyConfigs, others: &[Workload]) -> Workload {
        while others.iter().any(|other| other.name == self.name && other.namespace == self.namespace) {
            self.name.push_str("-gateway");
        }
        Workload {
            replicas: 1,
            command: None,
            environment: Vec::new(),
            ports: Vec::new(),
            probe: Probe::new(Check::Runs),
            lifecycle: Lifecycle::default(),
            volumes: Vec::new(),
            mounts: Vec::new(),
            kind: WorkloadKind::ProvidedGateway,
            sidecar: Sidecar::Gateway,
            proxy: proxies.of_proxy(&self.namespace, &self.labels),
            capture: CaptureRules::default(),
            // It keeps its settings until the next start.
            template_hash: "built-in".to_owned(),
            name: self.name,
            namespace: self.namespace,
            service_account: self.service_account,
            labels: self.labels,
        }
    }
}
