//! `evenkeel apply` and `evenkeel delete`: objects of a running mesh, changed as `kubectl` changes a cluster's.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use clap::Args;
use evenkeel_api::{Document, Object, documents, in_force};
use evenkeel_base::{Diagnostic, Diagnostics, Severity, Sources};
use evenkeel_control::source::files::{self, Files};
use evenkeel_local::applied::{Applied, Outcome};
use evenkeel_local::cleanup::StateDir;
use evenkeel_model::{AddressBook, MeshConfig};

use crate::compiled;

/// Flags of both commands.
#[derive(Debug, Args)]
pub struct ChangeArguments {
    /// A file with objects (`-`: standard input), or a directory, read recursively; may be repeated.
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,

    /// Namespace of objects without a namespace [default: default].
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<Arc<str>>,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

/// What to do with the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// They are to be as given.
    Apply,
    /// They are to be gone; whether it is no mistake if one is not there.
    Delete {
        /// `--ignore-not-found`.
        ignore_not_found: bool,
    },
}

/// Applies or deletes the objects and says for each what became of it. Returns 1 if something is wrong; where a file has a mistake,
/// nothing is changed.
pub fn run(arguments: &ChangeArguments, change: Change, out: &mut dyn Write) -> anyhow::Result<u8> {
    let state = StateDir::new(&arguments.state.clone().unwrap_or_else(StateDir::default_path))?;
    let directory = state.running().with_context(|| {
        let state = state.path().display();
        format!("no mesh is running with the state directory {state}; start one: evenkeel up DIR, or name its directory: --state DIR")
    })?;
    let applied = Applied::of(&state, &directory);
    let mut present = Files::new(vec![directory, applied.folder().to_owned()]);
    applied.prepare().with_context(|| format!("making {}", applied.folder().display()))?;
    present.refresh(SystemTime::now());

    let mut given = Given::read(&arguments.files);
    given.set_namespace(arguments.namespace.as_ref());
    if change == Change::Apply && !given.found.has_errors() {
        given.check_together(present.objects());
    }
    given.print(change == Change::Apply, out)?;
    if given.found.has_errors() {
        writeln!(out, "nothing was changed")?;
        return Ok(1);
    }
    let mut status = 0;
    for document in &given.documents {
        let outcome = match change {
            Change::Apply => applied.apply(document, &present),
            Change::Delete { .. } => applied.delete(document, &present),
        };
        let outcome = outcome.with_context(|| format!("writing into {}", applied.folder().display()))?;
        match (outcome, change) {
            (Outcome::NotFound, Change::Delete { ignore_not_found: true }) => continue,
            (Outcome::NotFound, _) => status = 1,
            _ => {}
        }
        writeln!(out, "{} {}", document.resource_name(), outcome.as_str())?;
    }
    if given.documents.is_empty() {
        writeln!(out, "there is no object to change in what was given")?;
        status = 1;
    }
    Ok(status)
}

/// What was given.
#[derive(Default)]
struct Given {
    documents: Vec<Document>,
    objects: Vec<Object>,
    found: Diagnostics,
    sources: Sources,
}

impl Given {
    fn read(paths: &[PathBuf]) -> Self {
        let mut given = Self::default();
        let mut texts: Vec<(Arc<str>, Arc<str>)> = Vec::new();
        for path in paths {
            if path.is_dir() {
                let mut files = Files::new(vec![path.clone()]);
                files.refresh(SystemTime::now());
                texts.extend(files.texts().map(|(path, _, text)| (path.to_string_lossy().into(), text.into())));
                continue;
            }
            let (name, text): (Arc<str>, _) = match path == Path::new("-") {
                true => ("standard input".into(), files::read_all(io::stdin())),
                false => (path.to_string_lossy().into(), files::read_text(path)),
            };
            match text {
                Ok(text) => texts.push((name, text.into())),
                Err(error) => given.found.push(evenkeel_api::unreadable(&name, error)),
            }
        }
        let (objects, found) = evenkeel_api::load(&texts);
        given.documents = texts.iter().flat_map(|(path, text)| documents(path, text)).collect();
        given.objects = objects;
        given.found.extend(found);
        texts.into_iter().for_each(|(path, text)| given.sources.insert(path, text));
        given
    }

    /// Objects that name no namespace are in this one; one that names another is a mistake, as it is to `kubectl`.
    fn set_namespace(&mut self, namespace: Option<&Arc<str>>) {
        let Some(namespace) = namespace else { return };
        for document in self.documents.iter_mut().filter(|document| document.kind.is_namespaced()) {
            let is_it = |object: &&mut Object| {
                object.kind() == document.kind
                    && object.name == document.name
                    && object.namespace == document.namespace()
            };
            let object = self.objects.iter_mut().find(is_it);
            match (&document.namespace, object) {
                (Some(other), Some(object)) if other != namespace => {
                    let message = format!("{object} is in the namespace {other}, and --namespace says {namespace}");
                    let finding = Diagnostic::error("bad-value", object.origin.clone(), message);
                    self.found.push(finding.with_help(format!("leave the flag out, or write --namespace {other}")));
                }
                (None, Some(object)) => object.namespace = namespace.clone(),
                _ => {}
            }
            document.namespace = Some(namespace.clone());
        }
    }

    /// What is wrong with the mesh as a whole once they are in it, and was not before.
    fn check_together(&mut self, present: Vec<Object>) {
        let build =
            |objects: &[Object]| evenkeel_model::build(objects, &MeshConfig::default(), &mut AddressBook::default()).1;
        let present = in_force(present);
        let before: BTreeSet<String> = build(&present).iter().map(ToString::to_string).collect();
        let is_given = |object: &Object| {
            let same =
                |o: &Object| o.kind() == object.kind() && o.name == object.name && o.namespace == object.namespace;
            self.objects.iter().any(same)
        };
        let refused_before: BTreeSet<String> = compiled::refusals(&present).iter().map(ToString::to_string).collect();
        let others = present.into_iter().filter(|object| !is_given(object));
        let after: Vec<Object> = self.objects.iter().cloned().chain(others).collect();
        // What proxies would not take could do nothing but harm.
        let refused = compiled::refusals(&after).into_iter();
        self.found.extend(refused.filter(|finding| !refused_before.contains(&finding.to_string())));
        let news = build(&after).into_iter().filter(|finding| !before.contains(&finding.to_string()));
        // What does not fit together is for the mesh to live with: the rest may be applied next.
        self.found
            .extend(news.map(|finding| Diagnostic { severity: finding.severity.min(Severity::Warning), ..finding }));
    }

    /// Prints what matters: for what is deleted, only why it cannot be read.
    fn print(&mut self, warnings: bool, out: &mut dyn Write) -> io::Result<()> {
        let least = if warnings { Severity::Warning } else { Severity::Error };
        let found = std::mem::take(&mut self.found);
        let mut shown: Diagnostics = found.into_iter().filter(|finding| finding.severity >= least).collect();
        shown.sort();
        out.write_all(shown.render(&self.sources, io::stdout().is_terminal()).as_bytes())?;
        self.found = shown;
        Ok(())
    }
}
