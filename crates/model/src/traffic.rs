//! Matchers and header operations that routes and policies share.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// A test on a text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StringMatch {
    /// The whole text equals this.
    Exact(Arc<str>),
    /// The text begins with this.
    Prefix(Arc<str>),
    /// The text ends with this.
    Suffix(Arc<str>),
    /// The whole text matches this RE2 expression, which has been checked to compile.
    Regex(Arc<str>),
    /// Any text, even an empty one, if it is present.
    Present,
}

impl StringMatch {
    /// AuthorizationPolicy's form: `*` = present, `a*` = prefix, `*a` = suffix, else exact.
    pub fn from_policy_value(text: &str) -> Self {
        match (text.strip_prefix('*'), text.strip_suffix('*')) {
            _ if text == "*" => Self::Present,
            // A second star, at the end, is one of the text.
            (Some(suffix), _) => Self::Suffix(suffix.into()),
            (None, Some(prefix)) => Self::Prefix(prefix.into()),
            (None, None) => Self::Exact(text.into()),
        }
    }

    /// The value as an AuthorizationPolicy has it; an expression as it is.
    pub fn as_policy_value(&self) -> Cow<'_, str> {
        match self {
            Self::Exact(text) | Self::Regex(text) => Cow::Borrowed(text),
            Self::Prefix(text) => Cow::Owned(format!("{text}*")),
            Self::Suffix(text) => Cow::Owned(format!("*{text}")),
            Self::Present => Cow::Borrowed("*"),
        }
    }
}

impl fmt::Display for StringMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(text) => write!(f, "exact {text}"),
            Self::Prefix(text) => write!(f, "prefix {text}"),
            Self::Suffix(text) => write!(f, "suffix {text}"),
            Self::Regex(text) => write!(f, "regex {text}"),
            Self::Present => f.write_str("present"),
        }
    }
}

/// A test on a header or query parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderMatch {
    /// The header's name in lower case, or the query parameter's name as written.
    pub name: Arc<str>,
    /// The test on its value.
    pub value: StringMatch,
}

/// Changes to the headers of a request and its response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Headers {
    /// On the way to the service.
    pub request: HeaderOperations,
    /// On the way back.
    pub response: HeaderOperations,
}

impl Headers {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.request.is_empty() && self.response.is_empty()
    }
}

/// Changes to the headers of one message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeaderOperations {
    /// Names with values that replace what is there, ordered by name.
    pub set: Vec<(Arc<str>, Arc<str>)>,
    /// Names with values to append, ordered by name.
    pub add: Vec<(Arc<str>, Arc<str>)>,
    /// Names to remove.
    pub remove: Vec<Arc<str>>,
}

impl HeaderOperations {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_policy_values() {
        let check =
            |text: &str, expected: StringMatch| assert_eq!(StringMatch::from_policy_value(text), expected, "{text}");
        check("*", StringMatch::Present);
        check("/a*", StringMatch::Prefix("/a".into()));
        check("*.com", StringMatch::Suffix(".com".into()));
        check("GET", StringMatch::Exact("GET".into()));
        check("", StringMatch::Exact("".into()));
        // As in Istio a star that is not alone at one end is a character of the text.
        check("*a*", StringMatch::Suffix("a*".into()));
        check("a*b", StringMatch::Exact("a*b".into()));
        for value in ["*", "/a*", "*.com", "GET", "", "*a*", "a*b"] {
            assert_eq!(StringMatch::from_policy_value(value).as_policy_value(), value);
        }
    }
}
