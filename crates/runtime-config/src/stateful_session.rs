//! `envoy.filters.http.stateful_session`, compiled: requests of one session go to the host that served the first one.

use std::sync::Arc;

use crate::cookie::Cookie;
use crate::filter_needs::FilterNeeds;

/// The filter's configuration, or that of a route.
#[derive(Debug)]
pub struct StatefulSession {
    /// The storage of the session's host; `None`: there are no sessions.
    pub state: Option<SessionState>,
    /// Whether no other host may be used.
    pub strict: bool,
    /// Status of the response if `strict` and the host is gone (503 when unset).
    pub status_on_missing_host: u16,
}

impl FilterNeeds for StatefulSession {}

/// The storage of a session's host, in Envoy's encoding, so that sessions survive an exchange of the proxies.
#[derive(Debug)]
pub enum SessionState {
    /// `CookieBasedSessionState`: in a client cookie, for requests below the cookie's path.
    Cookie(Cookie),
    /// `HeaderBasedSessionState`: in this header (lower case), which the client has to send back.
    Header(Box<str>),
}

/// `StatefulSessionPerRoute`.
#[derive(Debug, Clone)]
pub enum StatefulSessionPerRoute {
    /// No sessions.
    Disabled,
    /// Replaces the filter's configuration.
    Session(Arc<StatefulSession>),
}
