//! SPIFFE ids of workloads, in the form Istio gives them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::limits::MAX_SPIFFE_ID_BYTES;

/// Maximum length of a trust domain's name, in bytes (SPIFFE-ID section 2.1).
const MAX_TRUST_DOMAIN_BYTES: usize = 255;

/// `spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpiffeId {
    trust_domain: Arc<str>,
    namespace: Arc<str>,
    service_account: Arc<str>,
}

/// Why a text is not the id of a workload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpiffeError {
    /// The scheme is another one.
    #[error("a SPIFFE id starts with `spiffe://`")]
    Scheme,
    /// Longer than the standard allows.
    #[error("a SPIFFE id has at most {MAX_SPIFFE_ID_BYTES} bytes")]
    TooLong,
    /// The trust domain breaks the rules (SPIFFE-ID section 2.1).
    #[error("`{0}` is not a trust domain: lower-case letters, digits, `.`, `-` and `_`")]
    TrustDomain(String),
    /// The path is not `/ns/…/sa/…`.
    #[error("the path of a workload's SPIFFE id is `/ns/NAMESPACE/sa/SERVICE-ACCOUNT`")]
    Path,
}

impl SpiffeId {
    /// Puts an id together; each part is checked.
    pub fn new(trust_domain: &str, namespace: &str, service_account: &str) -> Result<Self, SpiffeError> {
        if !is_trust_domain(trust_domain) {
            return Err(SpiffeError::TrustDomain(trust_domain.to_owned()));
        }
        if !is_segment(namespace) || !is_segment(service_account) {
            return Err(SpiffeError::Path);
        }
        let id = Self {
            trust_domain: trust_domain.into(),
            namespace: namespace.into(),
            service_account: service_account.into(),
        };
        if id.to_string().len() <= MAX_SPIFFE_ID_BYTES { Ok(id) } else { Err(SpiffeError::TooLong) }
    }

    /// The authority of the id.
    pub fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    /// The workload's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The workload's service account.
    pub fn service_account(&self) -> &str {
        &self.service_account
    }

    /// The form AuthorizationPolicy uses for principals: the id without its scheme.
    pub fn principal(&self) -> String {
        format!("{}/ns/{}/sa/{}", self.trust_domain, self.namespace, self.service_account)
    }
}

/// Whether this can be the name of a trust domain (SPIFFE-ID section 2.1).
pub fn is_trust_domain(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '_');
    (1..=MAX_TRUST_DOMAIN_BYTES).contains(&name.len()) && name.chars().all(allowed)
}

/// The trust domain of any SPIFFE id, whatever its path.
pub fn trust_domain_of(uri: &str) -> Option<&str> {
    let rest = uri.strip_prefix("spiffe://").filter(|_| uri.len() <= MAX_SPIFFE_ID_BYTES)?;
    let name = rest.split_once('/').map_or(rest, |(name, _)| name);
    is_trust_domain(name).then_some(name)
}

/// A path segment (SPIFFE-ID section 2.2): not empty, not a dot segment, of the unreserved characters.
fn is_segment(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !matches!(text, "" | "." | "..") && text.chars().all(allowed)
}

impl FromStr for SpiffeId {
    type Err = SpiffeError;

    fn from_str(text: &str) -> Result<Self, SpiffeError> {
        let rest = text.strip_prefix("spiffe://").ok_or(SpiffeError::Scheme)?;
        if text.len() > MAX_SPIFFE_ID_BYTES {
            return Err(SpiffeError::TooLong);
        }
        let parts: Vec<&str> = rest.split('/').collect();
        match parts.as_slice() {
            [trust_domain, "ns", namespace, "sa", account] => Self::new(trust_domain, namespace, account),
            _ => Err(SpiffeError::Path),
        }
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spiffe://{}/ns/{}/sa/{}", self.trust_domain, self.namespace, self.service_account)
    }
}

impl fmt::Debug for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints() {
        let text = "spiffe://cluster.local/ns/default/sa/capitals-web";
        let id: SpiffeId = text.parse().unwrap();
        assert_eq!(
            (id.trust_domain(), id.namespace(), id.service_account()),
            ("cluster.local", "default", "capitals-web")
        );
        assert_eq!(id.to_string(), text);
        assert_eq!(id.principal(), "cluster.local/ns/default/sa/capitals-web");
    }

    #[test]
    fn refuses_other_forms() {
        let check = |text: &str, expected: SpiffeError| assert_eq!(text.parse::<SpiffeId>(), Err(expected), "{text}");
        check("http://cluster.local/ns/a/sa/b", SpiffeError::Scheme);
        check("spiffe://cluster.local/ns/a/sa/b/c", SpiffeError::Path);
        check("spiffe://cluster.local/ns//sa/b", SpiffeError::Path);
        check("spiffe://cluster.local/ns/../sa/b", SpiffeError::Path);
        check("spiffe://cluster.local/ns/a%2f/sa/b", SpiffeError::Path);
        check("spiffe://Cluster.local/ns/a/sa/b", SpiffeError::TrustDomain("Cluster.local".into()));
        check("spiffe:///ns/a/sa/b", SpiffeError::TrustDomain(String::new()));
        check(&format!("spiffe://a/ns/a/sa/{}", "b".repeat(2048)), SpiffeError::TooLong);
    }

    #[test]
    fn any_id_has_a_trust_domain() {
        for (uri, expected) in [
            ("spiffe://partner.example/ns/a/sa/b", Some("partner.example")),
            ("spiffe://partner.example/workload", Some("partner.example")),
            ("spiffe://partner.example", Some("partner.example")),
            ("spiffe:///ns/a/sa/b", None),
            ("spiffe://Partner.example/a", None),
            ("spiffe://partner.example:8443/a", None),
            ("spiffe://user@partner.example/a", None),
            ("spiffe://partner.example?a/b", None),
            ("https://partner.example/a", None),
            ("partner.example", None),
            ("", None),
        ] {
            assert_eq!(trust_domain_of(uri), expected, "{uri}");
        }
    }
}
