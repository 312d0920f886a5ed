//! Which VirtualServices a host may belong to, without looking at all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_base::hostname::Hostname;

use crate::VirtualService;

/// Positions of VirtualServices by their hosts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HostIndex {
    exact: BTreeMap<Hostname, Vec<usize>>,
    /// Few in practice, so they are tried one by one.
    wildcards: Vec<(Hostname, usize)>,
}

impl HostIndex {
    /// Of a list in the order of precedence.
    pub(crate) fn new(services: &[Arc<VirtualService>]) -> Self {
        let mut index = Self::default();
        for (position, service) in services.iter().enumerate() {
            for host in &service.hosts {
                match host.is_wildcard() {
                    true => index.wildcards.push((host.value.clone(), position)),
                    false => index.exact.entry(host.value.clone()).or_default().push(position),
                }
            }
        }
        index
    }

    /// Positions of those with exactly this host, in the order of precedence.
    pub(crate) fn naming(&self, host: &Hostname) -> Vec<usize> {
        let wildcards = self.wildcards.iter().filter(|(h, _)| h == host).map(|(_, position)| *position);
        self.exact.get(host).into_iter().flatten().copied().chain(wildcards).collect()
    }

    /// Positions of those with a host that covers `host`, each once with the most specific such host: first the most
    /// specific, among equals in the order of precedence.
    pub(crate) fn covering(&self, host: &Hostname) -> Vec<usize> {
        let exact = self.exact.get_key_value(host).into_iter().flat_map(|(h, all)| all.iter().map(move |p| (h, *p)));
        let wildcards = self.wildcards.iter().filter(|(h, _)| h.covers(host)).map(|(h, p)| (h, *p));
        let mut found: Vec<(&Hostname, usize)> = exact.chain(wildcards).collect();
        found.sort_by(|a, b| a.0.specificity(b.0).then(a.1.cmp(&b.1)));
        let mut positions: Vec<usize> = Vec::with_capacity(found.len());
        for (_, position) in found {
            if !positions.contains(&position) {
                positions.push(position);
            }
        }
        positions
    }
}
