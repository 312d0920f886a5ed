//! The world: an immutable view of the configuration at one moment, shared by all parts of the control plane.

use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use evenkeel_api::Object;
use evenkeel_base::{Diagnostics, Sources, Span};
use evenkeel_model::Snapshot;

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
    /// Files of which only an older content, or only a part, is in force.
    pub refused: Arc<[Arc<str>]>,
    /// Those of them that never had a content without errors: only a part is in force.
    pub never_accepted: Arc<[Arc<str>]>,
}

/// A moment, by two clocks: one to measure with and one to show.
#[derive(Debug, Clone, Copy)]
pub struct Noticed {
    /// By the monotonic clock.
    pub instant: Instant,
    /// By the wall clock.
    pub time: SystemTime,
}

impl Noticed {
    /// Returns the current moment.
    pub fn now() -> Self {
        Self { instant: Instant::now(), time: SystemTime::now() }
    }

    /// Returns the time in microseconds since 1970.
    pub fn unix_micros(self) -> u64 {
        self.time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }
}

/// An object that was added, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Kind, namespace and name, as in `VirtualService default/reviews`.
    pub object: String,
    /// The place where it is or was written.
    pub place: Span,
}

impl Cause {
    /// Returns the causes that stand for these objects.
    pub fn of(objects: &[Arc<Object>]) -> Arc<[Self]> {
        let cause = |object: &Arc<Object>| Self { object: object.to_string(), place: object.origin.clone() };
        objects.iter().take(MAX_CAUSES).map(cause).collect()
    }

    /// Returns a copy that shares no memory with it.
    pub(crate) fn renewed(&self) -> Self {
        Self { object: self.object.clone(), place: Span { file: (&*self.place.file).into(), ..self.place.clone() } }
    }
}

/// `VirtualService default/reviews (routes.yaml:4:9)`
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.object, self.place)
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
            never_accepted: Arc::default(),
        }
    }
}
