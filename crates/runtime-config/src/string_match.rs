//! Matchers of text.

use evenkeel_base::re2::Regex;

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
    /// A regular expression over the whole value ([`Regex::whole`]).
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
