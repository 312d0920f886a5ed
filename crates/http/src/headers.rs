//! Header fields in an arena that is reused from message to message.

use percent_encoding::percent_encode_byte;

use crate::bytes::TOKEN;
use crate::names::HeaderId;

/// Maximum number of options in the `Connection` lines of one message. A request with more is refused, as in Envoy; in a
/// response further ones are ignored.
pub(crate) const MAX_CONNECTION_OPTIONS: usize = 9;

/// Whether a program may take a header of this name for `other`: CGI (RFC 3875 section 4.1.18) and what follows it (WSGI, Rack, PHP) read
/// hyphens as underscores.
pub fn reads_as(name: &[u8], other: &[u8]) -> bool {
    let alike = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.len() == other.len() && name.iter().zip(other).all(|(one, other)| alike(*one) == alike(*other))
}

/// A range of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

#[derive(Debug, Clone, Copy)]
struct Field {
    /// Only for [`HeaderId::Other`]; well-known names are not stored.
    name: Span,
    value: Span,
    id: HeaderId,
    live: bool,
    /// Whether it arrived as a never-indexed literal of HPACK and must be sent as one (RFC 7541 section 7.1.3).
    sensitive: bool,
}

impl Field {
    /// It is no field, but how a name was spelled. (So may a removed sensitive field seem; its name is in lower case.)
    #[inline]
    fn is_spelling(&self) -> bool {
        !self.live && self.sensitive
    }
}

/// Header fields in order, names in lower case. Removed and replaced values stay in the arena until [`Headers::clear`].
///
/// No value holds CR, LF or NUL, whoever sets it: each becomes a blank (RFC 9110 section 5.5), so that no text from
/// anywhere can turn one line into two. Parsers refuse such bytes themselves, so they add values without this check.
#[derive(Debug, Clone, Default)]
pub struct Headers {
    arena: Vec<u8>,
    fields: Vec<Field>,
}

impl Headers {
    /// Removes all fields and keeps the memory, up to a limit, so that one huge head does not keep its memory forever.
    pub fn clear(&mut self) {
        const KEPT_ARENA_BYTES: usize = 8 * 1024;
        self.arena.clear();
        self.fields.clear();
        self.arena.shrink_to(KEPT_ARENA_BYTES);
    }

    /// Reserves what most messages need, so that a new head does not grow in many steps.
    pub(crate) fn prepare(&mut self) {
        const ARENA_BYTES: usize = 1024;
        const FIELDS: usize = 24;
        if self.fields.capacity() == 0 {
            self.arena.reserve(ARENA_BYTES);
            self.fields.reserve(FIELDS);
        }
    }

    /// The first value of a well-known header.
    #[inline]
    pub fn get(&self, id: HeaderId) -> Option<&[u8]> {
        self.fields.iter().find(|field| field.live && field.id == id).map(|field| self.bytes(field.value))
    }

    /// Whether a well-known header is present.
    #[inline]
    pub fn contains(&self, id: HeaderId) -> bool {
        self.fields.iter().any(|field| field.live && field.id == id)
    }

    /// The first value of any header, by its lower-case name.
    pub fn find(&self, name: &[u8]) -> Option<&[u8]> {
        // A well-known name has an id, which is faster to compare than bytes.
        match HeaderId::of(name) {
            HeaderId::Other => {
                let named = |field: &&Field| field.live && self.name(field) == name;
                self.fields.iter().find(named).map(|field| self.bytes(field.value))
            }
            id => self.get(id),
        }
    }

    /// All values of any header, by its lower-case name.
    pub fn find_all<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        let matching = self.fields.iter().filter(move |field| field.live && self.name(field) == name);
        matching.map(|field| self.bytes(field.value))
    }

    /// All values of a well-known header.
    pub fn all(&self, id: HeaderId) -> impl Iterator<Item = &[u8]> {
        self.fields.iter().filter(move |field| field.live && field.id == id).map(|field| self.bytes(field.value))
    }

    /// Whether there is a field that `wanted` says, by well-known header, or by lower-case name where it is none.
    #[inline]
    pub fn any(&self, wanted: impl Fn(HeaderId, &[u8]) -> bool) -> bool {
        self.fields.iter().filter(|field| field.live).any(|field| match field.id {
            HeaderId::Other => wanted(HeaderId::Other, self.bytes(field.name)),
            id => wanted(id, b""),
        })
    }

    /// Fields in order.
    pub fn iter(&self) -> impl Iterator<Item = (HeaderId, &[u8], &[u8])> {
        let live = self.fields.iter().filter(|field| field.live);
        live.map(|field| (field.id, self.name(field), self.bytes(field.value)))
    }

    /// Returns the number of fields.
    pub fn len(&self) -> usize {
        self.fields.iter().filter(|field| field.live).count()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a field at the end. The name is stored in lower case; bytes that a name must not have become `-`.
    pub fn append(&mut self, name: &[u8], value: &[u8]) {
        if TOKEN.holds_all(name) {
            self.push_parsed(name, b"");
        } else {
            let name: Vec<u8> = name.iter().map(|byte| if TOKEN.holds(*byte) { *byte } else { b'-' }).collect();
            self.push_parsed(&name, b"");
        }
        let value = self.intern_value(value);
        if let Some(field) = self.fields.last_mut() {
            field.value = value;
        }
    }

    /// Adds a field from a header block, whose name is in lower case and whose id is known.
    #[inline]
    pub(crate) fn push_decoded(&mut self, id: HeaderId, name: &[u8], value: &[u8], sensitive: bool) {
        let name = if id == HeaderId::Other { self.intern(name) } else { Span::default() };
        let value = self.intern(value);
        self.fields.push(Field { name, value, id, live: true, sensitive });
    }

    /// [`Headers::iter`], with whether a field must not enter a compression table.
    pub(crate) fn iter_with_sensitivity(&self) -> impl Iterator<Item = (HeaderId, &[u8], &[u8], bool)> {
        let live = self.fields.iter().filter(|field| field.live);
        live.map(|field| (field.id, self.name(field), self.bytes(field.value), field.sensitive))
    }

    /// Joins the values of all fields of this name with `separator` into one field, in the position of the first.
    pub fn join(&mut self, id: HeaderId, separator: &[u8]) {
        let start = self.position();
        let mut first = None;
        for at in 0..self.fields.len() {
            let Field { live, id: field, value, sensitive, .. } = self.fields[at];
            if !live || field != id {
                continue;
            }
            if let Some(first) = first {
                let first: &mut Field = &mut self.fields[first];
                first.sensitive |= sensitive;
                self.fields[at].live = false;
                self.intern_value(separator);
            } else {
                first = Some(at);
            }
            self.arena.extend_from_within(value.start as usize..value.end as usize);
        }
        if let Some(first) = first {
            self.fields[first].value = Span { start, end: self.position() };
        }
    }

    /// Adds a parsed field and returns its id.
    #[inline]
    pub(crate) fn push_parsed(&mut self, name: &[u8], value: &[u8]) -> HeaderId {
        let mut name = self.intern_lower(name);
        let id = HeaderId::of(self.bytes(name));
        if id != HeaderId::Other {
            self.arena.truncate(name.start as usize);
            name = Span::default();
        }
        let value = self.intern(value);
        self.fields.push(Field { name, value, id, live: true, sensitive: false });
        id
    }

    /// Keeps the letter case of a name that arrived. Names beyond a limit are sent in lower case: looking for one costs as
    /// much as there are.
    pub(crate) fn keep_spelling(&mut self, name: &[u8]) {
        const MAX_SPELLINGS: usize = 256;
        if self.fields.iter().filter(|field| field.is_spelling()).take(MAX_SPELLINGS).count() < MAX_SPELLINGS {
            let name = self.intern(name);
            // Stored among the fields, because a separate list would make every head larger.
            self.fields.push(Field { name, value: Span::default(), id: HeaderId::Other, live: false, sensitive: true });
        }
    }

    /// Whether the letter case of names is kept. A head that keeps it begins with a spelling.
    #[inline]
    pub(crate) fn keeps_spellings(&self) -> bool {
        self.fields.first().is_some_and(Field::is_spelling)
    }

    /// A lower-case name as it first arrived; unchanged if it did not, or if spellings are not kept.
    pub(crate) fn spelled<'a>(&'a self, name: &'a [u8]) -> &'a [u8] {
        if !self.keeps_spellings() {
            return name;
        }
        let spellings = self.fields.iter().filter(|field| field.is_spelling()).map(|field| self.bytes(field.name));
        spellings.into_iter().find(|spelling| spelling.eq_ignore_ascii_case(name)).unwrap_or(name)
    }

    /// Adds a well-known field at the end.
    pub fn append_id(&mut self, id: HeaderId, value: &[u8]) {
        let value = self.intern_value(value);
        self.fields.push(Field { name: Span::default(), value, id, live: true, sensitive: false });
    }

    /// Makes this the only value of a well-known header, in the position of the first.
    pub fn set(&mut self, id: HeaderId, value: &[u8]) {
        let value_span = self.intern_value(value);
        let mut first = true;
        for field in self.fields.iter_mut().filter(|field| field.live && field.id == id) {
            if first {
                field.value = value_span;
            } else {
                field.live = false;
            }
            first = false;
        }
        if first {
            self.fields.push(Field { name: Span::default(), value: value_span, id, live: true, sensitive: false });
        }
    }

    /// Makes this the only value of any header.
    pub fn set_name(&mut self, name: &[u8], value: &[u8]) {
        self.remove_name(name);
        self.append(name, value);
    }

    /// Removes all values of a well-known header.
    #[inline]
    pub fn remove(&mut self, id: HeaderId) {
        self.fields.iter_mut().filter(|field| field.id == id).for_each(|field| field.live = false);
    }

    /// Removes the fields that `unwanted` says, by well-known header and lower-case name.
    #[inline]
    pub fn remove_where(&mut self, unwanted: impl Fn(HeaderId, &[u8]) -> bool) {
        let arena = &self.arena;
        for field in &mut self.fields {
            let name = match field.id {
                HeaderId::Other => arena.get(field.name.start as usize..field.name.end as usize).unwrap_or_default(),
                id => id.name().as_bytes(),
            };
            field.live &= !unwanted(field.id, name);
        }
    }

    /// Removes all values of any header under each name that a program may take for `name` ([`reads_as`]).
    pub fn remove_spellings(&mut self, name: &[u8]) {
        for at in 0..self.fields.len() {
            if reads_as(self.name(&self.fields[at]), name) {
                self.fields[at].live = false;
            }
        }
    }

    /// Removes all values of any header, whatever the case of `name`.
    pub fn remove_name(&mut self, name: &[u8]) {
        for at in 0..self.fields.len() {
            if self.name(&self.fields[at]).eq_ignore_ascii_case(name) {
                self.fields[at].live = false;
            }
        }
    }

    /// Appends `value` to a comma-separated header, or adds it.
    pub fn append_to_list(&mut self, id: HeaderId, value: &[u8]) {
        let Some(field) = self.fields.iter().rposition(|field| field.live && field.id == id) else {
            return self.append_id(id, value);
        };
        let old = self.fields[field].value;
        if old.start == old.end {
            self.fields[field].value = self.intern_value(value);
            return;
        }
        let start = self.position();
        self.arena.extend_from_within(old.start as usize..old.end as usize);
        self.arena.extend_from_slice(b",");
        self.fields[field].value = Span { start, end: self.intern_value(value).end };
    }

    /// Removes hop-by-hop fields (RFC 9110 section 7.6.1): `Connection`, the headers it names, and similar ones. `te:
    /// trailers` stays, as in Envoy. Call it before adding headers for the next hop, because a header that the peer
    /// names in `Connection` is removed whoever has set it.
    pub fn remove_hop_by_hop(&mut self) {
        let mut options_left = MAX_CONNECTION_OPTIONS;
        for at in 0..self.fields.len() {
            if self.fields[at].live && self.fields[at].id == HeaderId::Connection {
                self.remove_named_by_connection(self.fields[at].value, &mut options_left);
            }
        }
        for at in 0..self.fields.len() {
            let Field { id, value, .. } = self.fields[at];
            let drop = match id {
                HeaderId::Connection
                | HeaderId::KeepAlive
                | HeaderId::ProxyConnection
                | HeaderId::TransferEncoding
                | HeaderId::Upgrade => true,
                HeaderId::Te => !self.bytes(value).eq_ignore_ascii_case(b"trailers"),
                _ => false,
            };
            if drop {
                self.fields[at].live = false;
            }
        }
    }

    /// Options that are not header names cost nothing; each other option is compared with every name, and there are
    /// few.
    fn remove_named_by_connection(&mut self, connection: Span, options_left: &mut usize) {
        let simple = [&b"keep-alive"[..], b"close", b"upgrade"];
        let is_simple = |option: &[u8]| simple.iter().any(|token| option.eq_ignore_ascii_case(token));
        if is_simple(self.bytes(connection)) {
            return;
        }
        let Self { arena, fields } = self;
        let of = |span: Span| arena.get(span.start as usize..span.end as usize).unwrap_or_default();
        for option in connection_options(of(connection)).take(*options_left) {
            *options_left -= 1;
            if is_simple(option) {
                continue;
            }
            for field in fields.iter_mut().filter(|field| field.live) {
                let name = match field.id {
                    HeaderId::ContentLength | HeaderId::TransferEncoding | HeaderId::Connection | HeaderId::Te => {
                        continue;
                    }
                    HeaderId::Other => of(field.name),
                    id => id.name().as_bytes(),
                };
                field.live = !option.eq_ignore_ascii_case(name);
            }
        }
    }

    #[inline]
    fn name(&self, field: &Field) -> &[u8] {
        match field.id {
            HeaderId::Other => self.bytes(field.name),
            id => id.name().as_bytes(),
        }
    }

    #[inline]
    pub(crate) fn bytes(&self, span: Span) -> &[u8] {
        self.arena.get(span.start as usize..span.end as usize).unwrap_or_default()
    }

    /// Copies `bytes` into the arena.
    #[inline]
    pub(crate) fn intern(&mut self, bytes: &[u8]) -> Span {
        let start = self.position();
        self.arena.extend_from_slice(bytes);
        Span { start, end: self.position() }
    }

    /// Copies a value that was not validated.
    #[inline]
    fn intern_value(&mut self, value: &[u8]) -> Span {
        let span = self.intern(value);
        if holds_controls(value) {
            self.blank_out(span);
        }
        span
    }

    #[cold]
    fn blank_out(&mut self, span: Span) {
        let copy = self.arena.get_mut(span.start as usize..span.end as usize).unwrap_or_default();
        copy.iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n' | 0)).for_each(|byte| *byte = b' ');
    }

    /// Copies a part of a request's first line that was not validated. Bytes that would end the part or the line are
    /// escaped (RFC 3986 section 2.1).
    pub(crate) fn intern_target(&mut self, part: &[u8]) -> Span {
        if part.iter().all(u8::is_ascii_graphic) {
            return self.intern(part);
        }
        let start = self.position();
        for byte in part {
            match byte {
                byte if byte.is_ascii_graphic() => self.arena.push(*byte),
                byte => self.arena.extend(percent_encode_byte(*byte).bytes()),
            }
        }
        Span { start, end: self.position() }
    }

    #[inline]
    pub(crate) fn intern_lower(&mut self, bytes: &[u8]) -> Span {
        let span = self.intern(bytes);
        if let Some(copy) = self.arena.get_mut(span.start as usize..) {
            copy.make_ascii_lowercase();
        }
        span
    }

    /// Adds one byte to a field that arrives in pieces.
    #[inline]
    pub(crate) fn push_byte(&mut self, byte: u8) {
        self.arena.push(byte);
    }

    /// Ends a field that arrived in pieces: its name, in lower case, lies from `name` to `value` in the arena, its
    /// value from there to the end. Hop-by-hop and framing fields are dropped.
    pub(crate) fn end_trailer(&mut self, name: u32, value: u32) {
        let end = self.position();
        let span = Span { start: name, end: value };
        let raw = self.bytes(Span { start: value, end });
        let leading = (raw.len() - raw.trim_ascii_start().len()) as u32;
        let trimmed = raw.trim_ascii().len() as u32;
        let id = HeaderId::of(self.bytes(span));
        if id.is_forbidden_in_trailers() {
            self.arena.truncate(name as usize);
        } else {
            let start = value + leading;
            self.fields.push(Field {
                name: span,
                value: Span { start, end: start + trimmed },
                id,
                live: true,
                sensitive: false,
            });
        }
    }

    /// Heads are limited to far less than 4 GiB, so the arena's positions fit.
    #[inline]
    pub(crate) fn position(&self) -> u32 {
        self.arena.len() as u32
    }
}

/// Whether a byte is below 14, which is true for CR, LF and NUL and for hardly anything else in a value. Values are
/// short, and for short ones this costs a tenth of a search for the three bytes.
fn holds_controls(value: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    let (mut rest, mut found) = (value, 0);
    while let Some((eight, after)) = rest.split_first_chunk() {
        let word = u64::from_ne_bytes(*eight);
        found |= word.wrapping_sub(ONES * 14) & !word & HIGHS;
        rest = after;
    }
    rest.iter().for_each(|byte| found |= u64::from(*byte < 14));
    found != 0
}

/// The options of a `Connection` line.
pub(crate) fn connection_options(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(|option| option.trim_ascii()).filter(|option| !option.is_empty())
}

/// Whether `Connection` must not name this header (in any case). Proxies use it to pass on facts about the client, and
/// a client that could have it removed at the next hop could hide them. Envoy refuses the first three of them.
pub(crate) fn is_between_proxies(name: &[u8]) -> bool {
    const FAMILIES: [&[u8]; 3] = [b"x-forwarded-", b"x-envoy-", b":"];
    const NAMES: [&[u8]; 4] = [b"forwarded", b"via", b"x-real-ip", b"x-request-id"];
    FAMILIES.iter().any(|family| name.get(..family.len()).is_some_and(|start| start.eq_ignore_ascii_case(family)))
        || NAMES.iter().any(|one| name.eq_ignore_ascii_case(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::default();
        fields.iter().for_each(|(name, value)| headers.append(name.as_bytes(), value.as_bytes()));
        headers
    }

    fn text(headers: &Headers) -> String {
        let lines = headers.iter().map(|(_, n, v)| format!("{}={}", n.escape_ascii(), v.escape_ascii()));
        lines.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn edits() {
        let mut h = headers(&[("Server", "a"), ("X-A", "1"), ("server", "b"), ("x-a", "2")]);
        assert_eq!(h.get(HeaderId::Server), Some(&b"a"[..]));
        assert_eq!(h.find_all(b"x-a").count(), 2);
        h.set(HeaderId::Server, b"c");
        h.append_id(HeaderId::ForwardedFor, b"");
        h.append_to_list(HeaderId::ForwardedFor, b"1.1.1.1");
        h.append_to_list(HeaderId::ForwardedFor, b"2.2.2.2");
        assert_eq!(text(&h), "server=c x-a=1 x-a=2 x-forwarded-for=1.1.1.1,2.2.2.2");
        h.remove_name(b"X-A");
        h.remove(HeaderId::ForwardedFor);
        assert_eq!(text(&h), "server=c");
        h.clear();
        assert!(h.is_empty());
    }

    #[test]
    fn hop_by_hop() {
        let check = |fields: &[(&str, &str)], expected: &str| {
            let mut h = headers(fields);
            h.remove_hop_by_hop();
            assert_eq!(text(&h), expected, "{fields:?}");
        };
        check(&[("connection", "keep-alive"), ("keep-alive", "5"), ("a", "1")], "a=1");
        check(&[("connection", "close, X-Foo"), ("x-foo", "1"), ("x-bar", "2")], "x-bar=2");
        check(&[("connection", "content-length"), ("content-length", "3")], "content-length=3");
        check(&[("te", "trailers"), ("proxy-connection", "x")], "te=trailers");
        check(&[("te", "gzip"), ("upgrade", "h2c"), ("transfer-encoding", "chunked")], "");
        check(&[("a", "1"), ("connection", "b"), ("connection", "a"), ("b", "2")], "");
        check(&[("connection", "te, A"), ("te", "trailers"), ("a", "1"), ("a", "2")], "te=trailers");
        check(&[("connection", ", ,A,"), ("a", "1")], "");
        // The tenth option is ignored, on however many lines the options are.
        let nine = ("connection", "1,2,3,4,5,6,7,8,a");
        check(&[nine, ("connection", "b"), ("a", "1"), ("b", "2")], "b=2");
    }

    #[test]
    fn what_proxies_tell_each_other() {
        let check = |name: &str, expected| assert_eq!(is_between_proxies(name.as_bytes()), expected, "{name}");
        for name in
            ["X-Forwarded-For", "x-forwarded-client-cert", "x-envoy-max-retries", ":path", "Via", "x-request-id"]
        {
            check(name, true);
        }
        for name in ["close", "x-forwarded", "x-env", "viaduct", "authorization", ""] {
            check(name, false);
        }
    }

    #[test]
    fn no_text_makes_two_lines_of_one() {
        const EVIL: &[u8] = b"a\r\nevil: 1\n\0b";
        const HARMLESS: &str = "a  evil: 1  b";
        let check = |writes: &dyn Fn(&mut Headers), expected: &str| {
            let mut h = headers(&[("via", "v"), ("via", "w")]);
            writes(&mut h);
            assert_eq!(text(&h), expected);
        };
        check(&|h| h.append(b"X\r\n: y", EVIL), &format!("via=v via=w x----y={HARMLESS}"));
        check(&|h| h.append(b"Server", EVIL), &format!("via=v via=w server={HARMLESS}"));
        check(&|h| h.append_id(HeaderId::Server, EVIL), &format!("via=v via=w server={HARMLESS}"));
        check(&|h| h.set(HeaderId::Via, EVIL), &format!("via={HARMLESS}"));
        check(&|h| h.set(HeaderId::Server, EVIL), &format!("via=v via=w server={HARMLESS}"));
        check(&|h| h.set_name(b"via", EVIL), &format!("via={HARMLESS}"));
        check(&|h| h.append_to_list(HeaderId::Via, EVIL), &format!("via=v via=w,{HARMLESS}"));
        check(&|h| h.append_to_list(HeaderId::Server, EVIL), &format!("via=v via=w server={HARMLESS}"));
        check(&|h| h.join(HeaderId::Via, b"\r\n"), "via=v  w");
        for at in 0..40 {
            let value: Vec<u8> = (0..40).map(|place| if place == at { b'\n' } else { 0x80 + place }).collect();
            let mut h = Headers::default();
            h.append_id(HeaderId::Via, &value);
            let expected: Vec<u8> = value.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }).collect();
            assert_eq!(h.get(HeaderId::Via), Some(&expected[..]), "at {at}");
        }
    }
}
