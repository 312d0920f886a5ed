//! A step at work: it reads, then it writes.

use evenkeel_base::Diagnostics;

use super::step::{Step, Tables};
use super::tracking::{Cx, Key, Tracker};
use crate::MeshConfig;

/// What came of a step.
pub(super) struct StepOutcome {
    /// What it has read; `None`: there is nothing left that it could be about.
    pub reads: Option<Vec<Key>>,
    /// What is to be said of the objects.
    pub found: Diagnostics,
}

/// Does one step. `defaults` are the settings that a ConfigMap does not override.
pub(super) fn run(step: &Step, tables: &mut Tables, tracker: &mut Tracker, defaults: &MeshConfig) -> StepOutcome {
    let mut run = Run { tables, tracker, defaults, reads: Vec::new(), found: Diagnostics::new() };
    let keep = step.run(&mut run);
    StepOutcome { reads: keep.then_some(run.reads), found: run.found }
}

/// A step at work. The function that does it says whether it has anything left to be about.
pub(super) struct Run<'b> {
    /// Where it writes, after it has read.
    pub(super) tables: &'b mut Tables,
    /// Whom it tells what it has changed.
    pub(super) tracker: &'b mut Tracker,
    /// The settings that a ConfigMap does not override.
    pub(super) defaults: &'b MeshConfig,
    reads: Vec<Key>,
    found: Diagnostics,
}

impl Run<'_> {
    /// All that a step reads, in one go: what it writes must not change what it has read.
    pub(super) fn read<T>(&mut self, ask: impl FnOnce(&Cx<'_>, &mut Diagnostics) -> T) -> T {
        let cx = Cx::new(self.tables);
        let made = ask(&cx, &mut self.found);
        self.reads = cx.into_reads();
        made
    }
}
