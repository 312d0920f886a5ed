//! Path normalization as Envoy's `normalize_path`, `merge_slashes` and `path_with_escaped_slashes_action`.
//!
//! Only the path is touched; the query stays as it is.

use crate::bytes::ByteSet;

/// A path that must not be requested from any server: it does not start with `/` or contains `%00`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the path cannot be normalized")]
pub struct PathError;

/// The bytes of a path that normalization looks no further at.
static NORMAL: ByteSet = ByteSet::alphanumeric_and(b"!$&'()*+,-./:;=@[]_~");
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Splits `path?query` before the `?`.
pub fn split_query(target: &[u8]) -> (&[u8], &[u8]) {
    memchr::memchr(b'?', target).map_or((target, b""), |at| target.split_at(at))
}

/// Removes dot segments (RFC 3986 section 5.2.4, `%2e` counts as a dot), also those with parameters (`..;x`), turns `\`
/// into `/`, decodes escaped unreserved characters, and escapes those that URIs may not have. `None`: nothing changes.
///
/// # Errors
/// [`PathError`]: answer 400.
pub fn normalize(target: &[u8]) -> Result<Option<Vec<u8>>, PathError> {
    let (path, query) = split_query(target);
    if path.first() != Some(&b'/') {
        return Err(PathError);
    }
    let plain = |window: &[u8]| window != b"/." && NORMAL.holds(window[0]);
    if path.windows(2).all(plain) && path.last().is_none_or(|last| NORMAL.holds(*last)) {
        return Ok(None);
    }
    let decoded = decode_unreserved(path)?;
    let mut out: Vec<u8> = Vec::with_capacity(target.len());
    let mut segments = decoded[1..].split(|byte| *byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match split_parameters(segment) {
            b"." => {}
            b".." => {
                let parent = out.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                out.truncate(parent);
            }
            _ => {
                out.push(b'/');
                out.extend_from_slice(segment);
                continue;
            }
        }
        if last {
            out.push(b'/');
        }
    }
    if out.is_empty() {
        out.push(b'/');
    }
    out.extend_from_slice(query);
    Ok((out != target).then_some(out))
}

/// A segment without what follows its `;`.
fn split_parameters(segment: &[u8]) -> &[u8] {
    memchr::memchr(b';', segment).map_or(segment, |at| &segment[..at])
}

/// Adjacent slashes become one. `None`: nothing changes.
pub fn merge_slashes(target: &[u8]) -> Option<Vec<u8>> {
    let (path, query) = split_query(target);
    if !path.windows(2).any(|pair| pair == b"//") {
        return None;
    }
    let mut out = path.to_vec();
    out.dedup_by(|byte, before| *byte == b'/' && *before == b'/');
    out.extend_from_slice(query);
    Some(out)
}

/// Whether the path holds `%2F` or `%5C` in any case.
pub fn has_escaped_slash(target: &[u8]) -> bool {
    let (path, _) = split_query(target);
    path.windows(3).any(|window| escaped_slash(window).is_some())
}

/// Decodes `%2F` to `/` and `%5C` to `\`. `None`: nothing changes.
pub fn unescape_slashes(target: &[u8]) -> Option<Vec<u8>> {
    if !has_escaped_slash(target) {
        return None;
    }
    let (path, query) = split_query(target);
    let mut out = Vec::with_capacity(target.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        if let Some(slash) = rest.get(..3).and_then(escaped_slash) {
            out.push(slash);
            rest = &rest[3..];
        } else {
            out.push(byte);
            rest = after;
        }
    }
    out.extend_from_slice(query);
    Some(out)
}

fn escaped_slash(window: &[u8]) -> Option<u8> {
    match window {
        [b'%', b'2', b'f' | b'F'] => Some(b'/'),
        [b'%', b'5', b'c' | b'C'] => Some(b'\\'),
        _ => None,
    }
}

/// Decodes escapes of letters, digits and `-._~`, and turns `\` into `/`; other escapes stay as they are.
///
/// In `%%32e` the first `%` is no escape. What follows decodes to `2e`, and together they would be one, which the next
/// proxy decodes once more: that `%` becomes `%25`, as in Envoy.
fn decode_unreserved(path: &[u8]) -> Result<Vec<u8>, PathError> {
    let mut out: Vec<u8> = Vec::with_capacity(path.len());
    let mut rest = path;
    // Where `out` has the last `%` that is no escape.
    let mut bare = None;
    while let Some((&byte, after)) = rest.split_first() {
        let escape = (byte == b'%').then(|| after.get(..2)).flatten().and_then(hex_byte);
        match escape {
            Some(0) => return Err(PathError),
            Some(decoded) if decoded.is_ascii_alphanumeric() || b"-._~".contains(&decoded) => {
                out.push(decoded);
                rest = &after[2..];
            }
            escape => {
                if byte == b'%' && escape.is_none() {
                    bare = Some(out.len());
                }
                match byte {
                    b'\\' => out.push(b'/'),
                    b'%' => out.push(byte),
                    _ if !NORMAL.holds(byte) => {
                        out.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]])
                    }
                    _ => out.push(byte),
                }
                rest = after;
            }
        }
        if let Some(at) = bare
            && let Some(digits) = out.get(at + 1..at + 3)
        {
            if hex_byte(digits).is_some() {
                out.splice(at + 1..at + 1, *b"25");
            }
            bare = None;
        }
    }
    Ok(out)
}

fn hex_byte(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let [high, low] = digits else { return None };
    u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn normalizes_as_envoy() {
        let check = |path: &str, expected: Result<&str, PathError>| {
            let changed = normalize(path.as_bytes());
            let got = changed.map(|new| new.map_or(path.to_owned(), |new| String::from_utf8(new).expect("ASCII")));
            assert_eq!(got, expected.map(str::to_owned), "{path}");
        };
        check("/a/b?x=../y", Ok("/a/b?x=../y"));
        check("/a/./b/../c", Ok("/a/c"));
        check("/a/b/..", Ok("/a/"));
        check("/a/b/.", Ok("/a/b/"));
        check("/../../a", Ok("/a"));
        check("/..", Ok("/"));
        check("/a/%2e%2E/b", Ok("/b"));
        check("/%61%2fb%7E", Ok("/a%2fb~"));
        check("/a\\..\\b", Ok("/b"));
        check("/a//b", Ok("/a//b"));
        check("/a//../b", Ok("/a/b"));
        check("/...", Ok("/..."));
        check("/.a", Ok("/.a"));
        check("/a%00b", Err(PathError));
        check("/a%zz%", Ok("/a%zz%"));
        check("/a\"<>^`{|}b", Ok("/a%22%3C%3E%5E%60%7B%7C%7Db"));
        check("/a[b]!$&'()*+,:;=@", Ok("/a[b]!$&'()*+,:;=@"));
        check("/a/..;/b", Ok("/b"));
        check("/a/.;x=1/b", Ok("/a/b"));
        check("/a/%2e%2e;/b", Ok("/b"));
        check("/a/..;", Ok("/"));
        check("/a;..;/..b;/b", Ok("/a;..;/..b;/b"));
        check("/%%32%65/x", Ok("/%252e/x"));
        check("/%%32f", Ok("/%252f"));
        check("/%2%66", Ok("/%252f"));
        check("/%%33z", Ok("/%3z"));
        check("/%%%30%30", Ok("/%%2500"));
        check("a", Err(PathError));
    }

    #[test]
    fn slashes() {
        assert_eq!(merge_slashes(b"//a///b/?x=//"), Some(b"/a/b/?x=//".to_vec()));
        assert_eq!(merge_slashes(b"/a/b"), None);
        assert_eq!(unescape_slashes(b"/a%2Fb%5cc?d=%2f"), Some(b"/a/b\\c?d=%2f".to_vec()));
        assert_eq!(unescape_slashes(b"/a?d=%2f"), None);
    }

    proptest! {
        #[test]
        fn normal_form_is_stable_and_has_no_dot_segments(path in "/[a-c./;{%2356eE\\\\?]{0,24}") {
            if let Ok(first) = normalize(path.as_bytes()) {
                let first = first.unwrap_or_else(|| path.clone().into_bytes());
                let (only_path, _) = split_query(&first);
                let dots = |segment: &[u8]| matches!(split_parameters(segment), b"." | b"..");
                prop_assert!(!only_path.split(|b| *b == b'/').any(dots));
                prop_assert!(only_path.starts_with(b"/"));
                // The next proxy's normalization gives the same path; otherwise a gateway's policies would judge another path
                // than a sidecar's.
                prop_assert_eq!(normalize(&first), Ok(None));
            }
        }
    }
}
