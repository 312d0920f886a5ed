//! The files of the configuration directories, each with its last valid content.

mod file;
mod ignore;
mod reading;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use std::{fs, io};

use evenkeel_api::Object;
use evenkeel_base::{Diagnostic, Diagnostics, SourceId, Sources};
use evenkeel_model::{Address, Entry, Source, SourceEvent};

pub use self::file::RECALLED;
use self::file::{File, Parsed};
pub use self::ignore::IGNORE_FILE;
use self::ignore::{Ignored, is_list_of_ignored};
use self::reading::read_found;
pub use self::reading::{Links, read_all, read_regular, read_text};
use self::scan::{MAX_DIRECTORY_DEPTH, Scan, scan};
pub use self::scan::{MAX_FILES, is_configuration};
use super::endpoints::{is_endpoints, only_endpoints_differ};
use super::{EntryName, Refresh};

/// Maximum number of files kept parsed between the notice of a change and its application.
const MAX_PARSED: usize = 256;

/// The configuration directories and the state of their files.
#[derive(Debug)]
pub struct Files {
    roots: Vec<PathBuf>,
    /// The roots with links resolved, as notices name them.
    real_roots: Vec<PathBuf>,
    files: BTreeMap<PathBuf, File>,
    /// The files with findings.
    troubled: BTreeSet<PathBuf>,
    /// Findings about directories.
    directories: Diagnostics,
    /// Directories that have been read completely once, so that their files may be known.
    read_once: BTreeSet<PathBuf>,
    /// Stand-ins for directories that have never been read.
    closed: BTreeMap<PathBuf, Closed>,
    /// Files and directories excluded by ignore files.
    ignored: Ignored,
    /// Files parsed to classify a change, kept until the change is applied.
    parsed: BTreeMap<PathBuf, Parsed>,
    /// Events that the model has not received yet.
    told: Vec<SourceEvent>,
    id: SourceId,
}

/// A directory with unknown content, and the stand-ins for what it may contain.
type Closed = (Arc<Path>, Vec<Arc<Object>>);

/// The difference between a file and its last read content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// None: it is unchanged.
    None,
    /// Only endpoints: of Pods, of EndpointSlices, or of ServiceEntries.
    Endpoints,
    /// Anything else.
    Other,
}

impl Files {
    /// Creates the source without reading; [`Files::refresh`] reads.
    pub fn new(roots: Vec<PathBuf>) -> Self {
        Self {
            real_roots: real(&roots),
            roots,
            files: BTreeMap::new(),
            troubled: BTreeSet::new(),
            directories: Diagnostics::new(),
            read_once: BTreeSet::new(),
            closed: BTreeMap::new(),
            ignored: Ignored::default(),
            parsed: BTreeMap::new(),
            told: Vec::new(),
            id: SourceId::files(),
        }
    }

    /// Returns the configuration directories.
    pub fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    /// Reads all files that have changed. A file with an error keeps its last valid objects; the objects of a deleted file
    /// are removed.
    pub fn refresh(&mut self, now: SystemTime) -> Refresh {
        let before: BTreeSet<String> = self.diagnostics().iter().map(ToString::to_string).collect();
        let mut result = Refresh::default();
        // A link may have another target by now.
        self.real_roots = real(&self.roots);
        let Scan { found, read, unreadable, ignored } = scan(&self.roots);
        (self.directories, self.ignored) = (unreadable.values().cloned().collect(), ignored);
        let is_unread = |path: &PathBuf| unreadable.keys().any(|directory| path.starts_with(directory));
        self.read_once.retain(&is_unread);
        self.read_once.extend(read);
        let is_gone = |path: &PathBuf| !found.contains_key(path) && !is_unread(path);
        self.close_unread(&unreadable, &mut result);
        let gone: Vec<PathBuf> = self.files.keys().filter(|path| is_gone(path)).cloned().collect();
        for path in gone {
            self.remove(&path, &mut result);
        }
        for (path, metadata) in found {
            let file = self.files.entry(path.clone()).or_insert_with(|| File::new(&path));
            if file.is_stale(metadata.as_ref(), now) {
                file.read(&path, metadata.as_ref(), self.parsed.remove(&path), &mut result);
                self.note_trouble(&path);
            }
        }
        self.parsed.clear();
        let news = self.diagnostics().into_iter().filter(|d| !before.contains(&d.to_string()));
        result.news = news.collect();
        self.told.append(&mut result.told);
        result
    }

    /// Adds stand-ins for directories that have never been read, because their security objects are unknown. A missing root
    /// contains nothing.
    fn close_unread(&mut self, unreadable: &BTreeMap<PathBuf, Diagnostic>, result: &mut Refresh) {
        let is_unknown = |path: &PathBuf| {
            let is_missing = fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
            !is_missing && !self.read_once.contains(path)
        };
        let unknown: BTreeMap<_, _> = unreadable.iter().filter(|(path, _)| is_unknown(path)).collect();
        let opened: Vec<PathBuf> = self.closed.keys().filter(|path| !unknown.contains_key(path)).cloned().collect();
        for path in opened {
            self.open(&path, result);
        }
        for (path, finding) in unknown {
            if self.closed.contains_key(path) {
                continue;
            }
            let objects = evenkeel_api::unreadable_objects(&path.to_string_lossy().into(), None, finding);
            let (key, objects): Closed = (path.as_path().into(), objects.into_iter().map(Arc::new).collect());
            result.entries_changed = true;
            result.objects_of(&key, &[], &objects);
            self.closed.insert(path.clone(), (key, objects));
        }
    }

    /// Removes the stand-ins for a directory.
    fn open(&mut self, path: &Path, result: &mut Refresh) {
        let Some((key, objects)) = self.closed.remove(path) else { return };
        result.entries_changed = true;
        result.objects_of(&key, &objects, &[]);
    }

    /// Reads only these files, named as in notices. Reads everything where that could miss something (a directory was created
    /// or deleted, or a limit is reached). The value says whether a notice reported that the file may be deleted: if a file
    /// is gone without such a notice, the notice follows, and until then the file's objects stay.
    pub fn refresh_only(&mut self, paths: &BTreeMap<PathBuf, bool>, now: SystemTime) -> Refresh {
        let given: Option<BTreeMap<PathBuf, bool>> =
            paths.iter().map(|(path, gone)| Some((self.as_plain_file(path)?, *gone))).collect();
        let Some(mut given) = given.filter(|_| self.directories.is_empty()) else { return self.refresh(now) };
        if given.keys().any(|path| self.files.contains_key(path) && self.leaves_out(path)) {
            // A patch that was about security objects is not any more.
            return self.refresh(now);
        }
        given.retain(|path, _| !self.leaves_out(path));
        let mut result = Refresh::default();
        for (path, may_be_gone) in given {
            let before: Vec<Diagnostic> = self.files.get(&path).iter().flat_map(|f| &f.diagnostics).cloned().collect();
            match fs::metadata(&path) {
                Err(reason) if reason.kind() == io::ErrorKind::NotFound => {
                    if may_be_gone {
                        self.remove(&path, &mut result)
                    } else {
                        result.missed = true
                    }
                }
                metadata => {
                    let file = self.files.entry(path.clone()).or_insert_with(|| File::new(&path));
                    file.read(&path, metadata.as_ref(), self.parsed.remove(&path), &mut result);
                    result.news.extend(file.diagnostics.iter().filter(|d| !before.contains(d)).cloned());
                    self.note_trouble(&path);
                }
            }
        }
        self.told.append(&mut result.told);
        result
    }

    /// Returns all files: the path, the last text without errors unless that is the present one, and the present text.
    pub fn texts(&self) -> impl Iterator<Item = (&Path, Option<&str>, &str)> {
        self.files.values().map(|file| (&*file.key, file.good_text.as_deref(), &*file.text))
    }

    /// Returns the present text of a file; `None` if it is gone.
    pub fn text(&self, path: &Path) -> Option<&str> {
        self.files.get(path).map(|file| &*file.text)
    }

    /// Sets the text of a file (`None`: it is deleted) without reading anything.
    pub fn replay(&mut self, path: &Path, text: Option<&str>) {
        let mut result = Refresh::default();
        match text {
            None => self.remove(path, &mut result),
            Some(text) => {
                let file = self.files.entry(path.to_owned()).or_insert_with(|| File::new(path));
                file.take(Parsed::of(file.path.clone(), text.into()), &mut result);
                self.note_trouble(path);
            }
        }
        self.told.append(&mut result.told);
    }

    /// Parses everything again from the known texts, so that the result is equal to the former objects but shares no memory
    /// with them. Returns all of it.
    pub fn renew(&mut self) -> SourceEvent {
        let files = std::mem::take(&mut self.files);
        self.files = files.iter().map(|(path, file)| (path.clone(), file.renewed())).collect();
        self.troubled = self.troubled.iter().cloned().collect();
        self.real_roots = self.real_roots.clone();
        for (key, objects) in self.closed.values_mut() {
            *objects = objects.iter().map(|object| Arc::new((**object).clone())).collect();
            *key = (&**key).into();
        }
        let closed = self.closed.values().cloned();
        let files = self.files.values().map(|file| (file.key.clone(), file.held.objects().to_vec()));
        let entry = |(path, objects)| Entry { address: Address::File(path), created: 0, objects };
        let entries = files.chain(closed).filter(|(_, objects)| !objects.is_empty()).map(entry);
        self.told.clear();
        SourceEvent::Snapshot(entries.collect())
    }

    fn remove(&mut self, path: &Path, result: &mut Refresh) {
        let Some(file) = self.files.remove(path) else { return };
        self.note_trouble(path);
        result.entries_changed = true;
        result.read.push(EntryName::File(file.key.clone()));
        if !file.held.objects().is_empty() {
            result.objects_of(&file.key, file.held.objects(), &[]);
        }
    }

    /// Records whether a file has findings, so that nobody has to look through all files.
    fn note_trouble(&mut self, path: &Path) {
        if self.files.get(path).is_some_and(|file| !file.diagnostics.is_empty()) {
            _ = self.troubled.insert(path.to_owned())
        } else {
            _ = self.troubled.remove(path)
        }
    }

    fn troubled(&self) -> impl Iterator<Item = &File> {
        self.troubled.iter().filter_map(|path| self.files.get(path))
    }

    /// Whether an ignore file excludes a file.
    fn leaves_out(&self, path: &Path) -> bool {
        let root = self.roots.iter().find(|root| path.starts_with(root));
        root.is_some_and(|root| self.ignored.leaves_out_below(root, path))
    }

    /// Returns the path as the user gave it, if it can only be that of a configuration file.
    fn as_plain_file(&self, path: &Path) -> Option<PathBuf> {
        let path = self.as_given(path);
        let depth =
            self.roots.iter().find_map(|root| path.strip_prefix(root).ok()).map(|rest| rest.components().count());
        let within_limits = self.files.len() < MAX_FILES && depth.is_some_and(|depth| depth <= MAX_DIRECTORY_DEPTH);
        let is_plain = is_configuration(&path) && !is_list_of_ignored(&path);
        (within_limits && is_plain && !path.is_dir()).then_some(path)
    }

    /// Returns the last valid objects of all files, sorted by path.
    pub fn objects(&self) -> Vec<Object> {
        let closed = self.closed.values().flat_map(|(_, objects)| objects);
        self.files
            .values()
            .flat_map(|file| file.held.objects())
            .chain(closed)
            .map(|object| (**object).clone())
            .collect()
    }

    /// Returns the findings about the present content of all files.
    pub fn diagnostics(&self) -> Diagnostics {
        self.directories.iter().chain(self.troubled().flat_map(|f| f.diagnostics.iter())).cloned().collect()
    }

    /// Returns the files and directories of which only an older content, or a part, is in force because the present one has
    /// errors.
    pub fn refused(&self) -> Vec<Arc<str>> {
        let directories = self.directories.iter().map(|finding| finding.span.file.clone());
        self.troubled().filter(|f| f.diagnostics.has_errors()).map(|f| f.path.clone()).chain(directories).collect()
    }

    /// Returns those of them that never had a content without errors.
    pub fn never_accepted(&self) -> Vec<Arc<str>> {
        let closed = self.closed.keys().map(|path| path.to_string_lossy().into());
        let never = |file: &&File| file.diagnostics.has_errors() && !file.held.was_good();
        self.troubled().filter(never).map(|file| file.path.clone()).chain(closed).collect()
    }

    /// Sets the last valid text of a file, if none is known: for a file that is refused, or that lies in a directory that
    /// cannot be read. Returns false if the text itself has errors.
    pub fn recall(&mut self, path: &Path, text: &str, result: &mut Refresh) -> bool {
        if self.leaves_out(path) || self.files.get(path).is_some_and(|file| file.held.was_good()) {
            return true;
        }
        let parsed = Parsed::of(path.to_string_lossy().into(), text.into());
        if parsed.diagnostics.has_errors() {
            return false;
        }
        let file = self.files.entry(path.to_owned()).or_insert_with(|| File::new(path));
        file.recall(parsed, result);
        self.note_trouble(path);
        let around = self.closed.keys().find(|directory| path.starts_with(directory)).cloned();
        if let Some(directory) = around {
            // The recalled content stays in force, as if it had been read before.
            self.open(&directory, result);
            self.read_once.insert(directory);
        }
        self.told.append(&mut result.told);
        true
    }

    /// Returns the texts that findings point into.
    pub fn sources(&self, findings: &Diagnostics) -> Sources {
        let mut texts = Sources::new();
        self.add_texts(findings, &mut texts);
        texts
    }

    /// Adds the texts that findings point into.
    pub fn add_texts(&self, findings: &Diagnostics, texts: &mut Sources) {
        let places =
            findings.iter().flat_map(|d| std::iter::once(&d.span).chain(d.related.iter().map(|(span, _)| span)));
        let named: BTreeSet<&Arc<str>> = places.map(|span| &span.file).collect();
        for file in named.into_iter().filter_map(|name| self.files.get(Path::new(&**name))) {
            texts.insert(file.path.clone(), file.text.clone());
        }
    }

    /// Whether a file holds only endpoints, so that changing it cannot change anything else.
    pub fn holds_only_endpoints(&self, path: &Path) -> bool {
        let file = self.files.get(&self.as_given(path));
        file.is_some_and(|file| {
            !file.held.objects().is_empty() && file.held.objects().iter().all(|object| is_endpoints(object))
        })
    }

    /// Returns what has changed in a file that was written.
    pub fn difference(&mut self, path: &Path) -> Difference {
        let path = self.as_given(path);
        match is_configuration(&path) {
            false => return Difference::Other,
            true if !self.leaves_out(&path) => {}
            true if self.files.contains_key(&path) => return Difference::Other,
            true => return Difference::None,
        }
        let Ok(text) = read_found(&path) else { return Difference::Other };
        let known = self.files.get(&path);
        if known.is_some_and(|file| *file.text == *text && file.stamp.is_some()) {
            return Difference::None;
        }
        let parsed = Parsed::of(path.to_string_lossy().into(), text.into());
        let old = known.map_or(&[][..], |file| file.held.objects());
        let same = !parsed.diagnostics.has_errors() && only_endpoints_differ(old, &parsed.objects);
        if self.parsed.len() < MAX_PARSED {
            self.parsed.insert(path, parsed);
        }
        if same { Difference::Endpoints } else { Difference::Other }
    }

    /// Returns the path below a root as the user gave it, for a path with links resolved.
    fn as_given(&self, path: &Path) -> PathBuf {
        let mut roots = self.roots.iter().zip(&self.real_roots);
        let below = |(root, real): (&PathBuf, &PathBuf)| path.strip_prefix(real).ok().map(|rest| root.join(rest));
        roots.find_map(below).unwrap_or_else(|| path.to_owned())
    }
}

impl Source for Files {
    fn id(&self) -> &SourceId {
        &self.id
    }

    fn events(&mut self) -> Vec<SourceEvent> {
        std::mem::take(&mut self.told)
    }

    fn findings(&self) -> Diagnostics {
        self.diagnostics()
    }
}

fn real(roots: &[PathBuf]) -> Vec<PathBuf> {
    roots.iter().map(|root| root.canonicalize().unwrap_or_else(|_| root.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str) -> String {
        format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{{port: 80}}]}}\n")
    }

    struct Fixture {
        directory: tempfile::TempDir,
        files: Files,
    }

    impl Fixture {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let files = Files::new(vec![directory.path().to_owned()]);
            Self { directory, files }
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.directory.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, text).expect("a written file");
        }

        fn names(&mut self) -> (Vec<String>, Refresh) {
            let refresh = self.files.refresh(SystemTime::now());
            (self.files.objects().iter().map(|o| o.name.to_string()).collect(), refresh)
        }
    }

    #[test]
    fn reads_yaml_and_json_recursively_and_skips_the_rest() {
        let mut fixture = Fixture::new();
        fixture.write("b.yaml", &service("b"));
        fixture.write("deep/er/a.yml", &service("a"));
        fixture.write("c.json", r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "c"}}"#);
        fixture.write("README.md", "no configuration");
        fixture.write(".hidden.yaml", "{");
        let (names, refresh) = fixture.names();
        assert_eq!(names, ["b", "c", "a"]);
        assert!(refresh.objects_changed && refresh.news.is_empty());
        assert!(!fixture.names().1.entries_changed, "nothing is new the second time");
    }

    /// What a kustomization names as patches is no configuration, unless it is about security.
    #[test]
    fn patches_of_a_kustomization_are_skipped() {
        let mut fixture = Fixture::new();
        let patch = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {http: [{timeout: 3s}]}\n";
        fixture.write("k/kustomization.yaml", "patches: [{path: p.yaml}, {path: policy.yaml}, {path: 'x[1].yaml'}]\n");
        fixture.write("k/p.yaml", patch);
        fixture.write("k/x[1].yaml", patch);
        fixture.write("p.yaml", patch);
        let policy =
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a}\nspec: {action: [}\n";
        fixture.write("k/policy.yaml", policy);
        fixture.names();
        let refused = |fixture: &Fixture| -> Vec<String> {
            let names = fixture.files.refused();
            names.iter().map(|path| path.rsplit_once('/').map_or("", |(_, name)| name).to_owned()).collect()
        };
        assert_eq!(refused(&fixture), ["policy.yaml", "p.yaml"]);
        // What decides is what a patch says now.
        for (text, difference, expected) in [
            (policy, Difference::Other, &["p.yaml", "policy.yaml", "p.yaml"][..]),
            (patch, Difference::Other, &["policy.yaml", "p.yaml"]),
            (patch, Difference::None, &["policy.yaml", "p.yaml"]),
        ] {
            fixture.write("k/p.yaml", text);
            let changed = fixture.directory.path().join("k/p.yaml");
            assert_eq!(fixture.files.difference(&changed), difference, "{text}");
            fixture.files.refresh_only(&BTreeMap::from([(changed, false)]), SystemTime::now());
            assert_eq!(refused(&fixture), expected, "{text}");
        }
        // Without the kustomization they are files like others.
        fixture.write("k/kustomization.yaml", "resources: [p.yaml]\n");
        let changed = fixture.directory.path().join("k/kustomization.yaml");
        fixture.files.refresh_only(&BTreeMap::from([(changed, false)]), SystemTime::now());
        assert_eq!(refused(&fixture).len(), 4, "{:?}", refused(&fixture));
    }

    #[test]
    fn what_is_ignored_is_not_there_and_comes_back_with_the_pattern() {
        let mut fixture = Fixture::new();
        fixture.write("a.yaml", &service("a"));
        fixture.write("charts/b.yaml", "{{ template }}");
        fixture.write("deep/c.yaml", &service("c"));
        fixture.write("deep/d.yaml", "{{");
        fixture.write(IGNORE_FILE, "charts/\n");
        fixture.write(&format!("deep/{IGNORE_FILE}"), "/d.yaml\n");
        let (names, refresh) = fixture.names();
        assert!(names == ["a", "c"] && refresh.news.is_empty(), "{names:?} {:?}", refresh.news);
        // Noticed by itself, too.
        let paths = ["charts/b.yaml", "deep/d.yaml"].map(|name| fixture.directory.path().join(name));
        let only = fixture.files.refresh_only(&paths.clone().map(|path| (path, true)).into(), SystemTime::now());
        assert!(!only.entries_changed && only.news.is_empty(), "{only:?}");
        assert!(paths.iter().all(|path| fixture.files.difference(path) == Difference::None));

        fixture.write(IGNORE_FILE, "a.yaml\n");
        fixture.write("charts/b.yaml", &service("b"));
        let ignore = BTreeMap::from([(fixture.directory.path().join(IGNORE_FILE), false)]);
        fixture.files.refresh_only(&ignore, SystemTime::now());
        assert_eq!(fixture.names().0, ["b", "c"]);
    }

    #[test]
    fn a_broken_file_keeps_its_last_good_objects_and_no_others() {
        let mut fixture = Fixture::new();
        fixture.write("a.yaml", &service("a"));
        fixture.write("b.yaml", &service("b"));
        fixture.names();
        fixture.write("a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: [}\n");
        fixture.write("b.yaml", &service("b2"));
        let (names, refresh) = fixture.names();
        assert_eq!(names, ["a", "b2"]);
        assert_eq!(refresh.news.len(), 1, "{:?}", refresh.news);
        assert!(refresh.news[0].span.line == 3, "{:?}", refresh.news);
        assert_eq!(fixture.files.refused().len(), 1);
        assert!(fixture.names().1.news.is_empty(), "told once");

        fixture.write("a.yaml", &service("a3"));
        assert_eq!(fixture.names().0, ["a3", "b2"]);
        assert!(fixture.files.refused().is_empty());
    }

    #[test]
    fn a_link_that_leads_back_is_not_followed() {
        let mut fixture = Fixture::new();
        fixture.write("deep/a.yaml", &service("a"));
        let link = |to: &str, at: &str| {
            std::os::unix::fs::symlink(to, fixture.directory.path().join(at)).expect("a link");
        };
        link("..", "deep/up");
        link(".", "deep/here");
        link("deep", "elsewhere");
        let (names, refresh) = fixture.names();
        // A link to a sibling directory adds its files once more.
        assert_eq!((names.as_slice(), refresh.news.len()), (["a".to_owned(), "a".to_owned()].as_slice(), 0));
    }

    #[test]
    fn what_guards_something_has_a_stand_in_until_it_was_good_once() {
        let policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: web}\nspec: {}\n";
        let broken = policy.replace("spec", "spek");
        let mut fixture = Fixture::new();
        let stand_ins = |fixture: &mut Fixture| {
            fixture.files.refresh(SystemTime::now());
            let objects = fixture.files.objects();
            objects.iter().map(|object| (object.to_string(), object.refused.is_some())).collect::<Vec<_>>()
        };
        let web = |refused| vec![("AuthorizationPolicy default/web".to_owned(), refused)];
        fixture.write("a.yaml", &broken);
        assert_eq!(stand_ins(&mut fixture), web(true));
        let shown = |fixture: &Fixture| format!("{:?}", fixture.files.objects());
        let before = shown(&fixture);
        fixture.files.renew();
        assert_eq!(shown(&fixture), before);
        fixture.write("a.yaml", policy);
        assert_eq!(stand_ins(&mut fixture), web(false));
        // The last valid content stays in force.
        fixture.write("a.yaml", &broken);
        assert_eq!(stand_ins(&mut fixture), web(false));
        fs::remove_file(fixture.directory.path().join("a.yaml")).expect("the file");
        assert_eq!(stand_ins(&mut fixture), []);
        // Neither is valid text; one mentions a policy, and the other cannot be read at all.
        fs::write(fixture.directory.path().join("b.yaml"), [policy.as_bytes(), &[0xff]].concat()).expect("written");
        fs::write(fixture.directory.path().join("c.yaml"), [0xff]).expect("written");
        assert_eq!(stand_ins(&mut fixture), [("AuthorizationPolicy default/b.yaml:0".to_owned(), true)]);
        fixture.files.renew();
        assert_eq!(fixture.files.objects().len(), 1);
        fs::remove_file(fixture.directory.path().join("b.yaml")).expect("the file");
        fs::create_dir(fixture.directory.path().join("d.yaml")).expect("a directory");
        assert_eq!(stand_ins(&mut fixture), []);
    }

    #[test]
    fn what_is_read_anew_is_equal_and_shares_nothing() {
        let mut fixture = Fixture::new();
        let broken = "apiVersion: v1\nkind: Service\nmetadata: {name: [}\n";
        fixture.write("broken.yaml", &service("broken"));
        fixture.write("sound.yaml", &[service("sound"), service("too")].join("---\n"));
        fixture.write("never.yaml", broken);
        fixture.names();
        fixture.write("broken.yaml", broken);
        fixture.names();
        let told = |fixture: &Fixture| {
            let texts = fixture.files.texts().map(|text| format!("{text:?}")).collect::<Vec<_>>();
            (texts, fixture.files.diagnostics().to_string(), fixture.files.refused())
        };
        let kept = |fixture: &Fixture| {
            fixture.files.files.values().flat_map(|file| file.held.objects().to_vec()).collect::<Vec<_>>()
        };
        let (before, old) = (told(&fixture), kept(&fixture));
        let SourceEvent::Snapshot(renewed) = fixture.files.renew() else { panic!("all of it") };
        let renewed: Vec<_> = renewed.into_iter().flat_map(|entry| entry.objects).collect();
        assert_eq!(told(&fixture), before);
        assert_eq!(old.len(), 3);
        assert!(renewed.len() == 3 && renewed.iter().zip(&old).all(|(new, old)| new.same_as_written(old)));
        assert!(!renewed.iter().zip(&old).any(|(new, old)| Arc::ptr_eq(new, old)));
        assert!(renewed.iter().zip(kept(&fixture)).all(|(given, kept)| Arc::ptr_eq(given, &kept)));
        assert!(!fixture.names().1.objects_changed);
        fixture.write("broken.yaml", &service("mended"));
        assert_eq!(fixture.names().0, ["mended", "sound", "too"]);
    }

    #[test]
    fn of_a_file_that_was_never_whole_the_sound_objects_count() {
        let mut fixture = Fixture::new();
        let broken = "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {prots: []}\n";
        fixture.write("a.yaml", &format!("{}---\n{broken}", service("a")));
        assert_eq!(fixture.names().0, ["a"]);
        assert_eq!(fixture.files.refused().len(), 1);
        fixture.write("a.yaml", &format!("{}---\n{broken}---\n{}", service("a2"), service("b")));
        assert_eq!(fixture.names().0, ["a2", "b"], "still not whole: the sound ones of the present content");
        fixture.write("a.yaml", &service("c"));
        assert_eq!(fixture.names().0, ["c"]);
        fixture.write("a.yaml", &format!("{}---\n{broken}", service("d")));
        assert_eq!(fixture.names().0, ["c"], "whole once: the last good content stays");
    }

    #[test]
    fn reads_only_what_notices_name_and_everything_where_that_may_not_do() {
        let mut fixture = Fixture::new();
        fixture.write("a.yaml", &service("a"));
        fixture.write("b.yaml", &service("b"));
        fixture.names();
        fixture.write("a.yaml", &service("a2"));
        fixture.write("b.yaml", &service("b2"));
        let path = |name: &str| BTreeMap::from([(fixture.directory.path().join(name), false)]);
        let (a, b, c, d) = (path("a.yaml"), path("b.yaml"), path("c.yaml"), path("directory"));
        let mut check = |paths: &BTreeMap<PathBuf, bool>, expected: &[&str]| {
            let refresh = fixture.files.refresh_only(paths, SystemTime::now());
            let names: Vec<String> = refresh.objects.iter().map(|o| o.name.to_string()).collect();
            assert_eq!(names, expected, "{paths:?}");
            refresh.missed
        };
        check(&a, &["a2", "a"]);
        check(&a, &[]);
        check(&c, &[]);
        check(&d, &["b2", "b"]);
        let (b, _) = b.first_key_value().expect("a path");
        fs::remove_file(b).expect("a removed file");
        // No notice has reported the deletion yet.
        assert!(check(&BTreeMap::from([(b.clone(), false)]), &[]), "what it said meanwhile is not known");
        assert!(!check(&BTreeMap::from([(b.clone(), true)]), &["b2"]));
    }

    #[test]
    fn knows_changes_of_endpoints_only() {
        let mut fixture = Fixture::new();
        let entry = |host: &str, address: &str| {
            format!(
                "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: a}}\nspec: {{hosts: [{host}], \
                 resolution: STATIC, ports: [{{number: 80, name: http}}], endpoints: [{{address: {address}}}]}}\n"
            )
        };
        fixture.write("a.yaml", &entry("a.example.com", "10.0.0.1"));
        fixture.names();
        let check = |fixture: &mut Fixture, text: &str, expected| {
            fixture.write("a.yaml", text);
            let path = fixture.directory.path().join("a.yaml");
            assert_eq!(fixture.files.difference(&path), expected, "{text}");
        };
        check(&mut fixture, &entry("a.example.com", "10.0.0.1"), Difference::None);
        check(&mut fixture, &entry("a.example.com", "10.0.0.2"), Difference::Endpoints);
        check(&mut fixture, &entry("b.example.com", "10.0.0.1"), Difference::Other);
        let longer = |address: &str| entry("a.example.com", address).replace("{address", "\n    {address");
        let with_service = |entry: String| format!("{entry}---\n{}", service("s"));
        check(&mut fixture, &with_service(entry("a.example.com", "10.0.0.2")), Difference::Other);
        fixture.write("a.yaml", &with_service(entry("a.example.com", "10.0.0.2")));
        fixture.names();
        check(&mut fixture, &with_service(longer("10.0.0.3")), Difference::Endpoints);
        check(&mut fixture, "", Difference::Other);
    }

    #[test]
    fn an_unreadable_file_keeps_the_last_good_and_a_deleted_one_goes() {
        let mut fixture = Fixture::new();
        fixture.write("a.yaml", &service("a"));
        fixture.names();
        fs::write(fixture.directory.path().join("a.yaml"), b"\xff\xfe").expect("a written file");
        let (names, refresh) = fixture.names();
        assert_eq!(names, ["a"]);
        assert!(refresh.news[0].to_string().contains("not UTF-8"), "{:?}", refresh.news);

        fs::remove_file(fixture.directory.path().join("a.yaml")).expect("a removed file");
        let (names, refresh) = fixture.names();
        assert!(names.is_empty() && refresh.objects_changed);
    }

    #[test]
    fn what_is_no_file_is_neither_waited_for_nor_taken_for_a_mistake() {
        let mut fixture = Fixture::new();
        let place = |name: &str| fixture.directory.path().join(name);
        let (pipe, link, known) = (place("pipe.yaml"), place("zero.json"), place("a.yaml"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        nix::unistd::mkfifo(&place(IGNORE_FILE), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        std::os::unix::fs::symlink("/dev/zero", &link).expect("a link");
        fixture.write("a.yaml", &service("a"));
        let (names, refresh) = fixture.names();
        let said: Vec<String> = refresh.news.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a"]);
        assert_eq!(said.len(), 2, "{said:?}");
        for (said, path) in said.iter().zip([&pipe, &link]) {
            let expected = format!("{}: warning[unreadable-file]: this is not read as configuration", path.display());
            assert!(said.starts_with(&expected) && said.contains(IGNORE_FILE), "{said}");
        }
        // The last good content stays where a file was.
        fs::remove_file(&known).expect("our own file");
        nix::unistd::mkfifo(&known, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let (names, refresh) = fixture.names();
        assert_eq!(names, ["a"]);
        assert!(refresh.news[0].to_string().contains("error[unreadable-file]"), "{:?}", refresh.news);
    }

    #[test]
    fn a_directory_that_cannot_be_read_keeps_its_objects() {
        let mut fixture = Fixture::new();
        fixture.write("a.yaml", &service("a"));
        fixture.write("sub/b.yaml", &service("b"));
        assert_eq!(fixture.names().0, ["a", "b"]);
        fs::remove_dir_all(fixture.directory.path().join("sub")).expect("a removed directory");
        assert_eq!(fixture.names().0, ["a"], "what the user removes goes");

        let away = fixture.directory.path().with_extension("away");
        fs::rename(fixture.directory.path(), &away).expect("a moved directory");
        let (names, refresh) = fixture.names();
        fs::rename(&away, fixture.directory.path()).expect("a moved directory");
        assert_eq!(names, ["a"], "but a root that is gone takes nothing along");
        assert_eq!(refresh.news.len(), 1, "{:?}", refresh.news);
    }

    /// Runs a function as a user to whom file modes apply.
    fn without_privileges<T>(what: impl FnOnce() -> T) -> T {
        use nix::unistd::{Uid, setfsuid};
        let before = setfsuid(Uid::from_raw(65_534));
        let done = what();
        setfsuid(before);
        done
    }

    #[test]
    fn a_directory_that_was_never_read_closes_the_mesh_until_it_is() {
        use std::os::unix::fs::PermissionsExt as _;
        let mut fixture = Fixture::new();
        fixture.write("a.yaml", &service("a"));
        fixture.write("sub/deep/b.yaml", &service("b"));
        let mode = |name: &str, mode: u32| {
            let path = fixture.directory.path().join(name);
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        };
        let look = |files: &mut Files| {
            let refresh = without_privileges(|| files.refresh(SystemTime::now()));
            let objects = files.objects();
            let shown = objects.iter().map(|o| format!("{o}{}", if o.refused.is_some() { " closed" } else { "" }));
            (shown.collect::<Vec<_>>(), refresh.entries_changed, files.refused().len(), files.never_accepted().len())
        };
        let closed = |name: &str| {
            let shown = ["AuthorizationPolicy", "Sidecar"].map(|kind| format!("{kind} {name} closed"));
            [vec!["Service default/a".to_owned()], shown.to_vec()].concat()
        };
        let open = vec!["Service default/a".to_owned(), "Service default/b".to_owned()];
        mode("", 0o755);
        mode("sub", 0o000);
        assert_eq!(look(&mut fixture.files), (closed("sub"), true, 1, 1));
        assert_eq!(look(&mut fixture.files), (closed("sub"), false, 1, 1), "told once");
        let before = fixture.files.objects();
        fixture.files.renew();
        assert_eq!(format!("{before:?}"), format!("{:?}", fixture.files.objects()));
        // It can be listed, but nothing in it can be looked at.
        mode("sub", 0o744);
        assert_eq!(look(&mut fixture.files), (closed("deep"), true, 1, 1));
        mode("sub", 0o755);
        assert_eq!(look(&mut fixture.files), (open.clone(), true, 0, 0));
        // What was read of it stays.
        mode("sub/deep", 0o000);
        assert_eq!(look(&mut fixture.files), (open, false, 1, 0));
        fs::remove_dir_all(fixture.directory.path().join("sub")).expect("a removed directory");
        assert_eq!(look(&mut fixture.files), (vec!["Service default/a".to_owned()], true, 0, 0));
    }

    #[test]
    fn what_an_unreadable_directory_held_can_be_recalled() {
        use std::os::unix::fs::PermissionsExt as _;
        let mut fixture = Fixture::new();
        fixture.write("sub/b.yaml", &service("b2"));
        let mode = |name: &str, mode: u32| {
            let path = fixture.directory.path().join(name);
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        };
        mode("", 0o755);
        mode("sub", 0o000);
        let names = |files: &Files| files.objects().iter().map(|o| o.name.to_string()).collect::<Vec<_>>();
        let look = |files: &mut Files| {
            without_privileges(|| files.refresh(SystemTime::now()));
            (names(files), files.refused().len(), files.never_accepted().len())
        };
        assert_eq!(look(&mut fixture.files), (vec!["sub".to_owned(), "sub".to_owned()], 1, 1));
        let mut result = Refresh::default();
        assert!(fixture.files.recall(&fixture.directory.path().join("sub/b.yaml"), &service("b"), &mut result));
        assert_eq!(names(&fixture.files), ["b"]);
        // The history must be able to restore it after the next start.
        assert_eq!(fixture.files.texts().map(|(_, _, present)| present.to_owned()).collect::<Vec<_>>(), [service("b")]);
        assert_eq!(look(&mut fixture.files), (vec!["b".to_owned()], 1, 0));
        mode("sub", 0o755);
        assert_eq!(look(&mut fixture.files), (vec!["b2".to_owned()], 0, 0));
    }

    #[test]
    fn what_is_nested_too_deep_is_not_known_either() {
        let mut fixture = Fixture::new();
        fixture.write(&format!("{}a.yaml", "d/".repeat(MAX_DIRECTORY_DEPTH + 1)), &service("a"));
        assert_eq!(fixture.names().0, ["d", "d"], "stand-ins");
        assert_eq!(fixture.files.never_accepted().len(), 1);
    }

    #[test]
    fn what_a_refused_file_said_last_can_be_recalled() {
        let mut fixture = Fixture::new();
        let broken = "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {prots: []}\n";
        fixture.write("a.yaml", broken);
        fixture.write("b.yaml", &service("b"));
        assert_eq!(fixture.names().0, ["b"]);
        let path = |name: &str| fixture.directory.path().join(name);
        let (a, b) = (path("a.yaml"), path("b.yaml"));
        let mut result = Refresh::default();
        assert!(!fixture.files.recall(&a, broken, &mut result) && !result.objects_changed);
        assert!(fixture.files.recall(&a, &service("a"), &mut result) && result.objects_changed);
        assert!(fixture.files.recall(&b, &service("older"), &mut result));
        let names = |files: &Files| files.objects().iter().map(|o| o.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&fixture.files), ["a", "b"]);
        assert_eq!((fixture.files.refused().len(), fixture.files.never_accepted().len()), (1, 0));
        assert_eq!(fixture.files.texts().next().and_then(|(_, good, _)| good), Some(&*service("a")));
        let found = fixture.files.diagnostics().to_string();
        assert!(found.contains("recalled"), "{found}");
        fixture.write("a.yaml", &broken.replace("prots", "prts"));
        assert_eq!(fixture.names().0, ["a", "b"]);
        fixture.write("a.yaml", &service("a2"));
        assert_eq!(fixture.names().0, ["a2", "b"]);
        assert!(fixture.files.diagnostics().is_empty());
    }

    #[test]
    fn a_missing_directory_is_reported() {
        let mut files = Files::new(vec!["/nonexistent/evenkeel".into()]);
        let refresh = files.refresh(SystemTime::now());
        assert!(refresh.news[0].to_string().starts_with("/nonexistent/evenkeel: error[unreadable-file]"));
    }

    #[test]
    fn knows_files_of_endpoints() {
        let mut fixture = Fixture::new();
        fixture.write("pods.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a}]}\n");
        fixture.write("a.yaml", &service("a"));
        let (names, refresh) = fixture.names();
        assert_eq!(names, ["a", "a"], "{:?}", refresh.news);
        let path = |name: &str| fixture.directory.path().join(name);
        assert!(fixture.files.holds_only_endpoints(&path("pods.yaml")));
        assert!(!fixture.files.holds_only_endpoints(&path("a.yaml")));
        assert!(!fixture.files.holds_only_endpoints(&path("other.yaml")));

        let link = fixture.directory.path().with_extension("link");
        std::os::unix::fs::symlink(fixture.directory.path(), &link).expect("a link");
        fixture.files = Files::new(vec![link.clone()]);
        let real = fixture.directory.path().join("pods.yaml");
        fixture.names();
        assert!(fixture.files.holds_only_endpoints(&real), "notices name what is behind links");
        fs::remove_file(link).expect("a removed link");
    }
}
