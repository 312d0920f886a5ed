//! The steps of an explanation, and their text.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::Demand;
use evenkeel_runtime_config::header_edits::{HeaderAddition, HeaderEdits};

use super::Explanation;
use crate::decide::Limits;
use crate::info::ResponseFlags;
use crate::rbac::Verdict;
use crate::remark::Remark;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Step {
    /// There is no listener of this name.
    NoListener { name: String },
    /// This has to be requested from the control plane first; then the call is decided again.
    Unanswered { demand: Demand },
    /// No filter chain matches; the connection is closed.
    NoFilterChain { listener: Arc<str> },
    /// This filter chain handles the connection.
    FilterChain { listener: Arc<str>, chain: Arc<str>, tls: bool },
    /// The request has this path and authority from here on.
    Normalized { path: String, authority: String },
    /// The path cannot be normalized, or is not a path.
    PathRefused { status: u16, details: String },
    /// 307 to the path with its slashes unescaped.
    PathRedirect { location: String },
    /// The decision of an RBAC filter, network or HTTP.
    Rbac { verdict: Verdict },
    /// The decision of another filter. `chance`: a random number was drawn for it.
    Filter { name: Arc<str>, says: Says, chance: bool },
    /// The route table was not received yet.
    NoRouteTable { name: Arc<str>, status: u16 },
    /// The virtual host.
    VirtualHost { table: Arc<str>, name: Arc<str> },
    /// 301 to this URL, since the virtual host requires TLS.
    TlsRedirect { location: String },
    /// 404: no virtual host, or none of its routes, matches.
    NoRoute,
    /// This route serves the request. `share_ppm`: at random, for this many of a million requests.
    Route { name: Arc<str>, origin: Option<Arc<str>>, share_ppm: Option<u32> },
    /// This one of several weighted clusters was chosen, at random.
    Share { cluster: Arc<str>, weight: u32, total: u32 },
    /// The route does not allow the requested tunnel.
    UpgradeRefused { status: u16 },
    /// Time limits of the request, and its retries.
    Limits { limits: Limits, retries: Option<Retries> },
    /// Header edits, in the order applied.
    Headers { level: &'static str, edits: Vec<String> },
    /// Redirect.
    Redirect { status: u16, location: String },
    /// Direct response.
    DirectResponse { status: u16 },
    /// Forward with this path and authority.
    Forward { cluster: Arc<str>, path: String, authority: String },
    /// The cluster does not exist (or is still warming): this status.
    NoCluster { cluster: Arc<str>, status: u16 },
    /// No filter has resolved a host for the cluster: the connection is closed.
    NoHost { cluster: Arc<str> },
    /// The cluster's endpoints.
    Endpoints { cluster: Arc<str>, count: usize },
}

impl Step {
    /// What the filter of this name tells of its decision. `chance`: a random number was drawn for it.
    pub(super) fn of_remark(name: &Arc<str>, remark: Remark, chance: bool) -> Self {
        let says = match remark {
            Remark::Verdict(verdict) => return Self::Rbac { verdict },
            Remark::Note(text) | Remark::NoHost(text) => Says::Remarks { text, state: false },
            Remark::ByState(text) => Says::Remarks { text, state: true },
        };
        Self::Filter { name: Arc::clone(name), says, chance }
    }
}

/// A filter's decision about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Says {
    /// The request passes.
    Passes,
    /// The filter sends a local reply.
    Replies { status: u16, details: String, flags: ResponseFlags },
    /// The request is delayed this long; `answer`: until the filter gets an answer, and is then assumed to let it pass.
    Waits { limit: Duration, answer: bool },
    /// The body is collected first.
    Collects { max_bytes: usize },
    /// The route is chosen again.
    Reroutes,
    /// The request passes, with this effect. `state`: it depends on more than the call and the configuration.
    Remarks { text: String, state: bool },
}

/// The effective retry policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retries {
    /// The names of the conditions.
    pub on: Vec<&'static str>,
    /// Maximum number of retries.
    pub most: u32,
    /// Time limit of each try.
    pub per_try_timeout: Option<Duration>,
}

/// One line per direction and kind of edit.
pub(super) fn edit_lines(edits: &HeaderEdits) -> Vec<String> {
    let removed = |direction, names: &[Box<str>]| -> Vec<String> {
        names.iter().map(|name| format!("{direction}: remove {name}")).collect()
    };
    let added = |direction, additions: &[HeaderAddition]| -> Vec<String> {
        additions.iter().map(|addition| format!("{direction}: add {}", addition.name)).collect()
    };
    [
        removed("request", &edits.request_remove),
        added("request", &edits.request_add),
        removed("response", &edits.response_remove),
        added("response", &edits.response_add),
    ]
    .concat()
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoListener { name } => write!(f, "no listener {name:?} serves"),
            Self::Unanswered { demand } => write!(f, "held until the control plane has answered for {demand}"),
            Self::NoFilterChain { listener } => write!(f, "listener {listener:?}: no filter chain fits; closed"),
            Self::FilterChain { listener, chain, tls } => {
                write!(f, "listener {listener:?}: filter chain {chain:?}{}", if *tls { ", TLS" } else { "" })
            }
            Self::Normalized { path, authority } => write!(f, "normalized: {path} (authority {authority})"),
            Self::PathRefused { status, details } => write!(f, "the path is refused: {status} ({details})"),
            Self::PathRedirect { location } => write!(f, "the path's slashes are escaped: 307 {location}"),
            Self::Rbac { verdict } => {
                let says = if verdict.allowed { "allowed" } else { "denied" };
                let policy = verdict.policy.as_deref().unwrap_or("none");
                write!(f, "RBAC: {says} (policy that matched: {policy})")
            }
            Self::Filter { name, says, chance } => {
                write!(f, "filter {name:?}: {says}{}", if *chance { ", by chance" } else { "" })
            }
            Self::NoRouteTable { name, status } => write!(f, "route table {name:?} has not arrived: {status}"),
            Self::VirtualHost { table, name } => write!(f, "route table {table:?}: virtual host {name:?}"),
            Self::TlsRedirect { location } => write!(f, "the virtual host requires TLS: 301 {location}"),
            Self::NoRoute => f.write_str("no route fits: 404"),
            Self::Route { name, origin, share_ppm } => {
                write!(f, "route {name:?}")?;
                origin.iter().try_for_each(|origin| write!(f, ", from {origin}"))?;
                share_ppm.iter().try_for_each(|share| write!(f, ", for {share} of 1000000 requests, by chance"))
            }
            Self::Share { cluster, weight, total } => {
                write!(f, "cluster {cluster:?} has weight {weight} of {total}: by chance")
            }
            Self::UpgradeRefused { status } => write!(f, "the upgrade is not allowed: {status}"),
            Self::Limits { limits, retries } => write_limits(f, limits, retries.as_ref()),
            Self::Headers { level, edits } => write!(f, "headers of the {level}: {}", edits.join(", ")),
            Self::Redirect { status, location } => write!(f, "redirect: {status} {location}"),
            Self::DirectResponse { status } => write!(f, "direct response: {status}"),
            Self::Forward { cluster, path, authority } => {
                write!(f, "forward to cluster {cluster:?}: {path} (authority {authority})")
            }
            Self::NoCluster { cluster, status: 0 } => write!(f, "cluster {cluster:?} does not exist: closed"),
            Self::NoCluster { cluster, status } => write!(f, "cluster {cluster:?} does not exist: {status}"),
            Self::NoHost { cluster } => write!(f, "cluster {cluster:?}: no host is resolved: closed"),
            Self::Endpoints { cluster, count } => write!(f, "cluster {cluster:?}: {count} endpoints"),
        }
    }
}

impl fmt::Display for Says {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passes => f.write_str("passes"),
            Self::Replies { status, details, .. } => write!(f, "answers {status} ({details})"),
            Self::Waits { limit, answer: false } => write!(f, "waits {limit:?}"),
            Self::Waits { limit, answer: true } => {
                write!(f, "waits for an answer, {limit:?} at most; below it lets the request pass")
            }
            Self::Collects { max_bytes } => write!(f, "collects the body, {max_bytes} bytes at most"),
            Self::Reroutes => f.write_str("has the route chosen again"),
            Self::Remarks { text, state: false } => f.write_str(text),
            Self::Remarks { text, state: true } => write!(f, "{text}, by state"),
        }
    }
}

fn write_limits(f: &mut fmt::Formatter<'_>, limits: &Limits, retries: Option<&Retries>) -> fmt::Result {
    let Limits { timeout, longest, idle, request } = limits;
    let times = [("timeout", timeout), ("idle timeout", idle), ("request timeout", request), ("longest", longest)];
    let times = times.into_iter().filter_map(|(name, limit)| Some((name, (*limit)?)));
    for (at, (name, limit)) in times.enumerate() {
        write!(f, "{}{name} {limit:?}", if at == 0 { "limits: " } else { ", " })?;
    }
    if limits == &Limits::default() {
        f.write_str("no limits")?;
    }
    match retries.filter(|retries| retries.most > 0 && !retries.on.is_empty()) {
        None => f.write_str("; no retries"),
        Some(Retries { on, most, per_try_timeout }) => {
            write!(f, "; {most} retries on {}", on.join(", "))?;
            per_try_timeout.iter().try_for_each(|limit| write!(f, ", {limit:?} each try"))
        }
    }
}
