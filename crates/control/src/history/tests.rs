//! A control plane without sockets and clocks writes its log, and the replay is compared with what it had.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use evenkeel_api::ObjectKey;
use evenkeel_base::{Rank, SourceId};
use evenkeel_model::{AddressBook, Builder, JwksFetching, Labels, MeshConfig, Snapshot, Source};
use evenkeel_store::Store;
use evenkeel_testkit::Random;
use evenkeel_translate::ProxyView;
use evenkeel_translate::view::{ClientKind, ProxyKind};
use evenkeel_xds::{ResourceSet, ResourceType};

use super::log::{self, Change, Checkpoint, EventLog, FileText, Refused, Run, Running, Writer};
use super::past::{self, past};
use super::seen::last_run;
use super::{HistoryQuery, answer};
use crate::source::LiveSource;
use crate::source::feed::ObjectFeed;
use crate::source::files::Files;

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
    leave_out_refused: bool,
    /// The resources that the proxy rejects.
    refused: Vec<Refused>,
    /// What the proxy ran, and since when.
    ran: Vec<(u64, ResourceSet)>,
}

impl Live {
    fn new() -> Self {
        Self::sharing(Arc::new(tempfile::tempdir().expect("a directory")), "one")
    }

    /// A control plane that leaves out security objects that are refused or not supported.
    fn leaving_out() -> Self {
        let mut live = Self::new();
        let mesh = MeshConfig { leave_out_refused: true, ..MeshConfig::default() };
        live.builder = Builder::new(mesh, AddressBook::default()).checked(false);
        live.leave_out_refused = true;
        live.log.begin(live.checkpoint()).expect("a segment");
        live
    }

    /// One of several control planes that share this directory.
    fn sharing(state: Arc<tempfile::TempDir>, name: &str) -> Self {
        let builder = Builder::new(MeshConfig::default(), AddressBook::default()).checked(false);
        let files = Files::new(Vec::new());
        let writer = Writer { name: name.to_owned(), started: 0 };
        let mut log = EventLog::new(state.path());
        log.begin(checkpoint(&files, &builder, 0, &writer, 1)).expect("a log");
        let ran = Vec::new();
        Self {
            state,
            files,
            builder,
            snapshot: Arc::default(),
            log,
            writer,
            generation: 1,
            now: 0,
            leave_out_refused: false,
            refused: Vec::new(),
            ran,
        }
    }

    fn checkpoint(&self) -> Checkpoint {
        let leave_out_refused = self.leave_out_refused;
        let own = checkpoint(&self.files, &self.builder, self.now, &self.writer, self.generation);
        Checkpoint { leave_out_refused, ..own }
    }

    fn edit(&mut self, path: &str, text: Option<&str>) {
        self.now += 1_000;
        self.files.replay(Path::new(path), text);
        let snapshot = self.builder.apply(self.files.tell()).snapshot;
        self.generation += u64::from(!Arc::ptr_eq(&snapshot, &self.snapshot));
        self.snapshot = snapshot;
        let files = BTreeMap::from([(PathBuf::from(path), text.map(str::to_owned))]);
        let causes = vec![path.to_owned()];
        let change = Change { at: self.now, generation: self.generation, files, objects: Vec::new(), causes };
        self.log.change(change).expect("a record");
    }

    fn acknowledge(&mut self) {
        self.now += 1_000;
        let now = UNIX_EPOCH + Duration::from_micros(self.now);
        let running = Running { node: "client", view: &view(), generation: self.generation, refused: &self.refused };
        self.log.run(now, [running]).expect("a record");
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
        leave_out_refused: false,
        on_one_machine: false,
        jwks_fetching: JwksFetching::default(),
        addresses: builder.book().clone(),
        files: files.texts().map(text).collect(),
        objects: Vec::new(),
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
        has_collector: false,
        has_log_service: false,
        proxy_config: "".into(),
        authenticated: false,
        captures_dns: true,
        interception: None,
        takes_hybrid_curve: false,
        locality: "".into(),
        cluster: "".into(),
        network: "".into(),
        peer_labels: None,
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
fn knows_what_was_left_out() {
    let tokens = "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: a, namespace: shop}\n\
        spec: {jwtRulez: []}\n";
    let ran = |mut live: Live| {
        live.edit("a.yaml", Some(&service("a", 80)));
        live.edit("tokens.yaml", Some(tokens));
        live.acknowledge();
        live.check_all();
        bytes(&live.ran[0].1)
    };
    assert_ne!(ran(Live::new()), ran(Live::leaving_out()), "the option decides about the proxy's filters");
}

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
    // Only what was written down can be told.
    let before = past(live.state.path(), "client", live.now).expect("a past");
    assert_eq!(before.generation, 2);

    live.log.begin(live.checkpoint()).expect("a segment");
    live.edit("b.yaml", Some(&service("b", 80)));
    live.acknowledge();
    assert_eq!(past(live.state.path(), "client", live.now).expect("a past").generation, live.generation);
    live.check_all();

    // It ran a generation that was not recorded, and is behind the newest when the log continues.
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
        assert_eq!(past::past(live.state.path(), name, then).expect("a past").generation, 2, "{name}");
    }
    let replica = ProxyView { pod: "web-7f9c-x2x4k".into(), ..view() };
    let run = Run::new(Running { node: "node", view: &replica, generation: 1, refused: &[] }, UNIX_EPOCH);
    let is_replica = |name: &&str| run.is_replica_of(name);
    assert!(["web", "web.shop", "web-7f9c"].iter().all(is_replica));
    assert!(!["we", "web-7f9c-x2x4k", "web.other", "7f9c", ""].iter().any(is_replica));

    let unknown = past::past(live.state.path(), "nobody", then).expect_err("no such proxy").to_string();
    assert!(unknown.contains("no proxy `nobody`") && unknown.contains("client"), "{unknown}");
}

/// After a change and its withdrawal everything is as before, which is not to say that nothing has happened.
#[test]
fn says_what_came_and_went() {
    let mut live = Live::new();
    live.edit("a.yaml", Some(&service("a", 80)));
    live.acknowledge();
    let then = live.now;
    live.edit("a.yaml", Some(&service("a", 81)));
    live.acknowledge();
    live.edit("b.yaml", Some(&service("b", 80)));
    live.edit("b.yaml", None);
    live.edit("a.yaml", Some(&service("a", 80)));
    live.acknowledge();
    let past = past(live.state.path(), "client", then).expect("a past");
    assert!(past.since.is_empty(), "{:?}", past.since);
    let changes = past::changes_since(live.state.path(), "client", then).expect("changes");
    let of_a = |port: u16| format!("outbound|{port}||a.shop.svc.cluster.local");
    let changed = |name: &str| {
        let touched = changes.iter().map(|change| {
            let of = change.touched.iter().find(|(_, kind, of)| *kind == ResourceType::Cluster && **of == *name);
            (&*change.made_by.causes[0], of.map(|(what, ..)| *what))
        });
        touched.filter_map(|(cause, what)| Some((cause.to_owned(), what?))).collect::<Vec<_>>()
    };
    let of = |file: &str, what| (file.to_owned(), what);
    assert_eq!(changed(&of_a(80)), [of("a.yaml", "removed"), of("a.yaml", "added")]);
    assert_eq!(changed(&of_a(81)), [of("a.yaml", "added"), of("a.yaml", "removed")]);
    let of_b = "outbound|80||b.shop.svc.cluster.local";
    assert_eq!(changed(of_b), [of("b.yaml", "added"), of("b.yaml", "removed")]);
    assert!(past::changes_since(live.state.path(), "client", live.now).expect("changes").is_empty());
}

/// A proxy did not run what it rejected, whatever else of the generation it accepted; another attempt is recorded, too.
#[test]
fn what_was_refused_is_not_said_to_have_run() {
    let mut live = Live::new();
    live.edit("a.yaml", Some(&service("a", 80)));
    live.acknowledge();
    let name = "outbound|80||b.shop.svc.cluster.local";
    live.edit("b.yaml", Some(&service("b", 80)));
    let before = live.now;
    live.refused = vec![Refused("CDS".to_owned(), name.to_owned())];
    live.acknowledge();
    let refusing = live.now;
    live.edit("c.yaml", Some(&service("c", 80)));
    live.acknowledge();
    let still = live.now;
    live.log.begin(live.checkpoint()).expect("a segment");
    let carried = live.now;
    live.refused.clear();
    live.acknowledge();
    let check = |at: u64, expected: &[&str]| {
        let past = past(live.state.path(), "client", at).expect("a past");
        let refused = past.resources.iter().filter(|at| at.refused).map(|at| (at.kind, &*at.resource.name));
        let expected: Vec<_> = expected.iter().map(|name| (ResourceType::Cluster, *name)).collect();
        assert_eq!(refused.collect::<Vec<_>>(), expected, "at {at}");
    };
    check(before, &[]);
    [refusing, still, carried].into_iter().for_each(|at| check(at, &[name]));
    check(live.now, &[]);
    live.check_all();
}

/// A thousand proxies that follow a change take a few numbers; a proxy whose labels change is recorded anew.
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
        let runs = who.iter().map(|number| {
            let (node, view) = &views[*number];
            Running { node, view, generation: live.generation, refused: &[] }
        });
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
    let segments = log::read(&Store::from(live.state.path())).expect("segments");
    for ((node, view), expected) in views.iter().zip(expected) {
        let seen = last_run(&segments, node, live.now).expect("a run");
        assert_eq!((seen.run.generation, &seen.run.view()), (expected, view), "{node}");
    }
}

/// Returns the size of the segments in bytes.
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
    // The two control planes count generations independently.
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

    // A control plane that begins many segments deletes its own oldest ones, and keeps what the other is writing.
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

/// The changes of a query as `WHAT FILE: DIFFERENCE`.
fn told(live: &Live, asked: HistoryQuery<'_>) -> Vec<String> {
    let answer = answer(live.state.path(), asked).expect("an answer");
    let files = |change: &serde_json::Value| change["files"].as_array().expect("files").clone();
    let lines = |file: &serde_json::Value| {
        let diff = file["diff"].as_array().expect("lines").iter().filter_map(|line| line.as_str());
        diff.filter(|line| !line.starts_with("@@") && !line.starts_with(' ')).collect::<Vec<_>>().join(" ")
    };
    let one = |file: &serde_json::Value| {
        let text = |name: &str| file[name].as_str().expect("a text").to_owned();
        format!("{} {}: {}", text("what"), text("file"), lines(file))
    };
    answer["changes"].as_array().expect("changes").iter().flat_map(files).map(|file| one(&file)).collect()
}

#[test]
fn a_timeline_has_every_change_with_its_difference() {
    let mut live = Live::new();
    let of = |live: &Live, proxy| told(live, HistoryQuery { proxy, ..HistoryQuery::default() });
    let (a, b) = (service("a", 80), service("a", 81));
    live.edit("a.yaml", Some(&a));
    live.acknowledge();
    live.edit("a.yaml", Some(&b));
    live.acknowledge();
    // Back again, and something that concerns no proxy.
    live.edit("a.yaml", Some(&a));
    live.acknowledge();
    live.edit("note.yaml", Some("apiVersion: v1\nkind: Namespace\nmetadata: {name: unused}\n"));
    live.edit("a.yaml", None);
    live.acknowledge();
    let all = of(&live, None);
    let [first, to_b, to_a, note, gone] = all.as_slice() else { panic!("{all:#?}") };
    assert!(first.starts_with("added a.yaml: +") && note.starts_with("added note.yaml: +"), "{all:#?}");
    assert!(to_b.starts_with("changed a.yaml: -") && to_b.contains("80") && to_b.contains("81"), "{all:#?}");
    let swapped = |text: &str| text.replace("80", "x").replace("81", "80").replace('x', "81");
    assert_eq!(*to_a, swapped(to_b));
    assert!(gone.starts_with("removed a.yaml: -"), "{all:#?}");
    // A proxy's has what changed it.
    let own = of(&live, Some("client"));
    let expected: Vec<String> = [first, to_b, to_a, gone].into_iter().cloned().collect();
    assert_eq!(own, expected);
    // The next segment of the same control plane, and a restart, begin with nothing new.
    live.log.begin(live.checkpoint()).expect("a segment");
    live.restart();
    assert_eq!(of(&live, None), all);
    // While none ran, a file has changed.
    live.files.replay(Path::new("note.yaml"), Some("# nothing\n"));
    live.restart();
    let more = of(&live, None);
    assert_eq!(
        (more.len(), more.last().is_some_and(|last| last.starts_with("changed note.yaml: "))),
        (6, true),
        "{more:#?}"
    );
    let late = told(&live, HistoryQuery { since: Some("2h"), ..HistoryQuery::default() });
    assert!(late.is_empty(), "{late:?}");
}

#[test]
fn a_timeline_of_several_control_planes_tells_each_change_once() {
    let mut one = Live::new();
    let mut two = Live::sharing(one.state.clone(), "two");
    let texts = [service("a", 80), service("a", 81), service("a", 80), service("a", 81)];
    for text in &texts {
        one.edit("a.yaml", Some(text));
        two.edit("a.yaml", Some(text));
    }
    // One that starts late has not seen how it came to this.
    two.restart();
    for live in [&mut two, &mut one] {
        live.now = 20_000;
        live.edit("a.yaml", Some(&texts[0]));
    }
    let all = told(&one, HistoryQuery::default());
    let what: Vec<&str> = all.iter().filter_map(|text| text.split(' ').next()).collect();
    assert_eq!(what, ["added", "changed", "changed", "changed", "changed"], "{all:#?}");
}

/// What a Secret holds is in no difference; that it changed is told.
#[test]
fn a_timeline_has_no_secrets() {
    let mut live = Live::new();
    let secret =
        |value: &str| format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{key: {value}}}\n");
    live.edit("s.yaml", Some(&secret("hush-1")));
    live.edit("s.yaml", Some(&secret("hush-2")));
    let all = told(&live, HistoryQuery::default());
    assert_eq!(all.len(), 2, "{all:#?}");
    assert!(all[0].contains("not kept") && all[1] == "changed s.yaml: " && !all.concat().contains("hush"), "{all:#?}");
}

/// A source without files: its objects are recorded as they change, and played back; Secrets are not recorded.
#[test]
fn objects_are_played_back_as_files_are() {
    let state = tempfile::tempdir().expect("a directory");
    let (feed, mut source) = ObjectFeed::new(SourceId::new("kubernetes", Rank(200)));
    let mut builder = Builder::new(MeshConfig::default(), AddressBook::default()).checked(false);
    let mut log = EventLog::new(state.path());
    let writer = Writer { name: "one".to_owned(), started: 0 };
    let object = |name: &str, port: usize, key: &str| {
        let json = serde_json::json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"},
            "spec": {key: [{"name": "http", "port": port}]},
        });
        (ObjectKey::of_json(&json).expect("a key"), json)
    };
    let secret = serde_json::json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"key": "aHVzaA=="}});
    feed.put(object("first", 80, "ports").1, 0);
    feed.put(secret.clone(), 0);
    let (mut generation, mut ran, mut random) = (1, Vec::new(), Random::new(7));
    for now in (1..=120_u64).map(|step| step * 1_000) {
        let read = source.first().read;
        let snapshot = builder.apply(source.tell()).snapshot;
        let is_new_segment = now % 40_000 == 1_000;
        if is_new_segment {
            let (files, objects) = log::split(source.contents());
            let own = checkpoint(&Files::new(Vec::new()), &builder, now, &writer, generation);
            log.begin(Checkpoint { files, objects, ..own }).expect("a segment");
        } else {
            generation += 1;
            let entries = read.iter().map(|entry| (entry.clone(), source.content(entry)));
            log.change(Change::new(now, generation, Vec::new(), entries)).expect("a record");
        }
        let running = Running { node: "client", view: &view(), generation, refused: &[] };
        log.run(UNIX_EPOCH + Duration::from_micros(now), [running]).expect("a record");
        ran.push((now, evenkeel_translate::resources(&view(), &snapshot, generation)));
        let name = format!("s{}", random.below(5));
        match random.below(6) {
            0 => feed.remove(&object(&name, 80, "ports").0),
            1 => feed.put(object(&name, 80, "prots").1, 0),
            _ => feed.put(object(&name, 80 + random.below(3), "ports").1, 0),
        }
    }
    for (at, expected) in &ran {
        let past = past(state.path(), "client", *at).expect("a past");
        assert_eq!(bytes(&past.set), bytes(expected), "at {at}");
    }
    let segments = fs::read_dir(state.path().join("history")).expect("segments").flatten();
    assert!(segments.map(|file| fs::read_to_string(file.path()).expect("text")).all(|text| !text.contains("aHVzaA")));
    // What an object said last without errors is found for a restart.
    let is_wanted = |object: &evenkeel_base::ObjectRef| object.kind == "Service";
    let known = log::objects(&Store::from(state.path()), is_wanted).expect("objects");
    assert!(known.keys().any(|object| &*object.name == "first") && known.keys().all(|object| object.kind == "Service"));
}
