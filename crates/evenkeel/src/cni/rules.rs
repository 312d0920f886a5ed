//! The rules of the Pods of a cluster.

use std::net::IpAddr;

use evenkeel_capture::Capture;
use evenkeel_cni::agent::Rules;
use evenkeel_cni::configuration::PodName;
use evenkeel_inject::{VALIDATION, VALIDATION_FLAGS};
use evenkeel_k8s::client::Client;
use evenkeel_k8s::pod_rules::PodReader;

use crate::{capture_probe, istio_iptables};

/// Asks the API server which rules a Pod has.
pub struct ClusterRules {
    pods: PodReader,
    runtime: tokio::runtime::Handle,
}

impl ClusterRules {
    /// Asks this client's API server, from threads beside the event loop.
    pub fn new(client: Client, runtime: tokio::runtime::Handle) -> Self {
        Self { pods: PodReader::new(client, VALIDATION), runtime }
    }
}

/// What the arguments of a Pod's init container capture. `name_servers`: those of the Pod beside the cluster's.
pub fn capture_of(arguments: &[String], name_servers: &[IpAddr]) -> Result<Capture, String> {
    let servers = [istio_iptables::name_servers().as_slice(), name_servers].concat();
    let words = arguments.iter().skip(1).map(String::as_str).filter(|word| !VALIDATION_FLAGS.contains(word));
    Capture::from_arguments(words, &servers)
        .map_err(|error| format!("the arguments of the container with the rules: {error}"))
}

impl Rules for ClusterRules {
    type Capture = Capture;

    fn of_pod(&self, pod: &PodName) -> Result<Option<Capture>, String> {
        let lookup = self.pods.rules(&pod.namespace, &pod.name);
        let Some(rules) = self.runtime.block_on(lookup).map_err(|error| error.to_string())? else { return Ok(None) };
        capture_of(&rules.arguments, &rules.name_servers).map(Some)
    }

    fn load(&self, capture: Capture) -> Result<(), String> {
        istio_iptables::load(&capture).map_err(|error| format!("{error:#}"))
    }

    fn verify(&self, capture: Capture) -> Result<(), String> {
        let loaded = capture_probe::loaded(&istio_iptables::for_network(capture));
        let missing = loaded.map_err(|error| format!("{error:#}"))?.missing;
        if missing.is_empty() { Ok(()) } else { Err(format!("chains are missing: {}", missing.join(", "))) }
    }
}
