//! Reads a request's session and announces it in the response.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_http::Headers;
use evenkeel_runtime_config::cookie::Cookie;
use evenkeel_runtime_config::stateful_session::{SessionState, StatefulSession, StatefulSessionPerRoute};
use evenkeel_runtime_config::view::RequestView;

use super::address;
use crate::http::{Decision, Filter, Hooks, RequestContext, ResponseContext, ResponseDecision, Setup};
use crate::info::HostOverride;
use crate::remark::Remark;
use crate::verdict::FilterVerdict;

/// `envoy.filters.http.stateful_session`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<StatefulSession>,
}

/// The session a request belongs to.
#[derive(Debug)]
pub struct Session {
    config: Arc<StatefulSession>,
    /// The host that should serve it; `None` for a new session.
    host: Option<Rc<HostOverride>>,
}

impl Filter for HttpFilter {
    type Config = StatefulSession;
    type State = Option<Session>;
    const HOOKS: Hooks = Hooks::REQUEST_HEAD.and(Hooks::RESPONSE_HEAD);

    fn verdict(_: &StatefulSession) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(config: Arc<Self::Config>, _: &Setup<'_>) -> Self {
        Self { config }
    }

    fn request_head(&self, session: &mut Self::State, context: &mut RequestContext<'_>) -> Decision {
        let config = match context.per_route() {
            None => &self.config,
            Some(StatefulSessionPerRoute::Session(config)) => config,
            Some(StatefulSessionPerRoute::Disabled) => return Decision::Continue,
        };
        let request = context.view();
        let address = match &config.state {
            None => return Decision::Continue,
            Some(SessionState::Cookie(cookie)) if !covers(cookie, request.path()) => return Decision::Continue,
            Some(SessionState::Cookie(cookie)) => {
                request.cookie(&cookie.name).and_then(|value| address::of_cookie(&value))
            }
            Some(SessionState::Header(name)) => request.header(name).and_then(|value| address::of_header(&value)),
        };
        let (strict, status_if_gone) = (config.strict, config.status_on_missing_host);
        let host = address.map(|address| Rc::new(HostOverride { address, strict, status_if_gone }));
        context.info.host_override.clone_from(&host);
        *session = Some(Session { config: Arc::clone(config), host });
        Decision::Continue
    }

    fn remark(&self, session: &Self::State, _: &RequestContext<'_>) -> Option<Remark> {
        let session = session.as_ref()?;
        let Some(host) = &session.host else { return session.config.state.as_ref().map(begins) };
        let otherwise = if host.strict { host.status_if_gone.to_string() } else { "another".into() };
        Some(Remark::ByState(format!("host {} if it is there, else {otherwise}", host.address)))
    }

    fn response_head(&self, session: &mut Self::State, context: &mut ResponseContext<'_>) -> ResponseDecision {
        if let Some((session, host)) = session.as_ref().zip(context.host)
            && session.host.as_ref().is_none_or(|wanted| wanted.address != host)
        {
            session.announce(host, &mut context.head.headers);
        }
        ResponseDecision::Continue
    }
}

impl Session {
    /// Tells the client, by cookie or header, which host serves the session.
    fn announce(&self, host: &str, headers: &mut Headers) {
        match &self.config.state {
            Some(SessionState::Cookie(cookie)) => {
                if let Some(value) = address::in_cookie(host) {
                    headers.append(b"set-cookie", cookie.set(&value).as_bytes());
                }
            }
            Some(SessionState::Header(name)) => {
                headers.set_name(name.as_bytes(), address::in_header(host).as_bytes());
            }
            None => {}
        }
    }
}

/// What is said of a request without a session.
fn begins(state: &SessionState) -> Remark {
    Remark::Note(match state {
        SessionState::Cookie(cookie) => {
            format!("a session begins: the response names its host in the cookie `{}`", cookie.name)
        }
        SessionState::Header(name) => format!("a session begins: the response names its host in the header `{name}`"),
    })
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
