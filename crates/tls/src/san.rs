//! Matching of a certificate's subject alternative names, as Envoy's validation context describes it.

use std::fmt;

use evenkeel_base::re2::Regex;

use crate::peer::PeerCertificate;

/// The kind of a subject alternative name (RFC 5280 section 4.2.1.6) that a matcher looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SanKind {
    /// `dNSName`.
    Dns,
    /// `uniformResourceIdentifier`, which holds SPIFFE ids.
    Uri,
    /// `rfc822Name`.
    Email,
    /// `iPAddress`, in its text form.
    IpAddress,
}

/// Envoy's `StringMatcher`.
#[derive(Debug, Clone)]
pub struct StringPattern {
    form: Form,
    ignore_case: bool,
}

#[derive(Debug, Clone)]
enum Form {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Contains(String),
    Regex(Regex),
}

impl StringPattern {
    /// The whole name equals `text`.
    pub fn exact(text: impl Into<String>) -> Self {
        Self { form: Form::Exact(text.into()), ignore_case: false }
    }

    /// The name begins with `text`.
    pub fn prefix(text: impl Into<String>) -> Self {
        Self { form: Form::Prefix(text.into()), ignore_case: false }
    }

    /// The name ends with `text`.
    pub fn suffix(text: impl Into<String>) -> Self {
        Self { form: Form::Suffix(text.into()), ignore_case: false }
    }

    /// The name contains `text`.
    pub fn contains(text: impl Into<String>) -> Self {
        Self { form: Form::Contains(text.into()), ignore_case: false }
    }

    /// The whole name matches the regular expression, as Envoy's `safe_regex` demands.
    pub fn regex(expression: &str) -> Result<Self, String> {
        Ok(Self { form: Form::Regex(Regex::whole(expression)?), ignore_case: false })
    }

    /// Ignores case; has no effect on regular expressions (`StringMatcher.ignore_case`).
    pub fn ignoring_case(mut self, ignore_case: bool) -> Self {
        self.ignore_case = ignore_case;
        match &mut self.form {
            Form::Exact(text) | Form::Prefix(text) | Form::Suffix(text) | Form::Contains(text) if ignore_case => {
                text.make_ascii_lowercase();
            }
            _ => {}
        }
        self
    }

    fn matches(&self, name: &str) -> bool {
        if self.ignore_case {
            return self.form.matches(&name.to_ascii_lowercase());
        }
        self.form.matches(name)
    }
}

impl Form {
    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(text) => name == text,
            Self::Prefix(text) => name.starts_with(text.as_str()),
            Self::Suffix(text) => name.ends_with(text.as_str()),
            Self::Contains(text) => name.contains(text.as_str()),
            Self::Regex(expression) => expression.is_match(name.as_bytes()),
        }
    }
}

/// Envoy's `SubjectAltNameMatcher`; without a kind, the older `match_subject_alt_names`, which looks at all kinds.
#[derive(Debug, Clone)]
pub struct SanMatcher {
    /// The kind of name to look at; all kinds when `None`.
    pub kind: Option<SanKind>,
    /// The pattern that the name must match.
    pub pattern: StringPattern,
}

impl SanMatcher {
    /// A matcher of one URI, such as a SPIFFE id.
    pub fn uri(text: impl Into<String>) -> Self {
        Self { kind: Some(SanKind::Uri), pattern: StringPattern::exact(text) }
    }

    /// A matcher of a DNS name; a certificate with `*.example.org` matches `a.example.org`.
    pub fn dns(text: impl Into<String>) -> Self {
        Self { kind: Some(SanKind::Dns), pattern: StringPattern::exact(text) }
    }

    /// Whether one of the certificate's names matches.
    pub fn matches(&self, certificate: &PeerCertificate) -> bool {
        let looked_at = |kind| self.kind.is_none() || self.kind == Some(kind);
        let any = |kind, names: &[String]| looked_at(kind) && names.iter().any(|name| self.pattern.matches(name));
        any(SanKind::Uri, &certificate.uri_sans)
            || (looked_at(SanKind::Dns) && certificate.host_names().any(|name| self.matches_dns(name)))
            || any(SanKind::Email, &certificate.email_sans)
            || any(SanKind::IpAddress, &certificate.ip_sans)
    }

    /// Envoy compares an exact DNS name by the rules of RFC 6125: the certificate may have a wildcard, and case is
    /// ignored.
    fn matches_dns(&self, presented: &str) -> bool {
        match &self.pattern.form {
            Form::Exact(wanted) => dns_name_matches(wanted, presented),
            _ => self.pattern.matches(presented),
        }
    }
}

/// Whether the presented name, possibly with a wildcard as its whole first label, covers the wanted one.
fn dns_name_matches(wanted: &str, presented: &str) -> bool {
    if wanted.eq_ignore_ascii_case(presented) {
        return true;
    }
    let (Some(suffix), Some((label, rest))) = (presented.strip_prefix("*."), wanted.split_once('.')) else {
        return false;
    };
    // A wildcard directly below a top-level domain covers nothing.
    !label.is_empty() && suffix.contains('.') && rest.eq_ignore_ascii_case(suffix)
}

impl fmt::Display for SanMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            None => "",
            Some(SanKind::Dns) => "DNS ",
            Some(SanKind::Uri) => "URI ",
            Some(SanKind::Email) => "e-mail ",
            Some(SanKind::IpAddress) => "IP ",
        };
        match &self.pattern.form {
            Form::Exact(text) => write!(f, "{kind}`{text}`"),
            Form::Prefix(text) => write!(f, "{kind}`{text}…`"),
            Form::Suffix(text) => write!(f, "{kind}`…{text}`"),
            Form::Contains(text) => write!(f, "{kind}`…{text}…`"),
            Form::Regex(expression) => write!(f, "{kind}`{}`", expression.as_str()),
        }
    }
}
