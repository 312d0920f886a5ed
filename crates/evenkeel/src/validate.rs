//! `evenkeel validate`: what the control plane would say of files, without running anything.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_api::Object;
use evenkeel_base::{Diagnostics, Severity, Sources};
use evenkeel_control::source::files::Files;
use evenkeel_model::{AddressBook, MeshConfig};

/// Reads the files, prints all findings, and returns 1 if one of them is an error.
///
/// Single files are checked each by itself; a directory also as a whole, since only then references can be followed.
pub fn run(paths: &[PathBuf], out: &mut dyn Write) -> io::Result<u8> {
    let mut read = Read::default();
    for path in paths {
        match path.is_dir() {
            true => read.directory(path),
            false => read.file(path),
        }
    }
    read.diagnostics.sort();
    let colour = io::stdout().is_terminal();
    out.write_all(read.diagnostics.render(&read.sources, colour).as_bytes())?;
    let errors = read.diagnostics.count(Severity::Error);
    let warnings = read.diagnostics.count(Severity::Warning);
    let (errors_text, warnings_text) = (counted(errors, "error"), counted(warnings, "warning"));
    writeln!(out, "{}: {errors_text}, {warnings_text}", counted(read.objects, "object"))?;
    Ok(u8::from(errors > 0))
}

#[derive(Default)]
struct Read {
    objects: usize,
    diagnostics: Diagnostics,
    sources: Sources,
}

impl Read {
    fn file(&mut self, path: &Path) {
        let name: Arc<str> = path.to_string_lossy().into();
        match fs::read_to_string(path) {
            Ok(text) => {
                let text: Arc<str> = text.into();
                let (objects, diagnostics) = evenkeel_api::load(&[(name.clone(), text.clone())]);
                self.sources.insert(name, text);
                self.take(&objects, diagnostics);
            }
            Err(error) => self.diagnostics.push(evenkeel_api::unreadable(&name, error)),
        }
    }

    fn directory(&mut self, path: &Path) {
        let mut files = Files::new(vec![path.to_path_buf()]);
        files.refresh(SystemTime::now());
        let objects = files.objects();
        self.take(&objects, files.diagnostics());
        let (_, together) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
        self.diagnostics.extend(together);
        self.sources = files.sources(&self.diagnostics);
    }

    fn take(&mut self, objects: &[Object], diagnostics: Diagnostics) {
        self.objects += objects.len();
        self.diagnostics.extend(diagnostics);
    }
}

fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
