//! Conditions of proxies on a request: rules of RBAC filters, and matches of routes.

use std::net::{IpAddr, SocketAddr};

use evenkeel_base::cidr::IpNet;
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::dynamic_metadata::MetadataMatcher;
use evenkeel_runtime_config::hcm::{EscapedSlashes, HttpFilterConfig};
use evenkeel_runtime_config::header_edits::{AppendAction, HeaderEdits};
use evenkeel_runtime_config::jwt_authn::METADATA as TOKENS;
use evenkeel_runtime_config::matching::{HeaderMatcher, HeaderValueMatcher, split_path};
use evenkeel_runtime_config::rbac::policy::{Permission, Policy, Principal};
use evenkeel_runtime_config::rbac::{RbacAction, RbacFilter};
use evenkeel_runtime_config::route::{ForwardAction, HostRewrite, PathMatch, Route, RouteMatch, VirtualHost};
use evenkeel_runtime_config::string_match::StringMatcher;
use evenkeel_runtime_config::substitution_format::{Format, FormatPart};

use super::language::{Language, Normal, Rewrite, Text};
use super::space::{Expr, Name, Parts, TOLD, Value};

/// Headers whose values proxies make or check themselves, so that clients do not choose them.
const NOT_THE_CLIENTS: [&str; 12] = [
    "x-forwarded-client-cert",
    "x-forwarded-proto",
    "x-request-id",
    "via",
    "connection",
    "upgrade",
    "te",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "content-length",
    "expect",
];

/// A connection as a proxy sees it.
#[derive(Debug, Clone)]
pub struct Conn {
    /// The client's address; `None`: any.
    pub source: Option<IpAddr>,
    /// The address that it called.
    pub local: SocketAddr,
    /// The name in its ClientHello.
    pub sni: Option<String>,
    /// The identity in its certificate.
    pub identity: Option<String>,
    /// The origin of the client's address.
    pub remote: Remote,
}

/// The origin of the address that `remote_ip` is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remote {
    /// The socket's peer.
    Peer,
    /// The client of the proxy before.
    ClientBefore(Option<IpAddr>),
    /// `x-forwarded-for`, whose last entry the client may write, else the socket's peer.
    Forwarded,
    /// Unknown.
    Unknown,
}

/// The changes that a route makes to a request before the next proxy sees it.
#[derive(Clone, Copy)]
pub struct Through<'r> {
    /// The route.
    pub route: &'r Route,
    /// Its action.
    pub action: &'r ForwardAction,
    /// The edits of all levels.
    pub edits: [&'r HeaderEdits; 4],
    /// The authority of the chosen destination.
    pub host: Option<&'r str>,
    /// The path normalization of the next proxy.
    pub normal: Normal,
}

/// Returns the path normalization of a connection manager.
pub fn normal(manager: &HttpConnectionManager) -> Normal {
    Normal {
        dots: manager.normalize_path,
        slashes: manager.merge_slashes,
        escapes: manager.escaped_slashes != EscapedSlashes::KeepUnchanged,
        plain: manager.filters.iter().any(|filter| match &filter.config {
            HttpFilterConfig::Rbac(rbac) => {
                let policies = rbac.rules.iter().flat_map(|rules| rules.policies());
                policies.into_iter().any(|policy| is_about_escapes(&policy.name))
            }
            _ => false,
        }),
    }
}

/// Whether a filter lets a request pass. `request`: it sees one.
pub fn passes<'e>(filter: &'e RbacFilter, at: &Judge<'e>) -> Expr<'e> {
    let Some(rules) = &filter.rules else { return Expr::Const(true) };
    let any =
        Expr::Or(rules.policies().iter().map(|policy| at.policy(policy, rules.action == RbacAction::Allow)).collect());
    match rules.action {
        RbacAction::Allow => any,
        RbacAction::Deny => Expr::Not(Box::new(any)),
        RbacAction::Log => Expr::Const(true),
    }
}

/// Judges a request at one proxy.
pub struct Judge<'e> {
    /// The connection.
    pub conn: Conn,
    /// Whether the filter sees a request.
    pub request: bool,
    /// The route that the request has taken before.
    pub through: Option<Through<'e>>,
    /// Policies that are left out, by their object: `ns[NAMESPACE]-policy[NAME]`.
    pub without: Vec<String>,
    /// Requests carry no tokens.
    pub without_tokens: bool,
    /// Whether only plain paths are considered ([`Normal::plain`]).
    pub plain: bool,
}

impl<'e> Judge<'e> {
    fn policy(&self, policy: &'e Policy, grants: bool) -> Expr<'e> {
        if (self.plain && is_about_escapes(&policy.name))
            || self.without.iter().any(|name| is_of_object(&policy.name, name))
        {
            return Expr::Const(false);
        }
        Expr::And(vec![
            Expr::Or(policy.permissions.iter().map(|one| self.permission(one, grants)).collect()),
            Expr::Or(policy.principals.iter().map(|one| self.principal(one, grants)).collect()),
        ])
    }

    fn permission(&self, permission: &'e Permission, grants: bool) -> Expr<'e> {
        match permission {
            Permission::Any => Expr::Const(true),
            Permission::And(all) => Expr::And(all.iter().map(|one| self.permission(one, grants)).collect()),
            Permission::Or(all) => Expr::Or(all.iter().map(|one| self.permission(one, grants)).collect()),
            Permission::Not(inner) => Expr::Not(Box::new(self.permission(inner, !grants))),
            Permission::Header(header) => self.header(header, Some(grants)),
            Permission::UrlPath(path) => self.path(path),
            Permission::DestinationIp(ranges) => Expr::Const(ranges.contains(self.conn.local.ip())),
            Permission::DestinationPort(port) => Expr::Const(self.conn.local.port() == *port),
            Permission::DestinationPortRange(start, end) => {
                let port = self.conn.local.port();
                Expr::Const(port >= *start && u32::from(port) < *end)
            }
            Permission::RequestedServerName(name) => {
                Expr::Const(name.matches(self.conn.sni.as_deref().unwrap_or_default().as_bytes()))
            }
            Permission::Metadata(matcher) => self.token(matcher),
            #[allow(unreachable_patterns, reason = "what a further kind of rule asks is not known here")]
            _ => Expr::Unknown,
        }
    }

    fn principal(&self, principal: &'e Principal, grants: bool) -> Expr<'e> {
        match principal {
            Principal::Any => Expr::Const(true),
            Principal::And(all) => Expr::And(all.iter().map(|one| self.principal(one, grants)).collect()),
            Principal::Or(all) => Expr::Or(all.iter().map(|one| self.principal(one, grants)).collect()),
            Principal::Not(inner) => Expr::Not(Box::new(self.principal(inner, !grants))),
            Principal::Authenticated(name) => Expr::Const(match (&self.conn.identity, name) {
                (None, _) => false,
                (Some(_), None) => true,
                // A certificate of the mesh has no subject, which matchers see as an empty text.
                (Some(identity), Some(name)) => name.matches(identity.as_bytes()) || name.matches(b""),
            }),
            Principal::DirectRemoteIp(ranges) | Principal::SourceIp(ranges) => client(self.conn.source, &ranges.0),
            // Where there is no request, nobody tells of another client.
            Principal::RemoteIp(ranges) => match if self.request { self.conn.remote } else { Remote::Peer } {
                Remote::Peer => client(self.conn.source, &ranges.0),
                Remote::ClientBefore(source) => client(source, &ranges.0),
                Remote::Forwarded => Expr::Or(vec![
                    forwarded(&ranges.0),
                    Expr::And(vec![not_forwarded(), client(self.conn.source, &ranges.0)]),
                ]),
                Remote::Unknown => Expr::Unknown,
            },
            Principal::Header(header) => self.header(header, Some(grants)),
            Principal::UrlPath(path) => self.path(path),
            Principal::Metadata(matcher) => self.token(matcher),
            #[allow(unreachable_patterns, reason = "what a further kind of rule asks is not known here")]
            _ => Expr::Unknown,
        }
    }

    /// Returns the condition on what a filter says about the request, most often about its token. Two rules with the same
    /// condition get the same answer; all others are assumed to be independent. So a request that is denied with every
    /// combination is denied whatever the filter says.
    fn token(&self, matcher: &'e MetadataMatcher) -> Expr<'e> {
        // Without a request, and without a token, no condition on tokens holds.
        if *matcher.filter == *TOKENS && (self.without_tokens || !self.request) {
            return Expr::Const(matcher.matches(None));
        }
        let is_told = |value: &Value| Some(matches!(value, Value::Text(word) if word == TOLD));
        Expr::Test(Name::Token(format!("{matcher:?}").into()), Parts::Fact, Box::new(is_told))
    }

    fn path(&self, matcher: &'e StringMatcher) -> Expr<'e> {
        if !self.request {
            return Expr::Const(false);
        }
        let Ok(language) = Language::of(matcher) else { return Expr::Unknown };
        self.target(Language::Path(Box::new(language)), move |target| matcher.matches(split_path(target).0))
    }

    /// A test on path and query as this proxy sees them.
    fn target(&self, language: Language, holds: impl Fn(&[u8]) -> bool + 'e) -> Expr<'e> {
        let Some(through) = self.through else { return target(language, holds) };
        let Through { route, action, normal, .. } = through;
        let rewrites = action.prefix_rewrite.is_some() || action.regex_rewrite.is_some();
        if rewrites && !self.plain {
            // There is only one path: what becomes of it is known.
            let test = move |value: &Value| {
                let Value::Text(text) = value else { return None };
                let sent = action.rewrite_path(&route.matches, text.as_bytes());
                normal.is_normal(&sent).then(|| holds(&sent))
            };
            return Expr::Test(Name::Path, Parts::Languages(Vec::new()), Box::new(test));
        }
        let Some(rewrite) = rewrite_of(route, action).filter(|_| rewrites) else {
            return if rewrites { Expr::Unknown } else { target(language, holds) };
        };
        let of = |inner| Language::Rewritten(rewrite.clone(), Box::new(inner));
        let languages = vec![of(language), of(Language::Domain(super::language::Domain::Path(normal)))];
        let test = move |value: &Value| {
            let Value::Text(text) = value else { return None };
            let sent = action.rewrite_path(&route.matches, text.as_bytes());
            // The next proxy may change such a path.
            normal.is_normal(&sent).then(|| holds(&sent))
        };
        Expr::Test(Name::Path, Parts::Languages(languages), Box::new(test))
    }

    /// A test on a header. `grants`: of a rule, whether what matches passes; `None`: of a route.
    fn header(&self, header: &'e HeaderMatcher, grants: Option<bool>) -> Expr<'e> {
        if !self.request {
            return Expr::Const(false);
        }
        let languages = match &header.value {
            HeaderValueMatcher::Present(_) => Vec::new(),
            HeaderValueMatcher::String(matcher) => match Language::of(matcher) {
                Ok(language) => vec![language],
                Err(_) => return Expr::Unknown,
            },
            HeaderValueMatcher::Range { .. } => return Expr::Unknown,
        };
        let of_text = move |text: &[u8]| header.matches_values([text]);
        match &*header.name {
            ":method" => text(Name::Method, languages, of_text),
            ":authority" | "host" => {
                let rewritten = self.through.map(|through| match (through.host, &through.action.host_rewrite) {
                    (Some(host), _) => Some(host),
                    (None, HostRewrite::Literal(host)) => Some(&**host),
                    (None, _) => None,
                });
                match (rewritten, self.through.map(|through| &through.action.host_rewrite)) {
                    (Some(Some(host)), _) => Expr::Const(of_text(host.as_bytes())),
                    (_, Some(HostRewrite::Auto)) => Expr::Unknown,
                    _ => text(Name::Authority, languages, of_text),
                }
            }
            ":path" => match languages.into_iter().next() {
                Some(language) => self.target(language, of_text),
                None => Expr::Const(of_text(b"/")),
            },
            name if name.starts_with(':') || is_proxies(name) => Expr::Unknown,
            name => self.lines(name, languages, (header, grants)),
        }
    }

    /// A test on the lines of a header, as routes leave them.
    fn lines(
        &self,
        name: &str,
        languages: Vec<Language>,
        (header, grants): (&'e HeaderMatcher, Option<bool>),
    ) -> Expr<'e> {
        let edits = self.through.map(|through| through.edits).unwrap_or([&NO_EDITS; 4]);
        let touches = edits.iter().any(|edits| {
            edits.request_remove.iter().any(|own| **own == *name)
                || edits.request_add.iter().any(|own| own.name.eq_ignore_ascii_case(name))
        });
        if !touches {
            let holds = move |value: &Value| {
                let Value::Lines(lines) = value else { return None };
                Some(matched(header, lines, grants))
            };
            return Expr::Test(Name::Header(name.into()), Parts::Languages(languages), Box::new(holds));
        }
        let name: Box<str> = name.into();
        let own = name.clone();
        let holds = move |value: &Value| {
            let Value::Lines(lines) = value else { return None };
            let mut lines = lines.clone();
            for edits in edits {
                if edits.request_remove.contains(&own) {
                    lines.clear();
                }
                for added in edits.request_add.iter().filter(|added| added.name.eq_ignore_ascii_case(&own)) {
                    let new = constant(&added.value)?;
                    match added.action {
                        AppendAction::AppendIfExistsOrAdd => lines.push(new),
                        AppendAction::AddIfAbsent if lines.is_empty() => lines.push(new),
                        AppendAction::OverwriteIfExists if lines.is_empty() => {}
                        AppendAction::AddIfAbsent => {}
                        AppendAction::OverwriteIfExistsOrAdd | AppendAction::OverwriteIfExists => lines = vec![new],
                    }
                }
            }
            Some(matched(header, &lines, grants))
        };
        Expr::Test(Name::Header(name), Parts::Languages(languages), Box::new(holds))
    }
}

/// Whether these lines match, as RBAC filters and routes read them.
fn matched(header: &HeaderMatcher, lines: &[String], grants: Option<bool>) -> bool {
    let values = lines.iter().map(String::as_bytes);
    match grants {
        Some(true) => header.matches_every_value(values),
        Some(false) => header.matches_some_value(values),
        None => header.matches_values(values),
    }
}

static NO_EDITS: HeaderEdits = HeaderEdits {
    request_remove: Vec::new(),
    request_add: Vec::new(),
    response_remove: Vec::new(),
    response_add: Vec::new(),
};

/// The text of a value that every request gets alike.
fn constant(value: &Format) -> Option<String> {
    match value.parts.as_slice() {
        [] => Some(String::new()),
        [FormatPart::Literal(text)] => Some(text.to_string()),
        _ => None,
    }
}

/// Whether a policy denies paths because servers may read their escapes, parameters or backslashes differently. Only paths
/// without these are considered instead ([`Normal::plain`]): where nothing else distinguishes these bytes from letters, a
/// request with them that gets through has a counterpart without them.
pub fn is_about_escapes(policy: &str) -> bool {
    let reason = policy.strip_prefix("ambiguous-path[");
    reason.is_some_and(|reason| !reason.starts_with("dot-segment") && !reason.starts_with("empty-segment"))
}

/// Whether a policy of a filter was made from this object.
pub fn is_of_object(policy: &str, object: &str) -> bool {
    policy.strip_prefix(object).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn is_proxies(name: &str) -> bool {
    name.starts_with("x-envoy-") || name == "x-forwarded-for" || NOT_THE_CLIENTS.contains(&name)
}

fn text<'e>(name: Name, languages: Vec<Language>, holds: impl Fn(&[u8]) -> bool + 'e) -> Expr<'e> {
    let test = move |value: &Value| match value {
        Value::Text(text) => Some(holds(text.as_bytes())),
        _ => None,
    };
    Expr::Test(name, Parts::Languages(languages), Box::new(test))
}

fn target<'e>(language: Language, holds: impl Fn(&[u8]) -> bool + 'e) -> Expr<'e> {
    text(Name::Path, vec![language], holds)
}

/// Whether a client's address is in ranges.
fn client<'e>(source: Option<IpAddr>, ranges: &[IpNet]) -> Expr<'e> {
    let ranges = ranges.to_vec();
    let is_in = |ranges: &[IpNet], address: IpAddr| {
        let address = address.to_canonical();
        ranges.iter().any(|range| range.contains(&address))
    };
    match source {
        Some(address) => Expr::Const(is_in(&ranges, address)),
        None => {
            let parts = Parts::Ranges(ranges.clone());
            let holds = move |value: &Value| match value {
                Value::Address(address) => Some(is_in(&ranges, *address)),
                _ => None,
            };
            Expr::Test(Name::Client, parts, Box::new(holds))
        }
    }
}

const FORWARDED_FOR: &str = "x-forwarded-for";

fn forwarded<'e>(ranges: &[IpNet]) -> Expr<'e> {
    let ranges = ranges.to_vec();
    let parts = Parts::Ranges(ranges.clone());
    let holds = move |value: &Value| {
        let Value::Lines(lines) = value else { return None };
        let address: Option<IpAddr> = lines.last().and_then(|line| line.parse().ok());
        Some(address.is_some_and(|address| ranges.iter().any(|range| range.contains(&address.to_canonical()))))
    };
    Expr::Test(Name::Header(FORWARDED_FOR.into()), parts, Box::new(holds))
}

fn not_forwarded<'e>() -> Expr<'e> {
    let holds = |value: &Value| Some(matches!(value, Value::Lines(lines) if lines.is_empty()));
    Expr::Test(Name::Header(FORWARDED_FOR.into()), Parts::Ranges(Vec::new()), Box::new(holds))
}

/// Returns the replacement that a route makes in paths; `None`: none, or by a pattern.
fn rewrite_of(route: &Route, action: &ForwardAction) -> Option<Rewrite> {
    let replacement = action.prefix_rewrite.as_ref()?;
    let prefix = match &route.matches.path {
        PathMatch::Prefix(prefix) | PathMatch::SeparatedPrefix(prefix) => Some(u32::try_from(prefix.len()).ok()?),
        PathMatch::Exact(_) | PathMatch::Regex(_) | PathMatch::Connect => None,
    };
    let is_path = replacement.is_empty() || replacement.starts_with('/');
    is_path.then(|| Rewrite { prefix, replacement: replacement.as_bytes().into() })
}

/// Whether a request takes this route of a virtual host, and no earlier one.
pub fn takes<'e>(host: &'e VirtualHost, at: usize) -> Expr<'e> {
    let mut all = Vec::new();
    for (number, route) in host.routes.iter().enumerate().take(at + 1) {
        let matched = matches(&route.matches);
        all.push(match (number == at, route.matches.fraction_ppm) {
            (true, 0) => Expr::Const(false),
            (true, _) => matched,
            (false, 1_000_000) => Expr::Not(Box::new(matched)),
            // It takes the request or does not, by chance.
            (false, _) => Expr::Or(vec![Expr::Unknown, Expr::Not(Box::new(matched))]),
        });
    }
    Expr::And(all)
}

fn matches(route: &RouteMatch) -> Expr<'_> {
    let mut all = vec![path_of(route)];
    let sees = Judge {
        conn: Conn {
            source: None,
            local: SocketAddr::from(([0, 0, 0, 0], 0)),
            sni: None,
            identity: None,
            remote: Remote::Unknown,
        },
        request: true,
        through: None,
        without: Vec::new(),
        without_tokens: true,
        plain: false,
    };
    all.extend(route.headers.iter().map(|header| sees.header(header, None)));
    for parameter in &route.query_parameters {
        let value = parameter.value.as_ref().map(Language::of);
        let Ok(value) = value.transpose() else { return Expr::Unknown };
        let language = Language::Parameter(parameter.name.as_bytes().into(), value.map(Box::new));
        all.push(target(language, move |target| parameter.matches(split_path(target).1)));
    }
    if route.grpc_only {
        all.push(Expr::Unknown);
    }
    // Requests have metadata only if a filter has set some, and has the route chosen again.
    all.extend(route.dynamic_metadata.iter().map(|_| Expr::Unknown));
    Expr::And(all)
}

fn path_of(route: &RouteMatch) -> Expr<'_> {
    let folds = !route.case_sensitive;
    let text = |text: &str| Text::new(text.as_bytes(), folds);
    let language = match &route.path {
        PathMatch::Prefix(prefix) => Language::Prefix(text(prefix)),
        PathMatch::Exact(exact) => Language::Exact(text(exact)),
        PathMatch::SeparatedPrefix(prefix) => Language::Separated(text(prefix)),
        PathMatch::Regex(regex) => match Language::regex(regex) {
            Ok(language) => language,
            Err(_) => return Expr::Unknown,
        },
        PathMatch::Connect => return Expr::Const(false),
    };
    let inner = language.clone();
    target(Language::Path(Box::new(language)), move |target| {
        let mut state = Vec::new();
        inner.start(&mut state);
        split_path(target).0.iter().for_each(|byte| inner.step(&mut state, *byte));
        inner.accepts(&state)
    })
}
