//! The changes of `evenkeel apply` and `evenkeel delete`: objects that take precedence over those in the mesh's
//! directory.
//!
//! Each is in a file of its own below the state directory, where the control plane and `up` read it like the user's
//! files, and it stays there when the mesh ends. The later change wins: if an object's file in the directory has
//! changed since the object was applied, the file is in force again.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_api::{
    APPLIED_ANNOTATION, APPLIED_FROM_ANNOTATION, DELETED_ANNOTATION, Document, Kind, applied_from, documents, relocated,
};
use evenkeel_base::Span;
use evenkeel_base::files::{Readers, write_atomically};
use evenkeel_control::source::files::Files;
use nix::fcntl::{Flock, FlockArg};
use serde_json::{Map, Value};

use crate::cleanup::StateDir;
use crate::names;

/// Maximum length of a file name for an object, in bytes; a longer one is replaced by a digest.
const MAX_FILE_NAME: usize = 200;
/// Maximum number of objects applied to one mesh; permanent objects belong in files.
const MAX_APPLIED: usize = 10_000;

/// The unique key of an object.
type Id = (Kind, Arc<str>, Arc<str>);

/// The outcome for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The object did not exist.
    Created,
    /// The object was changed.
    Configured,
    /// The object was already the same.
    Unchanged,
    /// The object was deleted.
    Deleted,
    /// There was no such object to delete.
    NotFound,
}

impl Outcome {
    /// The word that `kubectl` prints.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
            Self::Deleted => "deleted",
            Self::NotFound => "not found",
        }
    }
}

/// The objects applied to the mesh of one directory.
#[derive(Debug)]
pub struct Applied {
    folder: PathBuf,
}

/// An object that takes precedence over the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// Its name, as `kubectl` prints it.
    pub object: String,
    /// Its namespace; empty for kinds without.
    pub namespace: Arc<str>,
    /// Whether it was deleted.
    pub deleted: bool,
    /// Whether the directory has an object of this name.
    pub in_directory: bool,
    /// Where it is stored.
    pub file: PathBuf,
    /// The position in the file that it was applied from; `None` if it was deleted.
    pub from: Option<Span>,
}

/// The stored form of an applied object.
#[derive(Debug)]
struct Entry {
    path: PathBuf,
    /// Its name, as `kubectl` prints it.
    name: String,
    /// A digest of the object it replaced; empty if there was none.
    over: String,
    /// The object in force; `None`: it is deleted.
    json: Option<Value>,
    /// The annotation with its positions, if it is not deleted.
    positions: Option<String>,
    /// The position of its name.
    from: Option<Span>,
}

/// What a stored object stands for.
#[derive(PartialEq)]
enum Stored {
    /// It is in force.
    Applied,
    /// No object of its name is in force.
    Deleted,
}

impl Applied {
    /// The objects applied to the mesh of `directory` with this state directory. Another directory has its own.
    pub fn of(state: &StateDir, directory: &Path) -> Self {
        let name = names::digest(&directory.display().to_string(), 13);
        Self { folder: state.control().join("applied").join(name) }
    }

    /// Their folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the folder, which must exist to be watched.
    pub fn prepare(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)
    }

    /// Applies an object; `files` are those of the directory, with or without applied objects.
    pub fn apply(&self, object: &Document, files: &Files) -> io::Result<Outcome> {
        let _lock = self.lock()?;
        let id = id(object);
        let (base, entries) = (self.base(files, &id), self.entries()?);
        let (wanted, positions) = (plain(&object.json, &id), applied_from(&object.node));
        let entry = entries.get(&id);
        let present = entry.map_or_else(|| base.clone(), |entry| entry.json.clone());
        let outcome = match present {
            None => Outcome::Created,
            Some(present) if present == wanted => {
                // It is now this file that has it.
                if let Some(entry) = entry.filter(|entry| entry.positions.as_deref() != Some(&*positions)) {
                    self.write(&id, wanted, &entry.over, Stored::Applied, &positions)?;
                }
                return Ok(Outcome::Unchanged);
            }
            Some(_) => Outcome::Configured,
        };
        match base == Some(wanted.clone()) {
            true => self.forget(&id)?,
            false if entry.is_none() && entries.len() >= MAX_APPLIED => {
                let reason = format!(
                    "{MAX_APPLIED} objects are already applied, which is the limit; move some into files of the directory"
                );
                return Err(io::Error::other(reason));
            }
            false => self.write(&id, wanted, &digest(base.as_ref()), Stored::Applied, &positions)?,
        }
        Ok(outcome)
    }

    /// Deletes an object.
    pub fn delete(&self, object: &Document, files: &Files) -> io::Result<Outcome> {
        let _lock = self.lock()?;
        let id = id(object);
        let (base, entries) = (self.base(files, &id), self.entries()?);
        let present = entries.get(&id).map_or_else(|| base.clone(), |entry| entry.json.clone());
        match (present, base) {
            (None, _) => return Ok(Outcome::NotFound),
            (Some(_), None) => self.forget(&id)?,
            (Some(_), Some(base)) => {
                let over = digest(Some(&base));
                self.write(&id, base, &over, Stored::Deleted, &applied_from(&object.node))?;
            }
        }
        Ok(Outcome::Deleted)
    }

    /// All objects that take precedence over the directory.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn list(&self) -> io::Result<Vec<Override>> {
        if !self.folder.is_dir() {
            return Ok(Vec::new());
        }
        let one = |((_, namespace, _), entry): (Id, Entry)| Override {
            object: entry.name,
            namespace,
            deleted: entry.json.is_none(),
            in_directory: !entry.over.is_empty(),
            file: entry.path,
            from: entry.from,
        };
        Ok(self.entries()?.into_iter().map(one).collect())
    }

    /// Forgets an object, so that the directory's applies again.
    ///
    /// # Errors
    /// If its file cannot be removed.
    pub fn reset(&self, object: &Override) -> io::Result<()> {
        let _lock = self.lock()?;
        match fs::remove_file(&object.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Drops applied objects whose file in the directory has changed since; returns their names.
    pub fn settle(&self, files: &Files) -> io::Result<Vec<String>> {
        if !self.folder.is_dir() {
            return Ok(Vec::new());
        }
        let _lock = self.lock()?;
        let mut forgotten = Vec::new();
        let entries = self.entries()?;
        let written = if entries.is_empty() { BTreeMap::new() } else { self.written(files) };
        for (id, entry) in entries {
            if digest(written.get(&id)) != entry.over {
                fs::remove_file(&entry.path)?;
                forgotten.push(format!("{} {}", id.0, id.2));
            }
        }
        Ok(forgotten)
    }

    /// Locks, so that there is only one change at a time.
    fn lock(&self) -> io::Result<Flock<File>> {
        self.prepare()?;
        // The name begins with a dot, so that the file is not read as configuration.
        let file = File::options().create(true).truncate(false).write(true).open(self.folder.join(".lock"))?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
    }

    /// The object in the directory's files.
    fn base(&self, files: &Files, wanted: &Id) -> Option<Value> {
        self.written(files).remove(wanted)
    }

    /// All objects in the directory's files; of two with one name, the first, which is the one in force.
    fn written(&self, files: &Files) -> BTreeMap<Id, Value> {
        let mut written = BTreeMap::new();
        for (path, good, text) in files.texts().filter(|(path, ..)| !path.starts_with(&self.folder)) {
            for document in documents(&path.to_string_lossy().into(), good.unwrap_or(text)) {
                let id = id(&document);
                written.entry(id.clone()).or_insert_with(|| plain(&document.json, &id));
            }
        }
        written
    }

    fn entries(&self) -> io::Result<BTreeMap<Id, Entry>> {
        let mut entries = BTreeMap::new();
        for file in fs::read_dir(&self.folder)? {
            let path = file?.path();
            let is_entry = path.extension().is_some_and(|extension| extension == "json");
            let text = if is_entry { fs::read_to_string(&path)? } else { continue };
            for document in documents(&path.to_string_lossy().into(), &text) {
                let id = id(&document);
                let annotation = |name: &str| document.json["metadata"]["annotations"][name].as_str();
                let (over, deleted) = (annotation(APPLIED_ANNOTATION), annotation(DELETED_ANNOTATION) == Some("true"));
                let json = (!deleted).then(|| plain(&document.json, &id));
                let over = over.unwrap_or_default().to_owned();
                let positions = annotation(APPLIED_FROM_ANNOTATION).filter(|_| !deleted).map(str::to_owned);
                let name = document.resource_name();
                let from = positions.is_some().then(|| relocated(document.node));
                let from = from.and_then(|node| Some(node.at_path("metadata.name")?.span.clone()));
                entries.insert(id, Entry { path: path.clone(), name, over, json, positions, from });
            }
        }
        Ok(entries)
    }

    fn write(&self, id: &Id, mut json: Value, over: &str, stored: Stored, positions: &str) -> io::Result<()> {
        annotate(&mut json, APPLIED_ANNOTATION, over);
        annotate(&mut json, APPLIED_FROM_ANNOTATION, positions);
        if stored == Stored::Deleted {
            annotate(&mut json, DELETED_ANNOTATION, "true");
        }
        write_atomically(&self.path(id), serde_json::to_string_pretty(&json)?.as_bytes(), Readers::Owner)
    }

    fn forget(&self, id: &Id) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn path(&self, (kind, namespace, name): &Id) -> PathBuf {
        let long = format!("{}.{namespace}.{name}", kind.as_str().to_lowercase());
        let short = if long.len() > MAX_FILE_NAME { names::digest(&long, 13) } else { long };
        self.folder.join(format!("{short}.json"))
    }
}

fn id(object: &Document) -> Id {
    (object.kind, object.namespace(), object.name.clone())
}

/// An object in the form in which it is compared: with its namespace, and without our annotations.
fn plain(json: &Value, (_, namespace, _): &Id) -> Value {
    let mut json = json.clone();
    let Some(metadata) = json.get_mut("metadata").and_then(Value::as_object_mut) else { return json };
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        let ours = [APPLIED_ANNOTATION, APPLIED_FROM_ANNOTATION, DELETED_ANNOTATION];
        annotations.retain(|name, _| !ours.contains(&&**name));
    }
    metadata.retain(|_, value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty()));
    if !namespace.is_empty() {
        metadata.insert("namespace".to_owned(), (**namespace).into());
    }
    json
}

fn annotate(json: &mut Value, name: &str, value: &str) {
    let Some(metadata) = json.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| Value::Object(Map::new()));
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(name.to_owned(), value.into());
    }
}

/// A digest of an object that does not depend on the order of its fields; empty for `None`.
fn digest(json: Option<&Value>) -> String {
    json.map(|json| names::digest(&sorted(json).to_string(), 13)).unwrap_or_default()
}

fn sorted(json: &Value) -> Value {
    match json {
        Value::Object(map) => {
            let ordered: BTreeMap<&String, Value> = map.iter().map(|(name, value)| (name, sorted(value))).collect();
            Value::Object(ordered.into_iter().map(|(name, value)| (name.clone(), value)).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    struct Fixture {
        folder: tempfile::TempDir,
        applied: Applied,
    }

    fn route(weight: u32) -> String {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: ratings}}\n\
             spec: {{hosts: [ratings], http: [{{route: [{{destination: {{host: ratings}}, weight: {weight}}}]}}]}}\n"
        )
    }

    impl Fixture {
        fn new(text: &str) -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            fs::create_dir(folder.path().join("mesh")).expect("a folder");
            let state = StateDir::new(&folder.path().join("state")).expect("a short path");
            let applied = Applied::of(&state, &folder.path().join("mesh"));
            let fixture = Self { folder, applied };
            fixture.write(text);
            fixture
        }

        fn write(&self, text: &str) {
            fs::write(self.folder.path().join("mesh/a.yaml"), text).expect("our own folder");
        }

        fn files(&self) -> Files {
            self.applied.prepare().expect("our own folder");
            let mut files = Files::new(vec![self.folder.path().join("mesh"), self.applied.folder().to_owned()]);
            files.refresh(SystemTime::now());
            assert!(files.diagnostics().is_empty(), "{}", files.diagnostics());
            files
        }

        #[track_caller]
        fn apply(&self, text: &str, expected: &str) {
            let document = documents(&"x".into(), text).remove(0);
            let outcome = self.applied.apply(&document, &self.files()).expect("our own folder");
            assert_eq!(outcome.as_str(), expected);
        }

        #[track_caller]
        fn delete(&self, text: &str, expected: &str) {
            let document = documents(&"x".into(), text).remove(0);
            let outcome = self.applied.delete(&document, &self.files()).expect("our own folder");
            assert_eq!(outcome.as_str(), expected);
        }

        /// Weights of the route in force.
        fn in_force(&self) -> Vec<String> {
            let objects = evenkeel_api::in_force(self.files().objects());
            let weight = |object: &evenkeel_api::Object| format!("{:?}", object.resource);
            let digits = |text: String| text.split("weight: Some(").nth(1).map(|rest| rest.chars().take(2).collect());
            objects.iter().map(weight).filter_map(digits).collect()
        }
    }

    #[test]
    fn an_applied_object_is_where_the_user_wrote_it() {
        let mesh = Fixture::new(&route(10));
        let check = |file: &str, text: &str, outcome: Outcome, expected: &str| {
            let document = documents(&file.into(), text).remove(0);
            assert_eq!(mesh.applied.apply(&document, &mesh.files()).expect("our own folder"), outcome);
            let objects = evenkeel_api::in_force(mesh.files().objects());
            let listed = mesh.applied.list().expect("our own folder").remove(0).from.expect("it is applied");
            assert_eq!([objects[0].origin.to_string(), listed.to_string()], [expected, expected]);
        };
        check("/deny.yaml", &format!("\n\n{}", route(20)), Outcome::Configured, "applied from /deny.yaml:5:18");
        check("/other.yaml", &route(20), Outcome::Unchanged, "applied from /other.yaml:3:18");
        check("standard input", &route(30), Outcome::Configured, "applied from standard input:3:18");
    }

    #[test]
    fn later_wins_whether_it_is_applied_or_written() {
        let mesh = Fixture::new(&route(10));
        mesh.apply(&route(10), "unchanged");
        mesh.apply(&route(20), "configured");
        mesh.apply(&route(20), "unchanged");
        assert_eq!(mesh.in_force(), ["20"]);
        // A comment, or the order of fields, is no change.
        mesh.write(&format!("# more\n{}", route(10)));
        assert_eq!(mesh.applied.settle(&mesh.files()).expect("our own"), Vec::<String>::new());
        assert_eq!(mesh.in_force(), ["20"]);
        mesh.write(&route(30));
        assert_eq!(mesh.applied.settle(&mesh.files()).expect("our own"), ["VirtualService ratings"]);
        assert_eq!(mesh.in_force(), ["30"]);
        // The object is as in the file again, so nothing is applied any more.
        mesh.apply(&route(40), "configured");
        mesh.apply(&route(30), "configured");
        assert!(mesh.applied.entries().expect("our own").is_empty());
    }

    #[test]
    fn what_is_deleted_stays_so_until_it_is_written_or_applied_again() {
        let mesh = Fixture::new(&route(10));
        mesh.delete(&route(99), "deleted");
        assert!(mesh.in_force().is_empty());
        mesh.delete(&route(10), "not found");
        let listed = mesh.applied.list().expect("our own");
        let [one] = listed.as_slice() else { panic!("{listed:?}") };
        let name = "virtualservice.networking.istio.io/ratings";
        assert_eq!((&*one.object, &*one.namespace, one.deleted, one.in_directory), (name, "default", true, true));
        mesh.applied.reset(one).expect("our own");
        assert_eq!((mesh.in_force(), mesh.applied.list().expect("our own")), (vec!["10".to_owned()], Vec::new()));
        mesh.delete(&route(10), "deleted");
        mesh.apply(&route(10), "created");
        assert_eq!(mesh.in_force(), ["10"]);
        mesh.delete(&route(10), "deleted");
        mesh.write(&route(11));
        mesh.applied.settle(&mesh.files()).expect("our own");
        assert_eq!(mesh.in_force(), ["11"]);

        let mesh = Fixture::new("");
        mesh.delete(&route(10), "not found");
        mesh.apply(&route(10), "created");
        mesh.delete(&route(10), "deleted");
        assert!(mesh.in_force().is_empty() && mesh.applied.entries().expect("our own").is_empty());
    }
}
