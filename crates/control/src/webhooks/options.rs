//! What injected sidecars get, as flags.

use std::collections::BTreeMap;

use evenkeel_inject::container::Resources;
use evenkeel_inject::{Defaults, InitContainer, SidecarForm, Template};
use evenkeel_model::MeshConfig;

const IMAGE: &str = concat!("evenkeel:", env!("CARGO_PKG_VERSION"));
const DISCOVERY_ADDRESS: &str = "istiod.istio-system.svc:15012";
/// Istio's name of a cluster without one.
const CLUSTER: &str = "Kubernetes";
const CLUSTER_DOMAIN: &str = "cluster.local";
const REVISION: &str = "default";

/// Settings of injected sidecars.
#[derive(Debug, Clone, clap::Args)]
pub struct InjectionOptions {
    /// Image of injected sidecars; the annotation `sidecar.istio.io/proxyImage` goes before it.
    #[arg(long, value_name = "IMAGE", default_value = IMAGE)]
    pub proxy_image: String,

    /// When the image is pulled: Always, IfNotPresent, Never [default: as Kubernetes does].
    #[arg(long, value_name = "POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    pub proxy_image_pull_policy: Option<String>,

    /// The control plane that injected sidecars connect to.
    #[arg(long, value_name = "HOST:PORT", default_value = DISCOVERY_ADDRESS)]
    pub proxy_discovery_address: String,

    /// Name of the cluster.
    #[arg(long, value_name = "NAME", default_value = CLUSTER)]
    pub cluster: String,

    /// Suffix of the names of Services.
    #[arg(long, value_name = "DOMAIN", default_value = CLUSTER_DOMAIN)]
    pub proxy_cluster_domain: String,

    /// Revision of the control plane: whose objects of a cluster it reads, and the label `istio.io/rev` of injected Pods.
    #[arg(long, value_name = "NAME", default_value = REVISION)]
    pub revision: String,

    /// Start sidecars as containers like the programs, and not as init containers that keep running (Kubernetes 1.29).
    #[arg(long)]
    pub no_native_sidecars: bool,

    /// Add no init container with capture rules: a CNI plugin loads them.
    #[arg(long)]
    pub cni: bool,

    /// Pods have IPv6 addresses.
    #[arg(long)]
    pub ipv6: bool,
}

impl Default for InjectionOptions {
    fn default() -> Self {
        Self {
            proxy_image: IMAGE.to_owned(),
            proxy_image_pull_policy: None,
            proxy_discovery_address: DISCOVERY_ADDRESS.to_owned(),
            cluster: CLUSTER.to_owned(),
            proxy_cluster_domain: CLUSTER_DOMAIN.to_owned(),
            revision: REVISION.to_owned(),
            no_native_sidecars: false,
            cni: false,
            ipv6: false,
        }
    }
}

impl InjectionOptions {
    /// What all sidecars of the mesh get.
    pub fn template(&self, mesh: &MeshConfig) -> Template {
        let requests = [("cpu", "20m"), ("memory", "32Mi")];
        Template {
            image: self.proxy_image.clone(),
            image_pull_policy: self.proxy_image_pull_policy.clone(),
            agents: Defaults {
                trust_domain: mesh.trust_domain.to_string(),
                discovery_address: self.proxy_discovery_address.clone(),
                log_level: "info".to_owned(),
                concurrency: None,
                drain: None,
                recent_requests: None,
                certificate_ttl: None,
                proxy_resolver: None,
            },
            cluster_domain: self.proxy_cluster_domain.clone(),
            cluster: self.cluster.clone(),
            mesh: mesh.trust_domain.to_string(),
            revision: self.revision.clone(),
            resources: Resources {
                requests: requests.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into(),
                limits: BTreeMap::new(),
            },
            form: if self.no_native_sidecars { SidecarForm::Container } else { SidecarForm::Native },
            init: if self.cni { InitContainer::Cni } else { InitContainer::Rules },
            ipv6: self.ipv6,
            merges_metrics: mesh.merges_metrics,
        }
    }
}
