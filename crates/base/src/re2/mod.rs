//! Regular expressions as RE2 reads them: the dialect of Envoy and Istio (<https://github.com/google/re2/wiki/Syntax>). The engine is the
//! crate `regex`, whose own dialect differs, partly without an error: in a class, `&&`, `--`, `~~` and `[` mean something else there.

mod translate;

use std::borrow::Cow;
use std::ops::Range;

use regex::bytes::{Captures, Regex as Compiled, RegexBuilder};

pub use translate::{Error, translate};

/// Memory that a compiled expression may take, in bytes; RE2's default limit in Envoy is of this order.
pub const MAX_COMPILED_BYTES: usize = 1 << 20;

/// Escapes characters with a meaning in RE2.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted
}

/// A compiled expression of RE2.
///
/// As in RE2, `.` and negated classes match one character, and `\d`, `\s`, `\w` and `\b` know ASCII only. A byte that is not UTF-8 counts
/// as one character: with RE2 no expression but `\C` matches it, so that a client could avoid a policy with one.
#[derive(Debug, Clone)]
pub struct Regex {
    compiled: Compiled,
    pattern: Box<str>,
}

impl Regex {
    /// An expression that has to match a whole value. The error says what is wrong with it.
    pub fn whole(pattern: &str) -> Result<Self, String> {
        Self::compile(pattern, |translated| format!(r"\A(?:{translated})\z"))
    }

    /// An expression that may match anywhere in a value. The error says what is wrong with it.
    pub fn anywhere(pattern: &str) -> Result<Self, String> {
        Self::compile(pattern, |translated| translated)
    }

    fn compile(pattern: &str, place: impl FnOnce(String) -> String) -> Result<Self, String> {
        let translated = translate(pattern).map_err(|error| format!("invalid regular expression: {error}"))?;
        let built = RegexBuilder::new(&place(translated)).size_limit(MAX_COMPILED_BYTES).build();
        let compiled = built.map_err(|error| match error {
            regex::Error::CompiledTooBig(limit) => {
                format!("the regular expression needs more than {limit} bytes when compiled")
            }
            // The parser's message displays the expression over several lines; its last line is the reason.
            error => {
                let text = error.to_string();
                let reason = text.lines().last().unwrap_or_default().trim().trim_start_matches("error: ");
                format!("invalid regular expression: {reason}")
            }
        })?;
        Ok(Self { compiled, pattern: pattern.into() })
    }

    /// The expression as the user wrote it.
    pub fn as_str(&self) -> &str {
        &self.pattern
    }

    /// The expression in the dialect of the crate `regex`, with the anchors of [`Regex::whole`].
    pub fn translated(&self) -> &str {
        self.compiled.as_str()
    }

    /// Whether the expression matches `value`.
    pub fn is_match(&self, value: &[u8]) -> bool {
        match std::str::from_utf8(value) {
            Ok(_) => self.compiled.is_match(value),
            // Each byte that is not UTF-8 becomes one character.
            Err(_) => self.compiled.is_match(value) || self.compiled.is_match(&one_character_per_stray_byte(value)),
        }
    }

    /// The number of groups, plus one for the whole match.
    pub fn captures_len(&self) -> usize {
        self.compiled.captures_len()
    }

    /// Where the groups of the first match are; the first is the whole match.
    pub fn find_groups(&self, value: &[u8]) -> Option<Vec<Option<Range<usize>>>> {
        let found = self.compiled.captures(value)?;
        Some(found.iter().map(|group| group.map(|group| group.range())).collect())
    }

    /// Replaces every match in a value; borrowed if there is none. `rewrite` is as in RE2's `Replace`: `\0` is the whole match, `\1`…`\9`
    /// the groups, `\\` a backslash.
    pub fn replace_all<'v>(&self, value: &'v [u8], rewrite: &[u8]) -> Cow<'v, [u8]> {
        self.compiled.replace_all(value, |captures: &Captures<'_>| {
            let mut out = Vec::new();
            expand(rewrite, captures, &mut out);
            out
        })
    }

    /// Checks the `rewrite` of [`Regex::replace_all`] against the groups of the expression.
    pub fn check_rewrite(&self, rewrite: &str) -> Result<(), String> {
        let groups = self.compiled.captures_len() - 1;
        let mut rest = rewrite.bytes();
        while let Some(byte) = rest.next() {
            if byte != b'\\' {
                continue;
            }
            match rest.next() {
                Some(b'\\') => {}
                Some(digit @ b'0'..=b'9') if usize::from(digit - b'0') <= groups => {}
                Some(digit @ b'0'..=b'9') => {
                    let digit = char::from(digit);
                    return Err(format!("\\{digit} names a group the pattern does not have; it has {groups}"));
                }
                _ => return Err("after \\ comes a digit or another \\".into()),
            }
        }
        Ok(())
    }
}

fn expand(rewrite: &[u8], captures: &Captures<'_>, out: &mut Vec<u8>) {
    let mut rest = rewrite.iter();
    while let Some(&byte) = rest.next() {
        match (byte, rest.clone().next()) {
            (b'\\', Some(digit @ b'0'..=b'9')) => {
                rest.next();
                if let Some(group) = captures.get(usize::from(digit - b'0')) {
                    out.extend_from_slice(group.as_bytes());
                }
            }
            (b'\\', Some(b'\\')) => {
                rest.next();
                out.push(b'\\');
            }
            _ => out.push(byte),
        }
    }
}

/// Replaces each byte that is not part of UTF-8 by U+FFFD.
fn one_character_per_stray_byte(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() * 3);
    for chunk in value.utf8_chunks() {
        out.extend_from_slice(chunk.valid().as_bytes());
        for _ in chunk.invalid() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(pattern: &str, value: &[u8]) -> bool {
        Regex::whole(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}")).is_match(value)
    }

    #[test]
    fn matches_what_re2_matches() {
        for (pattern, value, expected) in [
            // A hyphen beside a class, at either end, or as an end of a range.
            (r"/tile/[\w-.]+", "/tile/a-b.png", true),
            (r"/[a-z\d-_]+", "/a_1-", true),
            (r"[a-]+", "-a-", true),
            (r"[--/]+", "-./", true),
            (r"[--/]+", ",", false),
            (r"[]a]+", "]a", true),
            (r"[^]a]+", "b", true),
            (r"[^]a]+", "]", false),
            // Brackets and operators that the engine knows and RE2 does not.
            (r"/[[]x", "/[x", true),
            (r"[a&&b]+", "a&b", true),
            (r"[a~~b]+", "~", true),
            (r"[a[b]+", "[ab", true),
            (r"[[:alpha:]_]+", "ab_", true),
            (r"[[:^alpha:]]+", "12-", true),
            (r"[[:alpha:]]+", "é", false),
            (r"[\D]", "x", true),
            (r"[^\D]+", "12", true),
            // Braces that are no repetition.
            (r"/users/{id}/.*", "/users/{id}/x", true),
            (r"a{,2}", "a{,2}", true),
            (r"a{2", "a{2", true),
            (r"a{02}", "a{02}", true),
            (r"a{2}", "aa", true),
            (r"a{1,2}?b", "aab", true),
            (r"}", "}", true),
            (r"]", "]", true),
            // Quotations, octal, hexadecimal and other escapes.
            (r"/\Qv1.0\E/.*", "/v1.0/x", true),
            (r"/\Qv1.0\E/.*", "/v1x0/x", false),
            (r"\Qa*b", "a*b", true),
            (r"\Qab\E+", "abbb", true),
            (r"\101\x42\x{43}\060", "ABC0", true),
            (r"[\101-\103]+", "ABC", true),
            (r"\_\-\/\<\>\#", "_-/<>#", true),
            (r"\pL\p{Greek}\PL\p{^L}", "aα12", true),
            (r"é.", "éü", true),
            (r"\C\C", "é", true),
            // ASCII alone.
            (r"\d", "٣", false),
            (r"\w", "é", false),
            (r"\W", "é", true),
            (r"\s", "\u{a0}", false),
            (r"(?i)ab", "AB", true),
            (r"(?i:a)b", "Ab", true),
            (r"(?P<n>a)(?<m>b)(?:c)", "abc", true),
            (r".", "\n", false),
            (r"(?s).", "\n", true),
            (r"[^a]", "\n", true),
            // The alternatives of the whole expression, not of its ends.
            (r"a|b", "ab", false),
            (r"^a$", "a", true),
            (r"", "", true),
            (r"a||b", "", true),
            (r"\bab\b", "ab", true),
        ] {
            assert_eq!(whole(pattern, value.as_bytes()), expected, "{pattern} {value:?}");
        }
    }

    #[test]
    fn refuses_what_re2_refuses() {
        for (pattern, expected) in [
            ("[a", "missing closing `]`: `[a`"),
            ("(a", "missing closing `)`"),
            ("a)", "unexpected `)`"),
            ("a)|(b", "unexpected `)`"),
            ("*a", "`*` has nothing to repeat"),
            ("a|+", "`+` has nothing to repeat"),
            ("a**", "`*` repeats a repetition: `a**`"),
            ("a+{2}", "`{2}` repeats a repetition: `a+{2}`"),
            ("a{1001}", "`{1001}`: a repetition has at most 1000 times"),
            ("a{3,2}", "`{3,2}`"),
            ("(a{100}){100}", "at most 1000 times"),
            (r"a\", "a backslash ends the expression"),
            (r"\q", r"unknown escape `\q`"),
            (r"\8", r"unknown escape `\8`"),
            (r"(a)\1", r"unknown escape `\1`"),
            (r"\x{110000}", r"unknown escape `\x{110000}`"),
            (r"\x{}", r"unknown escape `\x{}`"),
            (r"[z-a]", "`z-a` is no range"),
            (r"[a-\d]", r"unknown escape `\d`"),
            (r"[[:foo:]]", "`[:foo:]`"),
            (r"\p{greek}", r"`\p{greek}`"),
            (r"\p{Letter}", "Unicode property"),
            ("(?=a)", "`(?=`"),
            ("(?!a)", "`(?!`"),
            ("(?<=a)", "`(?<=`"),
            ("(?x)a", "`(?x`"),
            ("(?P<n", "`(?P<n`"),
            ("(?P<n>a)(?P<n>b)", "`n` names two groups"),
            ("(?i", "`(?i`"),
        ] {
            let error = Regex::whole(pattern).map(|regex| regex.translated().to_owned()).unwrap_err();
            assert!(error.contains(expected), "{pattern}: {error}");
        }
    }

    #[test]
    fn a_byte_that_is_not_utf8_is_one_character() {
        assert!(whole(".*admin.*", b"\xff/admin"));
        assert!(whole("/.admin", b"/\xffadmin"));
        assert!(whole("[^a]", b"\xff"));
        assert!(!whole("[a-z]+", b"a\xff"));
        assert!(!whole("..", b"\xff"));
        assert!(whole(r"\C", b"\xff"));
    }
}
