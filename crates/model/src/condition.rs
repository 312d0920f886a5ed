//! Conditions of objects, as Kubernetes' kinds have them.

/// A condition of an object. The sink adds the time of the last change, because the model has no clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Its type: `Accepted`, `ResolvedRefs`.
    pub kind: &'static str,
    /// Whether it is true.
    pub holds: bool,
    /// The reason, in one word.
    pub reason: &'static str,
    /// The reason as text; may be empty.
    pub message: String,
}

impl Condition {
    /// A condition that is true.
    pub(crate) fn holds(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind, holds: true, reason, message: message.into() }
    }

    /// A condition that is false.
    pub(crate) fn fails(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind, holds: false, reason, message: message.into() }
    }
}
