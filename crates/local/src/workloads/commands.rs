//! Commands of workloads on this machine, from `evenkeel.yaml` beside the manifests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_api::{LocalWorkload, is_local_file, read_local};
use evenkeel_base::suggest::instead;
use evenkeel_base::{Diagnostic, Diagnostics, Span};
use evenkeel_control::source::files::Files;

/// The command of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// For `sh -c`.
    pub run: String,
    /// The working directory; `None`: the directory given to `up`.
    pub directory: Option<PathBuf>,
    /// Variables that override those of the containers.
    pub environment: Vec<(String, String)>,
}

/// A build step, which runs before anything is started.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Build {
    /// The working directory.
    pub directory: PathBuf,
    /// For `sh -c`.
    pub run: String,
    /// Where it is written.
    pub span: Span,
}

/// The commands in all files.
#[derive(Debug, Default)]
pub struct Commands {
    /// By the name as written: NAME or NAMESPACE/NAME.
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    span: Span,
    command: Command,
    build: Option<Build>,
}

impl Commands {
    /// Reads all files; of a file with a mistake, the last good content. The findings are about conflicts between
    /// files; mistakes within a file are reported when it is read.
    pub fn of(files: &Files) -> (Self, Diagnostics) {
        let mut commands = Self::default();
        let mut diagnostics = Diagnostics::new();
        for (path, good, text) in files.texts() {
            let name: Arc<str> = path.to_string_lossy().into();
            let read = is_local_file(&name).then(|| read_local(&name, good.unwrap_or(text)).0).flatten();
            let directory = path.parent().unwrap_or(Path::new("."));
            for (workload, said) in read.into_iter().flat_map(|file| file.workloads) {
                let entry = Entry::new(directory, &said.value, said.span.clone());
                match commands.entries.get(&workload) {
                    None => {
                        commands.entries.insert(workload, entry);
                    }
                    Some(first) => {
                        let message = format!("`{workload}` already has a command; this one is ignored");
                        let finding = Diagnostic::error("duplicate-object", said.span, message);
                        diagnostics.push(
                            finding
                                .with_related(first.span.clone(), "first given here")
                                .with_help("remove one of the two"),
                        );
                    }
                }
            }
        }
        (commands, diagnostics)
    }

    /// The command of a workload; an entry with its namespace takes precedence.
    pub fn find(&self, namespace: &str, name: &str) -> Option<&Command> {
        let entry = self.entries.get(&format!("{namespace}/{name}")).or_else(|| self.entries.get(name));
        entry.map(|entry| &entry.command)
    }

    /// The build steps, each once.
    pub fn builds(&self) -> Vec<Build> {
        let mut builds: Vec<Build> = self.entries.values().filter_map(|entry| entry.build.clone()).collect();
        builds.sort();
        builds.dedup_by(|a, b| (&a.directory, &a.run) == (&b.directory, &b.run));
        builds
    }

    /// Warns about entries without a workload; `workloads` are given with their namespaces.
    pub fn note_unused(&self, workloads: &[(&str, &str)], diagnostics: &mut Diagnostics) {
        for (name, entry) in &self.entries {
            let is_meant = |(namespace, workload): &&(&str, &str)| {
                name.split_once('/').map_or(*name == *workload, |(ns, rest)| ns == *namespace && rest == *workload)
            };
            if workloads.iter().any(|workload| is_meant(&workload)) {
                continue;
            }
            let message = format!("there is no workload `{name}` in the files");
            let help = instead(name, workloads.iter().map(|(_, workload)| *workload));
            diagnostics.push(Diagnostic::warning("no-such-workload", entry.span.clone(), message).with_help(help));
        }
    }
}

impl Entry {
    fn new(home: &Path, said: &LocalWorkload, span: Span) -> Self {
        let directory =
            said.working_directory.as_ref().map_or_else(|| home.to_owned(), |below| home.join(&below.value));
        let build = said.build.as_ref().map(|run| Build {
            directory: directory.clone(),
            run: run.value.clone(),
            span: run.span.clone(),
        });
        let environment = said.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let command = Command { run: said.command.value.clone(), directory: Some(directory), environment };
        Self { span, command, build }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn read(files: &[(&str, &str)]) -> (tempfile::TempDir, Commands, String) {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, text).expect("our own folder");
        }
        let mut files = Files::new(vec![folder.path().to_owned()]);
        files.refresh(SystemTime::now());
        let (commands, mut found) = Commands::of(&files);
        found.extend(files.diagnostics());
        (folder, commands, found.to_string())
    }

    #[test]
    fn a_workload_is_found_by_its_name_alone_or_with_its_namespace() {
        let text = "workloads:\n  web: {command: ./web, workingDirectory: src, build: make, env: {A: b}}\n  \
                    shop/web: {command: ./shop, build: make}\n";
        let (folder, commands, found) = read(&[("app/evenkeel.yaml", text)]);
        assert_eq!(found, "");
        let home = folder.path().join("app");
        let web = Command {
            run: "./web".to_owned(),
            directory: Some(home.join("src")),
            environment: vec![("A".to_owned(), "b".to_owned())],
        };
        assert_eq!(commands.find("default", "web"), Some(&web));
        assert_eq!(commands.find("shop", "web").map(|command| &*command.run), Some("./shop"));
        assert_eq!(commands.find("shop", "other"), None);
        let builds: Vec<PathBuf> = commands.builds().into_iter().map(|build| build.directory).collect();
        assert_eq!(builds, [home.clone(), home.join("src")]);
        let mut unused = Diagnostics::new();
        commands.note_unused(&[("default", "webs"), ("shop", "web")], &mut unused);
        assert_eq!(unused.to_string(), "");
        commands.note_unused(&[("default", "webs")], &mut unused);
        let unused = unused.to_string();
        assert!(unused.contains("there is no workload `web`") && unused.contains("did you mean `webs`?"), "{unused}");
    }

    #[test]
    fn mistakes_have_a_place() {
        let check = |text: &str, expected: &str| {
            let (_folder, commands, found) = read(&[("evenkeel.yaml", text)]);
            assert!(found.contains(expected), "{expected:?} is not in {found}");
            assert!(commands.entries.is_empty());
        };
        check("workloads: {web: {comand: ./web}}\n", "evenkeel.yaml:1:19: error[unknown-field]");
        check("workloads: {web: {workingDirectory: a}}\n", "`workloads[\"web\"].command`: this field is required");
        check("workload: {}\n", "did you mean `workloads`?");
        check("workloads: {}\n---\nworkloads: {}\n", "only one YAML document");
        let twice = "workloads: {web: {command: ./web}}\n";
        let (_folder, _, found) = read(&[("a/evenkeel.yaml", twice), ("b/evenkeel.yaml", twice)]);
        assert!(found.contains("b/evenkeel.yaml:1:18: error[duplicate-object]"), "{found}");
    }
}
