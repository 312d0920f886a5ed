//! What the control plane knows at one moment, as all its parts see it.

use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use evenkeel_api::Object;
use evenkeel_base::{Diagnostics, Sources, Span};
use evenkeel_model::Snapshot;

/// Most objects that are named as what made a generation, in objects.
const MAX_CAUSES: usize = 100;

/// What is known, and what is wrong with what was written.
#[derive(Debug, Clone)]
pub struct World {
    /// Grows by one with each snapshot that differs from the one before.
    pub generation: u64,
    /// When the change that made this generation was noticed.
    pub noticed: Noticed,
    /// The objects whose change made this generation; of many the first.
    pub causes: Arc<[Cause]>,
    /// What proxies are told.
    pub snapshot: Arc<Snapshot>,
    /// All findings about the present files, those that are refused included.
    pub diagnostics: Arc<Diagnostics>,
    /// The texts findings point into.
    pub sources: Arc<Sources>,
    /// Files of which an older content is in force, or only part.
    pub refused: Arc<[Arc<str>]>,
    /// Those of them that never had a content without mistakes: only part is in force.
    pub never_accepted: Arc<[Arc<str>]>,
}

/// A moment, for measuring and for telling.
#[derive(Debug, Clone, Copy)]
pub struct Noticed {
    /// By the clock that never jumps.
    pub instant: Instant,
    /// By the clock on the wall.
    pub time: SystemTime,
}

impl Noticed {
    /// This moment.
    pub fn now() -> Self {
        Self { instant: Instant::now(), time: SystemTime::now() }
    }

    /// Microseconds since 1970.
    pub fn unix_micros(self) -> u64 {
        self.time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }
}

/// An object that came, changed or went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Kind, namespace and name, as in `VirtualService default/reviews`.
    pub object: String,
    /// Where it is written, or was.
    pub place: Span,
}

impl Cause {
    /// The causes that these objects are.
    pub fn of(objects: &[Arc<Object>]) -> Arc<[Self]> {
        let cause = |object: &Arc<Object>| Self { object: object.to_string(), place: object.origin.clone() };
        objects.iter().take(MAX_CAUSES).map(cause).collect()
    }

    /// The same, sharing no memory with it.
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
    /// A world with this snapshot, and nothing to say about it.
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
