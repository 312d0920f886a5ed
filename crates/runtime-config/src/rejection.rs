//! Errors of a resource, by field path.

use std::fmt;

/// One problem with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Full path inside the resource: `filter_chains[0].filters[1].typed_config.tracing`; empty: the resource itself.
    pub path: String,
    /// The error, and what would be accepted.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.reason)
    }
}

/// A rejected resource, with all problems found. The previous version stays in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Short kind: `Listener`, `Cluster`, `RouteConfiguration`, `ClusterLoadAssignment`, `Secret`, `Bootstrap`.
    pub kind: &'static str,
    /// Resource name, empty when it has none.
    pub name: String,
    /// Never empty.
    pub problems: Vec<Problem>,
}

/// Problems printed; a broken resource can have hundreds, and a NACK is one message.
const PROBLEMS_SHOWN: usize = 8;

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: ", self.kind, self.name)?;
        for (index, problem) in self.problems.iter().take(PROBLEMS_SHOWN).enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{problem}")?;
        }
        match self.problems.len().saturating_sub(PROBLEMS_SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for Rejection {}
