//! `envoy.filters.http.stateful_session`, compiled: requests of one session go to the host that served the first one.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::config::core::v3::TypedExtensionConfig;
use evenkeel_xds::pb::envoy::extensions::filters::http::stateful_session::v3 as filter;
use evenkeel_xds::pb::envoy::extensions::http::stateful_session::cookie::v3::CookieBasedSessionState;
use evenkeel_xds::pb::envoy::extensions::http::stateful_session::header::v3::HeaderBasedSessionState;

use crate::compile::{Cx, type_name};
use crate::cookie::Cookie;
use crate::filter_needs::FilterNeeds;
use crate::support::message::{MessageSupport, extension};

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

const COOKIE: &str = "envoy.extensions.http.stateful_session.cookie.v3.CookieBasedSessionState";
const HEADER: &str = "envoy.extensions.http.stateful_session.header.v3.HeaderBasedSessionState";

pub(crate) fn stateful_session(cx: &mut Cx<'_>, config: &filter::StatefulSession) -> Option<StatefulSession> {
    let state = match &config.session_state {
        None => None,
        Some(extension) => Some(cx.at("session_state", |cx| session_state(cx, extension))?),
    };
    let status_on_missing_host = match u16::try_from(config.status_on_strict_destination_not_found) {
        Ok(0) => 503,
        Ok(status @ 200..=599) => status,
        _ => return cx.fail_at("status_on_strict_destination_not_found", "must lie between 200 and 599"),
    };
    Some(StatefulSession { state, strict: config.strict, status_on_missing_host })
}

pub(crate) fn per_route(cx: &mut Cx<'_>, config: &filter::StatefulSessionPerRoute) -> Option<StatefulSessionPerRoute> {
    use filter::stateful_session_per_route::Override;
    match &config.r#override {
        Some(Override::Disabled(true)) => Some(StatefulSessionPerRoute::Disabled),
        Some(Override::StatefulSession(config)) => {
            let session = cx.at("stateful_session", |cx| stateful_session(cx, config))?;
            Some(StatefulSessionPerRoute::Session(Arc::new(session)))
        }
        Some(Override::Disabled(false)) => cx.fail_at("disabled", "must be true"),
        None => cx.fail("one of disabled, stateful_session is required"),
    }
}

fn session_state(cx: &mut Cx<'_>, extension: &TypedExtensionConfig) -> Option<SessionState> {
    let any = cx.required("typed_config", extension.typed_config.as_ref())?;
    cx.at("typed_config", |cx| match type_name(&any.type_url) {
        COOKIE => {
            let config: CookieBasedSessionState = cx.unpack(any)?;
            let cookie = cx.required("cookie", config.cookie.as_ref())?;
            cx.at("cookie", |cx| {
                Some(SessionState::Cookie(Cookie {
                    name: cx.non_empty("name", &cookie.name)?.into(),
                    ttl_seconds: Some(cx.duration("ttl", cookie.ttl.as_ref()).map_or(0, |ttl| ttl.as_secs())),
                    path: cookie.path.as_str().into(),
                    attributes: cx.each("attributes", &cookie.attributes, |cx, attribute| {
                        Some((cx.non_empty("name", &attribute.name)?.into(), attribute.value.as_str().into()))
                    }),
                }))
            })
        }
        HEADER => {
            let config: HeaderBasedSessionState = cx.unpack(any)?;
            Some(SessionState::Header(cx.non_empty("name", &config.name)?.to_ascii_lowercase().into()))
        }
        name => cx.fail(format!("{name} keeps no session")),
    })
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    extension("envoy.extensions.filters.http.stateful_session.v3.StatefulSession",
        &["session_state", "strict", "status_on_strict_destination_not_found"]),
    extension("envoy.extensions.filters.http.stateful_session.v3.StatefulSessionPerRoute",
        &["disabled", "stateful_session"]),
    extension("envoy.extensions.http.stateful_session.cookie.v3.CookieBasedSessionState", &["cookie"]),
    extension("envoy.extensions.http.stateful_session.header.v3.HeaderBasedSessionState", &["name"]),
];
