//! ProxyConfigs: settings of the proxies of a namespace, or of selected workloads.

use std::sync::Arc;

use evenkeel_api::istio::ProxyConfig;
use evenkeel_base::Span;

use crate::workload::Selectable;
use crate::{Labels, Snapshot};

/// The content of an object of the kind ProxyConfig.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxyRule {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace; in the root namespace it applies to the whole mesh.
    pub namespace: Arc<str>,
    /// Labels of the workloads; empty = all of the namespace.
    pub selector: Labels,
    /// Its settings.
    pub config: ProxyConfig,
    /// Where it was written.
    pub origin: Span,
}

impl Snapshot {
    /// The settings of a workload's proxy, without those of its own annotation: the mesh's `defaultConfig`, then the
    /// ProxyConfigs of the root namespace, of its namespace, and of its workload (Istio's `EffectiveProxyConfig`).
    pub fn proxy_config(&self, namespace: &str, workload: &impl Selectable) -> ProxyConfig {
        let root = &*self.mesh.root_namespace;
        let of_all =
            |wanted: &str| self.proxy_rules.iter().find(|rule| *rule.namespace == *wanted && rule.selector.is_empty());
        let of_root = if namespace == root { None } else { of_all(root) };
        let selects = |rule: &&Arc<ProxyRule>| {
            *rule.namespace == *namespace && !rule.selector.is_empty() && workload.selected_by(&rule.selector)
        };
        let selecting = self.proxy_rules.iter().find(selects);
        let levels = of_root.into_iter().chain(of_all(namespace)).chain(selecting);
        levels.fold((*self.mesh.proxy_defaults).clone(), |base, rule| rule.config.clone().over(base))
    }
}
