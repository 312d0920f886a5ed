//! The ledger records which workload has which certificate and trusts which roots. Each control plane appends lines to its
//! own file.
//!
//! A line is written before the fact takes effect: a certificate is in the ledger before its workload has it. So a rotation
//! never overlooks a workload, even if a control plane crashes at any point.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, BufReader, Read};
use std::time::Duration;

use evenkeel_store::{Begin, Log, Store};
use serde::{Deserialize, Serialize};

/// Folder of the ledgers in the store.
pub(super) const FOLDER: &str = "ca/ledger";

/// How long after its expiry a certificate may still be in use, at a workload whose clock is slow.
pub const HOLDER_SKEW: Duration = Duration::from_secs(300);
/// Maximum number of workloads in the ledger. Of further ones only the latest expiry of a certificate is kept.
pub const MAX_HOLDERS: usize = 100_000;
/// Maximum size of a ledger that is read, in bytes.
const MAX_BYTES: u64 = 256 * 1024 * 1024;
/// Number of lines after which a ledger is rewritten without outdated ones.
const COMPACT_AFTER: usize = 20_000;

/// One line of a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "lowercase")]
pub enum Record {
    /// A certificate is about to be handed out.
    Issued {
        /// The workload: its namespace, pod and address.
        name: String,
        /// The SPIFFE id.
        identity: String,
        /// The authority's id.
        signer: String,
        /// The certificate's serial number.
        serial: String,
        /// Version of the roots sent with it.
        bundle: String,
        /// When, in milliseconds since 1970.
        at: u64,
        /// End of its validity, in seconds since 1970.
        end: u64,
        /// Whether the configuration has the workload's Pod: then the certificate is out of use once the Pod is gone.
        pod: bool,
    },
    /// The Pod of this workload is gone, and its certificates are out of use.
    Gone {
        /// The workload.
        name: String,
        /// When, in milliseconds since 1970.
        at: u64,
    },
    /// A client has presented this certificate, so it has what was sent with it.
    Shown {
        /// The certificate's serial number.
        serial: String,
        /// When, in milliseconds since 1970.
        at: u64,
    },
    /// A client that presented this certificate has acknowledged roots.
    Trusts {
        /// The certificate's serial number.
        serial: String,
        /// The version of the roots.
        bundle: String,
        /// When, in milliseconds since 1970.
        at: u64,
    },
    /// The control plane runs this generation of the state.
    Runs {
        /// The generation.
        generation: u64,
    },
}

/// A workload with a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The SPIFFE id.
    pub identity: String,
    /// The authority of its newest certificate.
    pub signer: String,
    /// Beginning of the newest certificate's validity, in seconds since 1970.
    pub issued_at: u64,
    /// The latest expiry of its certificates, in seconds since 1970.
    pub not_after: u64,
    /// The expiry of its newest certificate.
    pub newest_not_after: u64,
    /// Whether it has presented its newest certificate.
    pub is_shown: bool,
    /// Whether the configuration had its Pod.
    pub is_pod: bool,
    /// Version of the roots that it is known to trust.
    pub bundle: Option<String>,
}

/// A running control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// Its name.
    pub name: String,
    /// The generation of the state that it runs.
    pub generation: u64,
}

/// The combined contents of all ledgers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledgers {
    /// Workloads by name.
    pub holders: BTreeMap<String, Holder>,
    /// Running control planes.
    pub replicas: Vec<Replica>,
    /// When the last certificate of workloads that are not in `holders` expires, in seconds since 1970.
    pub unknown_until: Option<u64>,
}

/// The ledger of one control plane, locked while it runs.
#[derive(Debug)]
pub struct Ledger {
    store: Store,
    key: String,
    log: Box<dyn Log>,
    lines: usize,
    /// Whether the last write failed, possibly in the middle of a line.
    is_torn: bool,
}

impl Ledger {
    /// Opens a new ledger of that name, and takes over those of control planes that have ended. The caller holds the lease.
    pub fn open(store: impl Into<Store>, name: &str, now: u64) -> io::Result<Self> {
        let store = store.into();
        let mut fold = Fold::default();
        let mut ended = Vec::new();
        for key in keys(&store)? {
            if !store.is_held(&key)? && fold.read(&store, &key)? {
                ended.push(key);
            }
        }
        let key = format!("{FOLDER}/{name}.{EXTENSION}");
        let this = Self::begin(store, key, &fold.lines(now))?;
        ended.iter().filter(|old| **old != this.key).for_each(|old| _ = this.store.remove(old));
        Ok(this)
    }

    /// Appends a line. Other processes can see it when this returns.
    pub fn append(&mut self, record: &Record, now: u64) -> io::Result<()> {
        if self.lines >= COMPACT_AFTER {
            self.compact(now)?;
        }
        self.write(record)
    }

    /// Begins a log, which becomes visible to others only when it is held and complete.
    fn begin(store: Store, key: String, records: &[Record]) -> io::Result<Self> {
        let log = store.begin_log(&key, &text(records)?, Begin::Replace)?;
        Ok(Self { store, key, log, lines: records.len(), is_torn: false })
    }

    fn write(&mut self, record: &Record) -> io::Result<()> {
        let mut bytes = text(std::slice::from_ref(record))?;
        if self.is_torn {
            bytes.insert(0, b'\n');
        }
        self.lines += 1;
        let written = self.log.append(&bytes);
        self.is_torn = written.is_err();
        written
    }

    fn compact(&mut self, now: u64) -> io::Result<()> {
        let mut fold = Fold::default();
        fold.read(&self.store, &self.key)?;
        let generation = fold.generation;
        let mut records = fold.lines(now);
        records.push(Record::Runs { generation });
        let mut next = Self::begin(self.store.clone(), self.key.clone(), &records)?;
        // Lines that cannot be dropped must not cause a rewrite with every line.
        next.lines = next.lines.min(COMPACT_AFTER / 2);
        *self = next;
        Ok(())
    }
}

impl Ledgers {
    /// Reads all ledgers of a store.
    pub fn read(store: impl Into<Store>) -> io::Result<Self> {
        let store = store.into();
        let mut fold = Fold::default();
        let mut replicas = Vec::new();
        for key in keys(&store)? {
            // A ledger that is held has a running owner.
            let runs = store.is_held(&key)?;
            fold.generation = 0;
            if fold.read(&store, &key)? && runs {
                let name = key.strip_prefix(FOLDER).unwrap_or_default().trim_start_matches('/');
                let name =
                    name.strip_suffix(EXTENSION).and_then(|name| name.strip_suffix('.')).unwrap_or(name).to_owned();
                replicas.push(Replica { name, generation: fold.generation });
            }
        }
        replicas.sort_by(|a, b| a.name.cmp(&b.name));
        let (holders, unknown_until) = fold.holders();
        Ok(Self { holders, replicas, unknown_until })
    }

    /// Evaluates lines, without files.
    pub fn of(records: impl IntoIterator<Item = Record>) -> Self {
        let mut fold = Fold::default();
        records.into_iter().for_each(|record| fold.add(record));
        let (holders, unknown_until) = fold.holders();
        Self { holders, replicas: Vec::new(), unknown_until }
    }
}

const EXTENSION: &str = "ledger";

fn keys(store: &Store) -> io::Result<Vec<String>> {
    let is_ledger = |name: &String| name.ends_with(&format!(".{EXTENSION}"));
    let names = store.list(FOLDER)?.into_iter().filter(is_ledger);
    Ok(names.map(|name| format!("{FOLDER}/{name}")).collect())
}

fn text(records: &[Record]) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for record in records {
        serde_json::to_writer(&mut text, record)?;
        text.push(b'\n');
    }
    Ok(text)
}

/// An issued certificate.
#[derive(Debug, Clone)]
struct Leaf {
    name: String,
    identity: String,
    signer: String,
    bundle: String,
    at: u64,
    end: u64,
    pod: bool,
}

/// The state after the lines read so far.
#[derive(Debug, Default)]
struct Fold {
    leaves: HashMap<String, Leaf>,
    /// When each certificate was first presented.
    shown: HashMap<String, u64>,
    /// The roots last acknowledged on connections with each certificate.
    trusts: HashMap<String, (u64, String)>,
    /// When Pods were found to be gone.
    gone: HashMap<String, u64>,
    generation: u64,
    unknown_until: Option<u64>,
}

impl Fold {
    /// Adds the lines of a ledger. Returns whether there is one.
    fn read(&mut self, store: &Store, key: &str) -> io::Result<bool> {
        let Some(reader) = store.reader(key)? else { return Ok(false) };
        let bounded = BufReader::new(reader.take(MAX_BYTES));
        for line in bounded.lines() {
            // A crash may have cut off the last line; its fact had not taken effect.
            if let Ok(record) = serde_json::from_str(&line?) {
                self.add(record);
            }
        }
        Ok(true)
    }

    fn add(&mut self, record: Record) {
        match record {
            Record::Issued { name, identity, signer, serial, bundle, at, end, pod } => {
                if self.leaves.len() >= 3 * MAX_HOLDERS && !self.leaves.contains_key(&serial) {
                    self.unknown_until = self.unknown_until.max(Some(end));
                    return;
                }
                self.leaves.insert(serial, Leaf { name, identity, signer, bundle, at, end, pod });
            }
            Record::Shown { serial, at } => {
                let first = self.shown.entry(serial).or_insert(at);
                *first = at.min(*first);
            }
            Record::Trusts { serial, bundle, at } => {
                let last = self.trusts.entry(serial).or_default();
                if last.0 <= at {
                    *last = (at, bundle);
                }
            }
            Record::Gone { name, at } => {
                let last = self.gone.entry(name).or_default();
                *last = at.max(*last);
            }
            Record::Runs { generation } => self.generation = self.generation.max(generation),
        }
    }

    /// Returns the lines that express what is still relevant at `now`.
    fn lines(&self, now: u64) -> Vec<Record> {
        let margin = HOLDER_SKEW.as_secs();
        let mut lines = Vec::new();
        let counts = |leaf: &Leaf| leaf.end.saturating_add(margin) > now && !self.is_gone(leaf);
        for (serial, leaf) in self.leaves.iter().filter(|(_, leaf)| counts(leaf)) {
            lines.push(Record::Issued {
                name: leaf.name.clone(),
                identity: leaf.identity.clone(),
                signer: leaf.signer.clone(),
                serial: serial.clone(),
                bundle: leaf.bundle.clone(),
                at: leaf.at,
                end: leaf.end,
                pod: leaf.pod,
            });
            if let Some(at) = self.shown.get(serial) {
                lines.push(Record::Shown { serial: serial.clone(), at: *at });
            }
            if let Some((at, bundle)) = self.trusts.get(serial) {
                lines.push(Record::Trusts { serial: serial.clone(), bundle: bundle.clone(), at: *at });
            }
        }
        lines
    }

    fn is_gone(&self, leaf: &Leaf) -> bool {
        leaf.pod && self.gone.get(&leaf.name).is_some_and(|at| leaf.at <= *at)
    }

    fn holders(&self) -> (BTreeMap<String, Holder>, Option<u64>) {
        let mut newest: BTreeMap<&str, (&str, &Leaf)> = BTreeMap::new();
        let mut ends: HashMap<&str, u64> = HashMap::new();
        let mut trusted: HashMap<&str, (u64, &str)> = HashMap::new();
        for (serial, leaf) in self.leaves.iter().filter(|(_, leaf)| !self.is_gone(leaf)) {
            let of = newest.entry(&leaf.name).or_insert((serial, leaf));
            // Of two certificates issued at the same moment the presented one is in use; the answer with the other was lost.
            let order = |serial: &str, leaf: &Leaf| (leaf.at, self.shown.contains_key(serial));
            if (order(of.0, of.1), of.0) < (order(serial, leaf), serial.as_str()) {
                *of = (serial, leaf);
            }
            let end = ends.entry(&leaf.name).or_default();
            *end = leaf.end.max(*end);
            let with_it = self.shown.get(serial).map(|at| (*at, leaf.bundle.as_str()));
            let acknowledged = self.trusts.get(serial).map(|(at, bundle)| (*at, bundle.as_str()));
            for known in with_it.into_iter().chain(acknowledged) {
                let last = trusted.entry(&leaf.name).or_insert(known);
                if last.0 <= known.0 {
                    *last = known;
                }
            }
        }
        let mut unknown_until = self.unknown_until;
        let mut holders = BTreeMap::new();
        for (name, (serial, leaf)) in newest {
            let end = ends.get(name).copied().unwrap_or(leaf.end);
            if holders.len() >= MAX_HOLDERS {
                unknown_until = unknown_until.max(Some(end));
                continue;
            }
            let holder = Holder {
                identity: leaf.identity.clone(),
                signer: leaf.signer.clone(),
                issued_at: leaf.at / 1000,
                not_after: end,
                newest_not_after: leaf.end,
                is_pod: leaf.pod,
                is_shown: self.shown.contains_key(serial),
                bundle: trusted.get(name).map(|(_, bundle)| (*bundle).to_owned()),
            };
            holders.insert(name.to_owned(), holder);
        }
        (holders, unknown_until)
    }
}
