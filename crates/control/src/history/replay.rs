//! Playing the log back: what a proxy ran at some time, and what made it so.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use evenkeel_model::{Builder, MeshConfig, Snapshot};
use evenkeel_xds::{Resource, ResourceSet, ResourceType};

use super::log::{self, Checkpoint, Record, Run};
use crate::source::files::Files;

/// Why the past cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The log.
    #[error("cannot read the history: {0}")]
    Read(#[from] io::Error),
    /// Nobody of that name was connected by then.
    #[error("no proxy `{wanted}` had acknowledged anything by then; known: {known}")]
    NoProxy {
        /// Who was asked about.
        wanted: String,
        /// Who was there.
        known: String,
    },
    /// The log begins later.
    #[error("the log no longer holds generation {0}")]
    Forgotten(u64),
}

/// What a proxy ran at one time.
#[derive(Debug)]
pub struct Past {
    /// Its xDS node id.
    pub node: String,
    /// The generation it had acknowledged.
    pub generation: u64,
    /// Its resources.
    pub resources: Vec<ResourceAt>,
    /// What of them is different by the end of the log.
    pub since: Vec<Difference>,
    /// The same resources as they went over the wire.
    pub set: ResourceSet,
}

/// One resource, and what made it what it was.
#[derive(Debug)]
pub struct ResourceAt {
    /// Its type.
    pub kind: ResourceType,
    /// The resource.
    pub resource: Arc<Resource>,
    /// The generation that made it so; none if it was so when the log begins.
    pub made_by: Option<MadeBy>,
}

/// A generation and its causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeBy {
    /// The generation.
    pub generation: u64,
    /// When its change was noticed, in µs since 1970.
    pub at: u64,
    /// The objects that changed, with their places.
    pub causes: Arc<[String]>,
}

/// A resource that is another now.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its type.
    pub kind: ResourceType,
    /// Its name.
    pub name: String,
    /// `added`, `changed` or `removed`.
    pub what: &'static str,
}

/// What `wanted` (a node id, `POD.NAMESPACE` or `POD`) ran at `at`, in µs since 1970.
pub fn past(state: &Path, wanted: &str, at: u64) -> Result<Past, HistoryError> {
    let segments = log::read(state)?;
    let (run, started) = last_run(&segments, wanted, at)?;
    let (now, now_started) = last_run(&segments, wanted, u64::MAX)?;
    let view = run.view();

    let mut made_by: BTreeMap<(ResourceType, Arc<str>), MadeBy> = BTreeMap::new();
    let mut before: Option<ResourceSet> = None;
    play(&segments, started, run.generation, |snapshot, generation, made| {
        let set = evenkeel_translate::resources(&view, snapshot, generation);
        if let (Some(before), Some(made)) = (&before, &made) {
            for (kind, name, _, new) in differing(before, &set) {
                match new {
                    Some(_) => drop(made_by.insert((kind, name), made.clone())),
                    None => drop(made_by.remove(&(kind, name))),
                }
            }
        }
        before = Some(set);
    })?;
    let set = before.ok_or(HistoryError::Forgotten(run.generation))?;

    let mut latest: Option<ResourceSet> = None;
    let now_view = now.view();
    play(&segments, now_started, now.generation, |snapshot, generation, _| {
        if generation == now.generation {
            latest = Some(evenkeel_translate::resources(&now_view, snapshot, generation));
        }
    })?;
    let latest = latest.ok_or(HistoryError::Forgotten(now.generation))?;
    let since = differing(&set, &latest).into_iter().map(|(kind, name, old, new)| Difference {
        kind,
        name: name.to_string(),
        what: match (old, new) {
            (None, _) => "added",
            (_, None) => "removed",
            _ => "changed",
        },
    });

    let all = ResourceType::ALL.into_iter().flat_map(|kind| set.of(kind).values().map(move |r| (kind, r.clone())));
    let resources = all.map(|(kind, resource)| ResourceAt {
        kind,
        made_by: made_by.get(&(kind, resource.name.clone())).cloned(),
        resource,
    });
    Ok(Past {
        node: run.node.clone(),
        generation: run.generation,
        resources: resources.collect(),
        since: since.collect(),
        set,
    })
}

type Pair = (ResourceType, Arc<str>, Option<Arc<Resource>>, Option<Arc<Resource>>);

/// The resources in which two sets differ.
fn differing(old: &ResourceSet, new: &ResourceSet) -> Vec<Pair> {
    let mut found: Vec<Pair> = Vec::new();
    for kind in ResourceType::ALL {
        for resource in new.of(kind).values() {
            let before = old.get(kind, &resource.name);
            if before.is_none_or(|before| before.version != resource.version) {
                found.push((kind, resource.name.clone(), before.cloned(), Some(resource.clone())));
            }
        }
        let gone = old.of(kind).values().filter(|resource| new.get(kind, &resource.name).is_none());
        found.extend(gone.map(|resource| (kind, resource.name.clone(), Some(resource.clone()), None)));
    }
    found
}

/// What a proxy was last seen to run by then, and when the control plane that served it had started.
fn last_run<'s>(segments: &'s [Vec<Record>], wanted: &str, at: u64) -> Result<(&'s Run, u64), HistoryError> {
    let mut known: BTreeMap<&str, (&Run, u64)> = BTreeMap::new();
    for records in segments {
        let Some(Record::Checkpoint(checkpoint)) = records.first() else { continue };
        for record in records {
            let (when, runs) = match record {
                Record::Checkpoint(checkpoint) => (checkpoint.at, &checkpoint.proxies),
                Record::Run { at, proxies } => (*at, proxies),
                Record::Change(_) => continue,
            };
            if when <= at {
                known.extend(runs.iter().map(|run| (run.node.as_str(), (run, checkpoint.started))));
            }
        }
    }
    known.values().find(|(run, _)| run.is(wanted)).copied().ok_or_else(|| HistoryError::NoProxy {
        wanted: wanted.to_owned(),
        known: known.keys().copied().collect::<Vec<_>>().join(", "),
    })
}

/// Builds the generations of one run of the control plane, up to `until`, each with what made it.
fn play(
    segments: &[Vec<Record>],
    started: u64,
    until: u64,
    mut each: impl FnMut(&Snapshot, u64, Option<MadeBy>),
) -> Result<(), HistoryError> {
    let checkpoint = |records: &'_ Vec<Record>| match records.first() {
        Some(Record::Checkpoint(c)) if c.started == started && c.generation <= until => Some((**c).clone()),
        _ => None,
    };
    let found = segments.iter().rev().find_map(|records| Some((checkpoint(records)?, records)));
    let (checkpoint, records) = found.ok_or(HistoryError::Forgotten(until))?;
    let mut playback = Playback::new(checkpoint);
    each(&playback.snapshot, playback.generation, None);
    for record in records {
        let Record::Change(change) = record else { continue };
        if change.generation > until {
            break;
        }
        playback.take(change);
        let causes = change.causes.iter().cloned().collect();
        each(
            &playback.snapshot,
            change.generation,
            Some(MadeBy { generation: change.generation, at: change.at, causes }),
        );
    }
    Ok(())
}

/// Files and builder as they were.
struct Playback {
    files: Files,
    builder: Builder,
    snapshot: Arc<Snapshot>,
    generation: u64,
}

impl Playback {
    fn new(checkpoint: Checkpoint) -> Self {
        let mesh = MeshConfig { trust_domain: checkpoint.trust_domain.as_str().into(), ..MeshConfig::default() };
        let mut builder = Builder::new(mesh, checkpoint.addresses).checked(false);
        let mut files = Files::new(Vec::new());
        let mut changed = Vec::new();
        for (path, text) in checkpoint.files {
            let good = text.good.into_iter().chain([text.present]);
            changed.extend(good.filter_map(|text| files.replay(&path, Some(&text))));
        }
        let snapshot = builder.apply(changed).snapshot;
        Self { files, builder, snapshot, generation: checkpoint.generation }
    }

    fn take(&mut self, change: &log::Change) {
        let files = change.files.iter();
        let changed: Vec<_> = files.filter_map(|(path, text)| self.files.replay(path, text.as_deref())).collect();
        self.snapshot = self.builder.apply(changed).snapshot;
        self.generation = change.generation;
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write as _;
    use std::path::PathBuf;
    use std::time::{Duration, UNIX_EPOCH};

    use evenkeel_model::{AddressBook, Labels};
    use evenkeel_translate::ProxyView;
    use evenkeel_translate::view::{ClientKind, ProxyKind};

    use super::*;
    use crate::history::log::{Change, EventLog, FileText};

    /// A control plane without sockets and clocks: one event per millisecond.
    struct Live {
        state: tempfile::TempDir,
        files: Files,
        builder: Builder,
        snapshot: Arc<Snapshot>,
        log: EventLog,
        started: u64,
        generation: u64,
        now: u64,
        /// What the proxy ran from then on.
        ran: Vec<(u64, ResourceSet)>,
    }

    impl Live {
        fn new() -> Self {
            let state = tempfile::tempdir().expect("a directory");
            let builder = Builder::new(MeshConfig::default(), AddressBook::default()).checked(false);
            let files = Files::new(Vec::new());
            let log = EventLog::open(state.path(), checkpoint(&files, &builder, 0, 0, 1)).expect("a log");
            let ran = Vec::new();
            Self { state, files, builder, snapshot: Arc::default(), log, started: 0, generation: 1, now: 0, ran }
        }

        fn checkpoint(&self) -> Checkpoint {
            checkpoint(&self.files, &self.builder, self.now, self.started, self.generation)
        }

        fn edit(&mut self, path: &str, text: Option<&str>) {
            self.now += 1_000;
            let changed = self.files.replay(Path::new(path), text);
            let snapshot = self.builder.apply(changed).snapshot;
            self.generation += u64::from(!Arc::ptr_eq(&snapshot, &self.snapshot));
            self.snapshot = snapshot;
            let files = BTreeMap::from([(PathBuf::from(path), text.map(str::to_owned))]);
            let causes = vec![path.to_owned()];
            let change = Change { at: self.now, generation: self.generation, files, causes };
            self.log.change(change).expect("a record");
        }

        fn acknowledge(&mut self) {
            self.now += 1_000;
            let run = Run::new("client", &view(), self.generation);
            self.log.run(UNIX_EPOCH + Duration::from_micros(self.now), [run]).expect("a record");
            self.ran.push((self.now, evenkeel_translate::resources(&view(), &self.snapshot, self.generation)));
        }

        fn restart(&mut self) {
            self.now += 1_000;
            (self.started, self.generation) = (self.now, 1);
            self.log = EventLog::open(self.state.path(), self.checkpoint()).expect("a log");
        }

        fn check_all(&self) {
            for (at, expected) in &self.ran {
                let past = past(self.state.path(), "client-0.shop", *at).expect("a past");
                assert_eq!(bytes(&past.set), bytes(expected), "at {at}");
            }
        }
    }

    fn checkpoint(files: &Files, builder: &Builder, at: u64, started: u64, generation: u64) -> Checkpoint {
        let text = |(path, good, present): (&Path, Option<&str>, &str)| {
            (path.to_owned(), FileText { good: good.map(str::to_owned), present: present.to_owned() })
        };
        Checkpoint {
            at,
            started,
            generation,
            trust_domain: "cluster.local".to_owned(),
            addresses: builder.book().clone(),
            files: files.texts().map(text).collect(),
            proxies: Vec::new(),
        }
    }

    fn view() -> ProxyView {
        ProxyView {
            kind: ProxyKind::Sidecar,
            addresses: vec![[10, 0, 0, 9].into()],
            pod: "client-0".into(),
            namespace: "shop".into(),
            service_account: "client".into(),
            labels: Labels::new(),
            client_kind: ClientKind::Envoy,
        }
    }

    fn bytes(set: &ResourceSet) -> Vec<(ResourceType, String, Vec<u8>)> {
        let all = ResourceType::ALL.into_iter().flat_map(|kind| set.of(kind).values().map(move |r| (kind, r)));
        all.map(|(kind, r)| (kind, r.name.to_string(), r.encoded().to_vec())).collect()
    }

    fn service(name: &str, port: u64) -> String {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{ports: [{{name: http, port: {port}}}]}}\n"
        )
    }

    #[test]
    fn plays_back_the_very_bytes() {
        let mut live = Live::new();
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        for step in 0..240 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let name = format!("s{}", random % 12);
            let path = format!("{name}.yaml");
            match random >> 32 & 7 {
                0 => live.edit(&path, None),
                1 => live.edit(&path, Some("apiVersion: v1\nkind: Service\nmetadata: {name: [}\n")),
                _ => live.edit(&path, Some(&service(&name, 80 + (random >> 40) % 3))),
            }
            match step {
                60 | 180 => live.log.rotate(live.checkpoint()).expect("a segment"),
                120 => live.restart(),
                _ => {}
            }
            if step % 12 == 5 {
                live.acknowledge();
            }
        }
        assert!(live.ran.len() >= 20 && live.ran.iter().any(|(_, set)| bytes(set).len() > 10));
        live.check_all();

        // A crash in the middle of a record.
        let last = fs::read_dir(live.state.path().join("history")).expect("segments").filter_map(Result::ok);
        let last = last.map(|entry| entry.path()).max().expect("a segment");
        let mut file = OpenOptions::new().append(true).open(last).expect("a segment");
        file.write_all(b"0123456789abcdef {\"event\":\"cha").expect("half a record");
        live.check_all();
    }

    #[test]
    fn says_what_made_a_resource_and_what_came_since() {
        let mut live = Live::new();
        live.edit("a.yaml", Some(&service("a", 80)));
        live.acknowledge();
        let then = live.now;
        live.edit("b.yaml", Some(&service("b", 80)));
        live.edit("a.yaml", Some(&service("a", 81)));
        live.acknowledge();
        let past = past(live.state.path(), "client", then).expect("a past");
        let cluster = past.resources.iter().find(|at| &*at.resource.name == "outbound|80||a.shop.svc.cluster.local");
        let made_by = cluster.and_then(|at| at.made_by.clone()).expect("a cause");
        assert_eq!((made_by.at, &*made_by.causes), (1_000, &["a.yaml".to_owned()][..]));
        let what = |name: &str| past.since.iter().find(|d| d.name == name).map(|d| d.what);
        assert_eq!(what("outbound|80||b.shop.svc.cluster.local"), Some("added"));
        assert_eq!(what("outbound|80||a.shop.svc.cluster.local"), Some("removed"));

        let unknown = super::past(live.state.path(), "nobody", then).expect_err("no such proxy").to_string();
        assert!(unknown.contains("no proxy `nobody`") && unknown.contains("client"), "{unknown}");
    }
}
