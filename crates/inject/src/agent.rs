//! The command line and the environment of `evenkeel agent`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use evenkeel_api::annotations::LogLevels;
use evenkeel_api::istio::InterceptionMode;

use crate::settings::{Membership, ProxySettings};

/// Variable with the workload's annotations for the agent, as in Istio.
pub const ANNOTATIONS_VARIABLE: &str = "ISTIO_METAJSON_ANNOTATIONS";
/// Variable with the location of the program's metrics, as in Istio.
pub const PROMETHEUS_VARIABLE: &str = "ISTIO_PROMETHEUS_ANNOTATIONS";
/// Variable with the address of the proxy's admin interface, for commands that run beside it; set if it is another than Istio's.
pub const ADMIN_VARIABLE: &str = "EVENKEEL_ADMIN";

/// Prefix of `proxyMetadata` that becomes the node's metadata.
const METADATA_PREFIX: &str = "ISTIO_META_";

/// An agent to start.
#[derive(Debug, Clone)]
pub struct Agent<'a> {
    /// What its proxy is.
    pub role: Role,
    /// The workload.
    pub identity: Identity<'a>,
    /// Settings of its proxy.
    pub settings: &'a ProxySettings,
    /// What applies where they say nothing.
    pub defaults: &'a Defaults,
    /// Its files.
    pub files: Files<'a>,
    /// The Envoy to run in place of the built-in proxy.
    pub envoy: Option<&'a Path>,
    /// Whether the proxy holds everything that its workload may use, and not only what it does use.
    pub has_full_scope: bool,
    /// Whether capture rules recognize it by its user, so that its sockets need no mark.
    pub has_own_user: bool,
    /// Who reads the command line first.
    pub expansion: Expansion,
}

/// What a proxy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Beside a program.
    Sidecar,
    /// A workload of its own.
    Gateway,
}

/// A workload, in texts of which a cluster may expand variables.
#[derive(Debug, Clone)]
pub struct Identity<'a> {
    /// The Pod's name.
    pub pod: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its service account.
    pub service_account: &'a str,
    /// The Deployment or other owner.
    pub workload: &'a str,
    /// Its address.
    pub address: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
}

/// What applies to all agents of a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// The trust domain.
    pub trust_domain: String,
    /// The control plane, HOST:PORT.
    pub discovery_address: String,
    /// The log level.
    pub log_level: String,
    /// Worker threads; 0: one per core. Without it, that of the agent.
    pub concurrency: Option<u32>,
    /// How long connections may continue. Without it, that of the agent.
    pub drain: Option<Duration>,
    /// Recent requests that each worker keeps. Without it, those of the agent.
    pub recent_requests: Option<usize>,
    /// Lifetime of certificates. Without it, that of the agent.
    pub certificate_ttl: Option<Duration>,
    /// The resolver for hosts of clusters, where capture rules redirect the system's.
    pub proxy_resolver: Option<String>,
}

/// Files of an agent.
#[derive(Debug, Clone)]
pub struct Files<'a> {
    /// The roots that verify the control plane.
    pub roots: &'a Path,
    /// The token that proves the workload's identity.
    pub token: &'a Path,
    /// Its own directory.
    pub state: &'a Path,
}

/// Who reads a command line before the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expansion {
    /// Nobody.
    None,
    /// Kubernetes, which expands `$(NAME)`. In texts of users it has no meaning.
    Kubernetes,
}

impl Agent<'_> {
    /// The arguments of `evenkeel`.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments = words(["agent", self.role.as_str()]);
        arguments.extend(log_levels(&self.settings.log_levels, &self.defaults.log_level, self.envoy.is_some()));
        arguments.extend(self.identity());
        arguments.extend(words(["--trust-domain", &self.defaults.trust_domain]));
        arguments.extend(words(["--discovery-address", &self.defaults.discovery_address]));
        arguments.extend(self.proxy());
        let Files { roots, token, state } = self.files;
        arguments.extend(["--root-cert".into(), roots.into(), "--token".into(), token.into()]);
        let lifetime = self.defaults.certificate_ttl.map(|lifetime| lifetime.as_secs().to_string());
        arguments.extend(flag("--certificate-ttl-s", lifetime));
        arguments.extend(["--state".into(), state.into()]);
        arguments.extend(flag("--proxy-resolver", self.defaults.proxy_resolver.clone()));
        arguments.extend(self.metadata());
        arguments.extend(flag("--status-port", self.settings.status_port.map(|port| port.to_string())));
        if self.has_full_scope {
            arguments.extend(words(["--scope", "full"]));
        }
        if self.has_own_user {
            arguments.push("--no-socket-mark".into());
        }
        if let Some(envoy) = self.envoy {
            arguments.extend(["--envoy".into(), envoy.into()]);
        }
        arguments
    }

    /// Variables by which the agent, and commands beside it, get the rest.
    pub fn environment(&self) -> Vec<(String, String)> {
        let settings = self.settings;
        let annotations = (!settings.for_agent.is_empty()).then(|| serde_json::json!(settings.for_agent).to_string());
        let admin = settings.admin_port.map(|_| settings.admin().to_string());
        let variables = [
            (ANNOTATIONS_VARIABLE, annotations),
            (ADMIN_VARIABLE, admin),
            (PROMETHEUS_VARIABLE, settings.program_metrics.clone()),
        ];
        variables.into_iter().filter_map(|(name, value)| Some((name.to_owned(), self.text(&value?)))).collect()
    }

    fn identity(&self) -> Vec<OsString> {
        let Identity { pod, namespace, service_account, workload, address, labels } = self.identity;
        let mut arguments = words(["--id", &format!("{pod}.{namespace}"), "--namespace", namespace]);
        arguments.extend(words(["--service-account", service_account, "--workload-name", workload]));
        arguments.extend(words(["--ip", address]));
        for (name, value) in labels {
            arguments.extend(words(["--labels", &self.text(&format!("{name}={value}"))]));
        }
        arguments
    }

    fn proxy(&self) -> Vec<OsString> {
        let (settings, defaults) = (self.settings, self.defaults);
        let concurrency = settings.concurrency.or(defaults.concurrency);
        let drain = settings.drain.or(defaults.drain).map(|time| time.as_secs().to_string());
        let flags = [
            ("--concurrency", concurrency.map(|threads| threads.to_string())),
            ("--drain-time-s", drain),
            ("--recent-requests", defaults.recent_requests.map(|count| count.to_string())),
        ];
        flags.into_iter().flat_map(|(name, value)| flag(name, value)).collect()
    }

    /// Metadata of the node, and the part of ProxyConfig for the agent. The control plane reads the rest of it from the objects.
    fn metadata(&self) -> Vec<OsString> {
        let settings = self.settings;
        let mut arguments = Vec::new();
        for (name, value) in &settings.metadata {
            let key = name.strip_prefix(METADATA_PREFIX);
            arguments.extend(key.iter().flat_map(|key| words(["--metadata", &self.text(&format!("{key}={value}"))])));
        }
        if self.role == Role::Sidecar {
            // The rules of a workload do not change; its listeners have to match them, whatever is written later.
            let mode = settings.mode;
            arguments.extend(words(["--metadata", &format!("INTERCEPTION_MODE={}", mode.as_str())]));
            if mode == InterceptionMode::None {
                arguments.push("--no-capture".into());
            }
        }
        let mut config = settings.agent_config.clone();
        if let Some(Membership { group, probe }) = &settings.membership {
            arguments.extend(words(["--metadata", &self.text(&format!("AUTO_REGISTER_GROUP={group}"))]));
            config.extend(probe.iter().map(|probe| ("readinessProbe".to_owned(), probe.clone())));
        }
        if !config.is_empty() {
            let json = serde_json::Value::Object(config).to_string();
            arguments.extend(words(["--proxy-config", &self.text(&json)]));
        }
        arguments
    }

    /// A text of a user, which reaches the agent as it is.
    fn text(&self, text: &str) -> String {
        match self.expansion {
            Expansion::None => text.to_owned(),
            Expansion::Kubernetes => literal(text),
        }
    }
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Self::Sidecar => "sidecar",
            Self::Gateway => "router",
        }
    }
}

/// A text in which Kubernetes expands no variable: it turns `$$(` into `$(`.
pub(crate) fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// Log levels of an agent and its proxy. The built-in proxy is in the agent's process and has its log, so the level for the proxy
/// goes first there.
fn log_levels(levels: &LogLevels, default: &str, is_envoy: bool) -> Vec<OsString> {
    let components = ("--proxy-component-log-level", levels.components.clone());
    if !is_envoy {
        let level = levels.proxy.as_deref().or(levels.agent.as_deref());
        let level = ("--log-level", Some(level.unwrap_or(default).to_owned()));
        // The agent says that the built-in proxy has one level.
        return [level, components].into_iter().flat_map(|(name, value)| flag(name, value)).collect();
    }
    let flags = [
        ("--log-level", Some(levels.agent.as_deref().unwrap_or(default).to_owned())),
        ("--proxy-log-level", levels.proxy.clone()),
        components,
    ];
    flags.into_iter().flat_map(|(name, value)| flag(name, value)).collect()
}

fn flag(name: &str, value: Option<String>) -> Vec<OsString> {
    value.map(|value| words([name, &value])).unwrap_or_default()
}

fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).into()
}
