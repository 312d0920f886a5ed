//! Positions in a user's files.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// What begins the file name of an object that `evenkeel apply` has brought: before the file that it was applied from.
pub const APPLIED_FROM: &str = "applied from ";

/// A range of characters in a named file. Lines and columns count from 1, columns in characters; line 0 stands for the
/// whole file, or for an object that was not read from a file.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// The path as the user gave it; for an object that was not read from a file, its [reference](crate::ObjectRef).
    pub file: Arc<str>,
    /// First line, from 1; 0 = the whole file.
    pub line: u32,
    /// First column, from 1.
    pub column: u32,
    /// Line of the first character after the range.
    pub end_line: u32,
    /// Column of the first character after the range.
    pub end_column: u32,
}

impl Span {
    /// The file as a whole: it cannot be read, or it is empty.
    pub fn whole_file(file: impl Into<Arc<str>>) -> Self {
        Self { file: file.into(), line: 0, column: 0, end_line: 0, end_column: 0 }
    }

    /// Returns the span of an object that the program generated itself, such as a default policy.
    pub fn built_in() -> Self {
        Self::whole_file("<built-in>")
    }

    /// An object that was not read from a file, by its reference.
    pub fn of_object(reference: impl Into<Arc<str>>) -> Self {
        Self { column: 1, ..Self::whole_file(reference) }
    }

    /// The path of the file, for programs: of an applied object that of the file that it was applied from.
    pub fn path(&self) -> &str {
        self.file.strip_prefix(APPLIED_FROM).unwrap_or(&self.file)
    }

    /// Whether this is the [reference](crate::ObjectRef) of an object that was not read from a file.
    pub fn is_object(&self) -> bool {
        self.line == 0 && self.column > 0
    }

    /// One position without extent.
    pub fn at(file: impl Into<Arc<str>>, line: u32, column: u32) -> Self {
        Self { file: file.into(), line, column, end_line: line, end_column: column }
    }
}

impl Default for Span {
    fn default() -> Self {
        Self::built_in()
    }
}

/// `file:line:column`, as editors and terminals understand it.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            _ => write!(f, "{}:{}:{}", self.file, self.line, self.column),
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A value and where it was written. Two of them are equal if their values are equal, so moving a line in a file
/// changes nothing.
#[derive(Clone, Default)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Where the user wrote it.
    pub span: Span,
}

impl<T> Spanned<T> {
    /// Makes a value with its position.
    pub fn new(value: T, span: Span) -> Self {
        Self { value, span }
    }

    /// Converts the value and keeps the position.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Spanned<U> {
        Spanned { value: f(self.value), span: self.span }
    }
}

impl<T> Deref for Spanned<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Spanned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Spanned<T> {}

impl<T: Hash> Hash for Spanned<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.value.hash(state);
    }
}

impl<T: fmt::Debug> fmt::Debug for Spanned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
