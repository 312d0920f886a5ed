//! What the control plane knows at one moment, as all its parts see it.

use std::sync::Arc;
use std::time::Instant;

use evenkeel_base::{Diagnostics, Sources};
use evenkeel_model::Snapshot;

/// What is known, and what is wrong with what was written.
#[derive(Debug, Clone)]
pub struct World {
    /// Grows by one with each snapshot that differs from the one before.
    pub generation: u64,
    /// When the change that made this generation was noticed.
    pub noticed: Instant,
    /// What proxies are told.
    pub snapshot: Arc<Snapshot>,
    /// All findings about the present files, those that are refused included.
    pub diagnostics: Arc<Diagnostics>,
    /// The texts findings point into.
    pub sources: Arc<Sources>,
    /// Files of which an older content is in force.
    pub refused: Vec<Arc<str>>,
}
