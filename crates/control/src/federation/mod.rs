//! Federation: the roots that are trusted for each trust domain (`caCertificates`), from the configuration and from SPIFFE
//! bundle endpoints.
//!
//! ```text
//!  world: caCertificates ──► Federation::keep     schedules one fetch at a time for each endpoint
//!                              │ jwks::Client     HTTPS, verified by the system's roots and the mesh's, bounded
//!                              ├──► store: federation/NAME.json    the last good document, for an outage and a restart
//!                              ▼
//!  trust domains, which are sent to agents together with the mesh's own roots
//! ```
//!
//! A trust domain without roots, because its bundle is empty or was never fetched, is sent to agents as such: proxies reject
//! its identities. No other root stands in for it.

mod bundle;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_model::{FurtherRoots, MeshConfig, RootsSource};
use evenkeel_store::{Readers, Store};
use evenkeel_xds::istio::mesh::TrustDomain;
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;

use crate::jwks::Client;
use crate::world::World;
use bundle::SpiffeBundle;

/// Folder of the bundles in the store.
const FOLDER: &str = "federation";
/// Pause after the first failure; each further one doubles it.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
/// Longest pause after a failure.
const MAX_BACK_OFF: Duration = Duration::from_secs(5 * 60);
/// Time limit of one fetch.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of endpoints; the trust domains of further ones have no roots, which is logged.
const MAX_ENDPOINTS: usize = 100;
/// Maximum number of concurrent fetches.
const MAX_FETCHES: usize = 8;
/// Maximum size of a document read from the store, in bytes; the client limits fetched ones.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Maintains the roots of all trust domains.
#[derive(Debug)]
pub(crate) struct Federation {
    store: Store,
    client: Arc<Client>,
    endpoints: BTreeMap<Arc<str>, Endpoint>,
    out: watch::Sender<Arc<Vec<TrustDomain>>>,
    /// Whether it has been logged that there are too many endpoints.
    told: bool,
}

/// A bundle endpoint.
#[derive(Debug)]
struct Endpoint {
    /// The last valid bundle.
    bundle: Option<SpiffeBundle>,
    due: Instant,
    failures: u32,
    fetching: bool,
    /// Whether the current fetch uses a client whose roots have been replaced meanwhile.
    outdated: bool,
}

impl Federation {
    /// Keeps bundles in this store.
    pub(crate) fn new(store: impl Into<Store>, client: Client) -> Self {
        let (endpoints, out) = (BTreeMap::new(), watch::Sender::default());
        Self { store: store.into(), client: Arc::new(client), endpoints, out, told: false }
    }

    /// Returns a receiver of all trust domains with their roots; empty if only the mesh's roots are used.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Vec<TrustDomain>>> {
        self.out.subscribe()
    }

    /// Follows the configuration and fetches bundles; never completes. `trusted`: the mesh's roots, which also verify
    /// endpoints.
    pub(crate) async fn keep(mut self, mut world: watch::Receiver<Arc<World>>, mut trusted: watch::Receiver<Arc<str>>) {
        // The client may have been created before the current roots.
        let roots = trusted.borrow_and_update().to_string();
        self.trust(self.client.trusting(&[roots]), Instant::now());
        let mut running: JoinSet<Result<Vec<u8>, String>> = JoinSet::new();
        let mut of_task: HashMap<Id, Arc<str>> = HashMap::new();
        loop {
            let mesh = world.borrow_and_update().snapshot.mesh.clone();
            self.follow(&mesh, Instant::now());
            let mut next = self.next();
            while let Some((url, due)) = next.clone().filter(|_| running.len() < MAX_FETCHES) {
                if due > Instant::now() {
                    break;
                }
                let (client, asked) = (self.client.clone(), url.clone());
                let task = running.spawn(async move {
                    let got = tokio::time::timeout(TIMEOUT, client.get(&asked)).await;
                    let late = || format!("no complete answer within {} s", TIMEOUT.as_secs());
                    got.map_err(|_| late())?.map_err(|error| error.to_string())
                });
                of_task.insert(task.id(), url.clone());
                self.endpoints.entry(url).and_modify(|endpoint| endpoint.fetching = true);
                next = self.next();
            }
            let next = next.filter(|_| running.len() < MAX_FETCHES);
            let due = async {
                match next {
                    Some((_, due)) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = world.changed() => if changed.is_err() { return },
                changed = trusted.changed() => {
                    if changed.is_err() { return }
                    let roots = trusted.borrow_and_update().to_string();
                    self.trust(self.client.trusting(&[roots]), Instant::now());
                }
                () = due => {}
                Some(ended) = running.join_next_with_id() => {
                    let (id, outcome) = ended.unwrap_or_else(|panic| (panic.id(), Err("it was stopped".to_owned())));
                    if let Some(url) = of_task.remove(&id) {
                        self.end(&url, outcome, Instant::now());
                    }
                }
            }
        }
    }

    /// Uses another client from now on. Failed fetches are retried: the reason may have been a missing root.
    fn trust(&mut self, client: Client, now: Instant) {
        self.client = Arc::new(client);
        for endpoint in self.endpoints.values_mut() {
            endpoint.outdated = endpoint.fetching;
            if endpoint.failures > 0 {
                endpoint.due = now;
            }
        }
    }

    /// Adds new endpoints, with the documents that an earlier run has stored, and removes those that the configuration no
    /// longer names.
    fn follow(&mut self, mesh: &MeshConfig, now: Instant) {
        let named = mesh.further_roots.iter().filter_map(|roots| match &roots.source {
            RootsSource::Bundle(url) => Some(url.clone()),
            RootsSource::Pem(_) => None,
        });
        let wanted: BTreeSet<Arc<str>> = named.collect();
        if wanted.len() > MAX_ENDPOINTS && !self.told {
            tracing::error!("caCertificates names {} bundle endpoints; {MAX_ENDPOINTS} are used", wanted.len());
        }
        self.told = wanted.len() > MAX_ENDPOINTS;
        let wanted: BTreeSet<Arc<str>> = wanted.into_iter().take(MAX_ENDPOINTS).collect();
        for gone in self.endpoints.keys().filter(|url| !wanted.contains(*url)) {
            // The bundle is deleted, so that it is not trusted again later.
            let _ = self.store.remove(&key(gone));
        }
        self.endpoints.retain(|url, _| wanted.contains(url));
        for url in wanted {
            let (store, at) = (&self.store, url.clone());
            self.endpoints.entry(url).or_insert_with(|| Endpoint {
                bundle: stored(store, &key(&at)),
                due: now,
                failures: 0,
                fetching: false,
                outdated: false,
            });
        }
        self.publish(mesh);
    }

    /// Returns the endpoint that is due next and is not being fetched.
    fn next(&self) -> Option<(Arc<str>, Instant)> {
        let idle = self.endpoints.iter().filter(|(_, endpoint)| !endpoint.fetching);
        idle.min_by_key(|(_, endpoint)| endpoint.due).map(|(url, endpoint)| (url.clone(), endpoint.due))
    }

    /// Processes a fetched document; an unusable one changes nothing.
    fn end(&mut self, url: &Arc<str>, outcome: Result<Vec<u8>, String>, now: Instant) {
        let Some(endpoint) = self.endpoints.get_mut(url) else { return };
        endpoint.fetching = false;
        let outdated = std::mem::take(&mut endpoint.outdated);
        match outcome.and_then(|document| endpoint.take(&document).map(|is_new| (document, is_new))) {
            Ok((document, is_new)) => {
                if endpoint.failures > 0 {
                    tracing::info!("the SPIFFE bundle at {url} can be fetched again");
                }
                endpoint.failures = 0;
                endpoint.due = now + endpoint.bundle.as_ref().map_or(bundle::MIN_REFRESH, |bundle| bundle.refresh);
                if is_new {
                    endpoint.tell(url);
                    let written = self.store.put(&key(url), &document, Readers::Owner);
                    if let Err(error) = written {
                        tracing::warn!(%error, "the SPIFFE bundle at {url} is not stored; it counts until this process ends");
                    }
                }
            }
            Err(reason) => {
                let pause = FIRST_BACK_OFF.saturating_mul(1 << endpoint.failures.min(16)).min(MAX_BACK_OFF);
                endpoint.due = if outdated { now } else { now + pause };
                endpoint.failures = endpoint.failures.saturating_add(1);
                let effect = match endpoint.bundle {
                    Some(_) => "the last good roots stay in use",
                    None => "peers that need its roots are refused",
                };
                tracing::warn!("cannot use the SPIFFE bundle at {url}: {reason}; {effect}");
            }
        }
    }

    fn publish(&self, mesh: &MeshConfig) {
        let domains = trust_domains(mesh, |url| Some(self.endpoints.get(url)?.bundle.as_ref()?.roots.clone()));
        self.out.send_if_modified(|told| {
            let is_new = **told != domains;
            if is_new {
                *told = Arc::new(domains);
            }
            is_new
        });
    }
}

impl Endpoint {
    /// Returns whether the document has changed.
    fn take(&mut self, document: &[u8]) -> Result<bool, String> {
        let new = bundle::parse(document).map_err(|error| error.to_string())?;
        let held = self.bundle.as_ref().and_then(|bundle| bundle.sequence);
        if let (Some(held), Some(sequence)) = (held, new.sequence)
            && sequence < held
        {
            return Err(format!("its `spiffe_sequence` is {sequence}, that of the one in use {held}"));
        }
        let is_new = self.bundle.as_ref() != Some(&new);
        self.bundle = Some(new);
        Ok(is_new)
    }

    fn tell(&self, url: &str) {
        match self.bundle.as_ref().map_or(0, |bundle| bundle.roots.matches("-----BEGIN").count()) {
            0 => tracing::warn!("the SPIFFE bundle at {url} has no roots any more: peers that need them are refused"),
            count => tracing::info!(roots = count, "the roots of the SPIFFE bundle at {url} are in use"),
        }
    }
}

/// Returns every trust domain with its roots, where `bundle` returns the roots for a URL. Empty if only the mesh's roots are
/// used.
fn trust_domains(mesh: &MeshConfig, bundle: impl Fn(&str) -> Option<String>) -> Vec<TrustDomain> {
    if mesh.further_roots.is_empty() {
        return Vec::new();
    }
    let names_it = |roots: &FurtherRoots, name: &Arc<str>| roots.trust_domains.contains(name);
    let domain = |name: &Arc<str>| {
        let counting =
            mesh.further_roots.iter().filter(|roots| roots.trust_domains.is_empty() || names_it(roots, name));
        let texts = counting.map(|roots| match &roots.source {
            RootsSource::Pem(pem) => pem.to_string(),
            RootsSource::Bundle(url) => bundle(url).unwrap_or_default(),
        });
        let roots_pem = texts.filter(|text| !text.is_empty()).map(|text| format!("{}\n", text.trim_end())).collect();
        // An alias with roots of its own is another mesh's trust domain; without them it is a former name of this mesh's.
        let is_own = *name == mesh.trust_domain;
        let is_alias = mesh.trust_domain_aliases.contains(name);
        let has_own_roots = mesh.further_roots.iter().any(|roots| names_it(roots, name));
        TrustDomain { name: name.to_string(), roots_pem, has_mesh_roots: is_own || (is_alias && !has_own_roots) }
    };
    let all: BTreeSet<&Arc<str>> = mesh.own_trust_domains().chain(mesh.federated_trust_domains()).collect();
    all.into_iter().map(domain).collect()
}

/// Returns the bundle that an earlier run has stored.
fn stored(store: &Store, key: &str) -> Option<SpiffeBundle> {
    let document = store.get_within(key, MAX_FILE_BYTES).ok()??;
    let warn = |error: &bundle::BundleError| tracing::warn!("{}: {error}", store.place(key).display());
    bundle::parse(&document).inspect_err(warn).ok()
}

/// Returns the key of a bundle in the store.
fn key(url: &str) -> String {
    format!("{FOLDER}/{}.json", evenkeel_jwt::digest(url.as_bytes()))
}
