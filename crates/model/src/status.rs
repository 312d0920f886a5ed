//! What the author of an object is told in the object itself.

use std::sync::Arc;

use evenkeel_base::{Diagnostic, ObjectRef, Severity};

/// The beginning of the codes of findings about what an object names and is not there.
const MISSING: &str = "missing-";

/// The `status` of an object, as Kubernetes' kinds have it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// The generation of the object that this is about.
    pub observed_generation: Option<i64>,
    /// What holds of it, each type once.
    pub conditions: Vec<Condition>,
}

/// One thing that holds of an object or does not. When that changed last is for the sink to say: the model has no clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Its type: `Accepted`, `ResolvedRefs`.
    pub kind: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// Why, in one word.
    pub reason: &'static str,
    /// Why, for people; may be empty.
    pub message: String,
}

impl Status {
    /// The status of an object of a generation about which there are these findings.
    pub fn of<'f>(generation: Option<i64>, findings: impl IntoIterator<Item = &'f Diagnostic>) -> Self {
        let (mut error, mut missing) = (None, None);
        for finding in findings {
            if finding.severity == Severity::Error {
                error.get_or_insert(finding);
            }
            if finding.code.starts_with(MISSING) {
                missing.get_or_insert(finding);
            }
        }
        let condition = |kind, holds, fails, finding: Option<&Diagnostic>| Condition {
            kind,
            holds: finding.is_none(),
            reason: if finding.is_none() { holds } else { fails },
            message: finding.map(|finding| finding.message.clone()).unwrap_or_default(),
        };
        let conditions = vec![
            condition("Accepted", "Accepted", "Invalid", error),
            condition("ResolvedRefs", "ResolvedRefs", "RefNotFound", missing),
        ];
        Self { observed_generation: generation, conditions }
    }
}

/// Where statuses are written: for objects of an API server to it. Objects in files have none.
pub trait StatusSink {
    /// This is the status of an object now.
    fn write(&mut self, object: &ObjectRef, status: &Arc<Status>);
}
