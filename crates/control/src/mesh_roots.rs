//! The roots of the mesh for the workloads of a platform: with them they recognize the control plane that they connect to.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_ca::rotation::Signing;
use evenkeel_model::Snapshot;
use tokio::sync::watch;

use crate::world::World;

/// The roots, and the namespaces whose workloads need them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeshRoots {
    /// The roots, PEM; empty before there are any.
    pub pem: Arc<str>,
    /// The namespaces that the control plane reads (`discoverySelectors`).
    pub namespaces: BTreeSet<Arc<str>>,
}

impl MeshRoots {
    fn of(signing: &Signing, snapshot: &Snapshot) -> Self {
        let is_read = |(name, labels): &(&Arc<str>, _)| snapshot.mesh.discovers(name, Some(*labels));
        let namespaces = snapshot.namespaces.iter().filter(is_read).map(|(name, _)| name.clone()).collect();
        Self { pem: signing.roots.clone(), namespaces }
    }

    /// Keeps `published` like the authorities and the configuration; ends when one of them does.
    pub(crate) async fn keep(
        mut signing: watch::Receiver<Arc<Signing>>,
        mut world: watch::Receiver<Arc<World>>,
        published: watch::Sender<Self>,
    ) {
        loop {
            let now = Self::of(&signing.borrow_and_update(), &world.borrow_and_update().snapshot);
            published.send_if_modified(|before| {
                let is_new = *before != now;
                *before = now;
                is_new
            });
            let changed = tokio::select! {
                changed = signing.changed() => changed.is_ok(),
                changed = world.changed() => changed.is_ok(),
            };
            if !changed {
                return;
            }
        }
    }
}
