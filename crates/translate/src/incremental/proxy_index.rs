//! An index of proxies by Pod and address, so that a change of Pods costs work only for their own proxies.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_model::Changes;
use evenkeel_model::workload::Pod;

use crate::view::ProxyView;

/// Proxies by their Pods and addresses.
#[derive(Debug, Default)]
pub struct ProxyIndex {
    pods: HashMap<Pod, HashSet<Arc<ProxyView>>>,
    addresses: HashMap<IpAddr, HashSet<Arc<ProxyView>>>,
}

impl ProxyIndex {
    /// Adds a proxy.
    pub fn add(&mut self, view: &Arc<ProxyView>) {
        self.pods.entry(pod(view)).or_default().insert(view.clone());
        for address in &view.addresses {
            self.addresses.entry(*address).or_default().insert(view.clone());
        }
    }

    /// Removes a proxy.
    pub fn remove(&mut self, view: &ProxyView) {
        remove(&mut self.pods, &pod(view), view);
        view.addresses.iter().for_each(|address| remove(&mut self.addresses, address, view));
    }

    /// The proxies whose workload may have changed.
    pub fn touched(&self, changes: &Changes) -> HashSet<Arc<ProxyView>> {
        let by_pod = changes.pods.iter().filter_map(|pod| self.pods.get(pod));
        let by_address = changes.addresses.iter().filter_map(|address| self.addresses.get(address));
        by_pod.chain(by_address).flatten().cloned().collect()
    }
}

fn pod(view: &ProxyView) -> Pod {
    (view.namespace.clone(), view.pod.clone())
}

fn remove<K: Hash + Eq>(from: &mut HashMap<K, HashSet<Arc<ProxyView>>>, place: &K, view: &ProxyView) {
    let Some(views) = from.get_mut(place) else { return };
    views.remove(view);
    if views.is_empty() {
        from.remove(place);
    }
}
