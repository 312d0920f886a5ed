//! An index of proxies by the keys that their own resources depend on, so that a change finds the affected ones.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use evenkeel_model::{Changes, Key};

use super::unit::UnitResult;
use crate::output::Unit;
use crate::view::ProxyView;

/// The proxies whose own resources depend on a key.
#[derive(Debug, Default)]
pub struct Readers(BTreeMap<Key, HashSet<Arc<ProxyView>>>);

impl Readers {
    /// Adds the keys of one proxy's units.
    pub fn add(&mut self, view: &Arc<ProxyView>, units: &[(Unit, UnitResult)]) {
        for key in keys(units) {
            match self.0.get_mut(key) {
                Some(views) => _ = views.insert(view.clone()),
                None => _ = self.0.insert(key.clone(), HashSet::from([view.clone()])),
            }
        }
    }

    /// Removes a proxy.
    pub fn remove(&mut self, view: &ProxyView, units: &[(Unit, UnitResult)]) {
        for key in keys(units) {
            let Some(views) = self.0.get_mut(key) else { continue };
            views.remove(view);
            if views.is_empty() {
                self.0.remove(key);
            }
        }
    }

    /// The proxies whose own resources may have changed.
    pub fn touched(&self, changes: &Changes) -> HashSet<Arc<ProxyView>> {
        let exact = changes.exact().filter_map(|key| self.0.get(key));
        let wide = changes.reach_wide().then(|| self.0.iter().filter(|(key, _)| changes.touch(key)));
        exact.chain(wide.into_iter().flatten().map(|(_, views)| views)).flatten().cloned().collect()
    }
}

fn keys(units: &[(Unit, UnitResult)]) -> impl Iterator<Item = &Key> {
    units.iter().flat_map(|(_, made)| &made.reads)
}
