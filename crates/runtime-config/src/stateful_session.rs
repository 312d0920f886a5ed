//! `envoy.filters.http.stateful_session`, compiled: requests of one session go to the host that served the first.

use std::sync::Arc;

use crate::cookie::Cookie;

/// The filter's configuration, or that of a route.
#[derive(Debug)]
pub struct StatefulSession {
    /// Where the session's host is kept; `None`: there are no sessions.
    pub state: Option<SessionState>,
    /// No other host will do.
    pub strict: bool,
    /// Answer when `strict` and the host is gone (503 when unset).
    pub status_on_missing_host: u16,
}

/// Where a session's host is kept, encoded as Envoy encodes it, so that sessions last while proxies are exchanged.
#[derive(Debug)]
pub enum SessionState {
    /// `CookieBasedSessionState`: in a cookie of the client's, for requests below the cookie's path.
    Cookie(Cookie),
    /// `HeaderBasedSessionState`: in this header (lower case), which the client has to send again.
    Header(Box<str>),
}

/// `StatefulSessionPerRoute`.
#[derive(Debug, Clone)]
pub enum StatefulSessionPerRoute {
    /// There are no sessions.
    Disabled,
    /// In place of the filter's configuration.
    Session(Arc<StatefulSession>),
}
