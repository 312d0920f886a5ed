//! `sessionPersistence` of a rule (GEP-1619): requests of one session go to the endpoint that served the first one.

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;

use super::limits::GatewayDuration;
use crate::decode::{Context, HeaderName};

object! {
    /// How the requests of a session are known.
    pub struct SessionPersistence {
        /// The name of the cookie or the header; one of its own if not given.
        session_name: Option<Spanned<String>> = "sessionName",
        /// How the client names its session; `Cookie` if not given.
        kind: Option<SessionType> = "type",
        /// How long a session lasts at most; only with cookies of the type `Permanent`.
        absolute_timeout: Option<Spanned<GatewayDuration>> = "absoluteTimeout",
        /// The cookie.
        cookie_config: Option<Spanned<SessionCookie>> = "cookieConfig",
    }
    later: ["idleTimeout" = "proxies do not know when a session was last used"];
    check: check_session;
}

choices! {
    /// How a client names its session.
    pub enum SessionType {
        /// By a cookie.
        Cookie = "Cookie",
        /// By a header of a response, which it repeats.
        Header = "Header",
    }
}

object! {
    /// A session's cookie.
    pub struct SessionCookie {
        /// How long clients keep it; `Session` if not given.
        lifetime_type: Option<CookieLifetime> = "lifetimeType",
    }
}

choices! {
    /// How long clients keep a cookie.
    pub enum CookieLifetime {
        /// For `absoluteTimeout`.
        Permanent = "Permanent",
        /// Until they end.
        Session = "Session",
    }
}

/// The longest name of a session.
const MAX_NAME_BYTES: usize = 128;
/// Headers that say something else.
const TAKEN: [&str; 9] =
    ["connection", "content-length", "cookie", "host", "set-cookie", "te", "trailer", "transfer-encoding", "upgrade"];

impl SessionPersistence {
    /// How the client names its session.
    pub fn kind(&self) -> SessionType {
        self.kind.unwrap_or(SessionType::Cookie)
    }

    /// How long clients keep the cookie.
    pub fn lifetime(&self) -> CookieLifetime {
        let written = self.cookie_config.as_ref().and_then(|config| config.lifetime_type);
        written.unwrap_or(CookieLifetime::Session)
    }
}

fn check_session(session: &SessionPersistence, _: &Node, cx: &mut Context) {
    if let Some(name) = &session.session_name {
        check_name(name, session.kind(), cx);
    }
    if let Some(config) = session.cookie_config.as_ref().filter(|_| session.kind() == SessionType::Header) {
        let message = "only sessions of the type `Cookie` have a cookie";
        cx.at_field("cookieConfig", |cx| cx.error("conflict", &config.span, message, "remove it, or the type"));
    }
    match (session.kind(), session.lifetime(), &session.absolute_timeout) {
        (SessionType::Cookie, CookieLifetime::Permanent, None) => {
            if let Some(config) = &session.cookie_config {
                let help = "add `absoluteTimeout: 1h`";
                cx.error("missing-field", &config.span, "a permanent cookie needs `absoluteTimeout`", help);
            }
        }
        (SessionType::Cookie, CookieLifetime::Permanent, Some(limit)) if limit.value.0.is_zero() => {
            let message = "the cookie would end at once; clients keep it until they end";
            cx.at_field("absoluteTimeout", |cx| {
                cx.warning("no-effect", &limit.span, message, "write how long a session may last");
            });
        }
        (SessionType::Cookie, CookieLifetime::Permanent, Some(_)) | (_, _, None) => {}
        (_, _, Some(limit)) => {
            let message = "proxies do not know when a session has begun, so that it does not end by time";
            let help = "use cookies, with `cookieConfig: {lifetimeType: Permanent}`: clients end them";
            cx.at_field("absoluteTimeout", |cx| cx.warning("no-effect", &limit.span, message, help));
        }
    }
}

/// A cookie's name is a token as a header's (RFC 6265, section 4.1.1).
fn check_name(name: &Spanned<String>, kind: SessionType, cx: &mut Context) {
    let text = name.as_str();
    let is_token = HeaderName::is_valid(text) && !text.starts_with(':');
    let is_taken = kind == SessionType::Header && TAKEN.iter().any(|taken| taken.eq_ignore_ascii_case(text));
    if !is_token || is_taken || text.len() > MAX_NAME_BYTES {
        let message = format!("`{text}` cannot be the name of a session");
        let help = match kind {
            SessionType::Cookie => {
                "the name of a cookie such as `shop-session`, of at most 128 letters, digits and dashes"
            }
            SessionType::Header => {
                "the name of a header of its own such as `x-shop-session`, of at most 128 letters, digits and dashes"
            }
        };
        cx.at_field("sessionName", |cx| cx.error("bad-name", &name.span, message, help));
    }
}
