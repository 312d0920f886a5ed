//! `evenkeel apply` and `evenkeel delete`: objects of a running mesh, changed as `kubectl` changes a cluster's.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Args;
use evenkeel_api::{Document, Object, STANDARD_INPUT, documents, in_force};
use evenkeel_base::{Diagnostic, Diagnostics, Severity, Sources};
use evenkeel_control::source::files::{self, Files};
use evenkeel_local::applied::{Applied, Outcome};
use evenkeel_local::cleanup::StateDir;
use evenkeel_model::AddressBook;
use evenkeel_model::request_authentication::of_files_alone;
use serde_json::json;

use crate::settle::{self, Settled};
use crate::{admin, compiled, manifests};

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

    /// Return when every proxy that it concerns runs the change, or say which does not, and why.
    #[arg(long)]
    wait: bool,

    /// How long to wait, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "wait", value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// How to print what became of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// What to do with the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Create the objects, or change them to what is given.
    Apply,
    /// Delete the objects.
    Delete {
        /// `--ignore-not-found`.
        ignore_not_found: bool,
    },
}

/// Applies or deletes the objects and prints the outcome of each. Returns 1 if something is wrong. If a file has a
/// mistake, nothing is changed.
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

    let mut input = ParsedInput::read(&arguments.files);
    input.set_namespace(arguments.namespace.as_ref());
    if change == Change::Apply && !input.found.has_errors() {
        input.check_together(present.objects());
    }
    let is_json = arguments.output == Output::Json;
    if is_json {
        input.print(change == Change::Apply, &mut io::stderr())?
    } else {
        input.print(change == Change::Apply, out)?
    }
    if input.found.has_errors() {
        if is_json {
            writeln!(out, "{:#}", json!({ "objects": [], "problems": ["nothing was changed"] }))?
        } else {
            writeln!(out, "nothing was changed")?
        }
        return Ok(1);
    }
    let (mut status, mut changed) = (0, Vec::new());
    for document in &input.documents {
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
        changed.push(json!({ "object": document.resource_name(), "outcome": outcome.as_str() }));
        if !is_json {
            writeln!(out, "{} {}", document.resource_name(), outcome.as_str())?;
        }
    }
    if input.documents.is_empty() {
        if !is_json {
            writeln!(out, "the input has no objects")?;
        }
        status = 1;
    }
    let settled = if arguments.wait { Some(settled(arguments, out, is_json)?) } else { None };
    if is_json {
        let settled = settled.as_ref();
        let page = json!({
            "objects": changed,
            "generation": settled.map(|settled| settled.generation),
            "problems": settled.map(|settled| settled.problems.clone()).unwrap_or_default(),
        });
        writeln!(out, "{page:#}")?;
    }
    Ok(if settled.is_some_and(|settled| !settled.problems.is_empty()) { 1 } else { status })
}

/// Waits until proxies run the change, and says how that ended.
fn settled(arguments: &ChangeArguments, out: &mut dyn Write, is_json: bool) -> anyhow::Result<Settled> {
    let control_plane = admin::control_plane_of_machine(arguments.state.as_deref())?;
    let state = arguments.state.clone().unwrap_or_else(StateDir::default_path);
    let settled = settle::wait(&state, control_plane, Duration::from_secs(arguments.timeout))?;
    if is_json {
        return Ok(settled);
    }
    match settled.problems.as_slice() {
        [] => writeln!(out, "every proxy runs generation {}", settled.generation)?,
        problems => problems.iter().try_for_each(|problem| writeln!(out, "{problem}"))?,
    }
    Ok(settled)
}

/// The objects read from the files, and the findings about them.
#[derive(Default)]
struct ParsedInput {
    documents: Vec<Document>,
    objects: Vec<Object>,
    found: Diagnostics,
    sources: Sources,
}

impl ParsedInput {
    fn read(paths: &[PathBuf]) -> Self {
        let mut input = Self::default();
        let mut texts: Vec<(Arc<str>, Arc<str>)> = Vec::new();
        for path in paths {
            if path.is_dir() {
                let mut files = Files::new(vec![path.clone()]);
                files.refresh(SystemTime::now());
                texts.extend(files.texts().map(|(path, _, text)| (path.to_string_lossy().into(), text.into())));
                continue;
            }
            let (name, text): (Arc<str>, _) = if path == Path::new("-") {
                (STANDARD_INPUT.into(), files::read_all(io::stdin()))
            } else {
                (path.to_string_lossy().into(), files::read_text(path))
            };
            match text {
                Ok(text) => texts.push((name, text.into())),
                Err(error) => input.found.push(evenkeel_api::unreadable(&name, error)),
            }
        }
        let (objects, found) = evenkeel_api::load(&texts);
        input.documents = texts.iter().flat_map(|(path, text)| documents(path, text)).collect();
        input.objects = objects;
        input.found.extend(found);
        texts.into_iter().for_each(|(path, text)| input.sources.insert(path, text));
        input
    }

    /// Puts objects without a namespace into this one. An object with another namespace is an error, as for `kubectl`.
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

    /// Adds the findings about the mesh as a whole that exist with these objects and did not exist before.
    fn check_together(&mut self, present: Vec<Object>) {
        let build = |objects: &[Object]| {
            let (_, found) =
                evenkeel_model::build(objects, &manifests::mesh().unwrap_or_default(), &mut AddressBook::default());
            of_files_alone(found)
        };
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
        // Objects that proxies would refuse are errors: they could only do harm.
        let refused = compiled::refusals(&after).into_iter();
        self.found.extend(refused.filter(|finding| !refused_before.contains(&finding.to_string())));
        let news = build(&after).into_iter().filter(|finding| !before.contains(&finding.to_string()));
        // Objects that do not fit together are only warnings: the missing ones may be applied next.
        self.found
            .extend(news.map(|finding| Diagnostic { severity: finding.severity.min(Severity::Warning), ..finding }));
    }

    /// Prints the findings; for a deletion, only those about files that cannot be read.
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
