//! Reads the manifests that a command is given: files, directories, standard input.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_api::Object;
use evenkeel_base::{Diagnostic, Diagnostics, Severity, Sources, Span};
use evenkeel_control::source::files::{self, Files};

/// What was read, all of it together.
#[derive(Debug, Default)]
pub struct Manifests {
    /// The objects; stand-ins for those that were refused, too.
    pub objects: Vec<Object>,
    /// The files, by the names that positions have.
    pub texts: BTreeMap<Arc<str>, Arc<str>>,
    /// What is wrong with single files.
    pub diagnostics: Diagnostics,
}

impl Manifests {
    /// Reads files, directories, and standard input (`-`).
    pub fn read(paths: &[PathBuf]) -> Self {
        let mut all = Self::default();
        for path in paths {
            match path.is_dir() {
                true => all.directory(path),
                false => all.file(path),
            }
        }
        all
    }

    fn file(&mut self, path: &Path) {
        let (name, text): (Arc<str>, _) = match path == Path::new("-") {
            true => ("standard input".into(), files::read_all(io::stdin())),
            false => (path.to_string_lossy().into(), files::read_text(path)),
        };
        match text {
            Ok(text) => {
                let text: Arc<str> = text.into();
                let (objects, found) = evenkeel_api::load(&[(name.clone(), text.clone())]);
                self.texts.insert(name, text);
                self.objects.extend(objects);
                self.diagnostics.extend(found);
            }
            Err(error) => self.diagnostics.push(evenkeel_api::unreadable(&name, error)),
        }
    }

    fn directory(&mut self, path: &Path) {
        let mut files = Files::new(vec![path.to_path_buf()]);
        files.refresh(SystemTime::now());
        if files.texts().next().is_none() && files.diagnostics().is_empty() {
            let message = "there is nothing to read in this directory";
            let finding = Diagnostic::warning("no-files", Span::whole_file(path.to_string_lossy()), message);
            self.diagnostics.push(finding.with_help("only files whose names end in .yaml, .yml or .json are read"));
        }
        self.objects.extend(files.objects());
        self.diagnostics.extend(files.diagnostics());
        for (path, _, text) in files.texts() {
            self.texts.insert(path.to_string_lossy().into(), text.into());
        }
    }

    /// Prints on standard error which documents were refused: an answer without them may be wrong.
    pub fn report_errors(&self) {
        let is_error = |finding: &Diagnostic| finding.severity == Severity::Error;
        let errors: Diagnostics = self.diagnostics.clone().into_iter().filter(is_error).collect();
        let text = errors.render(&self.sources(), io::stderr().is_terminal());
        // Nothing can be done if standard error is gone.
        let _ = io::stderr().write_all(text.as_bytes());
    }

    /// The files, for rendering findings.
    pub fn sources(&self) -> Sources {
        let mut sources = Sources::new();
        for (name, text) in &self.texts {
            sources.insert(name.clone(), text.clone());
        }
        sources
    }
}
