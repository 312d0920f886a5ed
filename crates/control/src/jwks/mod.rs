//! Fetches the keys (JWKS) of the issuers that RequestAuthentications name by URI.
//!
//! ```text
//!  world: the sources it names ───────► Fetcher::keep     schedules one fetch at a time for each source
//!                                        │ client::get  HTTP or HTTPS, bounded
//!                                        ▼
//!  StoredObjects: ConfigMaps, a source of the configuration; store: jwks/NAME.json
//! ```
//!
//! Proxies do not report tokens that they reject, so the control plane cannot fetch a key when a token needs it. Instead it
//! fetches keys periodically, sooner after a failure, and at once when the roots change that verify HTTPS servers.
//!
//! Keys are objects of a source, so that everything else treats them like objects of the user. They are stored: they survive a
//! restart and an outage of the issuer, and other control planes that share the store use them, too.

mod client;
pub mod outgoing_proxy;
pub mod settings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_base::{Rank, SourceId};
use evenkeel_ca::rotation::Signing;
use evenkeel_jwt::Jwks;
use evenkeel_model::JwksSource;
use evenkeel_model::request_authentication::{JWKS_CONFIG_MAP_PREFIX, JWKS_KEY};
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::metrics::plane::Counter;
use crate::source::stored::StoredObjects;
use crate::world::World;
use client::FetchError;
pub(crate) use client::{Client, system_roots_pem};

/// Folder of the keys in the store, and the name of their source.
pub const FOLDER: &str = "jwks";
/// After files and registered workloads.
const RANK: Rank = Rank(111);
/// The refresh interval is shortened at random by up to this share, so that sources are not all fetched at once.
const JITTER_PERCENT: u32 = 10;
/// Keys are removed if they could not be fetched again for this long, as in Istio: the issuer may have revoked them.
const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Pause after the first failure; each further one doubles it.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
/// Longest pause after a failure.
const MAX_BACK_OFF: Duration = Duration::from_secs(5 * 60);
/// Time limit of one fetch if no rule sets one, as in Istio.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time limit of one fetch.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the keys of a source that no rule names any more are kept.
const KEEP_IDLE: Duration = Duration::from_secs(60 * 60);
/// Maximum number of sources; the keys of further ones are missing, which is logged.
const MAX_SOURCES: usize = 1_000;
/// Maximum number of concurrent fetches that have begun within [`IMPATIENCE`]: slow issuers do not keep others waiting.
const MAX_NEW_FETCHES: usize = 32;
/// A fetch that takes longer than this makes room for another one, and goes on.
const IMPATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of concurrent fetches. Each holds a connection, and one answer at most. There is one for each source, and
/// those of sources that no rule names any more end soon.
const MAX_FETCHES: usize = MAX_SOURCES;

/// The source of the keys. Whatever has the same name in the user's files is in force instead.
pub fn source() -> SourceId {
    SourceId::new(FOLDER, RANK)
}

/// Maintains the keys of all issuers.
#[derive(Debug)]
pub(crate) struct Fetcher {
    keys: Arc<StoredObjects>,
    client: Arc<Client>,
    /// The interval between two fetches of the same keys.
    refresh: Duration,
    sources: BTreeMap<JwksSource, Progress>,
    /// Keys of sources that no rule names, and since when.
    idle: HashMap<String, Instant>,
    /// Whether it has been logged that there are too many sources.
    told: bool,
    metrics: Arc<Metrics>,
}

/// The state of one source.
#[derive(Debug)]
struct Progress {
    due: Instant,
    failures: u32,
    timeout: Duration,
    /// Since when its keys are being fetched.
    fetching: Option<Instant>,
    /// Whether the current fetch uses a client whose roots have been replaced meanwhile.
    outdated: bool,
}

type Fetched = Result<String, FetchError>;

impl Fetcher {
    pub(crate) fn new(keys: Arc<StoredObjects>, client: Client, refresh: Duration, metrics: Arc<Metrics>) -> Self {
        let (sources, idle) = (BTreeMap::new(), HashMap::new());
        Self { keys, client: Arc::new(client), refresh, sources, idle, told: false, metrics }
    }

    /// Fetches the keys of the sources that the world names, from servers with certificates of the `trusted` roots.
    pub(crate) async fn keep(
        mut self,
        mut world: watch::Receiver<Arc<World>>,
        mut trusted: watch::Receiver<Arc<Signing>>,
    ) {
        let mut running: JoinSet<Fetched> = JoinSet::new();
        let mut of_task: HashMap<Id, JwksSource> = HashMap::new();
        let mut roots = trusted.borrow_and_update().roots.clone();
        self.trust(self.client.trusting(&[roots.to_string()]), Instant::now());
        loop {
            let (wanted, namespace) = {
                let world = world.borrow_and_update();
                (world.snapshot.jwks_sources(), world.snapshot.mesh.root_namespace.clone())
            };
            self.follow(wanted, Instant::now());
            let next = loop {
                let now = Instant::now();
                let Some((source, progress)) = self.next(now) else { break None };
                if progress.due > now {
                    break Some(progress.due);
                }
                match self.has_room(running.len(), now) {
                    Ok(()) => {}
                    // Or sooner, when a fetch ends.
                    Err(later) => break later,
                }
                let (source, timeout) = (source.clone(), progress.timeout);
                self.begin(&source, now);
                let (client, asked) = (Arc::clone(&self.client), source.clone());
                let task = running.spawn(async move { fetch(&client, &asked, timeout).await });
                of_task.insert(task.id(), source);
            };
            let due = async {
                match next {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = world.changed() => if changed.is_err() { return },
                changed = trusted.changed() => {
                    if changed.is_err() { return }
                    let now = trusted.borrow_and_update().roots.clone();
                    if now != roots {
                        self.trust(self.client.trusting(&[now.to_string()]), Instant::now());
                        roots = now;
                    }
                }
                () = due => {}
                Some(ended) = running.join_next_with_id() => {
                    let (id, outcome) = match ended {
                        Ok((id, outcome)) => (id, outcome),
                        Err(panic) => (panic.id(), Err(FetchError::Stopped)),
                    };
                    if let Some(source) = of_task.remove(&id) {
                        self.end(&source, outcome, &namespace, Instant::now());
                    }
                }
            }
        }
    }

    /// Uses another client from now on. Failed fetches are retried: the reason may have been a missing root.
    fn trust(&mut self, client: Client, now: Instant) {
        self.client = Arc::new(client);
        for progress in self.sources.values_mut() {
            progress.outdated = progress.fetching.is_some();
            if progress.failures > 0 {
                progress.due = now;
            }
        }
    }

    /// Adds new sources, and forgets those that no rule names any more, with their files.
    fn follow(&mut self, wanted: BTreeMap<JwksSource, Option<Duration>>, now: Instant) {
        self.sources.retain(|source, _| wanted.contains_key(source));
        let too_many = wanted.len() > MAX_SOURCES;
        if too_many && !self.told {
            tracing::error!("RequestAuthentications name {} sources of keys; {MAX_SOURCES} are fetched", wanted.len());
        }
        self.told = too_many;
        let names: Vec<String> = wanted.keys().map(file_name).collect();
        // Those that are fetched already stay: the names of further ones do not decide.
        let (known, new): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|(source, _)| self.sources.contains_key(source));
        for (source, timeout) in known.into_iter().chain(new).take(MAX_SOURCES) {
            let timeout = timeout.unwrap_or(DEFAULT_TIMEOUT).clamp(Duration::from_millis(100), MAX_TIMEOUT);
            let fresh = Progress { due: now, failures: 0, timeout, fetching: None, outdated: false };
            self.sources.entry(source).or_insert(fresh).timeout = timeout;
        }
        self.remove_idle(&names, now);
    }

    /// Removes the files of sources that no rule has named for a while. Not at once: a rule may come back while the issuer is
    /// down.
    fn remove_idle(&mut self, wanted: &[String], now: Instant) {
        let names = self.keys.names().unwrap_or_default().into_iter();
        let idle: Vec<String> =
            names.filter(|name| name.starts_with(JWKS_CONFIG_MAP_PREFIX) && !wanted.contains(name)).collect();
        self.idle.retain(|name, _| idle.contains(name));
        for name in idle {
            let since = *self.idle.entry(name.clone()).or_insert(now);
            if now.saturating_duration_since(since) < KEEP_IDLE {
                continue;
            }
            if let Err(error) = self.keys.remove(&name) {
                tracing::warn!("the keys {name}: {error}");
            }
        }
    }

    /// Returns the source that is due next and is not being fetched. Of those that are due already, the ones that have not failed
    /// come first.
    fn next(&self, now: Instant) -> Option<(&JwksSource, &Progress)> {
        let idle = self.sources.iter().filter(|(_, progress)| progress.fetching.is_none());
        idle.min_by_key(|(_, progress)| {
            let is_due = progress.due <= now;
            (!is_due, is_due && progress.failures > 0, progress.due)
        })
    }

    /// Whether another fetch may begin; otherwise, when it may, if no fetch ends before.
    fn has_room(&self, running: usize, now: Instant) -> Result<(), Option<Instant>> {
        let begun = || self.sources.values().filter_map(|progress| progress.fetching);
        let is_new = |since: &Instant| now.saturating_duration_since(*since) < IMPATIENCE;
        if running >= MAX_FETCHES {
            return Err(None);
        }
        if begun().filter(is_new).count() < MAX_NEW_FETCHES {
            Ok(())
        } else {
            Err(begun().filter(is_new).min().map(|since| since + IMPATIENCE))
        }
    }

    fn begin(&mut self, source: &JwksSource, now: Instant) {
        if let Some(progress) = self.sources.get_mut(source) {
            progress.fetching = Some(now);
        }
    }

    /// Stores fetched keys; after a failure the existing ones are kept.
    fn end(&mut self, source: &JwksSource, outcome: Fetched, namespace: &str, now: Instant) {
        self.metrics.plane.inc(match outcome {
            Ok(_) => Counter::pilot_jwks_resolver_network_fetch_success_total,
            Err(_) => Counter::pilot_jwks_resolver_network_fetch_fail_total,
        });
        let stored = outcome.map_err(|error| error.to_string()).and_then(|keys| {
            self.store(source, &keys, namespace).map_err(|error| format!("the keys cannot be stored: {error}"))
        });
        let Some(progress) = self.sources.get_mut(source) else { return };
        progress.fetching = None;
        let outdated = std::mem::take(&mut progress.outdated);
        match stored {
            Ok(()) => {
                if progress.failures > 0 {
                    tracing::info!("fetched the keys at {} again", source.uri());
                }
                progress.failures = 0;
                progress.due = now + jittered(self.refresh);
            }
            Err(reason) => {
                let pause = FIRST_BACK_OFF.saturating_mul(1 << progress.failures.min(16));
                let pause = pause.min(MAX_BACK_OFF).min(self.refresh);
                progress.failures = progress.failures.saturating_add(1);
                progress.due = if outdated { now } else { now + pause };
                let uri = source.uri();
                let keys = if self.remove_outdated(source, SystemTime::now()) {
                    "every token of the issuer is refused, because its keys are older than 7 days"
                } else {
                    "the last good ones stay in use"
                };
                tracing::warn!("cannot fetch keys (JWKS) from {uri}: {reason}; {keys}");
            }
        }
    }

    /// Removes keys that were fetched too long ago. Returns whether it has removed any.
    fn remove_outdated(&self, source: &JwksSource, now: SystemTime) -> bool {
        let name = file_name(source);
        let fetched = self.keys.version(&name).map(|version| version.modified);
        let is_old = fetched.is_some_and(|fetched| now.duration_since(fetched).is_ok_and(|age| age > MAX_AGE));
        is_old && self.keys.remove(&name).inspect_err(|error| tracing::warn!("the keys {name}: {error}")).is_ok()
    }

    /// Puts the keys in force and stores them, unless the same ones are stored, in any order. The time of their version says
    /// when they were fetched.
    fn store(&self, source: &JwksSource, keys: &str, namespace: &str) -> std::io::Result<()> {
        let name = file_name(source);
        let object = serde_json::json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": source.config_map(), "namespace": namespace },
            "data": { JWKS_KEY: keys, "uri": source.uri() },
        });
        let known = self.keys.get(&name);
        let is_known = known.is_some_and(|mut known| {
            let same_keys = known["data"][JWKS_KEY].as_str().is_some_and(|known| set_of(known) == set_of(keys));
            known["data"][JWKS_KEY] = keys.into();
            same_keys && known == object
        });
        if is_known && self.keys.is_stored(&name) { self.keys.touch(&name) } else { self.keys.put(&name, object) }
    }
}

/// Returns the keys of a set without their order, which means nothing: some issuers change it with each response.
fn set_of(text: &str) -> Option<BTreeSet<String>> {
    let object = evenkeel_jwt::parse_object(text.as_bytes())?;
    Some(object.get("keys")?.as_array()?.iter().map(ToString::to_string).collect())
}

/// Returns the time shortened by a random part.
fn jittered(time: Duration) -> Duration {
    let random = u32::try_from(RandomState::new().hash_one(0) % 1_000).unwrap_or(0);
    time.saturating_sub(time / 100 * JITTER_PERCENT * random / 1_000)
}

fn file_name(source: &JwksSource) -> String {
    format!("{}.json", source.config_map())
}

/// Fetches the keys of a source. The OpenID configuration of an issuer says where its keys are (OpenID Connect Discovery
/// section 4).
async fn fetch(client: &Client, source: &JwksSource, timeout: Duration) -> Fetched {
    let fetch = async {
        let text = match source {
            JwksSource::Uri(uri) => client.get(uri).await?,
            JwksSource::Issuer(issuer) => {
                let document = client.get(&source.uri()).await?;
                let keys_at = discovered(&document, issuer)?;
                client.get(&keys_at).await?
            }
        };
        Jwks::parse(&text).map_err(FetchError::Keys)?;
        String::from_utf8(text).map_err(|_| FetchError::NotText)
    };
    tokio::time::timeout(timeout, fetch).await.unwrap_or(Err(FetchError::Timeout(timeout)))
}

fn has_tls(url: &str) -> bool {
    url.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("https"))
}

/// Returns the `jwks_uri` of an OpenID configuration, which has to be that of the issuer.
fn discovered(document: &[u8], issuer: &str) -> Result<String, FetchError> {
    let object = evenkeel_jwt::parse_object(document).ok_or(FetchError::Discovery("it is no JSON object"))?;
    let text = |name: &str| object.get(name).and_then(serde_json::Value::as_str);
    match text("issuer") {
        None => return Err(FetchError::Discovery("it has no `issuer`")),
        Some(own) if own != issuer => return Err(FetchError::Discovery("its `issuer` is another one")),
        Some(_) => {}
    }
    let uri = text("jwks_uri").ok_or(FetchError::Discovery("it has no `jwks_uri`"))?;
    // Whoever changes the keys on their way is the issuer to every proxy.
    if has_tls(issuer) && !has_tls(uri) {
        Err(FetchError::Discovery("its `jwks_uri` is not https, as the issuer is"))
    } else {
        Ok(uri.to_owned())
    }
}
