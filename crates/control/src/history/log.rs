//! The append-only log of events.
//!
//! The log is split into segments. Each is a file that begins with a full checkpoint, so that it can be read by itself; the
//! oldest are deleted when there are too many. A record is one line: a checksum and JSON. A line that a crash left incomplete
//! is ignored.
//!
//! Control planes that share the directory write separate segments. The writer of a segment locks it, so that another control
//! plane does not delete it when it removes the oldest segments.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_api::istio::InterceptionMode;
use evenkeel_base::ObjectRef;
use evenkeel_base::replica::match_name;
use evenkeel_model::{AddressBook, JwksFetching};
use evenkeel_store::{Begin, Log, Store};
use evenkeel_translate::ProxyView;
use evenkeel_translate::view::{ClientKind, ProxyKind};
use serde::{Deserialize, Serialize};

use super::object::{ObjectChange, ObjectContent, ObjectId, ObjectState};
use super::redact::without_secrets;
use crate::source::objects::PastObject;
use crate::source::{Content, EntryName, PastContent};

/// Folder of the segments in the store.
const FOLDER: &str = "history";
/// How names of segments end.
const EXTENSION: &str = ".log";
/// Size at which a new segment is begun, in bytes.
const MAX_SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Number of changes at which a new segment is begun, so that a segment can be replayed quickly.
const MAX_SEGMENT_CHANGES: usize = 2_000;
/// Maximum number of proxies at the beginning of a segment: those last seen, some of which may be gone.
const MAX_PROXIES: usize = 20_000;
/// Maximum number of segments kept; those being written are kept however old they are.
const MAX_SEGMENTS: usize = 8;
/// Maximum number of past texts of one file that are searched for one without errors.
const MAX_PAST_TEXTS: usize = 256;
/// Maximum size of past texts of all files, in bytes.
const MAX_PAST_BYTES: usize = 64 * 1024 * 1024;

/// One event.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Record {
    /// The full state, at the beginning of a segment.
    Checkpoint(Box<Checkpoint>),
    /// Files changed.
    Change(Change),
    /// What proxies run that the segment has not named before, or whose properties have changed.
    Run {
        /// When it was seen, in µs since 1970.
        at: u64,
        /// The proxies and what they run.
        proxies: Vec<Run>,
    },
    /// Proxies now run another generation.
    Moved {
        /// When it was seen, in µs since 1970.
        at: u64,
        /// The generation that they run.
        generation: u64,
        /// The proxies, as ranges of numbers: first and last. A segment numbers proxies in the order in which it first names
        /// them.
        proxies: Vec<(u32, u32)>,
    },
}

/// Everything that a snapshot is built from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Checkpoint {
    /// When it was written, in µs since 1970.
    pub at: u64,
    /// The control plane that writes it.
    pub writer: Writer,
    /// The snapshot's generation.
    pub generation: u64,
    /// The trust domain, unless the files set another.
    pub trust_domain: String,
    /// Whether refused security objects were left out.
    #[serde(default)]
    pub leave_out_refused: bool,
    /// Whether all workloads were on one machine.
    #[serde(default)]
    pub on_one_machine: bool,
    /// Who fetched the keys of issuers.
    #[serde(default)]
    pub jwks_fetching: JwksFetching,
    /// Addresses assigned so far.
    pub addresses: AddressBook,
    /// Texts of all files by path.
    pub files: BTreeMap<PathBuf, FileText>,
    /// All objects of sources without files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectState>,
    /// What each proxy ran.
    pub proxies: Vec<Run>,
}

/// One run of a control plane; each run counts generations from the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writer {
    /// Its program, host and process id.
    pub name: String,
    /// When it started, in µs since 1970.
    pub started: u64,
}

/// The text of a file; of one with errors also the text in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileText {
    /// The last text without errors, unless it is the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good: Option<String>,
    /// The present text.
    pub present: String,
}

/// Files changed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Change {
    /// When it was noticed, in µs since 1970.
    pub at: u64,
    /// The generation that the change made; the previous one, if proxies see no difference.
    pub generation: u64,
    /// The files' new texts; `None`: the file was deleted.
    pub files: BTreeMap<PathBuf, Option<String>>,
    /// The objects of sources without files that changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectChange>,
    /// The objects that changed, with their places.
    pub causes: Vec<String>,
}

impl Change {
    /// The change of these entries (`None`: the entry is gone), noticed `at` this time in µs since 1970.
    pub fn new(
        at: u64,
        generation: u64,
        causes: Vec<String>,
        entries: impl IntoIterator<Item = (EntryName, Option<Content>)>,
    ) -> Self {
        let mut this = Self { at, generation, files: BTreeMap::new(), objects: Vec::new(), causes };
        for (entry, content) in entries {
            match (entry, content) {
                (EntryName::File(path), Some(Content::Text(text))) => {
                    this.files.insert(path.to_path_buf(), Some(text));
                }
                (EntryName::File(path), _) => {
                    this.files.insert(path.to_path_buf(), None);
                }
                (EntryName::Object(object), content) => {
                    this.objects.push(ObjectChange { id: ObjectId::from(&object), new: content.and_then(object_of) });
                }
            }
        }
        this
    }
}

fn object_of(content: Content) -> Option<ObjectContent> {
    match content {
        Content::Object(object) => Some(object.into()),
        Content::Text(_) => None,
    }
}

fn text_of(content: Content) -> Option<String> {
    match content {
        Content::Text(text) => Some(text),
        Content::Object(_) => None,
    }
}

/// Returns the files and the objects among all entries, as a checkpoint has them.
pub fn split(
    entries: impl IntoIterator<Item = (EntryName, PastContent)>,
) -> (BTreeMap<PathBuf, FileText>, Vec<ObjectState>) {
    let (mut files, mut objects) = (BTreeMap::new(), Vec::new());
    for (entry, PastContent { good, present }) in entries {
        match entry {
            EntryName::File(path) => {
                let Some(present) = text_of(present) else { continue };
                files.insert(path.to_path_buf(), FileText { good: good.and_then(text_of), present });
            }
            EntryName::Object(object) => {
                let Some(present) = object_of(present) else { continue };
                objects.push(ObjectState { id: ObjectId::from(&object), good: good.and_then(object_of), present });
            }
        }
    }
    (files, objects)
}

/// What a proxy runs: it has acknowledged everything of this generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Its xDS node id.
    pub node: String,
    /// The generation.
    pub generation: u64,
    /// When it was first seen to run it, in µs since 1970.
    pub since: u64,
    router: bool,
    addresses: Vec<IpAddr>,
    pod: String,
    namespace: String,
    service_account: String,
    labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    locality: String,
    client: Client,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    takes_proxy_protocol: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_collector: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_log_service: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    proxy_config: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    authenticated: bool,
    captures_dns: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    interception: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    takes_hybrid_curve: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    cluster: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    network: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    peer_labels: Option<Vec<String>>,
    /// The resources of the generation that it rejected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
}

/// A resource that a proxy rejected: its type (`CDS`, …) and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Refused(pub String, pub String);

/// A proxy and the generation that it was seen to run.
#[derive(Debug, Clone, Copy)]
pub struct Running<'a> {
    /// Its xDS node id.
    pub node: &'a str,
    /// The properties that its configuration depends on.
    pub view: &'a ProxyView,
    /// The generation of which it has answered everything.
    pub generation: u64,
    /// The resources that it rejected.
    pub refused: &'a [Refused],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Client {
    Envoy,
    Full,
    Learned,
    Grpc,
}

impl Client {
    fn of(kind: ClientKind) -> Self {
        match kind {
            ClientKind::Envoy => Self::Envoy,
            ClientKind::EvenkeelFull => Self::Full,
            ClientKind::EvenkeelLearned => Self::Learned,
            ClientKind::Grpc => Self::Grpc,
        }
    }
}

impl Run {
    /// Creates the record of a proxy that runs a generation.
    pub fn new(running: Running<'_>, now: SystemTime) -> Self {
        let Running { node, view, generation, refused } = running;
        Self {
            node: node.to_owned(),
            generation,
            since: unix_micros(now),
            router: view.kind == ProxyKind::Router,
            addresses: view.addresses.clone(),
            pod: view.pod.to_string(),
            namespace: view.namespace.to_string(),
            service_account: view.service_account.to_string(),
            labels: view.labels.clone(),
            locality: view.locality.to_string(),
            client: Client::of(view.client_kind),
            takes_proxy_protocol: view.takes_proxy_protocol,
            has_collector: view.has_collector,
            has_log_service: view.has_log_service,
            proxy_config: view.proxy_config.to_string(),
            authenticated: view.authenticated,
            captures_dns: view.captures_dns,
            interception: view.interception.map(|mode| mode.as_str().to_owned()),
            takes_hybrid_curve: view.takes_hybrid_curve,
            cluster: view.cluster.to_string(),
            network: view.network.to_string(),
            peer_labels: view.peer_labels.as_ref().map(|labels| labels.iter().map(ToString::to_string).collect()),
            refused: refused.to_vec(),
        }
    }

    /// Returns the properties that its configuration depends on.
    pub fn view(&self) -> ProxyView {
        ProxyView {
            kind: if self.router { ProxyKind::Router } else { ProxyKind::Sidecar },
            addresses: self.addresses.clone(),
            pod: self.pod.as_str().into(),
            namespace: self.namespace.as_str().into(),
            service_account: self.service_account.as_str().into(),
            labels: self.labels.clone(),
            locality: self.locality.as_str().into(),
            client_kind: match self.client {
                Client::Envoy => ClientKind::Envoy,
                Client::Full => ClientKind::EvenkeelFull,
                Client::Learned => ClientKind::EvenkeelLearned,
                Client::Grpc => ClientKind::Grpc,
            },
            takes_proxy_protocol: self.takes_proxy_protocol,
            has_collector: self.has_collector,
            has_log_service: self.has_log_service,
            proxy_config: self.proxy_config.as_str().into(),
            authenticated: self.authenticated,
            captures_dns: self.captures_dns,
            interception: self.interception.as_deref().map(InterceptionMode::of_node),
            takes_hybrid_curve: self.takes_hybrid_curve,
            cluster: self.cluster.as_str().into(),
            network: self.network.as_str().into(),
            peer_labels: self.peer_labels.as_ref().map(|all| all.iter().map(|name| name.as_str().into()).collect()),
        }
    }

    /// Whether its configuration depends on exactly these properties; see [`Run::view`].
    fn is_of(&self, view: &ProxyView) -> bool {
        let client = Client::of(view.client_kind);
        (self.router, self.client) == (view.kind == ProxyKind::Router, client)
            && *self.pod == *view.pod
            && *self.namespace == *view.namespace
            && *self.service_account == *view.service_account
            && self.addresses == view.addresses
            && self.labels == view.labels
            && *self.locality == *view.locality
            && self.takes_proxy_protocol == view.takes_proxy_protocol
            && self.has_collector == view.has_collector
            && self.has_log_service == view.has_log_service
            && *self.proxy_config == *view.proxy_config
            && self.authenticated == view.authenticated
            && self.captures_dns == view.captures_dns
            && self.interception.as_deref() == view.interception.map(|mode| mode.as_str())
            && self.takes_hybrid_curve == view.takes_hybrid_curve
            && self.view().peer_labels == view.peer_labels
    }

    /// Returns `POD.NAMESPACE`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.pod, self.namespace)
    }

    /// Whether it is the proxy of a replica of this workload, by the pod's name: `WORKLOAD-HASH-SUFFIX` or `WORKLOAD-NUMBER`.
    pub fn is_replica_of(&self, wanted: &str) -> bool {
        let workload = wanted.strip_suffix(&format!(".{}", self.namespace)).unwrap_or(wanted);
        let rest = self.pod.strip_prefix(workload).and_then(|rest| rest.strip_prefix('-'));
        rest.is_some_and(|rest| !rest.is_empty() && rest.matches('-').count() <= 1)
    }

    /// Whether its pod's name, with or without the namespace, starts with `wanted`.
    pub fn begins_with(&self, wanted: &str) -> bool {
        match_name(wanted, &self.pod, &self.namespace, "").is_some()
    }

    /// Whether the user's name for a proxy means this one: a node id, `POD.NAMESPACE` or `POD`.
    pub fn is(&self, wanted: &str) -> bool {
        self.node == wanted || self.pod == wanted || self.name() == wanted
    }
}

/// The log being written. After a failed write nothing is written until the next segment begins; what proxies run is
/// remembered for that segment.
#[derive(Debug)]
pub struct EventLog {
    store: Store,
    /// `None`: the log is closed.
    segment: Option<Box<dyn Log>>,
    bytes: u64,
    changes: usize,
    /// The last generation that was written.
    generation: u64,
    /// What each proxy was last seen to run, and its number in the segment.
    proxies: BTreeMap<String, (u32, Run)>,
}

impl EventLog {
    /// Creates a log that is still closed.
    pub fn new(store: impl Into<Store>) -> Self {
        Self { store: store.into(), segment: None, bytes: 0, changes: 0, generation: 0, proxies: BTreeMap::new() }
    }

    /// Stops writing to this segment.
    #[cfg(test)]
    pub fn close(&mut self) {
        self.segment = None;
    }

    /// Whether the segment is long enough to begin the next.
    pub fn is_full(&self) -> bool {
        self.bytes >= MAX_SEGMENT_BYTES || self.changes >= MAX_SEGMENT_CHANGES
    }

    /// Begins a segment with the checkpoint and what proxies are known to run.
    pub fn begin(&mut self, mut checkpoint: Checkpoint) -> io::Result<()> {
        for text in checkpoint.files.values_mut() {
            let texts = text.good.iter_mut().chain([&mut text.present]);
            texts.for_each(|text| *text = without_secrets(text));
        }
        checkpoint.objects.retain(|object| !object.id.is_secret());
        // Generations made while the log was closed are unknown; proxies that run them are recorded again later.
        let is_told = |run: &Run| run.generation <= self.generation || run.generation >= checkpoint.generation;
        let mut proxies: Vec<Run> = self.proxies.values().map(|(_, run)| run.clone()).filter(is_told).collect();
        proxies.sort_by_key(|run| std::cmp::Reverse(run.since));
        proxies.truncate(MAX_PROXIES);
        let numbered = (0..).zip(&proxies).map(|(number, run)| (run.node.clone(), (number, run.clone())));
        let known = numbered.collect();
        let (generation, at) = (checkpoint.generation, checkpoint.at);
        let line = line(&Record::Checkpoint(Box::new(Checkpoint { proxies, ..checkpoint })))?;
        let segment = begin_segment(&self.store, at, line.as_bytes())?;
        (self.segment, self.bytes, self.changes) = (Some(segment), line.len() as u64, 0);
        (self.generation, self.proxies) = (generation, known);
        self.drop_oldest()
    }

    /// Records a change of files.
    pub fn change(&mut self, mut change: Change) -> io::Result<()> {
        change.files.values_mut().flatten().for_each(|text| *text = without_secrets(text));
        change.objects.retain(|object| !object.id.is_secret());
        let generation = change.generation;
        self.changes += 1;
        self.append(&Record::Change(change))?;
        if self.segment.is_some() {
            self.generation = generation;
        }
        Ok(())
    }

    /// Records what these proxies run since `at`, because the generation changed or they have connected, perhaps from another
    /// control plane. A known proxy that rejects the same as before takes only a number.
    pub fn run<'a>(&mut self, at: SystemTime, proxies: impl IntoIterator<Item = Running<'a>>) -> io::Result<()> {
        let (mut new, mut moved) = (Vec::new(), BTreeMap::<u64, Vec<u32>>::new());
        for running in proxies.into_iter().filter(|running| running.generation > 0) {
            match self.proxies.get_mut(running.node) {
                Some((number, run)) if run.is_of(running.view) && run.refused == running.refused => {
                    (run.generation, run.since) = (running.generation, unix_micros(at));
                    moved.entry(running.generation).or_default().push(*number);
                }
                _ => new.push(Run::new(running, at)),
            }
        }
        for run in &new {
            let next = u32::try_from(self.proxies.len()).unwrap_or(u32::MAX);
            let known = self.proxies.entry(run.node.clone()).or_insert_with(|| (next, run.clone()));
            known.1 = run.clone();
        }
        let at = unix_micros(at);
        for (generation, numbers) in moved {
            self.append(&Record::Moved { at, generation, proxies: rows(numbers) })?;
        }
        if new.is_empty() { Ok(()) } else { self.append(&Record::Run { at, proxies: new }) }
    }

    fn append(&mut self, record: &Record) -> io::Result<()> {
        let Some(segment) = &mut self.segment else { return Ok(()) };
        let line = line(record)?;
        self.bytes += line.len() as u64;
        // Nothing behind an incomplete line can be read.
        segment.append(line.as_bytes()).inspect_err(|_| self.segment = None)
    }

    /// Deletes the oldest segments, except those that others are writing. Others may have deleted some meanwhile.
    fn drop_oldest(&self) -> io::Result<()> {
        let segments = segments(&self.store)?;
        let surplus = segments.len().saturating_sub(MAX_SEGMENTS);
        for key in segments.iter().take(surplus) {
            if !self.store.is_held(key)? {
                self.store.remove(key)?;
            }
        }
        Ok(())
    }
}

fn line(record: &Record) -> io::Result<String> {
    let json = serde_json::to_string(record)?;
    Ok(format!("{:016x} {json}\n", checksum(json.as_bytes())))
}

/// Returns numbers as ranges without gaps: first and last.
fn rows(mut numbers: Vec<u32>) -> Vec<(u32, u32)> {
    numbers.sort_unstable();
    let mut rows: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match rows.last_mut() {
            Some((_, last)) if number <= last.saturating_add(1) => *last = number,
            _ => rows.push((number, number)),
        }
    }
    rows
}

/// Reads the segments of a store, the oldest first. Everything after an incomplete or damaged line is left out.
pub fn read(store: &Store) -> io::Result<Vec<Vec<Record>>> {
    let mut all = Vec::new();
    for key in existing(store)? {
        // It may have been deleted since the names were read.
        let Some(bytes) = store.get(&key)? else { continue };
        let mut records = Vec::new();
        for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let Some(record) = read_line(line) else {
                tracing::warn!(path = %store.place(&key).display(), line = number + 1, "the record is torn; what follows is left out");
                break;
            };
            records.push(record);
        }
        all.push(records);
    }
    Ok(all)
}

/// Returns the past texts of the wanted files in chronological order, each since the file was last created.
pub fn texts(store: &Store, wanted: impl Fn(&Path) -> bool) -> io::Result<BTreeMap<PathBuf, VecDeque<String>>> {
    let mut all = PastTexts::default();
    for key in existing(store)? {
        // It may have been deleted since the names were read.
        let Some(bytes) = store.get(&key)? else { continue };
        for record in bytes.split_inclusive(|byte| *byte == b'\n').map_while(read_line) {
            match record {
                Record::Checkpoint(checkpoint) => {
                    all.files.retain(|path, _| checkpoint.files.contains_key(path));
                    for (path, text) in checkpoint.files.into_iter().filter(|(path, _)| wanted(path)) {
                        text.good.into_iter().chain([text.present]).for_each(|text| all.add(&path, text));
                    }
                }
                Record::Change(change) => {
                    for (path, text) in change.files.into_iter().filter(|(path, _)| wanted(path)) {
                        match text {
                            Some(text) => all.add(&path, text),
                            None => {
                                all.files.remove(&path);
                            }
                        }
                    }
                }
                Record::Run { .. } | Record::Moved { .. } => {}
            }
        }
    }
    Ok(all.files)
}

/// Returns the past contents of the wanted objects in chronological order, each since the object was last created; at most
/// [`MAX_PAST_TEXTS`] of each.
pub fn objects(store: &Store, wanted: impl Fn(&ObjectRef) -> bool) -> io::Result<BTreeMap<ObjectRef, Vec<PastObject>>> {
    let mut all: BTreeMap<ObjectRef, Vec<PastObject>> = BTreeMap::new();
    let reference = |id: &ObjectId| id.key().map(|key| key.at(&id.source())).filter(|object| wanted(object));
    let add = |contents: &mut Vec<PastObject>, content: &ObjectContent| {
        contents.push(content.into());
        let surplus = contents.len().saturating_sub(MAX_PAST_TEXTS);
        contents.drain(..surplus).for_each(drop);
    };
    for key in existing(store)? {
        let Some(bytes) = store.get(&key)? else { continue };
        for record in bytes.split_inclusive(|byte| *byte == b'\n').map_while(read_line) {
            match record {
                Record::Checkpoint(checkpoint) => {
                    let present: Vec<_> =
                        checkpoint.objects.iter().filter_map(|state| Some((reference(&state.id)?, state))).collect();
                    all.retain(|known, _| present.iter().any(|(object, _)| object == known));
                    for (object, state) in present {
                        let contents = all.entry(object).or_default();
                        state.good.iter().chain([&state.present]).for_each(|content| add(contents, content));
                    }
                }
                Record::Change(change) => {
                    for (object, change) in change.objects.iter().filter_map(|own| Some((reference(&own.id)?, own))) {
                        match &change.new {
                            Some(content) => add(all.entry(object).or_default(), content),
                            None => _ = all.remove(&object),
                        }
                    }
                }
                Record::Run { .. } | Record::Moved { .. } => {}
            }
        }
    }
    Ok(all)
}

#[derive(Default)]
struct PastTexts {
    files: BTreeMap<PathBuf, VecDeque<String>>,
    /// Size of all texts, including those of deleted files.
    bytes: usize,
}

impl PastTexts {
    /// Adds a text; beyond the limits the oldest text of the file is dropped.
    fn add(&mut self, path: &Path, text: String) {
        let texts = self.files.entry(path.to_owned()).or_default();
        if texts.back() == Some(&text) {
            return;
        }
        self.bytes += text.len();
        texts.push_back(text);
        while texts.len() > MAX_PAST_TEXTS || self.bytes > MAX_PAST_BYTES && texts.len() > 1 {
            self.bytes -= texts.pop_front().map_or(0, |text| text.len());
        }
    }
}

fn read_line(line: &[u8]) -> Option<Record> {
    let text = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (sum, json) = text.split_once(' ')?;
    let sum = u64::from_str_radix(sum, 16).ok()?;
    (sum == checksum(json.as_bytes())).then(|| serde_json::from_str(json).ok()).flatten()
}

/// Begins a segment, named by time so that names sort chronologically.
fn begin_segment(store: &Store, at: u64, first: &[u8]) -> io::Result<Box<dyn Log>> {
    let last = segments(store)?.last().and_then(|key| key.rsplit_once('/')?.1.strip_suffix(EXTENSION)?.parse().ok());
    let mut name = last.map_or(at, |last: u64| at.max(last.saturating_add(1)));
    loop {
        match store.begin_log(&format!("{FOLDER}/{name:020}{EXTENSION}"), first, Begin::New) {
            // Another control plane has created it first.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && name < u64::MAX => name += 1,
            begun => return begun,
        }
    }
}

/// Returns the keys of the segments, the oldest first.
///
/// # Errors
/// Also if there has never been one: the store is perhaps not that of a control plane.
fn existing(store: &Store) -> io::Result<Vec<String>> {
    match store.version(FOLDER)? {
        Some(_) => segments(store),
        None => Err(ErrorKind::NotFound.into()),
    }
}

/// Returns the keys of the segments, the oldest first; none if there has never been one.
fn segments(store: &Store) -> io::Result<Vec<String>> {
    let names = store.list(FOLDER)?.into_iter().filter(|name| name.ends_with(EXTENSION));
    Ok(names.map(|name| format!("{FOLDER}/{name}")).collect())
}

/// Returns the 64-bit FNV-1a hash.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the time in microseconds since 1970.
pub fn unix_micros(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
