//! The static table of RFC 7541 appendix A.

/// Names and values; the first has index 1.
pub(super) const ENTRIES: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// How a field was found in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Name and value.
    Pair(u32),
    /// The name only.
    Name(u32),
    /// The field is not in the table.
    Nothing,
}

const SLOTS: usize = 256;

/// Index of the first entry of each name by [`slot`], with linear probing; 0 is empty.
const FIRST: [u8; SLOTS] = {
    let mut table = [0u8; SLOTS];
    let mut index = 0;
    while index < ENTRIES.len() {
        let name = ENTRIES[index].0.as_bytes();
        let repeated = index > 0 && equal(ENTRIES[index - 1].0.as_bytes(), name);
        if !repeated {
            let mut at = slot(name);
            while table[at] != 0 {
                at = (at + 1) % SLOTS;
            }
            table[at] = index as u8 + 1;
        }
        index += 1;
    }
    table
};

const fn equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

const fn slot(name: &[u8]) -> usize {
    let (len, last, middle) = (name.len(), name[name.len() - 1] as usize, name[name.len() / 2] as usize);
    (len * 7 + last * 13 + middle * 29) % SLOTS
}

/// Looks a field up.
pub(super) fn find(name: &[u8], value: &[u8]) -> Found {
    if name.is_empty() {
        return Found::Nothing;
    }
    let mut at = slot(name);
    let first = loop {
        let index = usize::from(FIRST[at]);
        let Some(index) = index.checked_sub(1) else { return Found::Nothing };
        if ENTRIES[index].0.as_bytes() == name {
            break index;
        }
        at = (at + 1) % SLOTS;
    };
    let same_name = ENTRIES[first..].iter().take_while(|entry| entry.0.as_bytes() == name);
    match same_name.enumerate().find(|(_, entry)| entry.1.as_bytes() == value && !value.is_empty()) {
        Some((offset, _)) => Found::Pair((first + offset) as u32 + 1),
        None => Found::Name(first as u32 + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found() {
        for (index, (name, value)) in ENTRIES.iter().enumerate() {
            let first = ENTRIES.iter().position(|entry| entry.0 == *name).expect("itself") as u32 + 1;
            let expected = if value.is_empty() { Found::Name(first) } else { Found::Pair(index as u32 + 1) };
            assert_eq!(find(name.as_bytes(), value.as_bytes()), expected, "{name}: {value}");
            assert_eq!(find(name.as_bytes(), b"other"), Found::Name(first), "{name}");
        }
        for name in ["", "x", "x-request-id", ":statu", "grpc-status"] {
            assert_eq!(find(name.as_bytes(), b"a"), Found::Nothing, "{name}");
        }
    }
}
