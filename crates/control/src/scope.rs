//! Remembers which names each workload uses, for its other and later replicas: a new replica asks for them before its first
//! request, and so has at once what the others had to request name by name.
//!
//! Control planes that share a state directory share the file. Each merges what the others have written before it answers and
//! before it writes.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use evenkeel_store::{Readers, Store, Version};
use evenkeel_xds::scope::scope_service_server::ScopeService;
use evenkeel_xds::scope::{Names, RecallRequest, RememberRequest, RememberResponse, Workload};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore};
use tonic::{Extensions, Request, Response, Status};

use crate::listen::Peer;

/// Key of the remembered names in the store.
const KEY: &str = "scope.json";
/// Maximum number of names kept per workload; the most recently used ones are kept.
const MAX_NAMES: usize = 10_000;
/// Maximum number of workloads remembered; the most recently reported ones are kept.
const MAX_WORKLOADS: usize = 10_000;
/// Maximum length of a name, in bytes.
const MAX_NAME_BYTES: usize = 1024;
/// How long a name that no replica uses is kept.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// Delay from the first change until the file is written, with all changes in between.
const WRITE_AFTER: Duration = Duration::from_secs(2);
/// Delay before a failed write is retried.
const RETRY: Duration = Duration::from_secs(30);
/// How long a proxy that starts waits for what other control planes have written.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of reads at a time.
const MAX_READINGS: usize = 4;
/// Age of the file at which changed times alone are written, so that names in daily use are not forgotten after a crash.
const WRITE_TIMES_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Namespace, service account and name.
type Key = (String, String, String);

/// The remembered names of all workloads.
#[derive(Debug)]
pub struct Scopes {
    store: Store,
    memory: Mutex<Memory>,
    changed: Notify,
    reading: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Memory {
    workloads: BTreeMap<Key, Used>,
    /// The version that this control plane last read or wrote; any other one was written by another control plane.
    version: Option<Version>,
}

/// Names of one workload, and for each the time it was last reported, in seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Used {
    #[serde(default)]
    listeners: BTreeMap<String, u64>,
    #[serde(default)]
    virtual_hosts: BTreeMap<String, u64>,
    #[serde(default)]
    clusters: BTreeMap<String, u64>,
    #[serde(default)]
    hosts: BTreeMap<String, u64>,
}

/// One workload in the file.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    namespace: String,
    service_account: String,
    workload: String,
    #[serde(flatten)]
    used: Used,
}

impl Scopes {
    /// Reads the file. A file that cannot be read is reported and replaced: without it, replicas only have to ask again.
    pub fn open(store: impl Into<Store>) -> Arc<Self> {
        let store = store.into();
        let reading = Arc::new(Semaphore::new(MAX_READINGS));
        let scopes = Self { store, memory: Mutex::default(), changed: Notify::new(), reading };
        scopes.read();
        Arc::new(scopes)
    }

    /// Writes the file after changes, until dropped.
    pub async fn keep(self: Arc<Self>) {
        self.keep_with(tokio::time::sleep).await;
    }

    async fn keep_with<P: Future<Output = ()>>(self: Arc<Self>, pause: impl Fn(Duration) -> P) {
        loop {
            self.changed.notified().await;
            pause(WRITE_AFTER).await;
            loop {
                let scopes = self.clone();
                // Another control plane may be writing; nobody else has to wait for that here.
                let written = tokio::task::spawn_blocking(move || scopes.write(SystemTime::now())).await;
                if !matches!(written, Ok(false)) {
                    break;
                }
                pause(RETRY).await;
            }
        }
    }

    /// Writes the file now, merged with what others have written to it. Returns whether that succeeded; a failure is logged.
    pub fn write(&self, now: SystemTime) -> bool {
        let written = self.try_write(now);
        if let Err(error) = &written {
            tracing::error!(path = %self.store.place(KEY).display(), %error, "what workloads use cannot be written");
        }
        written.is_ok()
    }

    fn try_write(&self, now: SystemTime) -> io::Result<()> {
        let _lease = self.store.lease("scope")?;
        self.read();
        let mut memory = self.lock();
        memory.forget(now);
        let entries: Vec<Entry> = memory
            .workloads
            .iter()
            .map(|((namespace, service_account, workload), used)| Entry {
                namespace: namespace.clone(),
                service_account: service_account.clone(),
                workload: workload.clone(),
                used: used.clone(),
            })
            .collect();
        // Proxies that report names do not wait for the disk.
        drop(memory);
        self.store.put(KEY, &serde_json::to_vec_pretty(&entries)?, Readers::All)?;
        self.lock().version = self.store.version(KEY).ok().flatten();
        Ok(())
    }

    /// Returns the names that a workload's replicas use, whichever control plane they are connected to.
    #[cfg(test)]
    fn recall(&self, key: &Key, now: SystemTime) -> Names {
        self.read();
        self.known(key, now)
    }

    /// Reads what others have written, for a limited time: a store in a cluster may not answer for a while, and what is known here is good
    /// enough for a proxy that starts.
    async fn read_in_time(self: &Arc<Self>) {
        let reading = async {
            // It is never closed.
            let place = self.reading.clone().acquire_owned().await;
            let scopes = self.clone();
            let read = move || {
                scopes.read();
                drop(place);
            };
            tokio::task::spawn_blocking(read).await
        };
        let _ = tokio::time::timeout(READ_TIMEOUT, reading).await;
    }

    /// Returns the names that a workload's replicas use, as far as they are known here.
    fn known(&self, key: &Key, now: SystemTime) -> Names {
        let mut memory = self.lock();
        let Some(used) = memory.workloads.get_mut(key) else { return Names::default() };
        used.forget(now);
        used.names()
    }

    /// Adds the names that one replica uses.
    fn remember(&self, key: Key, names: Names, now: SystemTime) {
        let mut memory = self.lock();
        if memory.workloads.len() >= MAX_WORKLOADS && !memory.workloads.contains_key(&key) {
            memory.forget_oldest();
        }
        let written = memory.version.map_or(SystemTime::UNIX_EPOCH, |version| version.modified);
        let used = memory.workloads.entry(key).or_default();
        let before = used.names();
        used.add(names, now);
        used.forget(now);
        if used.names() != before || now.duration_since(written).is_ok_and(|age| age >= WRITE_TIMES_AFTER) {
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Merges the file, if another control plane has changed it. Nobody waits for the memory meanwhile.
    fn read(&self) {
        let store = &self.store;
        let version = store.version(KEY).ok().flatten();
        if version.is_none() || version == self.lock().version {
            return;
        }
        let text = store.get(KEY).map(Option::unwrap_or_default);
        let entries = text.and_then(|text| Ok(serde_json::from_slice::<Vec<Entry>>(&text)?));
        let entries = entries.unwrap_or_else(|error| {
            tracing::warn!(path = %store.place(KEY).display(), %error, "what workloads use cannot be read; it is learned anew");
            Vec::new()
        });
        let mut memory = self.lock();
        memory.version = version;
        memory.join(entries);
    }
}

impl Memory {
    fn join(&mut self, entries: Vec<Entry>) {
        for Entry { namespace, service_account, workload, used } in entries {
            self.workloads.entry((namespace, service_account, workload)).or_default().join(used);
        }
        while self.workloads.len() > MAX_WORKLOADS {
            self.forget_oldest();
        }
    }

    /// Drops workloads and names that have not been reported for a long time.
    fn forget(&mut self, now: SystemTime) {
        self.workloads.values_mut().for_each(|used| used.forget(now));
        self.workloads.retain(|_, used| used.newest() > 0);
    }

    fn forget_oldest(&mut self) {
        let oldest = self.workloads.iter().min_by_key(|(_, used)| used.newest()).map(|(key, _)| key.clone());
        oldest.and_then(|oldest| self.workloads.remove(&oldest));
    }
}

impl Used {
    fn maps(&mut self) -> [&mut BTreeMap<String, u64>; 4] {
        [&mut self.listeners, &mut self.virtual_hosts, &mut self.clusters, &mut self.hosts]
    }

    fn add(&mut self, names: Names, now: SystemTime) {
        let now = seconds(now);
        let Names { listeners, virtual_hosts, clusters, hosts } = names;
        for (map, names) in self.maps().into_iter().zip([listeners, virtual_hosts, clusters, hosts]) {
            map.extend(names.into_iter().filter(|name| name.len() <= MAX_NAME_BYTES).map(|name| (name, now)));
        }
    }

    /// Merges what another control plane has learned.
    fn join(&mut self, mut other: Self) {
        for (map, other) in self.maps().into_iter().zip(other.maps()) {
            for (name, heard) in std::mem::take(other) {
                let known = map.entry(name).or_default();
                *known = heard.max(*known);
            }
        }
    }

    /// Drops names that have not been reported for a long time, and the least recently reported ones beyond the limit.
    fn forget(&mut self, now: SystemTime) {
        let oldest = seconds(now).saturating_sub(FORGOTTEN_AFTER.as_secs());
        for map in self.maps() {
            map.retain(|_, used| *used >= oldest);
            if map.len() > MAX_NAMES {
                let mut times: Vec<u64> = map.values().copied().collect();
                times.sort_unstable_by(|a, b| b.cmp(a));
                let limit = times.get(MAX_NAMES).copied().unwrap_or_default();
                map.retain(|_, used| *used > limit);
            }
        }
    }

    fn newest(&self) -> u64 {
        let maps = [&self.listeners, &self.virtual_hosts, &self.clusters, &self.hosts];
        maps.into_iter().flat_map(BTreeMap::values).copied().max().unwrap_or_default()
    }

    fn names(&self) -> Names {
        let names = |map: &BTreeMap<String, u64>| map.keys().cloned().collect();
        Names {
            listeners: names(&self.listeners),
            virtual_hosts: names(&self.virtual_hosts),
            clusters: names(&self.clusters),
            hosts: names(&self.hosts),
        }
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns the workload whose scope a caller may ask about: on the TLS port only that of its certificate's identity.
fn key(workload: Option<Workload>, extensions: &Extensions) -> Result<Key, Status> {
    let workload = workload.ok_or_else(|| Status::invalid_argument("the workload is missing"))?;
    if [&workload.namespace, &workload.service_account, &workload.name].iter().any(|part| part.len() > MAX_NAME_BYTES) {
        return Err(Status::invalid_argument("the workload's names are too long"));
    }
    match extensions.get::<Peer>() {
        Some(Peer { secure: true, identity: None, .. }) => {
            Err(Status::unauthenticated("the scope of a workload needs the workload's certificate"))
        }
        Some(Peer { secure: true, identity: Some(identity), .. }) => {
            Ok((identity.namespace().to_owned(), identity.service_account().to_owned(), workload.name))
        }
        _ => Ok((workload.namespace, workload.service_account, workload.name)),
    }
}

/// The gRPC service for the remembered names.
#[derive(Debug, Clone)]
pub struct ScopeServer(pub Arc<Scopes>);

#[tonic::async_trait]
impl ScopeService for ScopeServer {
    async fn recall(&self, request: Request<RecallRequest>) -> Result<Response<Names>, Status> {
        let (_, extensions, message) = request.into_parts();
        let key = key(message.workload, &extensions)?;
        self.0.read_in_time().await;
        Ok(Response::new(self.0.known(&key, SystemTime::now())))
    }

    async fn remember(&self, request: Request<RememberRequest>) -> Result<Response<RememberResponse>, Status> {
        let (_, extensions, message) = request.into_parts();
        let key = key(message.workload, &extensions)?;
        self.0.remember(key, message.names.unwrap_or_default(), SystemTime::now());
        Ok(Response::new(RememberResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(name: &str) -> Key {
        ("shop".to_owned(), "web".to_owned(), name.to_owned())
    }

    fn hosts(names: impl IntoIterator<Item = String>) -> Names {
        Names { virtual_hosts: names.into_iter().collect(), ..Names::default() }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn replicas_add_to_one_memory_and_it_outlives_the_process() {
        let state = tempfile::tempdir().expect("a directory");
        let scopes = Scopes::open(state.path());
        scopes.remember(workload("web"), hosts(["80/a".to_owned()]), at(10));
        scopes.remember(workload("web"), hosts(["80/b".to_owned()]), at(20));
        scopes.remember(workload("other"), hosts(["80/c".to_owned()]), at(20));
        scopes.write(at(20));
        let again = Scopes::open(state.path());
        let recalled = again.recall(&workload("web"), at(30));
        assert_eq!(recalled, hosts(["80/a".to_owned(), "80/b".to_owned()]));
        assert_eq!(again.recall(&workload("unknown"), at(30)), Names::default());
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_tried_again() {
        let folder = tempfile::tempdir().expect("a directory");
        let state = folder.path().join("state");
        let scopes = Scopes::open(&state);
        scopes.remember(workload("web"), hosts(["80/a".to_owned()]), SystemTime::now());
        let (told, mut pauses) = tokio::sync::mpsc::unbounded_channel();
        let failures = std::sync::atomic::AtomicUsize::new(0);
        let place = state.clone();
        let pause = move |time| {
            told.send(time).expect("somebody listens");
            // After the second failure there is a directory to write to.
            if time == RETRY && failures.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1 {
                std::fs::create_dir(&place).expect("a directory");
            }
            std::future::ready(())
        };
        let keeping = tokio::spawn(scopes.clone().keep_with(pause));
        let mut next = async || pauses.recv().await.expect("it goes on");
        assert_eq!([next().await, next().await, next().await], [WRITE_AFTER, RETRY, RETRY]);
        // It is done with that when it waits for the next change.
        scopes.remember(workload("web"), hosts(["80/b".to_owned()]), SystemTime::now());
        assert_eq!(next().await, WRITE_AFTER);
        keeping.abort();
        let again = Scopes::open(&state).recall(&workload("web"), SystemTime::now());
        assert!(again.virtual_hosts.contains(&"80/a".to_owned()), "{again:?}");
    }

    #[test]
    fn control_planes_that_share_the_file_learn_from_each_other() {
        let state = tempfile::tempdir().expect("a directory");
        let [one, other] = [(); 2].map(|()| Scopes::open(state.path()));
        let recalled = |scopes: &Scopes, name: &str| scopes.recall(&workload(name), at(30)).virtual_hosts;
        one.remember(workload("web"), hosts(["80/a".to_owned()]), at(10));
        one.write(at(10));
        // A replica of the workload that connects to the other one begins with what its sibling uses.
        assert_eq!(recalled(&other, "web"), ["80/a"]);
        // Neither overwrites what the other has learned.
        other.remember(workload("web"), hosts(["80/b".to_owned()]), at(20));
        one.remember(workload("web"), hosts(["80/c".to_owned()]), at(20));
        other.write(at(20));
        one.write(at(20));
        for scopes in [&one, &other, &Scopes::open(state.path())] {
            assert_eq!(recalled(scopes, "web"), ["80/a", "80/b", "80/c"]);
        }
        // The latest report counts, whoever received it.
        let late = FORGOTTEN_AFTER.as_secs() + 15;
        other.remember(workload("web"), hosts(["80/a".to_owned(), "80/d".to_owned()]), at(late));
        other.write(at(late));
        one.write(at(late));
        assert_eq!(one.recall(&workload("web"), at(late)).virtual_hosts, ["80/a", "80/b", "80/c", "80/d"]);
        assert_eq!(one.recall(&workload("web"), at(late + 10)).virtual_hosts, ["80/a", "80/d"]);
    }

    #[test]
    fn a_file_that_is_none_is_begun_anew() {
        let state = tempfile::tempdir().expect("a directory");
        let store = Store::from(state.path());
        store.put(KEY, b"{", Readers::All).expect("put");
        assert_eq!(Scopes::open(&store).recall(&workload("web"), at(0)), Names::default());
    }

    #[test]
    fn what_nobody_uses_is_forgotten_and_there_is_a_limit() {
        let state = tempfile::tempdir().expect("a directory");
        let scopes = Scopes::open(state.path());
        scopes.remember(workload("web"), hosts(["80/old".to_owned()]), at(0));
        scopes.remember(workload("web"), hosts(["80/new".to_owned()]), at(1000));
        let later = FORGOTTEN_AFTER.as_secs() + 500;
        assert_eq!(scopes.recall(&workload("web"), at(later)), hosts(["80/new".to_owned()]));
        scopes.remember(workload("web"), hosts((0..MAX_NAMES + 10).map(|i| format!("80/{i}"))), at(2000));
        scopes.remember(workload("web"), hosts(["80/last".to_owned()]), at(3000));
        let kept = scopes.recall(&workload("web"), at(3000)).virtual_hosts;
        assert!(kept.len() <= MAX_NAMES && kept.contains(&"80/last".to_owned()), "{}", kept.len());
        scopes.remember(workload("web"), hosts(["x".repeat(MAX_NAME_BYTES + 1)]), at(3000));
        assert_eq!(scopes.recall(&workload("web"), at(3000)).virtual_hosts, kept);
    }

    #[test]
    fn a_certificate_speaks_for_its_own_workloads_only() {
        let asked = || Some(Workload { namespace: "shop".into(), service_account: "web".into(), name: "web".into() });
        let check = |secure, identity: Option<&str>, expected: Option<(&str, &str)>| {
            let identity = identity.map(|text| text.parse().expect("a SPIFFE id"));
            let mut extensions = Extensions::default();
            extensions.insert(Peer {
                address: ([127, 0, 0, 1], 1).into(),
                secure,
                identity,
                expires: None,
                serial: None,
                refused: Arc::default(),
            });
            let key = key(asked(), &extensions).ok();
            let expected = expected.map(|(ns, sa)| (ns.to_owned(), sa.to_owned(), "web".to_owned()));
            assert_eq!(key, expected);
        };
        check(true, Some("spiffe://cluster.local/ns/other/sa/x"), Some(("other", "x")));
        check(true, None, None);
        check(false, None, Some(("shop", "web")));
    }
}
