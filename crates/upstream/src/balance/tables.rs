//! Lookup tables for consistent hashing. They are large, so each is built once per set of hosts and shared by all
//! workers, clusters and subsets with the same input.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use evenkeel_runtime_config::FastMap;
use rustc_hash::FxHasher;

use super::table_input::{Algorithm, TableInput};
use super::{maglev, ring_hash};

/// Maps hashes to hosts, given as indices into [`TableInput::members`].
#[derive(Debug)]
pub(super) enum Table {
    Ring(ring_hash::Ring),
    Maglev(maglev::Maglev),
}

impl Table {
    fn new(recipe: &TableInput) -> Self {
        match recipe.algorithm {
            Algorithm::Ring { min_size, max_size, function } => {
                Self::Ring(ring_hash::Ring::new(&recipe.members, min_size, max_size, function))
            }
            Algorithm::Maglev { size } => Self::Maglev(maglev::Maglev::new(&recipe.members, size)),
        }
    }

    /// The host for a hash; later attempts yield other hosts.
    pub fn get(&self, hash: u64, attempt: u32) -> Option<usize> {
        match self {
            Self::Ring(ring) => ring.get(hash, attempt),
            Self::Maglev(maglev) => maglev.get(hash, attempt),
        }
    }
}

/// The tables in use in this process. Locked when endpoints or their health change, never on the request path.
#[derive(Debug, Default)]
pub struct SharedTables(Mutex<FastMap<u64, Vec<Weak<Entry>>>>);

#[derive(Debug)]
struct Entry {
    recipe: TableInput,
    table: OnceLock<Table>,
}

/// A reference to a table in use.
#[derive(Debug, Clone)]
pub(super) struct Shared(Arc<Entry>);

impl SharedTables {
    /// The table for an input. The first caller builds it, outside the lock; others wait for that one table only.
    pub(super) fn table(&self, recipe: TableInput) -> Shared {
        let entry = self.entry(recipe);
        entry.table.get_or_init(|| Table::new(&entry.recipe));
        Shared(entry)
    }

    fn entry(&self, recipe: TableInput) -> Arc<Entry> {
        let mut hasher = FxHasher::default();
        recipe.hash(&mut hasher);
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tables.retain(|_, entries| {
            entries.retain(|entry| entry.strong_count() > 0);
            !entries.is_empty()
        });
        let same = tables.entry(hasher.finish()).or_default();
        if let Some(found) = same.iter().filter_map(Weak::upgrade).find(|entry| entry.recipe == recipe) {
            return found;
        }
        let entry = Arc::new(Entry { recipe, table: OnceLock::new() });
        same.push(Arc::downgrade(&entry));
        entry
    }
}

impl Shared {
    /// The host for a hash.
    pub fn get(&self, hash: u64, attempt: u32) -> Option<usize> {
        self.0.table.get()?.get(hash, attempt)
    }

    /// A host's share of all requests.
    pub fn share(&self, host: usize) -> f64 {
        self.0.recipe.members.get(host).map_or(0.0, |(_, share)| share.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::table_input::Share;
    use super::*;

    fn recipe(size: u64, members: &[(&str, f64)]) -> TableInput {
        let members = members.iter().map(|(key, share)| (Arc::from(*key), Share(*share))).collect();
        TableInput { algorithm: Algorithm::Maglev { size }, members }
    }

    #[test]
    fn equal_recipes_share_one_table_while_it_is_used() {
        let tables = SharedTables::default();
        let one = tables.table(recipe(251, &[("a", 0.5), ("b", 0.5)]));
        let same = tables.table(recipe(251, &[("a", 0.5), ("b", 0.5)]));
        let other = tables.table(recipe(251, &[("a", 0.4), ("b", 0.6)]));
        assert!(Arc::ptr_eq(&one.0, &same.0));
        assert!(!Arc::ptr_eq(&one.0, &other.0));
        drop((one, same, other));
        let _last = tables.table(recipe(13, &[("a", 1.0)]));
        assert_eq!(tables.0.lock().expect("no panic").len(), 1, "unused tables are forgotten");
    }

    #[test]
    fn workers_that_ask_together_get_the_same_table() {
        let tables = SharedTables::default();
        let ask = || tables.table(recipe(65_537, &[("a", 0.5), ("b", 0.5)]));
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            let all: Vec<_> = all.into_iter().map(|thread| thread.join().expect("no panic")).collect();
            assert!(all.windows(2).all(|pair| Arc::ptr_eq(&pair[0].0, &pair[1].0)));
        });
    }
}
