//! Kubernetes' types, as far as they are written here (`core/v1`).

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: String,
    /// Its pull policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
    /// The arguments of its program.
    pub args: Vec<String>,
    /// Its environment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<Variable>,
    /// Ports that it names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// Whether it takes traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Probe>,
    /// Whether it has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup_probe: Option<Probe>,
    /// Requests and limits.
    pub resources: Resources,
    /// `Always` for a native sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<&'static str>,
    /// Its user and privileges.
    pub security_context: SecurityContext,
    /// Its volumes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<Value>,
}

/// A variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The source of its value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<Value>,
}

impl Variable {
    /// One with a value, in which Kubernetes expands variables.
    pub fn new(name: &str, value: impl Into<String>) -> Self {
        Self { name: name.to_owned(), value: Some(value.into()), value_from: None }
    }

    /// One with the value of a field of the Pod.
    pub fn of_field(name: &str, path: &str) -> Self {
        let source = serde_json::json!({"fieldRef": {"fieldPath": path}});
        Self { name: name.to_owned(), value: None, value_from: Some(source) }
    }
}

/// A port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Its name.
    pub name: &'static str,
    /// Its number.
    pub container_port: u16,
    /// Its protocol.
    pub protocol: &'static str,
}

/// A probe over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// What is requested.
    pub http_get: Value,
    /// Seconds before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_delay_seconds: Option<u32>,
    /// Seconds between two of them.
    pub period_seconds: u32,
    /// Seconds for an answer.
    pub timeout_seconds: u32,
    /// Consecutive failures that count.
    pub failure_threshold: u32,
}

/// Requests and limits, by name (`cpu`, `memory`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct Resources {
    /// What is reserved.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, String>,
    /// What may be used.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
}

/// The user and privileges of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct SecurityContext {
    /// Whether its processes may gain privileges.
    pub allow_privilege_escalation: bool,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// Whether it has all privileges.
    pub privileged: bool,
    /// Whether it cannot write to its image's files.
    pub read_only_root_filesystem: bool,
    /// Its group.
    pub run_as_group: u32,
    /// Whether it may not be root.
    pub run_as_non_root: bool,
    /// Its user.
    pub run_as_user: u32,
}

/// Capabilities of Linux.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct Capabilities {
    /// Further ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<&'static str>,
    /// Those that it does not have.
    pub drop: Vec<&'static str>,
}
