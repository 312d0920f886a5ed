//! "What would happen to this call?": a connection and a request taken through a [`Config`] without a socket, by the code
//! the proxy itself runs.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::hcm::{HttpConnectionManager, HttpFilterConfig, RouteSource};
use crate::listener::{ChainInput, FilterChain, NetworkFilterConfig, Terminal};
use crate::rbac::{RbacFilter, RbacPerRoute};
use crate::rewrite::https_location;
use crate::route::{HeaderAddition, HeaderEdits, HostRewrite, Route, RouteAction, RouteTable, VirtualHost};
use crate::route_filters::RouteFilters;
use crate::route_match::RouteSelection;
use crate::view::{ConnectionView, RequestView};
use crate::{Cluster, Config, Demand};

/// A request written down: for explanations and tests.
#[derive(Debug, Clone, Default)]
pub struct PlainRequest {
    /// `:method`.
    pub method: String,
    /// `:path`.
    pub path: String,
    /// `:authority`.
    pub authority: String,
    /// `:scheme`.
    pub scheme: String,
    /// Lower-case names and values, in order.
    pub headers: Vec<(String, String)>,
}

impl PlainRequest {
    /// A plain-HTTP request without further headers.
    pub fn new(method: &str, authority: &str, path: &str) -> Self {
        Self {
            method: method.into(),
            path: path.into(),
            authority: authority.into(),
            scheme: "http".into(),
            headers: Vec::new(),
        }
    }

    /// The request with one more header.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_ascii_lowercase(), value.into()));
        self
    }
}

impl RequestView for PlainRequest {
    fn method(&self) -> &[u8] {
        self.method.as_bytes()
    }

    fn path(&self) -> &[u8] {
        self.path.as_bytes()
    }

    fn authority(&self) -> &[u8] {
        self.authority.as_bytes()
    }

    fn scheme(&self) -> &[u8] {
        self.scheme.as_bytes()
    }

    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        match name {
            ":method" => return Some(self.method().into()),
            ":path" => return Some(self.path().into()),
            ":authority" | "host" => return Some(self.authority().into()),
            ":scheme" => return Some(self.scheme().into()),
            _ => {}
        }
        let mut values = self.headers.iter().filter(|(header, _)| header == name).map(|(_, value)| value.as_str());
        let first = values.next()?;
        let joined = values.fold(first.to_owned(), |joined, value| joined + "," + value);
        Some(joined.into_bytes().into())
    }

    fn any_value(&self, name: &str, mut wanted: impl FnMut(&[u8]) -> bool) -> Option<bool> {
        if name.starts_with(':') || name == "host" {
            return self.header(name).map(|value| wanted(&value));
        }
        let mut values = self.headers.iter().filter(|(header, _)| header == name).map(|(_, value)| value).peekable();
        values.peek()?;
        Some(values.any(|value| wanted(value.as_bytes())))
    }
}

/// What an RBAC filter says; evaluation lives in crate `filters`, so the caller brings it.
pub trait Authorizer {
    /// Whether the filter lets the connection pass.
    fn connection(&self, filter: &RbacFilter, connection: &ConnectionView) -> Verdict;
    /// Whether the filter lets the request pass.
    fn request(&self, filter: &RbacFilter, connection: &ConnectionView, request: &PlainRequest) -> Verdict;
}

/// An RBAC filter's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// It may pass.
    pub allowed: bool,
    /// The policy that decided; `None`: none matched.
    pub policy: Option<Arc<str>>,
}

/// The call to explain.
#[derive(Debug)]
pub struct Call<'c> {
    /// Listener that accepts it, by name.
    pub listener: &'c str,
    /// What chooses the filter chain.
    pub chain: ChainInput<'c>,
    /// The connection as filters see it.
    pub connection: &'c ConnectionView,
    /// The request; `None` for plain TCP.
    pub request: Option<&'c PlainRequest>,
    /// Decides between weighted clusters and fractions.
    pub random: u64,
}

/// What happens to a call, step by step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// In order; the last one is how it ends.
    pub steps: Vec<Step>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Step {
    /// No listener of this name.
    NoListener { name: String },
    /// This has to be asked for first; then the call is decided anew.
    Unanswered { demand: Demand },
    /// No filter chain fits; the connection is closed.
    NoFilterChain { listener: Arc<str> },
    /// This chain takes the connection.
    FilterChain { listener: Arc<str>, chain: Arc<str>, tls: bool },
    /// An RBAC filter, network or HTTP, said this.
    Rbac { verdict: Verdict },
    /// The table the routes come from has not arrived.
    NoRouteTable { name: Arc<str> },
    /// The virtual host.
    VirtualHost { table: Arc<str>, name: Arc<str> },
    /// 301 to this URL, since the virtual host requires TLS.
    TlsRedirect { location: String },
    /// 404: no virtual host, or none of its routes, fits.
    NoRoute,
    /// This route serves the request.
    Route { name: Arc<str>, origin: Option<Arc<str>> },
    /// Header edits, in the order applied.
    Headers { level: &'static str, edits: Vec<String> },
    /// Redirect.
    Redirect { status: u16, location: String },
    /// Answer at once.
    DirectResponse { status: u16 },
    /// Forward with this path and authority.
    Forward { cluster: Arc<str>, path: String, authority: String },
    /// The cluster does not exist (or still warms): this status.
    NoCluster { cluster: Arc<str>, status: u16 },
    /// The cluster's endpoints.
    Endpoints { cluster: Arc<str>, count: usize },
}

/// Takes a call through a configuration.
pub fn explain(config: &Config, call: &Call<'_>, authorizer: &dyn Authorizer) -> Explanation {
    let mut trace = Trace { config, call, authorizer, steps: Vec::new() };
    trace.listener();
    Explanation { steps: trace.steps }
}

struct Trace<'t> {
    config: &'t Config,
    call: &'t Call<'t>,
    authorizer: &'t dyn Authorizer,
    steps: Vec<Step>,
}

impl<'t> Trace<'t> {
    fn listener(&mut self) {
        let Some(listener) = self.config.listeners.get(self.call.listener) else {
            self.steps.push(Step::NoListener { name: self.call.listener.into() });
            return;
        };
        match listener.find_filter_chain(&self.call.chain) {
            None => self.steps.push(Step::NoFilterChain { listener: listener.name.clone() }),
            Some(chain) => {
                let (name, tls) = (chain.name.clone(), chain.tls.is_some());
                self.steps.push(Step::FilterChain { listener: listener.name.clone(), chain: name, tls });
                self.chain(chain);
            }
        }
    }

    fn chain(&mut self, chain: &'t FilterChain) {
        for filter in &chain.network_filters {
            if let NetworkFilterConfig::Rbac(rbac) = &filter.config
                && !self.verdict(self.authorizer.connection(&rbac.filter, self.call.connection))
            {
                return;
            }
        }
        match &chain.terminal {
            Terminal::Tcp(proxy) => {
                if let Some((cluster, _)) =
                    proxy.destination(self.call.connection.server_name.as_ref(), self.call.random)
                {
                    match proxy.on_demand.and_then(|_| self.config.unanswered_cluster(cluster)) {
                        Some(demand) => self.steps.push(Step::Unanswered { demand }),
                        None => self.cluster(cluster, 0),
                    }
                }
            }
            Terminal::Http(manager) => {
                if let Some(request) = self.call.request {
                    self.http(manager, request);
                }
            }
        }
    }

    fn http(&mut self, manager: &'t HttpConnectionManager, request: &PlainRequest) {
        let table = match &manager.routes {
            RouteSource::Static(table) => table,
            RouteSource::Rds(name) => match self.config.routes.get(name) {
                Some(table) => table,
                None => {
                    self.steps.push(Step::NoRouteTable { name: name.clone() });
                    return;
                }
            },
        };
        if manager.on_demand.is_some()
            && let Some(demand) = table.unanswered(request.authority())
        {
            self.steps.push(Step::Unanswered { demand });
            return;
        }
        let selection = table.select(request, self.call.random);
        if !self.http_filters(manager, table, &selection, request) {
            return;
        }
        match selection {
            RouteSelection::NotFound(host) => {
                self.host(table, host);
                self.steps.push(Step::NoRoute);
            }
            RouteSelection::TlsRedirect(host) => {
                self.host(table, Some(host));
                let location = String::from_utf8_lossy(&https_location(request)).into_owned();
                self.steps.push(Step::TlsRedirect { location });
            }
            RouteSelection::Route(host, route) => {
                self.host(table, Some(host));
                self.route(table, host, route, request);
            }
        }
    }

    fn http_filters(
        &mut self,
        manager: &HttpConnectionManager,
        table: &RouteTable,
        selection: &RouteSelection<'_>,
        request: &PlainRequest,
    ) -> bool {
        let says = match selection {
            RouteSelection::Route(_, route) => {
                let cluster = match &route.action {
                    RouteAction::Forward(action) => action.pick_cluster(self.call.random),
                    _ => None,
                };
                RouteFilters::new(table, route, cluster)
            }
            _ => RouteFilters::default(),
        };
        let mut filters =
            manager.filters.iter().filter(|filter| !says.disabled(&filter.name).unwrap_or(filter.disabled));
        filters.all(|filter| match &filter.config {
            HttpFilterConfig::Rbac(own) => {
                let rules = match says.most_specific::<RbacPerRoute>(&filter.name) {
                    Some(per_route) => per_route.filter.as_ref(),
                    None => Some(&**own),
                };
                rules.is_none_or(|rules| self.verdict(self.authorizer.request(rules, self.call.connection, request)))
            }
            // What else there is lets every call pass, or decides by more than the call.
            _ => true,
        })
    }

    fn verdict(&mut self, verdict: Verdict) -> bool {
        let allowed = verdict.allowed;
        self.steps.push(Step::Rbac { verdict });
        allowed
    }

    fn host(&mut self, table: &RouteTable, host: Option<&Arc<VirtualHost>>) {
        if let Some(host) = host {
            self.steps.push(Step::VirtualHost { table: table.name.clone(), name: host.name.clone() });
        }
    }

    fn route(&mut self, table: &RouteTable, host: &VirtualHost, route: &Route, request: &PlainRequest) {
        self.steps.push(Step::Route { name: route.name.clone(), origin: route.origin.clone() });
        match &route.action {
            RouteAction::DirectResponse { status, .. } => self.steps.push(Step::DirectResponse { status: *status }),
            RouteAction::Redirect(action) => {
                let location = action.location(&route.matches, request);
                let location = String::from_utf8_lossy(&location).into_owned();
                self.steps.push(Step::Redirect { status: action.status, location });
            }
            RouteAction::Forward(action) => {
                let Some(target) = action.pick_cluster(self.call.random) else { return };
                let mut levels = vec![
                    ("weighted cluster", &target.headers),
                    ("route", &route.headers),
                    ("virtual host", &host.headers),
                    ("route configuration", &table.headers),
                ];
                if table.most_specific_wins {
                    levels.reverse();
                }
                for (level, edits) in levels.into_iter().filter(|(_, edits)| !edits.is_empty()) {
                    self.steps.push(Step::Headers { level, edits: edit_lines(edits) });
                }
                let path = action.rewrite_path(&route.matches, request.path());
                let authority = match (&target.host_rewrite, &action.host_rewrite) {
                    (Some(host), _) | (None, HostRewrite::Literal(host)) => host.to_string(),
                    (None, HostRewrite::Auto) => "(the endpoint's host name)".into(),
                    (None, HostRewrite::None) => request.authority.clone(),
                };
                let path = String::from_utf8_lossy(&path).into_owned();
                self.steps.push(Step::Forward { cluster: target.cluster.clone(), path, authority });
                self.cluster(&target.cluster, action.cluster_not_found_status);
            }
        }
    }

    fn cluster(&mut self, name: &Arc<str>, not_found_status: u16) {
        let cluster: Option<&Arc<Cluster>> = self.config.clusters.get(name);
        self.steps.push(match cluster {
            None => Step::NoCluster { cluster: name.clone(), status: not_found_status },
            Some(cluster) => Step::Endpoints { cluster: name.clone(), count: cluster.endpoints.hosts.len() },
        });
    }
}

fn edit_lines(edits: &HeaderEdits) -> Vec<String> {
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
            Self::Rbac { verdict } => {
                let says = if verdict.allowed { "allowed" } else { "denied" };
                let policy = verdict.policy.as_deref().unwrap_or("none");
                write!(f, "RBAC: {says} (policy that matched: {policy})")
            }
            Self::NoRouteTable { name } => write!(f, "route table {name:?} has not arrived: 404"),
            Self::VirtualHost { table, name } => write!(f, "route table {table:?}: virtual host {name:?}"),
            Self::TlsRedirect { location } => write!(f, "the virtual host requires TLS: 301 {location}"),
            Self::NoRoute => f.write_str("no route fits: 404"),
            Self::Route { name, origin: None } => write!(f, "route {name:?}"),
            Self::Route { name, origin: Some(origin) } => write!(f, "route {name:?}, from {origin}"),
            Self::Headers { level, edits } => write!(f, "headers of the {level}: {}", edits.join(", ")),
            Self::Redirect { status, location } => write!(f, "redirect: {status} {location}"),
            Self::DirectResponse { status } => write!(f, "direct response: {status}"),
            Self::Forward { cluster, path, authority } => {
                write!(f, "forward to cluster {cluster:?}: {path} (authority {authority})")
            }
            Self::NoCluster { cluster, status: 0 } => write!(f, "cluster {cluster:?} does not exist: closed"),
            Self::NoCluster { cluster, status } => write!(f, "cluster {cluster:?} does not exist: {status}"),
            Self::Endpoints { cluster, count } => write!(f, "cluster {cluster:?}: {count} endpoints"),
        }
    }
}
