//! Diagnostics: errors in a user's input, their position, and how to fix them.

use std::fmt;
use std::sync::Arc;

use crate::{ObjectRef, Span};

/// How much a diagnostic matters. Ordered: `Error` is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Good to know; everything works as written.
    Info,
    /// Accepted, but part of it has no effect or will not do what it seems to say.
    Warning,
    /// The document is refused.
    Error,
}

impl Severity {
    /// `error`, `warning` or `info`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// How much it matters.
    pub severity: Severity,
    /// A stable name to search for, e.g. `unknown-field`.
    pub code: &'static str,
    /// The error, in one sentence that names the field's full path.
    pub message: String,
    /// Where: in a file its lines, else the object by its reference.
    pub span: Span,
    /// The object it is about; none if it is about a file as a whole, or about what could not be read as an object.
    pub object: Option<Arc<ObjectRef>>,
    /// The expected value, or how to fix it.
    pub help: Option<String>,
    /// Other places that take part, e.g. the first of two equal names.
    pub related: Vec<(Span, String)>,
}

impl Diagnostic {
    /// A finding without help; add it with [`Diagnostic::with_help`].
    pub fn new(severity: Severity, code: &'static str, span: Span, message: impl Into<String>) -> Self {
        Self { severity, code, message: message.into(), span, object: None, help: None, related: Vec::new() }
    }

    /// A finding that refuses the document.
    pub fn error(code: &'static str, span: Span, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, code, span, message)
    }

    /// Creates a finding about something that will not do what it seems to say.
    pub fn warning(code: &'static str, span: Span, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, code, span, message)
    }

    /// A finding that is good to know.
    pub fn info(code: &'static str, span: Span, message: impl Into<String>) -> Self {
        Self::new(Severity::Info, code, span, message)
    }

    /// Sets the object it is about.
    pub fn about(mut self, object: impl Into<Arc<ObjectRef>>) -> Self {
        self.object = Some(object.into());
        self
    }

    /// Adds the expected value, or how to fix it.
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds another place that takes part.
    pub fn with_related(mut self, span: Span, label: impl Into<String>) -> Self {
        self.related.push((span, label.into()));
        self
    }
}

/// One line, for logs: `a.yaml:3:5: error[unknown-field]: … (help: …)`.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}[{}]: {}", self.span, self.severity, self.code, self.message)?;
        for (span, label) in &self.related {
            write!(f, "; {span}: {label}")?;
        }
        match &self.help {
            Some(help) => write!(f, " (help: {help})"),
            None => Ok(()),
        }
    }
}

/// All findings of one run, in the order they were found until [`Diagnostics::sort`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// No findings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one finding.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.0.push(diagnostic);
    }

    /// Whether there are no findings at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many findings there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All findings.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.0.iter()
    }

    /// How many findings have this severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.0.iter().filter(|d| d.severity == severity).count()
    }

    /// Whether some document was refused.
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(|d| d.severity == Severity::Error)
    }

    /// Whether some document of this file was refused.
    pub fn has_errors_in(&self, file: &str) -> bool {
        self.0.iter().any(|d| d.severity == Severity::Error && &*d.span.file == file)
    }

    /// Orders by file, line and column.
    pub fn sort(&mut self) {
        self.0.sort_by(|a, b| a.span.cmp(&b.span).then(b.severity.cmp(&a.severity)));
    }

    /// Sets the object of all findings.
    pub fn about(mut self, object: impl Into<Arc<ObjectRef>>) -> Self {
        let object = object.into();
        self.0.iter_mut().for_each(|diagnostic| diagnostic.object = Some(Arc::clone(&object)));
        self
    }

    /// Keeps the findings for which `keep` holds.
    pub fn retain(&mut self, keep: impl FnMut(&Diagnostic) -> bool) {
        self.0.retain(keep);
    }
}

impl Extend<Diagnostic> for Diagnostics {
    fn extend<I: IntoIterator<Item = Diagnostic>>(&mut self, iter: I) {
        self.0.extend(iter);
    }
}

impl FromIterator<Diagnostic> for Diagnostics {
    fn from_iter<I: IntoIterator<Item = Diagnostic>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl IntoIterator for Diagnostics {
    type Item = Diagnostic;
    type IntoIter = std::vec::IntoIter<Diagnostic>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// One line per finding.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|d| writeln!(f, "{d}"))
    }
}
