//! What a container runtime tells a plugin: the network configuration on standard input, and variables.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

/// Versions of the specification that the plugin speaks. What it prints is the result of the plugin before it, so it has no form of its
/// own in any of them.
pub const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// A network configuration, as far as the plugin reads it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfiguration {
    /// The version of the specification that the runtime speaks.
    pub cni_version: String,
    /// The result of the plugins before this one.
    #[serde(default)]
    pub prev_result: Option<Value>,
    /// The settings that the agent has written.
    #[serde(flatten)]
    pub settings: Settings,
}

/// Settings of the plugin in a network configuration.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// The agent's socket.
    pub socket: PathBuf,
    /// Namespaces whose Pods are never captured, so that they start without the agent.
    #[serde(default)]
    pub exclude_namespaces: Vec<String>,
    /// The namespace of the agent's own Pod.
    #[serde(default)]
    pub agent_namespace: String,
    /// No other plugin makes the Pod's network before this one, and none has to.
    #[serde(default)]
    pub standalone: bool,
    /// What the name of the agent's own Pod begins with. It could not start if it needed itself.
    #[serde(default)]
    pub agent_prefix: String,
}

/// A Pod.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl PodName {
    /// The Pod of the variable `CNI_ARGS`; `None`: the container is none of a Pod.
    pub fn of_arguments(arguments: &str) -> Option<Self> {
        let value = |name: &str| {
            let pairs = arguments.split(';').filter_map(|pair| pair.split_once('='));
            pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).find(|value| !value.is_empty())
        };
        Some(Self { namespace: value("K8S_POD_NAMESPACE")?, name: value("K8S_POD_NAME")? })
    }
}

impl Settings {
    /// Whether a Pod is left as it is without asking the agent.
    pub fn skips(&self, pod: &PodName) -> bool {
        let is_agent = !self.agent_prefix.is_empty()
            && pod.namespace == self.agent_namespace
            && pod.name.starts_with(&self.agent_prefix);
        is_agent || self.exclude_namespaces.contains(&pod.namespace)
    }
}
