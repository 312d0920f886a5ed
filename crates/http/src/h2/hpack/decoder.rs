//! Decodes header blocks into fields.

use super::error::HpackError;
use super::name::{Name, is_valid_value};
use super::static_table;
use super::table::{Row, Table};
use super::{huffman, integer};
use crate::names::HeaderId;

/// The table both sides start with (RFC 9113 section 6.5.2).
pub(crate) const DEFAULT_TABLE_BYTES: usize = 4096;

/// A decoded field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decoded<'a> {
    /// The kind of the name.
    pub name: Name,
    /// The name.
    pub name_bytes: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Whether the value has only bytes that may be passed on.
    pub valid: bool,
    /// Never to be indexed.
    pub sensitive: bool,
}

/// Names and pseudo-header values of the static table, computed once.
static STATIC_NAMES: std::sync::LazyLock<[Name; static_table::ENTRIES.len()]> =
    std::sync::LazyLock::new(|| std::array::from_fn(|at| Name::of(static_table::ENTRIES[at].0.as_bytes())));

/// The decoding side of a connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: Table,
    /// The largest table size that the peer may set.
    limit: usize,
    /// The limit is now below the table's size: the next block must start with an update (RFC 7541 section 4.2).
    update_due: bool,
    /// Memory for strings that have to be decoded.
    scratch: Vec<u8>,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        let limit = DEFAULT_TABLE_BYTES;
        Self { table: Table::new(limit), limit, update_due: false, scratch: Vec::new() }
    }

    /// Sets the limit, when it is announced to the peer or, if it is lower, when the peer has confirmed it.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.update_due = self.table.max() > limit;
    }

    /// Frees memory.
    pub(crate) fn shrink(&mut self) {
        self.scratch = Vec::new();
    }

    /// Decodes a complete header block, one field after another.
    pub(crate) fn decode(&mut self, block: &[u8], visit: &mut impl FnMut(Decoded<'_>)) -> Result<(), HpackError> {
        let mut rest = self.size_updates(block)?;
        while let Some(&first) = rest.first() {
            rest = if first & 0x80 != 0 {
                let (index, after) = integer::decode(rest, 7)?;
                let row = self.row(index)?;
                let Row { name, name_bytes, value, valid } = row;
                visit(Decoded { name, name_bytes, value, valid, sensitive: false });
                after
            } else if first & 0x40 != 0 {
                self.literal(rest, 6, true, visit)?
            } else if first & 0x20 != 0 {
                return Err(HpackError::TableSize);
            } else {
                self.literal(rest, 4, false, visit)?
            };
        }
        Ok(())
    }

    /// Table size updates, which stand at the start of a block only, at most two of them.
    fn size_updates<'a>(&mut self, block: &'a [u8]) -> Result<&'a [u8], HpackError> {
        let mut rest = block;
        for _ in 0..2 {
            if rest.first().is_none_or(|first| first & 0xe0 != 0x20) {
                break;
            }
            let (size, after) = integer::decode(rest, 5)?;
            if size as usize > self.limit {
                return Err(HpackError::TableSize);
            }
            self.table.set_max(size as usize);
            self.update_due = false;
            rest = after;
        }
        if self.update_due { Err(HpackError::TableSize) } else { Ok(rest) }
    }

    /// A literal with or without indexing; returns what follows it.
    fn literal<'a>(
        &mut self,
        input: &'a [u8],
        prefix: u32,
        index: bool,
        visit: &mut impl FnMut(Decoded<'_>),
    ) -> Result<&'a [u8], HpackError> {
        let sensitive = !index && input.first().is_some_and(|first| first & 0x10 != 0);
        let (name_index, rest) = integer::decode(input, prefix)?;
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let literal = self.literal_with(&mut scratch, name_index, rest, index, sensitive, visit);
        self.scratch = scratch;
        literal
    }

    fn literal_with<'a>(
        &mut self,
        scratch: &mut Vec<u8>,
        name_index: u32,
        rest: &'a [u8],
        index: bool,
        sensitive: bool,
        visit: &mut impl FnMut(Decoded<'_>),
    ) -> Result<&'a [u8], HpackError> {
        let (name, raw_name, rest) = if name_index == 0 {
            let (raw, rest) = string(rest, scratch)?;
            let name = Name::of(raw.unwrap_or(scratch));
            (name, raw, rest)
        } else {
            let row = self.row(name_index)?;
            // The insertion may evict the entry that has the name.
            scratch.extend_from_slice(row.name_bytes);
            (row.name, None, rest)
        };
        let split = scratch.len();
        let (raw_value, rest) = string(rest, scratch)?;
        let name_bytes = raw_name.unwrap_or(scratch.get(..split).unwrap_or_default());
        let value = raw_value.unwrap_or(scratch.get(split..).unwrap_or_default());
        let valid = is_valid_value(value);
        visit(Decoded { name, name_bytes, value, valid, sensitive });
        if index {
            self.table.insert(name, name_bytes, value, valid);
        }
        Ok(rest)
    }

    #[inline]
    fn row(&self, index: u32) -> Result<Row<'_>, HpackError> {
        let at = (index as usize).checked_sub(1).ok_or(HpackError::Index)?;
        if let Some((name, value)) = static_table::ENTRIES.get(at) {
            let kind = STATIC_NAMES.get(at).copied().unwrap_or(Name::Field(HeaderId::Other));
            return Ok(Row { name: kind, name_bytes: name.as_bytes(), value: value.as_bytes(), valid: true });
        }
        self.table.row(at - static_table::ENTRIES.len()).ok_or(HpackError::Index)
    }
}

/// Reads the string at the start of `input`. Returns it, or `None` if it was decoded into `scratch`, and what follows
/// it.
fn string<'a>(input: &'a [u8], scratch: &mut Vec<u8>) -> Result<(Option<&'a [u8]>, &'a [u8]), HpackError> {
    let is_huffman = input.first().ok_or(HpackError::Truncated)? & 0x80 != 0;
    let (length, rest) = integer::decode(input, 7)?;
    let (bytes, rest) = rest.split_at_checked(length as usize).ok_or(HpackError::Truncated)?;
    if !is_huffman {
        return Ok((Some(bytes), rest));
    }
    huffman::decode(bytes, scratch).map_err(|_| HpackError::Huffman)?;
    Ok((None, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::hpack::tests::hex;
    use proptest::prelude::*;

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<String, HpackError> {
        let mut text = String::new();
        decoder.decode(block, &mut |field| {
            let mark = if field.sensitive { "!" } else { "" };
            text += &format!("{}{mark}={}|", field.name_bytes.escape_ascii(), field.value.escape_ascii());
        })?;
        Ok(text)
    }

    /// The dynamic table, newest first.
    fn table(decoder: &Decoder) -> String {
        let rows = (0..decoder.table.len()).filter_map(|back| decoder.table.row(back));
        rows.map(|row| format!("{}={}|", row.name_bytes.escape_ascii(), row.value.escape_ascii())).collect()
    }

    #[test]
    fn examples_of_rfc_7541_appendix_c_2() {
        let check = |coded: &str, expected: &str, entries: &str| {
            let mut decoder = Decoder::new();
            assert_eq!(decode(&mut decoder, &hex(coded)).as_deref(), Ok(expected), "{coded}");
            assert_eq!(table(&decoder), entries, "{coded}");
        };
        check(
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            "custom-key=custom-header|",
            "custom-key=custom-header|",
        );
        check("040c 2f73 616d 706c 652f 7061 7468", ":path=/sample/path|", "");
        check("1008 7061 7373 776f 7264 0673 6563 7265 74", "password!=secret|", "");
        check("82", ":method=GET|", "");
    }

    /// Appendices C.3 to C.6: blocks of one connection, with the dynamic table after the last.
    #[test]
    fn examples_of_rfc_7541_appendix_c_3_to_c_6() {
        let requests = [
            ":method=GET|:scheme=http|:path=/|:authority=www.example.com|",
            ":method=GET|:scheme=http|:path=/|:authority=www.example.com|cache-control=no-cache|",
            ":method=GET|:scheme=https|:path=/index.html|:authority=www.example.com|custom-key=custom-value|",
        ];
        let after_requests = "custom-key=custom-value|cache-control=no-cache|:authority=www.example.com|";
        check_series(
            &[
                "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
                "8286 84be 5808 6e6f 2d63 6163 6865",
                "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
            ],
            &requests,
            4096,
            after_requests,
        );
        check_series(
            &[
                "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
                "8286 84be 5886 a8eb 1064 9cbf",
                "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
            ],
            &requests,
            4096,
            after_requests,
        );
        let cookie = "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
        let last = format!(
            ":status=200|cache-control=private|date=Mon, 21 Oct 2013 20:13:22 GMT|location=https://www.example.com|content-encoding=gzip|set-cookie={cookie}|"
        );
        let responses = [
            ":status=302|cache-control=private|date=Mon, 21 Oct 2013 20:13:21 GMT|location=https://www.example.com|",
            ":status=307|cache-control=private|date=Mon, 21 Oct 2013 20:13:21 GMT|location=https://www.example.com|",
            &last,
        ];
        let after_responses = format!("set-cookie={cookie}|content-encoding=gzip|date=Mon, 21 Oct 2013 20:13:22 GMT|");
        check_series(
            &[
                "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
                "4803 3330 37c1 c0bf",
                "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
            ],
            &responses,
            256,
            &after_responses,
        );
        check_series(
            &[
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
                "4883 640e ffc1 c0bf",
                "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
            ],
            &responses,
            256,
            &after_responses,
        );
    }

    fn check_series(blocks: &[&str], expected: &[&str], table_bytes: usize, entries: &str) {
        let mut decoder = Decoder::new();
        decoder.table.set_max(table_bytes);
        for (block, expected) in blocks.iter().zip(expected) {
            assert_eq!(decode(&mut decoder, &hex(block)).as_deref(), Ok(*expected), "{block}");
        }
        assert_eq!(table(&decoder), entries);
    }

    #[test]
    fn table_sizes() {
        let mut decoder = Decoder::new();
        assert_eq!(decode(&mut decoder, &hex("3fe11f 82")).as_deref(), Ok(":method=GET|"), "4096");
        assert_eq!(decode(&mut decoder, &hex("3fe21f")), Err(HpackError::TableSize), "4097");
        assert_eq!(decode(&mut decoder, &hex("82 20")), Err(HpackError::TableSize), "not at the start");
        assert_eq!(decode(&mut decoder, &hex("20 20 20")), Err(HpackError::TableSize), "three");
        let mut decoder = Decoder::new();
        decoder.set_limit(100);
        assert_eq!(decode(&mut decoder, &hex("82")), Err(HpackError::TableSize), "an update was due");
        assert_eq!(decode(&mut decoder, &hex("20 3f45 82")).as_deref(), Ok(":method=GET|"));
        assert_eq!(decode(&mut decoder, &hex("82")).as_deref(), Ok(":method=GET|"));
    }

    #[test]
    fn refuses_what_is_malformed() {
        let check = |coded: &str, expected: HpackError| {
            assert_eq!(decode(&mut Decoder::new(), &hex(coded)), Err(expected), "{coded}");
        };
        check("80", HpackError::Index);
        check("be", HpackError::Index);
        check("7e", HpackError::Index);
        check("ff", HpackError::Truncated);
        check("ffffffffffffff", HpackError::Integer);
        check("40", HpackError::Truncated);
        check("4001 61", HpackError::Truncated);
        check("4001 6105 62", HpackError::Truncated);
        check("4081 ff0161", HpackError::Huffman);
    }

    #[test]
    fn an_entry_may_be_named_by_the_one_that_evicts_it() {
        let mut decoder = Decoder::new();
        decoder.table.set_max(40);
        assert_eq!(decode(&mut decoder, &hex("4003 61 62 63 01 64")).as_deref(), Ok("abc=d|"));
        assert_eq!(decode(&mut decoder, &hex("7e 02 65 66")).as_deref(), Ok("abc=ef|"));
        assert_eq!(table(&decoder), "abc=ef|");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(blocks: Vec<Vec<u8>>) {
            let mut decoder = Decoder::new();
            for block in blocks {
                let _ = decode(&mut decoder, &block);
            }
        }
    }
}
