//! The dynamic table (RFC 7541 section 2.3.2): first in, first out, bounded by a size in bytes.
//!
//! Names and values are stored one after another in one `Vec`; evicted bytes are removed from its front now and then.
//! So an insertion is a copy and, in the steady state, no allocation; an unused table has no memory.

use std::collections::VecDeque;

use super::name::Name;

/// Overhead that RFC 7541 section 4.1 counts for each entry.
pub(super) const ENTRY_OVERHEAD: usize = 32;

/// Evicted bytes that may stay at the front before they are removed.
const SLACK_BYTES: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Table {
    bytes: Vec<u8>,
    entries: VecDeque<Entry>,
    /// Position of the first of `bytes` among all bytes ever inserted, wrapping.
    base: u32,
    /// Size as RFC 7541 counts it.
    size: usize,
    max: usize,
    /// Entries ever evicted, wrapping: the number of the oldest entry.
    evicted: u32,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Position among all bytes ever inserted, wrapping.
    at: u32,
    name_len: u32,
    value_len: u32,
    name: Name,
    valid: bool,
}

/// A view of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub name: Name,
    pub name_bytes: &'a [u8],
    pub value: &'a [u8],
    /// Whether the value may be passed on.
    pub valid: bool,
}

impl Table {
    pub(super) fn new(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Changes the size and evicts what no longer fits.
    pub(super) fn set_max(&mut self, max: usize) {
        self.max = max;
        self.evict(0);
    }

    /// The entry `back` steps from the newest, which is 0.
    #[inline]
    pub(super) fn row(&self, back: usize) -> Option<Row<'_>> {
        let entry = self.entries.get(self.entries.len().checked_sub(back + 1)?)?;
        let start = entry.at.wrapping_sub(self.base) as usize;
        let middle = start + entry.name_len as usize;
        Some(Row {
            name: entry.name,
            name_bytes: self.bytes.get(start..middle)?,
            value: self.bytes.get(middle..middle + entry.value_len as usize)?,
            valid: entry.valid,
        })
    }

    /// Number of the entry that the next insertion makes. Numbers count up and wrap.
    pub(super) fn next_number(&self) -> u32 {
        self.evicted.wrapping_add(self.entries.len() as u32)
    }

    /// Returns how many entries newer than the one with this number are in the table, if it is still there.
    #[inline]
    pub(super) fn back_of(&self, number: u32) -> Option<usize> {
        let from_oldest = number.wrapping_sub(self.evicted) as usize;
        (from_oldest < self.entries.len()).then(|| self.entries.len() - 1 - from_oldest)
    }

    /// Whether an entry of this size would be kept.
    pub(super) fn fits(&self, name: &[u8], value: &[u8]) -> bool {
        name.len() + value.len() + ENTRY_OVERHEAD <= self.max
    }

    /// Inserts an entry, evicting older ones; one that is larger than the table only empties it (RFC 7541 section 4.4).
    pub(super) fn insert(&mut self, name: Name, name_bytes: &[u8], value: &[u8], valid: bool) {
        let size = name_bytes.len() + value.len() + ENTRY_OVERHEAD;
        self.evict(size);
        if size > self.max {
            return;
        }
        let at = self.base.wrapping_add(self.bytes.len() as u32);
        self.bytes.extend_from_slice(name_bytes);
        self.bytes.extend_from_slice(value);
        let (name_len, value_len) = (name_bytes.len() as u32, value.len() as u32);
        self.entries.push_back(Entry { at, name_len, value_len, name, valid });
        self.size += size;
    }

    /// Evicts until `room` more bytes fit.
    fn evict(&mut self, room: usize) {
        while self.size + room > self.max {
            let Some(entry) = self.entries.pop_front() else { break };
            self.size -= entry.name_len as usize + entry.value_len as usize + ENTRY_OVERHEAD;
            self.evicted = self.evicted.wrapping_add(1);
        }
        let live_from = match self.entries.front() {
            Some(entry) => entry.at.wrapping_sub(self.base) as usize,
            None => self.bytes.len(),
        };
        if live_from > SLACK_BYTES.max(self.bytes.len() / 2) || (live_from > 0 && live_from == self.bytes.len()) {
            self.bytes.drain(..live_from);
            self.base = self.base.wrapping_add(live_from as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicts_the_oldest_and_keeps_numbers() {
        let mut table = Table::new(3 * (2 + ENTRY_OVERHEAD));
        for turn in 0..2_000u32 {
            assert_eq!(table.next_number(), turn);
            let (name, value) = ([(turn % 251) as u8], [(turn % 7) as u8]);
            table.insert(Name::Invalid, &name, &value, true);
            assert_eq!(table.len(), 3.min(turn as usize + 1));
            for back in 0..table.len() {
                let row = table.row(back).expect("there");
                let number = turn - back as u32;
                assert_eq!((row.name_bytes, row.value), (&[(number % 251) as u8][..], &[(number % 7) as u8][..]));
                assert_eq!(table.back_of(number), Some(back));
            }
            assert_eq!(table.back_of(turn.wrapping_sub(3)), None);
            assert!(table.bytes.len() <= 2 * SLACK_BYTES + 6);
        }
    }

    #[test]
    fn sizes() {
        let mut table = Table::new(100);
        table.insert(Name::Invalid, b"a", b"b", true);
        table.insert(Name::Invalid, b"c", &[b'x'; 60], true);
        assert_eq!(table.len(), 1, "both do not fit");
        table.insert(Name::Invalid, b"d", &[b'x'; 90], true);
        assert_eq!((table.len(), table.size), (0, 0), "what never fits empties the table");
        table.insert(Name::Invalid, b"a", b"b", true);
        table.set_max(33);
        assert_eq!((table.len(), table.size, table.row(0).is_none()), (0, 0, true));
    }
}
