//! Playing the log back: what a proxy ran at some time, and what made it so.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_base::suggest;
use evenkeel_model::{Builder, MeshConfig, Snapshot};
use evenkeel_translate::Translator;
use evenkeel_xds::{Cause, Resource, ResourceSet, ResourceType};

use super::log::{self, Change, Checkpoint, Record, Run, Writer};
use crate::source::files::Files;

/// Why the past cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The log.
    #[error("cannot read the history in {}: {reason}", .state.display())]
    Read {
        /// The state directory.
        state: PathBuf,
        /// The system's word.
        reason: io::Error,
    },
    /// Nobody of that name was connected by then.
    #[error("no proxy `{wanted}` had acknowledged anything by then; {known}")]
    NoProxy {
        /// Who was asked about.
        wanted: String,
        /// Who was there instead.
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
    pub set: Arc<ResourceSet>,
    /// How many units of resources were made for it, the cost of the answer: those of the first generation of the segment,
    /// and after that what each change touched.
    pub units_made: u64,
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

/// What `wanted` (a node id, `POD.NAMESPACE`, `POD`, or a workload: of its replicas the one seen last) ran at `at`, in µs since
/// 1970.
pub fn past(state: &Path, wanted: &str, at: u64) -> Result<Past, HistoryError> {
    let segments = log::read(state).map_err(|reason| HistoryError::Read { state: state.to_owned(), reason })?;
    let seen = last_run(&segments, wanted, at)?;
    let now = last_run(&segments, wanted, u64::MAX)?;
    let Followed { set, made_by, units_made } = follow(&segments, &seen)?;
    let latest = if now == seen { set.clone() } else { at_end(&segments, &now)? };
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
        node: seen.run.node.clone(),
        generation: seen.run.generation,
        resources: resources.collect(),
        since: since.collect(),
        set,
        units_made,
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

/// What a proxy was seen to run, and which control plane counted the generation.
#[derive(Debug, Clone, PartialEq)]
struct Seen<'s> {
    run: Run,
    writer: &'s Writer,
}

/// What a proxy was last seen to run by then, by whichever control plane.
fn last_run<'s>(segments: &'s [Vec<Record>], wanted: &str, at: u64) -> Result<Seen<'s>, HistoryError> {
    let mut known: BTreeMap<&str, Seen<'_>> = BTreeMap::new();
    for records in segments {
        let Some(Record::Checkpoint(checkpoint)) = records.first() else { continue };
        for (node, run) in last_runs(records, at) {
            if known.get(node).is_none_or(|known| known.run.since <= run.since) {
                known.insert(node, Seen { run, writer: &checkpoint.writer });
            }
        }
    }
    let last = |is_meant: &dyn Fn(&Run) -> bool| {
        known.values().filter(|seen| is_meant(&seen.run)).max_by_key(|seen| seen.run.since)
    };
    let found = last(&|run| run.is(wanted)).or_else(|| last(&|run| run.is_replica_of(wanted)));
    found.cloned().ok_or_else(|| {
        let names: Vec<String> = known.values().map(|seen| seen.run.name()).collect();
        let known = suggest::instead(wanted, names.iter().map(String::as_str));
        HistoryError::NoProxy { wanted: wanted.to_owned(), known }
    })
}

/// What each proxy that a segment names was last seen to run by then.
fn last_runs(records: &[Record], at: u64) -> impl Iterator<Item = (&str, Run)> {
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut runs: Vec<(&str, Option<Run>)> = Vec::new();
    for record in records {
        let named = match record {
            Record::Checkpoint(checkpoint) => checkpoint.proxies.as_slice(),
            Record::Run { proxies, .. } => proxies,
            Record::Change(_) => &[],
            Record::Moved { at: since, generation, proxies } => {
                let rows = proxies.iter().filter(|_| *since <= at);
                for number in rows.flat_map(|(first, last)| *first..=*last) {
                    let run = usize::try_from(number).ok().and_then(|number| runs.get_mut(number)?.1.as_mut());
                    if let Some(run) = run {
                        (run.generation, run.since) = (*generation, *since);
                    }
                }
                continue;
            }
        };
        for run in named {
            let number = *numbers.entry(&run.node).or_insert_with(|| {
                runs.push((&run.node, None));
                runs.len() - 1
            });
            if let Some((_, last)) = runs.get_mut(number).filter(|_| run.since <= at) {
                *last = Some(run.clone());
            }
        }
    }
    runs.into_iter().filter_map(|(node, run)| Some((node, run?)))
}

/// A proxy's resources at the end of a playback, and what made them.
struct Followed {
    set: Arc<ResourceSet>,
    made_by: BTreeMap<(ResourceType, Arc<str>), MadeBy>,
    units_made: u64,
}

/// Follows one proxy from the beginning of the segment: of each change only what it touches is made anew.
fn follow(segments: &[Vec<Record>], seen: &Seen<'_>) -> Result<Followed, HistoryError> {
    let (mut playback, changes) = begin(segments, seen)?;
    let view = Arc::new(seen.run.view());
    let mut translator = Translator::new(playback.snapshot.clone(), Cause::default());
    let mut set = translator.join(view.clone()).set();
    let mut made_by = BTreeMap::new();
    for change in changes {
        playback.take(change);
        let cause = Cause { generation: change.generation, time_us: change.at };
        translator.update(playback.snapshot.clone(), cause);
        let Some(now) = translator.joined(&view).map(|joined| joined.set()) else { continue };
        let made =
            MadeBy { generation: change.generation, at: change.at, causes: change.causes.iter().cloned().collect() };
        for (kind, name, _, new) in differing(&set, &now) {
            match new {
                Some(_) => drop(made_by.insert((kind, name), made.clone())),
                None => drop(made_by.remove(&(kind, name))),
            }
        }
        set = now;
    }
    Ok(Followed { set, made_by, units_made: translator.units_made() })
}

/// The proxy's resources, made once.
fn at_end(segments: &[Vec<Record>], seen: &Seen<'_>) -> Result<Arc<ResourceSet>, HistoryError> {
    let (mut playback, changes) = begin(segments, seen)?;
    changes.for_each(|change| playback.take(change));
    Ok(Arc::new(evenkeel_translate::resources(&seen.run.view(), &playback.snapshot, seen.run.generation)))
}

/// The beginning of the last segment that leads to what was seen, and the changes up to there.
fn begin<'s>(
    segments: &'s [Vec<Record>],
    seen: &Seen<'_>,
) -> Result<(Playback, impl Iterator<Item = &'s Change>), HistoryError> {
    let until = seen.run.generation;
    let checkpoint = |records: &'s Vec<Record>| match records.first() {
        Some(Record::Checkpoint(c)) if c.writer == *seen.writer && c.generation <= until => Some(&**c),
        _ => None,
    };
    let found = segments.iter().rev().find_map(|records| Some((checkpoint(records)?, records)));
    let (checkpoint, records) = found.ok_or(HistoryError::Forgotten(until))?;
    let changes = records.iter().filter_map(|record| match record {
        Record::Change(change) => Some(change),
        _ => None,
    });
    Ok((Playback::new(checkpoint.clone()), changes.take_while(move |change| change.generation <= until)))
}

/// Files and builder as they were.
struct Playback {
    files: Files,
    builder: Builder,
    snapshot: Arc<Snapshot>,
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
        Self { files, builder, snapshot }
    }

    fn take(&mut self, change: &Change) {
        let files = change.files.iter();
        let changed: Vec<_> = files.filter_map(|(path, text)| self.files.replay(path, text.as_deref())).collect();
        self.snapshot = self.builder.apply(changed).snapshot;
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write as _;
    use std::time::{Duration, UNIX_EPOCH};

    use evenkeel_model::{AddressBook, Labels};
    use evenkeel_testkit::Random;
    use evenkeel_translate::ProxyView;
    use evenkeel_translate::view::{ClientKind, ProxyKind};

    use super::*;
    use crate::history::log::{Change, EventLog, FileText};

    /// A control plane without sockets and clocks: one event per millisecond.
    struct Live {
        state: Arc<tempfile::TempDir>,
        files: Files,
        builder: Builder,
        snapshot: Arc<Snapshot>,
        log: EventLog,
        writer: Writer,
        generation: u64,
        now: u64,
        /// What the proxy ran from then on.
        ran: Vec<(u64, ResourceSet)>,
    }

    impl Live {
        fn new() -> Self {
            Self::sharing(Arc::new(tempfile::tempdir().expect("a directory")), "one")
        }

        /// One of several with this directory.
        fn sharing(state: Arc<tempfile::TempDir>, name: &str) -> Self {
            let builder = Builder::new(MeshConfig::default(), AddressBook::default()).checked(false);
            let files = Files::new(Vec::new());
            let writer = Writer { name: name.to_owned(), started: 0 };
            let mut log = EventLog::new(state.path());
            log.begin(checkpoint(&files, &builder, 0, &writer, 1)).expect("a log");
            let ran = Vec::new();
            Self { state, files, builder, snapshot: Arc::default(), log, writer, generation: 1, now: 0, ran }
        }

        fn checkpoint(&self) -> Checkpoint {
            checkpoint(&self.files, &self.builder, self.now, &self.writer, self.generation)
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
            let now = UNIX_EPOCH + Duration::from_micros(self.now);
            self.log.run(now, [("client", &view(), self.generation)]).expect("a record");
            self.ran.push((self.now, evenkeel_translate::resources(&view(), &self.snapshot, self.generation)));
        }

        fn restart(&mut self) {
            self.now += 1_000;
            (self.writer.started, self.generation) = (self.now, 1);
            self.log = EventLog::new(self.state.path());
            self.log.begin(self.checkpoint()).expect("a log");
        }

        fn check_all(&self) {
            for (at, expected) in &self.ran {
                let past = past(self.state.path(), "client-0.shop", *at).expect("a past");
                assert_eq!(bytes(&past.set), bytes(expected), "at {at}");
            }
        }
    }

    fn checkpoint(files: &Files, builder: &Builder, at: u64, writer: &Writer, generation: u64) -> Checkpoint {
        let text = |(path, good, present): (&Path, Option<&str>, &str)| {
            (path.to_owned(), FileText { good: good.map(str::to_owned), present: present.to_owned() })
        };
        Checkpoint {
            at,
            writer: writer.clone(),
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
            takes_proxy_protocol: false,
        }
    }

    fn bytes(set: &ResourceSet) -> Vec<(ResourceType, String, Vec<u8>)> {
        let all = ResourceType::ALL.into_iter().flat_map(|kind| set.of(kind).values().map(move |r| (kind, r)));
        all.map(|(kind, r)| (kind, r.name.to_string(), r.encoded().to_vec())).collect()
    }

    fn service(name: &str, port: usize) -> String {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{ports: [{{name: http, port: {port}}}]}}\n"
        )
    }

    #[test]
    fn plays_back_the_very_bytes() {
        let mut live = Live::new();
        let mut random = Random::new(0);
        for step in 0..240 {
            let name = format!("s{}", random.below(12));
            let path = format!("{name}.yaml");
            match random.below(8) {
                0 => live.edit(&path, None),
                1 => live.edit(&path, Some("apiVersion: v1\nkind: Service\nmetadata: {name: [}\n")),
                _ => live.edit(&path, Some(&service(&name, 80 + random.below(3)))),
            }
            match step {
                60 | 180 => live.log.begin(live.checkpoint()).expect("a segment"),
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

    /// As when the disk is full for a while.
    #[test]
    fn goes_on_after_a_time_in_which_nothing_could_be_written() {
        let mut live = Live::new();
        live.edit("a.yaml", Some(&service("a", 80)));
        live.acknowledge();
        live.log.close();
        for port in 81..84 {
            live.edit("a.yaml", Some(&service("a", port)));
            live.acknowledge();
            live.ran.pop();
        }
        // What can be told is what was written down.
        let before = past(live.state.path(), "client", live.now).expect("a past");
        assert_eq!(before.generation, 2);

        live.log.begin(live.checkpoint()).expect("a segment");
        live.edit("b.yaml", Some(&service("b", 80)));
        live.acknowledge();
        assert_eq!(past(live.state.path(), "client", live.now).expect("a past").generation, live.generation);
        live.check_all();

        // It ran a generation of which nothing was written down, and is behind the newest when the log goes on.
        live.log.close();
        live.edit("a.yaml", Some(&service("a", 90)));
        live.acknowledge();
        live.ran.pop();
        live.edit("a.yaml", Some(&service("a", 91)));
        live.log.begin(live.checkpoint()).expect("a segment");
        assert_eq!(past(live.state.path(), "client", live.now).expect("a past").generation, live.generation - 2);
        live.acknowledge();
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

        for name in ["client", "client.shop", "client-0", "client-0.shop"] {
            assert_eq!(super::past(live.state.path(), name, then).expect("a past").generation, 2, "{name}");
        }
        let run = Run::new("node", &ProxyView { pod: "web-7f9c-x2x4k".into(), ..view() }, 1, UNIX_EPOCH);
        let is_replica = |name: &&str| run.is_replica_of(name);
        assert!(["web", "web.shop", "web-7f9c"].iter().all(is_replica));
        assert!(!["we", "web-7f9c-x2x4k", "web.other", "7f9c", ""].iter().any(is_replica));

        let unknown = super::past(live.state.path(), "nobody", then).expect_err("no such proxy").to_string();
        assert!(unknown.contains("no proxy `nobody`") && unknown.contains("client"), "{unknown}");
    }

    /// A thousand proxies that follow a change are a few numbers; who changes its labels is written down anew.
    #[test]
    fn many_proxies_cost_few_bytes_and_each_is_found() {
        let mut live = Live::new();
        let mut views: Vec<(String, ProxyView)> =
            (0..1_000).map(|n| (format!("node-{n}"), ProxyView { pod: format!("pod-{n}").into(), ..view() })).collect();
        let mut random = Random::new(1);
        let mut expected = vec![0; views.len()];
        let mut all_at_once = 0;
        for step in 0..60 {
            live.edit("a.yaml", Some(&service("a", 80 + step)));
            live.now += 1_000;
            let now = UNIX_EPOCH + Duration::from_micros(live.now);
            let every = step % 4 == 3;
            let who: Vec<usize> = (0..views.len()).filter(|_| every || random.below(3) > 0).collect();
            if random.below(4) == 0 {
                views[who[0]].1.labels.insert("version".to_owned(), format!("v{step}"));
            }
            let before = size(&live);
            let runs = who.iter().map(|number| (&*views[*number].0, &views[*number].1, live.generation));
            live.log.run(now, runs).expect("a record");
            if step == 59 {
                all_at_once = size(&live) - before;
            }
            who.iter().for_each(|number| expected[*number] = live.generation);
            if step == 30 {
                live.log.begin(live.checkpoint()).expect("a segment");
            }
        }
        assert!(all_at_once < 1_000, "{all_at_once} bytes for 1,000 proxies that settled");
        let segments = log::read(live.state.path()).expect("segments");
        for ((node, view), expected) in views.iter().zip(expected) {
            let seen = last_run(&segments, node, live.now).expect("a run");
            assert_eq!((seen.run.generation, &seen.run.view()), (expected, view), "{node}");
        }
    }

    /// Bytes of the segments.
    fn size(live: &Live) -> u64 {
        let files = fs::read_dir(live.state.path().join("history")).expect("segments").filter_map(Result::ok);
        files.map(|file| file.metadata().expect("a file").len()).sum()
    }

    #[test]
    fn what_a_change_does_not_touch_is_not_made_anew() {
        let mut live = Live::new();
        for number in 0..50 {
            live.edit(&format!("s{number}.yaml"), Some(&service(&format!("s{number}"), 80)));
        }
        live.log.begin(live.checkpoint()).expect("a segment");
        live.acknowledge();
        let made = |live: &Live| past(live.state.path(), "client", live.now).expect("a past").units_made;
        let whole = made(&live);
        for edit in 0..20 {
            live.edit("s7.yaml", Some(&service("s7", 81 + edit)));
        }
        live.acknowledge();
        let more = made(&live) - whole;
        assert!(whole >= 50 && more <= 20 * 5, "{whole} units at first, {more} more for 20 edits");
        live.check_all();
    }

    #[test]
    fn control_planes_that_share_a_directory_write_side_by_side() {
        let mut one = Live::new();
        let mut two = Live::sharing(one.state.clone(), "two");
        let both = service("both", 80);
        one.edit("both.yaml", Some(&both));
        two.edit("both.yaml", Some(&both));
        // What the second counts is not what the first counts.
        two.edit("two.yaml", Some(&service("two", 80)));
        // The proxy is at one, at the other, and back.
        one.acknowledge();
        let last = |live: &Live| live.ran.last().map(|(_, set)| bytes(set)).expect("a run");
        let at = |live: &Live, time| bytes(&past(live.state.path(), "client", time).expect("a past").set);
        assert_eq!(at(&one, one.now), last(&one));
        two.now = one.now;
        two.acknowledge();
        assert_eq!(at(&one, two.now), last(&two));
        assert_ne!(last(&one), last(&two));
        let there = two.now;
        one.now = there;
        one.acknowledge();
        assert_eq!(at(&two, one.now), last(&one));
        assert_eq!(at(&two, there), last(&two));

        // One that begins many segments drops its own oldest, and leaves what the other is writing.
        for _ in 0..20 {
            one.now += 1_000;
            one.log.begin(one.checkpoint()).expect("a segment");
        }
        two.now = one.now;
        two.edit("late.yaml", Some(&service("late", 80)));
        two.acknowledge();
        assert_eq!(at(&one, two.now), last(&two));
        let kept = fs::read_dir(one.state.path().join("history")).expect("segments").count();
        assert!((8..=10).contains(&kept), "{kept} segments");
    }
}
