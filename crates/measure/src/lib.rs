//! What measurements have in common: interleaved rounds, statistics of values, limits and verdicts, tables, figures.

#![forbid(unsafe_code)]

mod bar;
pub mod chart;
mod limit;
pub mod markdown;
pub mod metric;
pub mod rounds;
pub mod statistics;

pub use bar::{Bar, table};
pub use limit::{Limit, Verdict};
pub use statistics::{Distribution, Spread};
