//! The program that a container runtime runs.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::configuration::{NetworkConfiguration, PodName, Settings, VERSIONS};
use crate::handover::{self, Request, Task, Verdict};

/// What the runtime wants, and of which container: the variables `CNI_…`.
#[derive(Debug, Clone, Default)]
pub struct Invocation {
    /// `CNI_COMMAND`.
    pub command: String,
    /// `CNI_NETNS`.
    pub network: PathBuf,
    /// `CNI_ARGS`.
    pub arguments: String,
}

/// Why a plugin fails; the codes of the specification, and from 100 on its own.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The version is none of those that the plugin speaks.
    #[error("version `{0}` of CNI is not supported; supported are {versions}", versions = VERSIONS.join(", "))]
    Version(String),
    /// The command is none of the specification.
    #[error("CNI_COMMAND `{0}` is no command of CNI")]
    Command(String),
    /// Standard input is no network configuration.
    #[error("the network configuration cannot be read: {0}")]
    Configuration(#[from] serde_json::Error),
    /// The plugin is the first one.
    #[error("there is no prevResult: the plugin has to be chained behind one that makes the Pod's network")]
    NotChained,
    /// The Pod's network cannot be opened.
    #[error("the network namespace {path} cannot be opened: {source}")]
    Network {
        /// `CNI_NETNS`.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The agent does not answer.
    #[error("the agent of this node does not answer at {socket}: {source}; does its Pod (DaemonSet) run?")]
    Agent {
        /// Its socket.
        socket: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The rules are not in the Pod's network.
    #[error("the capture rules of Pod {}/{} are not in its network: {reason}", pod.namespace, pod.name)]
    Missing {
        /// The Pod.
        pod: PodName,
        /// What is missing.
        reason: String,
    },
    /// The agent could not load the rules.
    #[error("the capture rules of Pod {}/{} are not loaded: {reason}", pod.namespace, pod.name)]
    Refused {
        /// The Pod.
        pod: PodName,
        /// Why.
        reason: String,
    },
}

impl PluginError {
    fn code(&self) -> u32 {
        match self {
            Self::Version(_) => 1,
            Self::Command(_) => 4,
            Self::Configuration(_) => 6,
            Self::NotChained => 7,
            Self::Network { .. } => 5,
            // "Try again later."
            Self::Agent { .. } => 11,
            Self::Refused { .. } => 100,
            Self::Missing { .. } => 101,
        }
    }

    /// The error as a runtime reads it from standard output.
    pub fn to_json(&self, version: &str) -> Value {
        json!({"cniVersion": version, "code": self.code(), "msg": self.to_string()})
    }
}

impl Invocation {
    /// That of this process.
    pub fn of_environment() -> Self {
        let text = |name: &str| std::env::var(name).unwrap_or_default();
        Self { command: text("CNI_COMMAND"), network: text("CNI_NETNS").into(), arguments: text("CNI_ARGS") }
    }

    /// Does it; returns what is printed, and whether it succeeded.
    pub fn run(&self, input: &[u8]) -> (Option<Value>, bool) {
        let version = || {
            let input: Value = serde_json::from_slice(input).ok()?;
            Some(input.get("cniVersion")?.as_str()?.to_owned())
        };
        match self.act(input) {
            Ok(printed) => (printed, true),
            Err(error) => (Some(error.to_json(&version().unwrap_or_default())), false),
        }
    }

    fn act(&self, input: &[u8]) -> Result<Option<Value>, PluginError> {
        if self.command == "VERSION" {
            let version = VERSIONS.last().copied().unwrap_or_default();
            return Ok(Some(json!({"cniVersion": version, "supportedVersions": VERSIONS})));
        }
        let configuration: NetworkConfiguration = serde_json::from_slice(input)?;
        if !VERSIONS.contains(&configuration.cni_version.as_str()) {
            return Err(PluginError::Version(configuration.cni_version));
        }
        match self.command.as_str() {
            "ADD" => self.add(configuration).map(Some),
            // Also while the agent does not run: the node would not be ready, and kubelet would start no Pod on it, the agent's
            // among them. ADD fails for the Pods that need the agent, and the runtime tries again.
            "STATUS" => Ok(None),
            "CHECK" => self.check(configuration).map(|()| None),
            // The rules end with the Pod's network namespace; nothing of them is kept elsewhere.
            "DEL" | "GC" => Ok(None),
            other => Err(PluginError::Command(other.to_owned())),
        }
    }

    fn add(&self, configuration: NetworkConfiguration) -> Result<Value, PluginError> {
        let NetworkConfiguration { prev_result, settings, cni_version } = configuration;
        // On its own, as for Multus, it gives a Pod no interface and no address.
        let alone = settings.standalone.then(|| json!({"cniVersion": cni_version}));
        let result = prev_result.or(alone).ok_or(PluginError::NotChained)?;
        match self.ask(&settings, Task::Load)? {
            Some(PodVerdict { pod, verdict: Verdict::Failed(reason) }) => Err(PluginError::Refused { pod, reason }),
            _ => Ok(result),
        }
    }

    fn check(&self, configuration: NetworkConfiguration) -> Result<(), PluginError> {
        match self.ask(&configuration.settings, Task::Verify)? {
            Some(PodVerdict { pod, verdict: Verdict::Failed(reason) }) => Err(PluginError::Missing { pod, reason }),
            _ => Ok(()),
        }
    }

    /// Asks the agent about the Pod; `None`: it is left as it is.
    fn ask(&self, settings: &Settings, task: Task) -> Result<Option<PodVerdict>, PluginError> {
        let Some(pod) = PodName::of_arguments(&self.arguments).filter(|pod| !settings.skips(pod)) else {
            return Ok(None);
        };
        let network =
            File::open(&self.network).map_err(|source| PluginError::Network { path: self.network.clone(), source })?;
        let request = Request { pod, task };
        let verdict = handover::ask(&settings.socket, &request, &network)
            .map_err(|source| PluginError::Agent { socket: settings.socket.clone(), source })?;
        Ok(Some(PodVerdict { pod: request.pod, verdict }))
    }
}

/// What the agent says about a Pod.
struct PodVerdict {
    pod: PodName,
    verdict: Verdict,
}
