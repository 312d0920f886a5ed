//! The input from which a lookup table for consistent hashing is computed.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use evenkeel_runtime_config::cluster::HashFunction;

/// The input a table is computed from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TableInput {
    pub algorithm: Algorithm,
    /// The hash key of each host, and its share of all requests.
    pub members: Vec<(Arc<str>, Share)>,
}

/// How a table is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Algorithm {
    Ring { min_size: u64, max_size: u64, function: HashFunction },
    Maglev { size: u64 },
}

/// A share of all requests, in `0..=1`, compared bit by bit: equal input must yield an identical table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share(pub f64);

impl PartialEq for Share {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Share {}

impl Hash for Share {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}
