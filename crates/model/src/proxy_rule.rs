//! ProxyConfigs: settings of the proxies of a namespace, or of selected workloads.

use std::sync::Arc;

use evenkeel_api::istio::ProxyConfig;
use evenkeel_base::Span;

use crate::labels::{Labels, Selectable};

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

/// The settings of a workload's proxy: the mesh's `defaults`, then the rules of the `root` namespace, of its namespace, and
/// of itself (Istio's `EffectiveProxyConfig`).
pub(crate) fn effective(
    rules: &[Arc<ProxyRule>],
    defaults: &ProxyConfig,
    root: &str,
    namespace: &str,
    workload: &impl Selectable,
) -> ProxyConfig {
    let of_all = |wanted: &str| rules.iter().find(|rule| *rule.namespace == *wanted && rule.selector.is_empty());
    let of_root = if namespace == root { None } else { of_all(root) };
    let selects = |rule: &&Arc<ProxyRule>| {
        *rule.namespace == *namespace && !rule.selector.is_empty() && workload.selected_by(&rule.selector)
    };
    let levels = of_root.into_iter().chain(of_all(namespace)).chain(rules.iter().find(selects));
    levels.fold(defaults.clone(), |base, rule| rule.config.clone().over(base))
}
