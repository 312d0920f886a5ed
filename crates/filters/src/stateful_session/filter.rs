//! The session of a request, and what its answer says of it.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::cookie::Cookie;
use evenkeel_runtime_config::stateful_session::{SessionState, StatefulSession, StatefulSessionPerRoute};
use evenkeel_runtime_config::view::RequestView;
use evenkeel_stats::{Registry, ScopeName};

use super::address;
use crate::http::{Answer, Decision, Filter, Kept, RequestContext};

/// `envoy.filters.http.stateful_session`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<StatefulSession>,
}

/// The session a request belongs to.
#[derive(Debug)]
pub struct Session {
    config: Arc<StatefulSession>,
    /// The host that serves it; `None`: it begins.
    address: Option<String>,
}

impl Session {
    /// The address of the host that serves it, if one did.
    pub fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// No other host will do.
    pub fn strict(&self) -> bool {
        self.config.strict
    }

    /// The answer when no other host will do and this one is gone.
    pub fn status_on_missing_host(&self) -> u16 {
        self.config.status_on_missing_host
    }
}

impl Filter for HttpFilter {
    type Config = StatefulSession;

    fn new(config: Arc<Self::Config>, _: &Registry, _: &ScopeName) -> Self {
        Self { config }
    }

    async fn on_request<R: RequestView>(&self, context: &RequestContext<'_, R>, kept: &mut Kept) -> Decision {
        let config = match context.route.and_then(|route| route.filters.session.as_ref()) {
            None => &self.config,
            Some(StatefulSessionPerRoute::Session(config)) => config,
            Some(StatefulSessionPerRoute::Disabled) => return Decision::Continue,
        };
        let address = match &config.state {
            None => return Decision::Continue,
            Some(SessionState::Cookie(cookie)) if !covers(cookie, context.request.path()) => return Decision::Continue,
            Some(SessionState::Cookie(cookie)) => {
                context.request.cookie(&cookie.name).and_then(|value| address::of_cookie(&value))
            }
            Some(SessionState::Header(name)) => {
                context.request.header(name).and_then(|value| address::of_header(&value))
            }
        };
        kept.session = Some(Rc::new(Session { config: Arc::clone(config), address }));
        Decision::Continue
    }

    fn on_response(&self, answer: &mut Answer<'_>, kept: &Kept) {
        let Some(session) = kept.session.as_deref() else { return };
        if session.address() == Some(answer.host) {
            return;
        }
        let headers = &mut answer.head.headers;
        match &session.config.state {
            Some(SessionState::Cookie(cookie)) => {
                if let Some(value) = address::in_cookie(answer.host) {
                    headers.append(b"set-cookie", cookie.set(&value).as_bytes());
                }
            }
            Some(SessionState::Header(name)) => {
                headers.set_name(name.as_bytes(), address::in_header(answer.host).as_bytes());
            }
            None => {}
        }
    }
}

/// Whether a client sends the cookie with requests to this path (RFC 6265 section 5.1.4).
fn covers(cookie: &Cookie, path: &[u8]) -> bool {
    match path.strip_prefix(cookie.path.as_bytes()) {
        None => false,
        Some(rest) => {
            cookie.path.is_empty()
                || cookie.path.ends_with('/')
                || matches!(rest.first(), None | Some(b'/' | b'?' | b'#'))
        }
    }
}
