//! The ConfigMap `istio-ca-root-cert` with the mesh's roots in each namespace: injected sidecars mount it, and with it recognize the
//! control plane.
//!
//! One replica writes, whatever its revision: it holds a Lease. What somebody else deletes or changes is written again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_control::MeshRoots;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;

use crate::lease::Leadership;
use crate::reason::reason;

/// The name of the Lease, and the field manager.
pub const NAME: &str = "evenkeel-roots";
/// The ConfigMap.
const CONFIG_MAP: &str = "istio-ca-root-cert";
/// The entry in it.
const KEY: &str = "root-cert.pem";
/// The namespaces of Kubernetes' own programs, in which nothing is injected (Istio's `IgnoredNamespaces`).
const IGNORED: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "local-path-storage"];
/// How soon it is tried again what has failed.
const RETRY: Duration = Duration::from_secs(5);
/// How often the writer looks whether it still leads.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the API server may take for one ConfigMap.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of ConfigMaps that are written at a time.
const MAX_WRITES: usize = 8;

/// Writes the ConfigMaps while this process leads.
pub struct RootCertificates {
    client: Client,
    roots: watch::Receiver<MeshRoots>,
    leadership: Leadership,
    /// The roots that each namespace has.
    held: HashMap<String, String>,
    /// Namespaces whose refusal has been logged.
    refused: HashMap<Arc<str>, String>,
}

impl std::fmt::Debug for RootCertificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RootCertificates").finish_non_exhaustive()
    }
}

impl RootCertificates {
    /// Creates a writer of these roots.
    pub fn new(client: Client, roots: watch::Receiver<MeshRoots>, leadership: Leadership) -> Self {
        Self { client, roots, leadership, held: HashMap::new(), refused: HashMap::new() }
    }

    /// Writes for ever.
    pub async fn run(mut self) {
        loop {
            self.leadership.begins().await;
            self.held.clear();
            self.lead().await;
        }
    }

    async fn lead(&mut self) {
        let selected = watcher::Config::default().fields(&format!("metadata.name={CONFIG_MAP}"));
        let mut events = watcher::watcher(Api::<ConfigMap>::all(self.client.clone()), selected).boxed();
        let mut is_listed = false;
        let mut due = Instant::now();
        while self.leadership.leads(Instant::now()) {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => is_listed |= self.take(event),
                    // What is there is not known then: it is written at each change.
                    Some(Err(error)) => {
                        tracing::debug!(reason = reason(&error), "ConfigMaps with roots are not watched");
                        is_listed = true;
                        tokio::time::sleep(LOOK_INTERVAL).await;
                        continue;
                    }
                    None => return,
                },
                changed = self.roots.changed() => if changed.is_err() {
                    // The control plane ends.
                    return std::future::pending().await;
                },
                () = tokio::time::sleep(LOOK_INTERVAL) => if Instant::now() < due { continue },
            }
            if is_listed {
                due = Instant::now() + if self.write_all().await { LOOK_INTERVAL * 60 } else { RETRY };
            }
        }
    }

    /// Takes over what is there. Returns whether everything is listed now.
    fn take(&mut self, event: Event<ConfigMap>) -> bool {
        let namespace = |map: &ConfigMap| map.metadata.namespace.clone().unwrap_or_default();
        match event {
            Event::Init => self.held.clear(),
            Event::Apply(mut map) | Event::InitApply(mut map) => {
                let pem = map.data.as_mut().and_then(|data| data.remove(KEY)).unwrap_or_default();
                self.held.insert(namespace(&map), pem);
            }
            Event::Delete(map) => _ = self.held.remove(&namespace(&map)),
            Event::InitDone => return true,
        }
        false
    }

    /// Writes what differs. Returns whether everything is there now.
    async fn write_all(&mut self) -> bool {
        let roots = self.roots.borrow_and_update().clone();
        if roots.pem.is_empty() {
            return true;
        }
        let differs = |namespace: &&Arc<str>| {
            !IGNORED.contains(&&***namespace) && self.held.get(&***namespace).is_none_or(|held| **held != *roots.pem)
        };
        let due: Vec<Arc<str>> = roots.namespaces.iter().filter(differs).cloned().collect();
        let one = async |namespace: Arc<str>| (namespace.clone(), self.write(&namespace, &roots.pem).await);
        let written: Vec<_> = futures_util::stream::iter(due).map(one).buffer_unordered(MAX_WRITES).collect().await;
        let mut are_there = true;
        for (namespace, result) in written {
            match result {
                Ok(()) => {
                    self.refused.remove(&namespace);
                    self.held.insert(namespace.to_string(), roots.pem.to_string());
                }
                Err(reason) => {
                    are_there = false;
                    if self.refused.get(&namespace) != Some(&reason) {
                        tracing::warn!(%namespace, reason, "the ConfigMap `{CONFIG_MAP}` is not written; sidecars wait for it");
                        self.refused.insert(namespace, reason);
                    }
                }
            }
        }
        are_there
    }

    async fn write(&self, namespace: &str, pem: &str) -> Result<(), String> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP, "labels": {"istio.io/config": "true"}},
            "data": {KEY: pem},
        });
        let parameters = PatchParams::apply(NAME).force();
        match tokio::time::timeout(TIMEOUT, api.patch(CONFIG_MAP, &parameters, &Patch::Apply(map))).await {
            Ok(Ok(_)) => Ok(()),
            // The namespace is about to end, or has ended.
            Ok(Err(kube::Error::Api(status)))
                if status.is_not_found() || status.message.contains("being terminated") =>
            {
                Ok(())
            }
            Ok(Err(error)) => Err(reason(&error)),
            Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
        }
    }
}
