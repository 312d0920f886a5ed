//! Encodes fields into header blocks.
//!
//! A field enters the dynamic table only if the field was seen before, or if its name was seen before and is in no
//! table. So ids, unique paths and dates do not evict fields that repeat. A repeated field is one byte on the wire and
//! one lookup here: most fields of a block are those of the last block in the same order, so the lookup starts with
//! what was sent in the same position.

use super::decoder::DEFAULT_TABLE_BYTES;
use super::name::Name;
use super::static_table::{self, Found};
use super::table::{ENTRY_OVERHEAD, Table};
use super::{huffman, integer};

/// Number of hashes of fields and names seen once. Newer ones overwrite older ones, so only recent ones are remembered.
const SEEN: usize = 128;

/// Maximum number of positions of a block for which the field of the last block is remembered.
const PLACES: usize = 24;

/// How the field in one position of the last block was encoded.
#[derive(Debug, Clone, Copy)]
enum LastField {
    /// A literal.
    Other,
    /// This index of the static table.
    Static(u8),
    /// The entry with this number in the dynamic table.
    Entry(u32),
}

/// The encoding side of a connection.
#[derive(Debug)]
pub(crate) struct Encoder {
    table: Table,
    /// Entries by the hash of name and value, and by that of the name.
    index: Index,
    /// Empty until the first field is encoded.
    seen: Box<[u32]>,
    last: Vec<LastField>,
    /// Position of the next field in this block.
    place: usize,
    /// The largest table that this side uses, whatever the peer allows.
    own_limit: usize,
    /// Table sizes that the next block must announce: the smallest since the last block, and the current one (RFC 7541
    /// section 4.2).
    update: Option<(usize, usize)>,
}

impl Encoder {
    pub(crate) fn new(own_limit: usize) -> Self {
        let size = own_limit.min(DEFAULT_TABLE_BYTES);
        let update = (size < DEFAULT_TABLE_BYTES).then_some((size, size));
        Self {
            table: Table::new(size),
            index: Index::default(),
            seen: Box::default(),
            last: Vec::new(),
            place: 0,
            own_limit,
            update,
        }
    }

    /// The peer's SETTINGS_HEADER_TABLE_SIZE.
    pub(crate) fn set_peer_limit(&mut self, limit: usize) {
        let size = limit.min(self.own_limit);
        if size == self.table.max() {
            return;
        }
        self.table.set_max(size);
        let smallest = self.update.map_or(size, |(smallest, _)| smallest.min(size));
        self.update = Some((smallest, size));
    }

    /// Starts a block.
    pub(crate) fn begin(&mut self, out: &mut Vec<u8>) {
        self.place = 0;
        if let Some((smallest, size)) = self.update.take() {
            if smallest < size {
                integer::encode(out, 0x20, 5, smallest as u32);
            }
            integer::encode(out, 0x20, 5, size as u32);
        }
    }

    /// Appends a field. A sensitive one is marked never to be indexed.
    pub(crate) fn field(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8], sensitive: bool) {
        if sensitive {
            let name_index = match static_table::find(name, b"") {
                Found::Pair(index) | Found::Name(index) => index,
                Found::Nothing => self.find(hash(name, None), name, None).map_or(0, |(index, _)| index),
            };
            return literal(out, 0x10, 4, name_index, name, value, false);
        }
        let place = self.place;
        self.place += 1;
        if let Some(index) = self.last_time(place, name, value) {
            return integer::encode(out, 0x80, 7, index);
        }
        let now = self.anew(out, name, value);
        match self.last.get_mut(place) {
            Some(last) => *last = now,
            None if place < PLACES => self.last.push(now),
            None => {}
        }
    }

    /// The index used in this position of the last block, if it is the index of this field.
    #[inline]
    fn last_time(&self, place: usize, name: &[u8], value: &[u8]) -> Option<u32> {
        match *self.last.get(place)? {
            LastField::Other => None,
            LastField::Static(index) => {
                let (known, with) = static_table::ENTRIES.get(usize::from(index).checked_sub(1)?)?;
                (with.as_bytes() == value && known.as_bytes() == name).then_some(u32::from(index))
            }
            LastField::Entry(number) => self.index_of(number, name, Some(value)),
        }
    }

    /// Appends a field that was not in the same position of the last block.
    fn anew(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) -> LastField {
        let pair = hash(name, Some(value));
        if let Some((index, number)) = self.find(pair, name, Some(value)) {
            integer::encode(out, 0x80, 7, index);
            return LastField::Entry(number);
        }
        let name_index = match static_table::find(name, value) {
            Found::Pair(index) => {
                integer::encode(out, 0x80, 7, index);
                return LastField::Static(index as u8);
            }
            Found::Name(index) => Some(index),
            Found::Nothing => self.find(hash(name, None), name, None).map(|(index, _)| index),
        };
        if self.is_worth_indexing(pair, name, value, name_index) {
            literal(out, 0x40, 6, name_index.unwrap_or(0), name, value, true);
            LastField::Entry(self.insert(pair, name, value))
        } else {
            // It will probably not repeat, so Huffman coding is not worth its time.
            literal(out, 0, 4, name_index.unwrap_or(0), name, value, false);
            LastField::Other
        }
    }

    /// Index and number of an entry in the dynamic table.
    #[inline]
    fn find(&self, hash: u32, name: &[u8], value: Option<&[u8]>) -> Option<(u32, u32)> {
        self.index.find(hash, |number| Some((self.index_of(number, name, value)?, number)))
    }

    /// HPACK index of the entry with this number, if it is still in the table and has this name and value.
    #[inline]
    fn index_of(&self, number: u32, name: &[u8], value: Option<&[u8]>) -> Option<u32> {
        let back = self.table.back_of(number)?;
        let row = self.table.row(back)?;
        let found = value.is_none_or(|value| row.value == value) && row.name_bytes == name;
        found.then_some((static_table::ENTRIES.len() + 1 + back) as u32)
    }

    /// Whether the field was seen before, or its name was and is in no table; otherwise remembers it.
    fn is_worth_indexing(&mut self, pair: u32, name: &[u8], value: &[u8], name_index: Option<u32>) -> bool {
        if !self.table.fits(name, value) || self.table.max() < 4 * (name.len() + value.len() + ENTRY_OVERHEAD) {
            return false;
        }
        if self.seen.is_empty() {
            self.seen = vec![0; SEEN].into_boxed_slice();
        }
        let seen_name = name_index.is_none() && self.was_seen(hash(name, None));
        self.was_seen(pair) || seen_name
    }

    fn was_seen(&mut self, hash: u32) -> bool {
        let Some(slot) = self.seen.get_mut(hash as usize % SEEN) else { return false };
        std::mem::replace(slot, hash) == hash
    }

    fn insert(&mut self, pair: u32, name: &[u8], value: &[u8]) -> u32 {
        let number = self.table.next_number();
        // Names were validated when they came in; the encoder only needs their bytes.
        self.table.insert(Name::Invalid, name, value, true);
        let table = &self.table;
        let live = |number| table.back_of(number).is_some();
        self.index.insert(pair, number, live);
        self.index.insert(hash(name, None), number, live);
        number
    }
}

/// A literal: its name by index or in full, and its value.
fn literal(out: &mut Vec<u8>, pattern: u8, prefix: u32, name_index: u32, name: &[u8], value: &[u8], compress: bool) {
    integer::encode(out, pattern, prefix, name_index);
    if name_index == 0 {
        string(out, name, compress);
    }
    string(out, value, compress);
}

fn string(out: &mut Vec<u8>, bytes: &[u8], compress: bool) {
    let compressed = if compress { huffman::encoded_len(bytes) } else { usize::MAX };
    if compressed < bytes.len() {
        integer::encode(out, 0x80, 7, compressed as u32);
        huffman::encode(bytes, out);
    } else {
        integer::encode(out, 0, 7, bytes.len() as u32);
        out.extend_from_slice(bytes);
    }
}

/// Hash of a name, or of a name and a value; never 0, which means "empty". It takes eight bytes at a time, because it
/// is computed for every field of every message. Collisions cost a comparison of at most as many bytes as the table
/// has.
#[inline]
fn hash(name: &[u8], value: Option<&[u8]>) -> u32 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    // Use both halves of the product; otherwise differences in the last bytes of a word would hardly affect the result.
    let mix = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * u128::from(MULTIPLIER);
        (product as u64) ^ (product >> 64) as u64
    };
    let bytes = |mut hash: u64, bytes: &[u8]| {
        let (words, tail) = bytes.as_chunks::<8>();
        for word in words {
            hash = mix(hash, u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        mix(mix(hash, u64::from_le_bytes(last)), bytes.len() as u64)
    };
    let hash = bytes(MULTIPLIER, name);
    let hash = value.map_or(hash, |value| bytes(hash, value));
    ((hash >> 32) as u32).max(1)
}

/// Numbers of table entries by hash, with open addressing. Evicted entries stay until the index is rebuilt.
#[derive(Debug, Default)]
struct Index {
    slots: Vec<(u32, u32)>,
    used: usize,
}

impl Index {
    const MIN_SLOTS: usize = 32;

    /// The entry with this hash, if `accept` takes it.
    #[inline]
    fn find<T>(&self, hash: u32, accept: impl FnOnce(u32) -> Option<T>) -> Option<T> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        loop {
            match self.slots.get(at)? {
                (0, _) => return None,
                (other, number) if *other == hash => return accept(*number),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// Adds an entry, or replaces the one with the same hash. `live` tells which numbers are still in the table.
    fn insert(&mut self, hash: u32, number: u32, live: impl Fn(u32) -> bool) {
        if (self.used + 1) * 2 > self.slots.len() {
            self.rebuild(live);
        }
        self.put(hash, number);
    }

    fn put(&mut self, hash: u32, number: u32) {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while let Some(slot) = self.slots.get_mut(at) {
            if slot.0 == 0 {
                self.used += 1;
            }
            if slot.0 == 0 || slot.0 == hash {
                *slot = (hash, number);
                return;
            }
            at = (at + 1) & mask;
        }
    }

    fn rebuild(&mut self, live: impl Fn(u32) -> bool) {
        let old = std::mem::take(&mut self.slots);
        let kept: Vec<(u32, u32)> = old.into_iter().filter(|(hash, number)| *hash != 0 && live(*number)).collect();
        let size = (kept.len() * 4).next_power_of_two().max(Self::MIN_SLOTS);
        self.slots = vec![(0, 0); size];
        self.used = 0;
        kept.into_iter().for_each(|(hash, number)| self.put(hash, number));
    }
}

#[cfg(test)]
mod tests {
    use super::super::decoder::Decoder;
    use super::*;
    use proptest::prelude::*;

    type Field<'a> = (&'a str, &'a str);

    fn encode(encoder: &mut Encoder, fields: &[Field<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        encoder.begin(&mut out);
        for (name, value) in fields {
            encoder.field(&mut out, name.as_bytes(), value.as_bytes(), *name == "authorization");
        }
        out
    }

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder
            .decode(block, &mut |field| {
                assert_eq!(field.sensitive, field.name_bytes == b"authorization");
                fields.push((text(field.name_bytes), text(field.value)));
            })
            .expect("valid");
        fields
    }

    #[test]
    fn a_repeated_field_costs_one_byte_from_the_third_time() {
        let mut encoder = Encoder::new(4096);
        let fields = [(":method", "GET"), (":path", "/a/b"), ("user-agent", "curl"), ("x-own", "1")];
        let sizes: Vec<usize> = (0..4).map(|_| encode(&mut encoder, &fields).len()).collect();
        assert_eq!(sizes[2..], [4, 4], "{sizes:?}");
        assert_eq!(encoder.table.len(), 3);
    }

    #[test]
    fn what_never_repeats_never_enters_the_table() {
        let mut encoder = Encoder::new(4096);
        for number in 0..1000 {
            let id = format!("id-{number}");
            encode(&mut encoder, &[(":path", &format!("/item/{number}")), ("x-request-id", &id)]);
        }
        // One entry, for the name that no static table has.
        assert_eq!(encoder.table.len(), 1);
        assert!(encode(&mut encoder, &[("x-request-id", "0123456789")]).len() <= 13);
        encode(&mut encoder, &[("authorization", "secret")]);
        encode(&mut encoder, &[("authorization", "secret")]);
        assert_eq!(encoder.table.len(), 1);
    }

    #[test]
    fn announces_table_sizes() {
        let mut encoder = Encoder::new(4096);
        encoder.set_peer_limit(65_536);
        assert_eq!(encode(&mut encoder, &[]), b"", "this side's own limit stays");
        encoder.set_peer_limit(0);
        encoder.set_peer_limit(1024);
        assert_eq!(encode(&mut encoder, &[]), [0x20, 0x3f, 0xe1, 0x07]);
        assert_eq!(encode(&mut encoder, &[]), b"");
        assert_eq!(encode(&mut Encoder::new(0), &[]), [0x20]);
    }

    proptest! {
        /// Any series of header lists, over a table that is too small for them, decodes to itself.
        #[test]
        fn what_is_encoded_decodes(
            lists in prop::collection::vec(prop::collection::vec((0usize..40, 0usize..8), 0..12), 0..60),
            sizes in prop::collection::vec(prop::option::weighted(0.1, 0usize..2000), 60),
        ) {
            let (mut encoder, mut decoder) = (Encoder::new(4096), Decoder::new());
            for (list, size) in lists.iter().zip(&sizes) {
                if let Some(size) = size {
                    decoder.set_limit(*size);
                    encoder.set_peer_limit(*size);
                }
                let fields: Vec<(String, String)> = list
                    .iter()
                    .map(|(name, value)| match name {
                        0 => ("authorization".into(), format!("{value}")),
                        1 => (":method".into(), ["GET", "PUT"][value % 2].into()),
                        name => (format!("x-name-{name}"), "v".repeat(value * value)),
                    })
                    .collect();
                let borrowed: Vec<Field<'_>> = fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
                prop_assert_eq!(decode(&mut decoder, &encode(&mut encoder, &borrowed)), fields);
            }
        }
    }
}
