//! Files and a source of another kind, side by side.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_api::{Kind, ObjectKey, load_object};
use evenkeel_base::{Diagnostics, ObjectRef, Rank, Severity, SourceId};
use evenkeel_model::{
    AddressBook, Builder, Built, EntryChange, LastGood, MeshConfig, Source, SourceEvent, Status, StatusSink,
};
use serde_json::{Value, json};

use super::files::Files;

/// The objects of an API server by their keys, without files and lines.
struct Served {
    id: SourceId,
    objects: BTreeMap<ObjectKey, (LastGood, Diagnostics)>,
    told: Vec<SourceEvent>,
    /// Statuses written, in short.
    written: Vec<String>,
}

impl Served {
    fn new(rank: Rank) -> Self {
        Self { id: SourceId::new("kubernetes", rank), objects: BTreeMap::new(), told: Vec::new(), written: Vec::new() }
    }

    /// The watch reports an object that was added or changed.
    fn put(&mut self, json: &Value) {
        let key = ObjectKey::of_json(json).expect("a kind that is known");
        let (objects, found) = load_object(&self.id, json);
        let (held, findings) = self.objects.entry(key.clone()).or_default();
        let taken = held.take(objects, found.has_errors());
        *findings = found;
        if let EntryChange::Changed(_) = taken {
            self.told.push(SourceEvent::of_object(key, 0, held.objects().to_vec()));
        }
    }

    fn delete(&mut self, json: &Value) {
        let key = ObjectKey::of_json(json).expect("a kind that is known");
        self.objects.remove(&key).expect("it was there");
        self.told.push(SourceEvent::of_object(key, 0, Vec::new()));
    }

    /// The watch broke: everything is listed again.
    fn list(&mut self, all: &[Value]) {
        self.told.push(SourceEvent::Resync);
        let mut before = std::mem::take(&mut self.objects);
        for json in all {
            let key = ObjectKey::of_json(json).expect("a kind that is known");
            self.objects.extend(before.remove_entry(&key));
            self.put(json);
            // Unchanged objects are listed as well, or they would count as deleted.
            let held = self.objects.get(&key).map(|(held, _)| held.objects().to_vec());
            self.told.push(SourceEvent::of_object(key, 0, held.unwrap_or_default()));
        }
        self.told.push(SourceEvent::Synced);
    }
}

impl StatusSink for Served {
    fn write(&mut self, object: &ObjectRef, status: &Arc<Status>) {
        let fails = status.conditions.iter().filter(|condition| !condition.holds).map(|condition| condition.reason);
        let fails: Vec<&str> = fails.collect();
        let generation = status.observed_generation.unwrap_or_default();
        self.written.push(format!("{} {generation} {}", object.name, fails.join(",")).trim_end().to_owned());
    }
}

impl Source for Served {
    fn id(&self) -> &SourceId {
        &self.id
    }

    fn events(&mut self) -> Vec<SourceEvent> {
        std::mem::take(&mut self.told)
    }

    fn status_sink(&mut self) -> Option<&mut dyn StatusSink> {
        Some(self)
    }

    fn findings(&self) -> Diagnostics {
        self.objects.values().flat_map(|(_, findings)| findings.iter().cloned()).collect()
    }
}

/// Both sources, and what is built from them.
struct Mesh {
    directory: tempfile::TempDir,
    files: Files,
    served: Served,
    builder: Builder,
}

impl Mesh {
    fn new(rank: Rank) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let files = Files::new(vec![directory.path().to_owned()]);
        let builder = Builder::new(MeshConfig::default(), AddressBook::default()).checked(true);
        Self { directory, files, served: Served::new(rank), builder }
    }

    fn write(&self, text: &str) {
        fs::write(self.directory.path().join("a.yaml"), text).expect("a written file");
    }

    fn build(&mut self) -> Built {
        self.files.refresh(SystemTime::now());
        let sources: [&mut dyn Source; 2] = [&mut self.files, &mut self.served];
        let told: Vec<_> = sources.into_iter().flat_map(Source::tell).collect();
        let built = self.builder.apply(told);
        built.write_statuses(&mut [&mut self.files, &mut self.served]);
        built
    }

    /// Returns the ports of the existing Services.
    fn services(&mut self) -> Vec<String> {
        let built = self.build();
        let service = |service: &Arc<evenkeel_model::Service>| {
            let ports: Vec<String> = service.ports.iter().map(|port| port.number.to_string()).collect();
            format!("{} {}", service.name, ports.join(","))
        };
        built.snapshot.services.iter().map(service).collect()
    }

    /// Returns all findings, of the sources and of the build, without the directory's name.
    fn told(&mut self) -> Vec<String> {
        let built = self.build();
        let mut all = self.files.findings();
        all.extend(self.served.findings());
        all.extend(built.diagnostics.iter().cloned());
        let folder = format!("{}/", self.directory.path().display());
        // In a file a generation has no effect.
        let told = all.iter().filter(|finding| finding.code != "no-effect");
        told.map(|finding| finding.to_string().replace(&folder, "")).collect()
    }
}

fn service(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop", "generation": 1},
        "spec": {"ports": [{"name": "http", "port": port}]},
    })
}

#[test]
fn of_one_name_the_source_of_the_lower_rank_counts() {
    for (rank, expected) in [(Rank(1), "a 81"), (Rank(200), "a 80")] {
        let mut mesh = Mesh::new(rank);
        mesh.write(&service("a", 80).to_string());
        assert_eq!(mesh.services(), ["a 80"]);
        mesh.served.put(&service("a", 81));
        mesh.served.put(&service("b", 82));
        assert_eq!(mesh.services(), [expected, "b 82"]);
        let [finding] = &mesh.told()[..] else { panic!("{:?}", mesh.told()) };
        let (place, message) = if rank < SourceId::files().rank() {
            ("a.yaml:1:", "from files is ignored: the one from kubernetes takes precedence")
        } else {
            ("kubernetes/Service/shop/a: info", "from kubernetes is ignored: the one from files takes precedence")
        };
        assert!(finding.starts_with(place) && finding.contains(message), "{finding}");
        // The object that it had shadowed comes back.
        match expected {
            "a 81" => mesh.served.delete(&service("a", 81)),
            _ => mesh.write(""),
        }
        assert_eq!(mesh.services(), [if expected == "a 81" { "a 80" } else { "a 81" }, "b 82"]);
    }
}

#[test]
fn what_a_list_lacks_is_gone_and_what_is_the_same_is_untouched() {
    let mut mesh = Mesh::new(Rank(200));
    mesh.write(&service("file", 80).to_string());
    ["a", "b", "c"].iter().for_each(|name| mesh.served.put(&service(name, 80)));
    assert_eq!(mesh.services().len(), 4);
    let before = mesh.build();
    mesh.served.list(&[service("a", 80), service("b", 80), service("c", 80)]);
    assert!(Arc::ptr_eq(&before.snapshot, &mesh.build().snapshot), "the same once more");
    mesh.served.list(&[service("a", 80), service("c", 81), service("d", 80)]);
    assert_eq!(mesh.services(), ["a 80", "c 81", "d 80", "file 80"]);
    let kept = |built: &Built| built.snapshot.services_of("a.shop.svc.cluster.local").first().cloned();
    assert!(Arc::ptr_eq(&kept(&before).expect("a"), &kept(&mesh.build()).expect("a")));
    mesh.served.list(&[]);
    assert_eq!(mesh.services(), ["file 80"]);
    // A snapshot replaces all objects of its source, and none of others.
    mesh.served.told.push(SourceEvent::Snapshot(Vec::new()));
    assert_eq!(mesh.services(), ["file 80"]);
}

#[test]
fn each_source_refuses_what_has_a_mistake_and_keeps_what_was_good() {
    let mut mesh = Mesh::new(Rank(200));
    let policy = |name: &str, spec: &str| {
        json!({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": {"name": name, "namespace": "shop"}, spec: {},
        })
    };
    mesh.write(&service("file", 80).to_string());
    mesh.served.put(&service("served", 80));
    assert_eq!(mesh.services(), ["file 80", "served 80"]);
    let broken = |name: &str| {
        let mut broken = service(name, 81);
        broken["spec"]["prots"] = json!([]);
        broken
    };
    mesh.write(&broken("file").to_string());
    mesh.served.put(&broken("served"));
    assert_eq!(mesh.services(), ["file 80", "served 80"], "what was good stays");
    let told = mesh.told();
    let starts = |at: usize, text: &str| told.get(at).is_some_and(|finding| finding.starts_with(text));
    assert!(told.len() == 2 && starts(0, "a.yaml:1:"), "{told:?}");
    assert!(starts(1, "kubernetes/Service/shop/served: error[unknown-field]: `spec.prots`"), "{told:?}");
    let about = |findings: Diagnostics| {
        let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
        errors.flat_map(|finding| finding.object.clone()).collect::<Vec<_>>()
    };
    let about = [about(mesh.files.findings()), about(mesh.served.findings())].concat();
    let names: Vec<String> = about.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["files/Service/shop/file", "kubernetes/Service/shop/served"]);
    assert!(about.iter().all(|object| object.kind == Kind::Service.as_str()));

    // A refused security object closes what it guards, whichever source it is from.
    mesh.write(&policy("file", "spek").to_string());
    mesh.served.put(&policy("served", "spek"));
    fs::write(mesh.directory.path().join("b.yaml"), policy("other", "spek").to_string()).expect("a written file");
    let built = mesh.build();
    let closed = built.snapshot.authorization_policies.iter().filter(|policy| policy.refused);
    let mut closed: Vec<&str> = closed.map(|policy| &*policy.name).collect();
    closed.sort_unstable();
    assert_eq!(closed, ["other", "served"], "of the first file the Service is still in force, which was good");
    mesh.served.put(&policy("served", "spec"));
    let built = mesh.build();
    let served = built.snapshot.authorization_policies.iter().find(|policy| &*policy.name == "served");
    assert!(served.is_some_and(|policy| !policy.refused));
}

#[test]
fn statuses_are_written_where_objects_have_one_and_only_when_they_change() {
    let mut mesh = Mesh::new(Rank(200));
    let route = |generation: u32, to: &str| {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
            "metadata": {"name": "route", "namespace": "shop", "generation": generation},
            "spec": {"hosts": ["a"], "http": [{"route": [{"destination": {"host": to}}]}]},
        })
    };
    let check = |mesh: &mut Mesh, expected: &[&str]| {
        mesh.build();
        assert_eq!(std::mem::take(&mut mesh.served.written), expected);
    };
    mesh.write(&[service("b", 80), route(1, "nowhere")].map(|object| object.to_string()).join("\n---\n"));
    check(&mut mesh, &[]);
    mesh.write(&service("b", 80).to_string());
    mesh.served.put(&service("a", 80));
    mesh.served.put(&route(1, "a"));
    check(&mut mesh, &["a 1", "route 1"]);
    check(&mut mesh, &[]);
    mesh.served.put(&route(2, "c"));
    check(&mut mesh, &["route 2 RefNotFound"]);
    // The object that it names is added by the other source.
    mesh.write(&service("c", 80).to_string());
    check(&mut mesh, &["route 2"]);
    mesh.served.list(&[route(2, "c")]);
    check(&mut mesh, &[]);
    // An object that exists already is added again, and is ignored in favor of the file's.
    mesh.served.put(&service("c", 81));
    check(&mut mesh, &["c 1"]);
    mesh.served.delete(&route(2, "c"));
    check(&mut mesh, &[]);
    mesh.served.put(&route(2, "c"));
    check(&mut mesh, &["route 2"]);
}
