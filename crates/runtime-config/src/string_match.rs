//! Matchers of text.

use regex::bytes::{Regex, RegexBuilder};

/// Maximum size of a compiled regular expression in bytes; RE2's own limit is of this order.
const REGEX_SIZE_LIMIT_BYTES: usize = 1 << 20;

/// `envoy.type.matcher.v3.StringMatcher`, compiled. With `ignore_case` the patterns are stored in lower case.
#[derive(Debug, Clone)]
pub enum StringMatcher {
    /// The whole value.
    Exact {
        /** Expected value. */
        value: Box<[u8]>,
        /** ASCII case-insensitive. */
        ignore_case: bool,
    },
    /// A prefix of the value.
    Prefix {
        /** Expected prefix. */
        value: Box<[u8]>,
        /** ASCII case-insensitive. */
        ignore_case: bool,
    },
    /// A suffix of the value.
    Suffix {
        /** Expected suffix. */
        value: Box<[u8]>,
        /** ASCII case-insensitive. */
        ignore_case: bool,
    },
    /// A part of the value.
    Contains {
        /** Expected part. */
        value: Box<[u8]>,
        /** ASCII case-insensitive. */
        ignore_case: bool,
    },
    /// RE2-style regular expression over the whole value (anchored at both ends).
    Regex(Regex),
}

impl StringMatcher {
    /// Whether `value` matches.
    pub fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact { value: want, ignore_case: false } => value == &**want,
            Self::Exact { value: want, ignore_case: true } => value.eq_ignore_ascii_case(want),
            Self::Prefix { value: want, ignore_case } => {
                value.get(..want.len()).is_some_and(|head| equal(head, want, *ignore_case))
            }
            Self::Suffix { value: want, ignore_case } => value
                .len()
                .checked_sub(want.len())
                .and_then(|at| value.get(at..))
                .is_some_and(|tail| equal(tail, want, *ignore_case)),
            Self::Contains { value: want, ignore_case } => contains(value, want, *ignore_case),
            Self::Regex(regex) => regex.is_match(value),
        }
    }
}

/// Looks for the first byte alone where its case does not matter: most values do not have it.
fn contains(value: &[u8], want: &[u8], ignore_case: bool) -> bool {
    match want.first() {
        None => true,
        Some(first) if ignore_case && first.is_ascii_alphabetic() => {
            value.windows(want.len()).any(|part| equal(part, want, true))
        }
        Some(first) => {
            let begins = |at| value.get(at..at + want.len()).is_some_and(|part| equal(part, want, ignore_case));
            memchr::memchr_iter(*first, value).any(begins)
        }
    }
}

fn equal(a: &[u8], b: &[u8], ignore_case: bool) -> bool {
    if ignore_case { a.eq_ignore_ascii_case(b) } else { a == b }
}

/// Compiles an RE2-style pattern that must match the whole value. Character classes are ASCII as in RE2; Unicode only
/// if the pattern cannot be compiled without it.
pub fn full_match_regex(pattern: &str) -> Result<Regex, String> {
    // Compiled by itself first: in `a)|(b` the wrapping group would balance the parentheses.
    search_regex(pattern)?;
    search_regex(&format!(r"{WHOLE}{pattern}{END}"))
}

const WHOLE: &str = r"\A(?:";
const END: &str = r")\z";

/// The pattern that [`full_match_regex`] has compiled.
pub(crate) fn pattern_of(regex: &Regex) -> Option<&str> {
    regex.as_str().strip_prefix(WHOLE)?.strip_suffix(END)
}

/// Compiles an RE2-style pattern that may match anywhere in the value.
pub fn search_regex(pattern: &str) -> Result<Regex, String> {
    let build = |unicode| RegexBuilder::new(pattern).unicode(unicode).size_limit(REGEX_SIZE_LIMIT_BYTES).build();
    build(false).or_else(|_| build(true)).map_err(|error| match error {
        regex::Error::CompiledTooBig(limit) => {
            format!("the regular expression needs more than {limit} bytes when compiled")
        }
        // The parser's message displays the pattern over several lines; its last line is the reason.
        error => {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
            format!("invalid regular expression: {reason}")
        }
    })
}
