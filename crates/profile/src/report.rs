//! What a recording has found, before addresses have names.

use std::time::Duration;

use crate::modules::Module;

/// The meaning of a number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measure {
    pub(crate) kind: &'static str,
    pub(crate) unit: &'static str,
}

/// A stack, from the innermost frame.
#[derive(Debug)]
pub(crate) struct Sample {
    /// One for each measure.
    pub(crate) values: Vec<i64>,
    /// The name of its thread.
    pub(crate) thread: Option<String>,
    pub(crate) addresses: Vec<u64>,
}

/// A recording.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) modules: Vec<Module>,
    pub(crate) measures: Vec<Measure>,
    /// The measure that is shown unless another one is asked for.
    pub(crate) shown: usize,
    /// What is counted between two samples.
    pub(crate) period: Measure,
    pub(crate) period_value: i64,
    pub(crate) duration: Duration,
    pub(crate) samples: Vec<Sample>,
    /// What a reader should know.
    pub(crate) notes: Vec<String>,
}
