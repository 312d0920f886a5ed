//! DNS names of services: short names, wildcards, the most specific match.

use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::sync::Arc;

use crate::limits::{MAX_HOSTNAME_CHARS, MAX_LABEL_CHARS};

/// A lower-case DNS name, `*`, or a name whose first label is `*` (`*.example.com`).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hostname(Arc<str>);

/// Why a text is not a host name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostnameError {
    /// The text is empty.
    #[error("a host name cannot be empty")]
    Empty,
    /// Longer than DNS allows.
    #[error("a host name has at most {MAX_HOSTNAME_CHARS} characters")]
    TooLong,
    /// One label breaks the rules.
    #[error("`{0}` is not a label of a host name: letters, digits and inner dashes, 1 to {MAX_LABEL_CHARS} characters")]
    Label(String),
    /// A wildcard anywhere but in the first label, or a partial one.
    #[error("`*` may only stand for the whole first label")]
    Wildcard,
}

impl Hostname {
    /// Checks and lower-cases a name. A trailing dot (the root) is dropped. Underscores are accepted, as Envoy does.
    pub fn parse(text: &str) -> Result<Self, HostnameError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() {
            return Err(HostnameError::Empty);
        }
        if name.chars().count() > MAX_HOSTNAME_CHARS {
            return Err(HostnameError::TooLong);
        }
        for (i, label) in name.split('.').enumerate() {
            if label.contains('*') {
                match (i, label) {
                    (0, "*") => continue,
                    _ => return Err(HostnameError::Wildcard),
                }
            }
            check_label(label)?;
        }
        Ok(Self(name.to_ascii_lowercase().into()))
    }

    /// The name of a Kubernetes Service: `name.namespace.svc.domain`.
    pub fn of_service(name: &str, namespace: &str, domain: &str) -> Self {
        Self(format!("{name}.{namespace}.svc.{domain}").to_ascii_lowercase().into())
    }

    /// Resolves a host the way Istio does: a name without dots is a Service of `namespace`; all else is taken as written.
    pub fn resolve(text: &str, namespace: &str, domain: &str) -> Result<Self, HostnameError> {
        let name = Self::parse(text)?;
        if name.0.contains('.') || name.is_wildcard() {
            Ok(name)
        } else {
            Ok(Self::of_service(&name.0, namespace, domain))
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the first label is `*`.
    pub fn is_wildcard(&self) -> bool {
        self.0.starts_with('*')
    }

    /// Whether every name that `other` stands for is one that `self` stands for:
    /// `*.a.b` covers `x.a.b`, `x.y.a.b` and `*.x.a.b`, but not `a.b`.
    pub fn covers(&self, other: &Hostname) -> bool {
        self.covers_str(&other.0)
    }

    /// [`Hostname::covers`] for a lower-case name that has not been checked.
    pub fn covers_str(&self, other: &str) -> bool {
        match self.0.strip_prefix('*') {
            None => *self.0 == *other,
            Some("") => true,
            Some(suffix) if *self.0 == *other => !suffix.is_empty(),
            Some(suffix) => {
                let name = other.strip_prefix('*').unwrap_or(other);
                name.len() > suffix.len() && name.ends_with(suffix)
            }
        }
    }

    /// Whether some name is covered by both.
    pub fn overlaps(&self, other: &Hostname) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// Orders hosts from the most to the least specific: exact before wildcard, long before short, then by name.
    pub fn specificity(&self, other: &Hostname) -> Ordering {
        let key = |h: &Hostname| (h.is_wildcard(), Reverse(h.0.len()));
        key(self).cmp(&key(other)).then_with(|| self.0.cmp(&other.0))
    }
}

fn check_label(label: &str) -> Result<(), HostnameError> {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let fits = (1..=MAX_LABEL_CHARS).contains(&label.len());
    if fits && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-') {
        Ok(())
    } else {
        Err(HostnameError::Label(label.to_owned()))
    }
}

impl AsRef<str> for Hostname {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Lets maps keyed by host be asked with a plain string.
impl std::borrow::Borrow<str> for Hostname {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Hostname {
        Hostname::parse(text).unwrap()
    }

    #[test]
    fn short_names_become_services_of_the_namespace() {
        let check = |text: &str, expected: &str| {
            assert_eq!(Hostname::resolve(text, "shop", "cluster.local").unwrap().as_str(), expected);
        };
        check("reviews", "reviews.shop.svc.cluster.local");
        check("Reviews", "reviews.shop.svc.cluster.local");
        check("reviews.other.svc.cluster.local.", "reviews.other.svc.cluster.local");
        check("example.com", "example.com");
        check("*.example.com", "*.example.com");
        check("*", "*");
    }

    #[test]
    fn refuses_what_is_no_name() {
        let check = |text: &str, expected: HostnameError| assert_eq!(Hostname::parse(text), Err(expected), "{text}");
        check("", HostnameError::Empty);
        check("a..b", HostnameError::Label(String::new()));
        check("-a.b", HostnameError::Label("-a".into()));
        check("a b", HostnameError::Label("a b".into()));
        check("a.*.b", HostnameError::Wildcard);
        check("*a.b", HostnameError::Wildcard);
        check(&"a.".repeat(130), HostnameError::TooLong);
        check(&"a".repeat(64), HostnameError::Label("a".repeat(64)));
    }

    #[test]
    fn wildcards_cover_deeper_names_only() {
        let check = |a: &str, b: &str, expected| assert_eq!(host(a).covers(&host(b)), expected, "{a} covers {b}");
        check("*", "a.b", true);
        check("*", "*", true);
        check("*.a.b", "x.a.b", true);
        check("*.a.b", "x.y.a.b", true);
        check("*.a.b", "*.x.a.b", true);
        check("*.a.b", "*.a.b", true);
        check("*.a.b", "a.b", false);
        check("*.x.a.b", "*.a.b", false);
        check("a.b", "*.b", false);
        check("*.a.b", "xa.b", false);
    }

    #[test]
    fn exact_beats_long_beats_short() {
        let hosts: Vec<_> = ["*", "*.com", "*.example.com", "www.example.com"].map(host).into();
        let check = |name: &str, expected: &str| {
            let covering = hosts.iter().filter(|h| h.covers(&host(name)));
            assert_eq!(covering.min_by(|a, b| a.specificity(b)), Some(&host(expected)));
        };
        check("www.example.com", "www.example.com");
        check("api.example.com", "*.example.com");
        check("example.com", "*.com");
        check("example.org", "*");
    }
}
