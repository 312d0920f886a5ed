//! One line of a check's report.

use std::fmt;

/// An expectation, and whether it held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Whether it held.
    pub holds: bool,
    /// The property that was verified.
    pub what: String,
    /// The observation, if it failed.
    pub seen: String,
}

impl Line {
    /// A line for `what`, which held, or `seen` instead.
    pub fn new(what: impl Into<String>, holds: bool, seen: impl Into<String>) -> Self {
        Self { holds, what: what.into(), seen: seen.into() }
    }

    /// `what` held.
    pub fn held(what: impl Into<String>) -> Self {
        Self::new(what, true, "")
    }

    /// `what` did not hold.
    pub fn failed(what: impl Into<String>, seen: impl fmt::Display) -> Self {
        Self::new(what, false, seen.to_string())
    }
}

/// `ok   what`, or `FAIL what: seen`.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.holds {
            write!(f, "ok    {}", self.what)
        } else {
            write!(f, "FAIL  {}; seen: {}", self.what, self.seen)
        }
    }
}
