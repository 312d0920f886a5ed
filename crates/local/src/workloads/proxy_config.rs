//! Settings of replicas' proxies: ProxyConfig, from the mesh, from the kind, and from the template's annotation.

use std::collections::BTreeMap;

use evenkeel_api::annotations::{AGENT_ANNOTATIONS, LogLevels, program_metrics, status_port};
use evenkeel_api::istio::{INTERCEPTION_ANNOTATION, PROXY_CONFIG_ANNOTATION, ProxyConfig};
use evenkeel_api::kubernetes::PodTemplate;
use evenkeel_api::{Kind, Object};
use evenkeel_model::{AddressBook, Gateway, MeshConfig, Snapshot};

use crate::pods::ProxySettings;

/// The ProxyConfigs in the files, and what the control plane makes of Ingresses.
#[derive(Debug, Default)]
pub(super) struct ProxyConfigs(Snapshot);

impl ProxyConfigs {
    /// Reads the mesh's settings, ProxyConfigs, namespaces and Ingresses.
    pub(super) fn of(objects: &[Object]) -> Self {
        let says = |object: &&Object| {
            let ingress = [Kind::Ingress, Kind::IngressClass];
            matches!(object.kind(), Kind::ConfigMap | Kind::ProxyConfig | Kind::Namespace)
                || ingress.contains(&object.kind())
        };
        let said = objects.iter().filter(says);
        Self(evenkeel_model::build(said, &MeshConfig::default(), &mut AddressBook::default()).0)
    }

    /// The Gateways that the control plane makes of Ingresses.
    pub(super) fn ingress_gateways(&self) -> impl Iterator<Item = &Gateway> {
        self.0.gateways.iter().map(|gateway| &**gateway)
    }

    /// The labels of a namespace.
    pub(super) fn namespace_labels(&self, namespace: &str) -> BTreeMap<String, String> {
        self.0.namespaces.get(namespace).cloned().unwrap_or_default()
    }

    /// The settings of the proxies of a template's replicas.
    pub(super) fn of_template(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        template: &PodTemplate,
    ) -> ProxySettings {
        let annotations = template.metadata.as_ref().map(|metadata| &metadata.annotations);
        let annotation = annotations.and_then(|annotations| annotations.get(PROXY_CONFIG_ANNOTATION));
        let interception = annotations.and_then(|annotations| annotations.get(INTERCEPTION_ANNOTATION));
        let own = annotations.and_then(ProxyConfig::of_pod);
        let settings = self.of_proxy(namespace, labels, own);
        let for_agent =
            annotations.into_iter().flatten().filter(|(name, _)| AGENT_ANNOTATIONS.contains(&name.as_str()));
        ProxySettings {
            annotation: annotation.map(|text| text.value.clone()),
            interception: interception.map(|text| text.value.clone()),
            for_agent: for_agent.map(|(name, value)| (name.clone(), value.value.clone())).collect(),
            log_levels: annotations.map(LogLevels::of).unwrap_or_default(),
            program_metrics: annotations.and_then(|all| program_metrics(all, self.0.mesh.merges_metrics)),
            status_port: annotations.and_then(status_port).or(settings.status_port),
            ..settings
        }
    }

    /// The settings of a proxy with these labels, and of its own.
    pub(super) fn of_proxy(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        own: Option<ProxyConfig>,
    ) -> ProxySettings {
        let shared = self.0.proxy_config(namespace, labels);
        let config = match own {
            Some(own) => own.over(shared),
            None => shared,
        };
        ProxySettings {
            annotation: None,
            interception: None,
            mode: config.interception(),
            membership: None,
            captures_dns: config.dns_capture(),
            metadata: config.proxy_metadata.iter().map(|(name, value)| (name.clone(), value.value.clone())).collect(),
            concurrency: config.concurrency,
            drain: config.termination_drain_duration,
            agent_config: config.for_agent(),
            admin_port: config.admin_port(),
            log_levels: LogLevels::default(),
            program_metrics: None,
            status_port: config.status_port(),
            for_agent: BTreeMap::new(),
        }
    }
}
