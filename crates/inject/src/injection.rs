//! What a Pod gets.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::container::Container;
use crate::decision::{PROXY_CONTAINER, is_gateway, is_injected};
use crate::labels::Added;
use crate::pod::Pod;
use crate::settings::ProxySettings;
use crate::template::{InitContainer, SidecarForm};
use crate::{init, labels, sidecar, volumes};

/// What is added to a Pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Injection {
    /// Init containers; they go before those of the Pod, so that these are captured, too, and reach the mesh.
    pub init_containers: Vec<Container>,
    /// Containers; they go before those of the Pod.
    pub containers: Vec<Container>,
    /// Volumes.
    pub volumes: Vec<Value>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations, some of which replace those of the Pod.
    pub annotations: BTreeMap<String, String>,
}

impl Injection {
    /// All containers.
    pub fn containers(&self) -> impl Iterator<Item = &Container> {
        self.init_containers.iter().chain(&self.containers)
    }

    /// The proxy's container.
    pub(crate) fn proxy_mut(&mut self) -> Option<&mut Container> {
        self.init_containers.iter_mut().chain(&mut self.containers).find(|container| container.name == PROXY_CONTAINER)
    }
}

/// What a Pod gets; `None`: it is not in the mesh.
pub fn inject(pod: &Pod<'_>) -> Option<Injection> {
    let annotations = pod.annotations();
    if !is_injected(pod.labels(), annotations, pod.spec, pod.namespace_labels) {
        return None;
    }
    let settings = ProxySettings::of_pod(pod.config.clone(), annotations, pod.template.merges_metrics);
    let added_labels = labels::labels(pod);
    let all_labels =
        added_labels.iter().chain(pod.labels()).map(|(name, value)| (name.clone(), value.clone())).collect();
    let proxy = sidecar::container(pod, &settings, &all_labels);
    let rules = match pod.template.init {
        _ if is_gateway(annotations, pod.spec) => None,
        InitContainer::Cni => init::validation(pod, &settings, &proxy.resources),
        InitContainer::Rules => init::container(pod, &settings, &proxy.resources),
    };
    let mut init_containers: Vec<Container> = rules.into_iter().collect();
    let mut containers = Vec::new();
    match pod.form(&settings) {
        SidecarForm::Native => init_containers.push(proxy),
        SidecarForm::Container => containers.push(proxy),
    }
    let volumes = volumes::volumes(pod);
    let added = Added { init_containers: &init_containers, containers: &containers, volumes: &volumes };
    let annotations = labels::annotations(pod, &settings, &added);
    Some(Injection { annotations, labels: added_labels, init_containers, containers, volumes })
}
