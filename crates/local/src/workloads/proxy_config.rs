//! Settings of replicas' proxies: ProxyConfig, from the mesh, from the kind, and from the template's annotation.

use std::collections::BTreeMap;

use evenkeel_api::kubernetes::PodTemplate;
use evenkeel_api::{Kind, Object};
use evenkeel_inject::ProxySettings;
use evenkeel_model::{AddressBook, Gateway, MeshConfig, Snapshot};

/// The ProxyConfigs in the files, and the gateways that the control plane makes of Ingresses and of the Gateway API.
#[derive(Debug, Default)]
pub(super) struct ProxyConfigs(Snapshot);

impl ProxyConfigs {
    /// Reads the mesh's settings, ProxyConfigs, namespaces, Ingresses and Gateways of the Gateway API.
    pub(super) fn of(objects: &[Object]) -> Self {
        let has_gateways = objects.iter().any(|object| object.kind() == Kind::KubernetesGateway);
        let says = |object: &&Object| {
            let ingress = [Kind::Ingress, Kind::IngressClass];
            let of_gateways =
                [Kind::KubernetesGateway, Kind::ListenerSet, Kind::GatewayClass, Kind::ReferenceGrant, Kind::Service]
                    .contains(&object.kind());
            matches!(object.kind(), Kind::ConfigMap | Kind::ProxyConfig | Kind::Namespace)
                || ingress.contains(&object.kind())
                || has_gateways && of_gateways
        };
        let said = objects.iter().filter(says);
        Self(evenkeel_model::build(said, &MeshConfig::default(), &mut AddressBook::default()).0)
    }

    /// The gateways that the control plane makes of Ingresses and of the Gateway API.
    pub(super) fn made_gateways(&self) -> impl Iterator<Item = &Gateway> {
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
        let shared = self.0.proxy_config(namespace, labels);
        let annotations = template.metadata.as_ref().map(|metadata| &metadata.annotations);
        annotations.map_or_else(
            || ProxySettings::of_config(&shared),
            |annotations| ProxySettings::of_pod(shared.clone(), annotations, self.0.mesh.merges_metrics),
        )
    }

    /// The settings of a proxy with these labels.
    pub(super) fn of_proxy(&self, namespace: &str, labels: &BTreeMap<String, String>) -> ProxySettings {
        ProxySettings::of_config(&self.0.proxy_config(namespace, labels))
    }
}
