//! The world: an immutable view of the configuration at one moment, shared by all parts of the control plane.

use std::fmt;
use std::sync::Arc;

use evenkeel_api::Object;
use evenkeel_base::{Diagnostics, ObjectRef, Sources, Span};
use evenkeel_model::Snapshot;

use crate::noticed::Noticed;
use crate::source::Refused;

/// Maximum number of objects named as causes of a generation.
const MAX_CAUSES: usize = 100;

/// The configuration in force, and the findings about the files.
#[derive(Debug, Clone)]
pub struct World {
    /// Increases by one with each snapshot that differs from the one before.
    pub generation: u64,
    /// When the change that made this generation was noticed.
    pub noticed: Noticed,
    /// The objects whose change caused this generation; the first ones if there are many.
    pub causes: Arc<[Cause]>,
    /// The snapshot from which resources for proxies are built.
    pub snapshot: Arc<Snapshot>,
    /// All findings about the present files, including refused ones.
    pub diagnostics: Arc<Diagnostics>,
    /// The texts that findings point into.
    pub sources: Arc<Sources>,
    /// Files and objects of which only an older content, or only a part, is in force.
    pub refused: Arc<[Refused]>,
}

/// An object that was added, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The object.
    pub object: ObjectRef,
    /// Its kind, namespace and name as it is written, as in `VirtualService default/reviews`.
    pub name: String,
    /// The place where it is or was written: a file with line and column, or the object's reference.
    pub place: Span,
}

impl Cause {
    /// Returns the causes that stand for these objects.
    pub fn of(objects: &[Arc<Object>]) -> Arc<[Self]> {
        let cause = |object: &Arc<Object>| Self {
            object: object.reference(),
            name: object.to_string(),
            place: object.origin.clone(),
        };
        objects.iter().take(MAX_CAUSES).map(cause).collect()
    }

    /// Returns a copy that shares no memory with it.
    pub(crate) fn renewed(&self) -> Self {
        let object = ObjectRef {
            namespace: (&*self.object.namespace).into(),
            name: (&*self.object.name).into(),
            ..self.object.clone()
        };
        let place = Span { file: (&*self.place.file).into(), ..self.place.clone() };
        Self { object, name: self.name.clone(), place }
    }
}

/// `VirtualService default/reviews (routes.yaml:4:9)`, `VirtualService default/reviews (from kubernetes)`
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_object() {
            write!(f, "{} (from {})", self.name, self.object.source)
        } else {
            write!(f, "{} ({})", self.name, self.place)
        }
    }
}

#[cfg(test)]
impl World {
    /// Creates a world with this snapshot and no findings.
    pub(crate) fn of(snapshot: Snapshot) -> Self {
        Self {
            generation: 1,
            noticed: Noticed::now(),
            causes: Arc::default(),
            snapshot: Arc::new(snapshot),
            diagnostics: Arc::default(),
            sources: Arc::default(),
            refused: Arc::default(),
        }
    }
}
