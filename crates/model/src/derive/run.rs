//! Execution of steps: a step first reads, then writes.

use evenkeel_base::Diagnostics;

use super::step::{Step, Tables};
use super::tracking::{Cx, Key, Tracker};
use crate::MeshConfig;

/// The outcome of a step.
pub(super) struct StepOutcome {
    /// The keys it has read; `None` if its subject no longer exists.
    pub reads: Option<Vec<Key>>,
    /// The findings.
    pub found: Diagnostics,
}

/// Runs one step. `defaults` are the settings that a ConfigMap does not override.
pub(super) fn run(step: &Step, tables: &mut Tables, tracker: &mut Tracker, defaults: &MeshConfig) -> StepOutcome {
    let mut run = Run { tables, tracker, defaults, reads: Vec::new(), found: Diagnostics::new() };
    let keep = step.run(&mut run);
    StepOutcome { reads: keep.then_some(run.reads), found: run.found }
}

/// A running step. Its function returns whether the step's subject still exists.
pub(super) struct Run<'b> {
    /// The tables, which it writes to after reading.
    pub(super) tables: &'b mut Tables,
    /// The tracker, which is notified of changes.
    pub(super) tracker: &'b mut Tracker,
    /// The settings that a ConfigMap does not override.
    pub(super) defaults: &'b MeshConfig,
    reads: Vec<Key>,
    found: Diagnostics,
}

impl Run<'_> {
    /// Performs all reads of a step in one call, because its writes must not change what it has read.
    pub(super) fn read<T>(&mut self, ask: impl FnOnce(&Cx<'_>, &mut Diagnostics) -> T) -> T {
        let cx = Cx::new(self.tables);
        let made = ask(&cx, &mut self.found);
        self.reads = cx.into_reads();
        made
    }
}
