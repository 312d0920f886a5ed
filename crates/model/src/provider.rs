//! The services that providers of `meshConfig.extensionProviders` name.

use std::fmt;
use std::sync::Arc;

use evenkeel_base::hostname::Hostname;

/// A service that a provider names, `[NAMESPACE/]HOST` and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderService {
    /// The namespace of the service; `None`: any.
    pub namespace: Option<Arc<str>>,
    /// Its host; `None`: the configured value is not a host.
    pub host: Option<Hostname>,
    /// Its port.
    pub port: u16,
}

impl fmt::Display for ProviderService {
    /// `[NAMESPACE/]HOST`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host.as_ref().map_or("", Hostname::as_str);
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{host}"),
            None => f.write_str(host),
        }
    }
}

impl ProviderService {
    /// Reads `[NAMESPACE/]HOST`.
    pub fn parse(written: &str, port: u16) -> Self {
        let (namespace, host) = match written.split_once('/') {
            Some((namespace, host)) => (Some(namespace.into()), host),
            None => (None, written),
        };
        Self { namespace, host: Hostname::parse(host).ok(), port }
    }

    /// Whether a service in this namespace is meant.
    pub fn is_in(&self, namespace: &str) -> bool {
        self.namespace.as_ref().is_none_or(|wanted| **wanted == *namespace)
    }
}
