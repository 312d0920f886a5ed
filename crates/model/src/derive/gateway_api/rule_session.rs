//! Sessions of a rule's requests (GEP-1619).

use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::Object;
use evenkeel_api::gateway_api::{CookieLifetime, SectionName, SessionPersistence, SessionType};
use evenkeel_base::{Diagnostic, Diagnostics, Spanned};

use super::super::shared;
use crate::address_book::fnv1a;
use crate::{HttpMatch, Session, StringMatch};

/// What begins the names of sessions without one. The rest tells rules apart, which must not share sessions, and names no object to
/// clients.
const UNNAMED: &str = "evenkeel-session-";
/// Clients count the lifetime of a cookie in seconds.
const SHORTEST: Duration = Duration::from_secs(1);

/// Sessions of a rule.
#[derive(Clone, Copy)]
pub(super) struct RuleSession<'a> {
    pub(super) written: &'a Spanned<SessionPersistence>,
    pub(super) object: &'a Object,
    /// The rule's name, or its number if it has none.
    pub(super) rule: Option<&'a SectionName>,
    pub(super) number: usize,
}

impl RuleSession<'_> {
    /// The sessions of requests that meet a condition.
    pub(super) fn of_condition(&self, condition: &HttpMatch) -> Session {
        let written = self.written;
        let name = written.session_name.as_ref().map_or_else(|| self.generated(), |name| shared(&name.value));
        if written.kind() == SessionType::Header {
            return Session::Header(name);
        }
        let is_permanent = written.lifetime() == CookieLifetime::Permanent;
        let limit = written.absolute_timeout.as_ref().map(|limit| limit.value.0).filter(|limit| !limit.is_zero());
        let lifetime = limit.filter(|_| is_permanent).map(|limit| limit.max(SHORTEST));
        Session::Cookie { name, path: cookie_path(condition.uri.as_ref()), lifetime }
    }

    /// A name that only this rule has.
    fn generated(&self) -> Arc<str> {
        let rule = self.rule.map_or_else(|| self.number.to_string(), |name| format!("/{}", name.0));
        let Object { namespace, name, .. } = self.object;
        let text = format!("{}/{namespace}/{name}/{rule}", self.object.kind());
        format!("{UNNAMED}{:08x}", fnv1a(text.as_bytes()) >> 32).into()
    }

    /// Reports that a weight decides about each request, so that a session may change between the backends.
    pub(super) fn note_shares(&self, found: &mut Diagnostics) {
        let message = format!(
            "{}: the weights of the backends decide about each request; a session stays at its endpoint only among requests to one backend",
            self.object
        );
        let finding = Diagnostic::warning("no-effect", self.written.span.clone(), message);
        let help = "write a rule for each backend, with conditions that tell its clients, or use one backend";
        found.push(finding.with_help(help).about(self.object.reference()));
    }
}

/// The path of the cookie: that of the condition, of an expression as far as it is literal.
fn cookie_path(uri: Option<&StringMatch>) -> Arc<str> {
    match uri {
        Some(StringMatch::Exact(path) | StringMatch::Prefix(path)) => path.clone(),
        Some(StringMatch::Regex(pattern)) => literal_folder(pattern).into(),
        _ => "/".into(),
    }
}

/// The folder that all paths which match an expression are in.
fn literal_folder(pattern: &str) -> &str {
    let end = pattern.find(|c: char| r"\.+*?()|[]{}^$".contains(c)).unwrap_or(pattern.len());
    let literal = pattern.get(..end).unwrap_or_default();
    let literal = match pattern.get(end..).and_then(|rest| rest.chars().next()) {
        // One alternative may have another beginning.
        _ if pattern.contains('|') => "",
        // The last character may be absent.
        Some('?' | '*' | '{') => {
            literal.char_indices().last().map_or("", |(last, _)| literal.get(..last).unwrap_or(""))
        }
        _ => literal,
    };
    match literal.rfind('/') {
        None | Some(0) => "/",
        Some(end) => literal.get(..end).unwrap_or("/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_for_the_folder_of_an_expression() {
        let check = |pattern: &str, expected: &str| assert_eq!(literal_folder(pattern), expected, "{pattern}");
        check("/p1/p2/.*/p3", "/p1/p2");
        check("/p1/p2", "/p1");
        check("/p1/?", "/");
        check("/p1/p2/?", "/p1");
        check("/a|/b", "/");
        check("/p/(a|b)", "/");
        check("(?i)/a/b", "/");
        check("/a[0-9]+", "/");
        check(".*", "/");
        check("", "/");
    }
}
