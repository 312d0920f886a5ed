//! One file: its last valid content, and the present one.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_api::Object;
use evenkeel_base::{Diagnostic, Diagnostics, Severity, Span};
use evenkeel_model::{EntryChange, LastGood};

use super::super::{EntryName, Refresh};
use super::ignore::IGNORE_FILE;
use super::reading::{read_found, read_lossy};

/// A file modified this recently is read again even if its stamp is unchanged, because the clock of the file system is
/// coarse.
const RACY_AGE: Duration = Duration::from_secs(2);

/// The code of the finding that an older content of a file, read before a restart, is in force.
pub const RECALLED: &str = "recalled";

/// A parsed text.
#[derive(Debug)]
pub(super) struct Parsed {
    /// The text.
    pub text: Arc<str>,
    /// Its valid objects.
    pub objects: Vec<Object>,
    /// Its findings.
    pub diagnostics: Diagnostics,
}

impl Parsed {
    /// Parses a text.
    pub fn of(path: Arc<str>, text: Arc<str>) -> Self {
        let (objects, diagnostics) = evenkeel_api::load(&[(path, text.clone())]);
        Self { text, objects, diagnostics }
    }
}

/// One file.
#[derive(Debug)]
pub(super) struct File {
    /// Its path, for display.
    pub path: Arc<str>,
    /// Its path.
    pub key: Arc<Path>,
    /// Its stamp when it was read; `None` if it could not be read.
    pub stamp: Option<Stamp>,
    /// Its present text.
    pub text: Arc<str>,
    /// Objects of the last content without errors; if there was none, the valid objects of the present content.
    pub held: LastGood,
    /// That content, if the present one has errors.
    pub good_text: Option<Arc<str>>,
    /// Findings about the present content.
    pub diagnostics: Diagnostics,
}

/// Tells two contents of a file apart without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// When it was last modified.
    pub modified: SystemTime,
    length: u64,
    inode: u64,
}

/// A pipe, a socket or a device in a configuration directory: it never held an object.
fn not_a_file(path: &str, reason: &io::Error) -> Diagnostic {
    let message = format!("this is not read as configuration: {reason}");
    Diagnostic::warning("unreadable-file", Span::whole_file(path), message)
        .with_help(format!("remove it, or name it in the file {IGNORE_FILE} of its directory"))
}

impl File {
    /// Creates a file that has not been read.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_string_lossy().into(),
            key: path.into(),
            stamp: None,
            text: "".into(),
            held: LastGood::default(),
            good_text: None,
            diagnostics: Diagnostics::new(),
        }
    }

    /// Returns a copy, parsed again from its text.
    pub fn renewed(&self) -> Self {
        let anew = |text: &Arc<str>| Arc::<str>::from(&**text);
        let (path, text, good_text) = (anew(&self.path), anew(&self.text), self.good_text.as_ref().map(anew));
        let parsed = Parsed::of(path.clone(), good_text.clone().unwrap_or_else(|| text.clone()));
        let unread = text.is_empty() && parsed.objects.is_empty();
        let good = if unread { self.held.objects().iter().map(|o| (**o).clone()).collect() } else { parsed.objects };
        Self {
            path,
            key: (&*self.key).into(),
            stamp: self.stamp,
            text,
            held: LastGood::new(good.into_iter().map(Arc::new).collect(), self.held.was_good()),
            good_text,
            diagnostics: self.diagnostics.clone(),
        }
    }

    /// Whether the file may have changed since it was read.
    pub fn is_stale(&self, metadata: Result<&Metadata, &io::Error>, now: SystemTime) -> bool {
        let Ok(stamp) = metadata.map(Stamp::of) else { return true };
        let racy = now.duration_since(stamp.modified).is_ok_and(|age| age < RACY_AGE);
        self.stamp != Some(stamp) || racy
    }

    /// Reads the file. `parsed` is used if the text is still the same.
    pub fn read(
        &mut self,
        path: &Path,
        metadata: Result<&Metadata, &io::Error>,
        parsed: Option<Parsed>,
        result: &mut Refresh,
    ) {
        let first = self.stamp.is_none();
        self.stamp = metadata.ok().map(Stamp::of);
        let text = match read_found(path) {
            Ok(text) => text,
            Err(reason) => {
                self.stamp = None;
                result.missed |= reason.kind() == io::ErrorKind::NotFound;
                let is_known = !self.text.is_empty() || !self.held.objects().is_empty();
                let finding = if reason.kind() == io::ErrorKind::Unsupported && !is_known {
                    not_a_file(&self.path, &reason)
                } else {
                    evenkeel_api::unreadable(&self.path, reason)
                };
                if finding.severity == Severity::Error {
                    self.close(path, &finding, result);
                }
                self.diagnostics = std::iter::once(finding).collect();
                result.entries_changed = true;
                return;
            }
        };
        if *text == *self.text && !first {
            return;
        }
        let parsed = parsed.filter(|parsed| *parsed.text == *text);
        self.take(parsed.unwrap_or_else(|| Parsed::of(self.path.clone(), text.into())), result);
    }

    /// Adds stand-ins for a file that has never been read, because its security objects are unknown.
    fn close(&mut self, path: &Path, finding: &Diagnostic, result: &mut Refresh) {
        if !self.text.is_empty() || !self.held.objects().is_empty() {
            return;
        }
        let text = match read_lossy(path) {
            Ok(text) => Some(text),
            // Deleted since it was found.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) => None,
        };
        let objects = evenkeel_api::unreadable_objects(&self.path, text.as_deref(), finding);
        self.held = LastGood::new(objects.into_iter().map(Arc::new).collect(), false);
        if !self.held.objects().is_empty() {
            result.objects_of(&self.key, &[], self.held.objects());
        }
    }

    /// Restores the last valid content from the history.
    pub fn recall(&mut self, parsed: Parsed, result: &mut Refresh) {
        let Parsed { text, objects, .. } = parsed;
        let new: Vec<Arc<Object>> = objects.into_iter().map(Arc::new).collect();
        result.entries_changed = true;
        result.objects_of(&self.key, self.held.objects(), &new);
        self.held = LastGood::new(new, true);
        // Nothing else is known of a file that cannot be read.
        if self.text.is_empty() {
            self.text = text
        } else {
            self.good_text = Some(text)
        }
        let message = "what this file said last without errors is in force; the history has it";
        let finding = Diagnostic::warning(RECALLED, Span::whole_file(self.path.clone()), message);
        self.diagnostics.push(finding.with_help("correct what is refused"));
    }

    /// Applies a new content.
    pub fn take(&mut self, parsed: Parsed, result: &mut Refresh) {
        result.entries_changed = true;
        result.read.push(EntryName::File(self.key.clone()));
        let Parsed { text, objects, diagnostics } = parsed;
        let before = std::mem::replace(&mut self.text, text);
        self.diagnostics = diagnostics;
        match self.held.take(objects, self.diagnostics.has_errors()) {
            EntryChange::Refused => _ = self.good_text.get_or_insert(before),
            EntryChange::Same => self.good_text = None,
            EntryChange::Changed(old) => {
                self.good_text = None;
                result.objects_of(&self.key, &old, self.held.objects());
            }
        }
    }
}

impl Stamp {
    /// Returns the stamp of a file with this metadata.
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            modified: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            length: metadata.len(),
            inode: metadata.ino(),
        }
    }
}
