//! The accepted audiences.

/// The accepted audiences. As in Envoy, `http://` or `https://` in front and one `/` at the end make no difference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Audiences(Vec<Box<str>>);

impl Audiences {
    /// These audiences; none: all are accepted.
    pub fn new<'a>(audiences: impl IntoIterator<Item = &'a str>) -> Self {
        Self(audiences.into_iter().map(|audience| bare(audience).into()).collect())
    }

    /// Whether one of a token's audiences is accepted.
    pub fn allow<'a>(&self, mut of_token: impl Iterator<Item = &'a str>) -> bool {
        self.0.is_empty() || of_token.any(|audience| self.0.iter().any(|accepted| **accepted == *bare(audience)))
    }
}

fn bare(audience: &str) -> &str {
    let rest = audience.strip_prefix("http://").or_else(|| audience.strip_prefix("https://")).unwrap_or(audience);
    rest.strip_suffix('/').unwrap_or(rest)
}
