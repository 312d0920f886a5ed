//! What a mesh says about the sidecars of all Pods.

use crate::agent::Defaults;
use crate::container::Resources;

/// The settings of an installation for the sidecars that it injects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The image of proxies; the annotation `sidecar.istio.io/proxyImage` goes before it.
    pub image: String,
    /// `Always`, `IfNotPresent` or `Never`; Kubernetes' default if there is none.
    pub image_pull_policy: Option<String>,
    /// What applies to all agents.
    pub agents: Defaults,
    /// The suffix of names in the cluster.
    pub cluster_domain: String,
    /// The cluster's name.
    pub cluster: String,
    /// The mesh's id.
    pub mesh: String,
    /// The revision of the control plane.
    pub revision: String,
    /// Requests and limits of proxies without annotations.
    pub resources: Resources,
    /// How sidecars are started; the annotation `sidecar.istio.io/nativeSidecar` goes before it.
    pub form: SidecarForm,
    /// Who loads the capture rules.
    pub init: InitContainer,
    /// Whether Pods have IPv6 addresses.
    pub ipv6: bool,
    /// The mesh's `enablePrometheusMerge`.
    pub merges_metrics: bool,
}

/// How a sidecar is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SidecarForm {
    /// As an init container that keeps running (`restartPolicy: Always`; Kubernetes 1.29): before the programs, and until after them.
    Native,
    /// As a container like the programs.
    Container,
}

/// Who loads the capture rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitContainer {
    /// An init container.
    Rules,
    /// A CNI plugin: the Pod's init container only verifies that they are loaded.
    Cni,
}
