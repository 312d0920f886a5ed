//! Answers "What would happen to this call?": takes a connection and a request through a [`Config`] without a socket,
//! using the proxy's own code. [`decide`] decides, the configuration's filters are called, and their decisions are
//! recorded.

pub mod cause;
pub mod query;
mod request;
mod step;
mod timing;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::cluster::Discovery;
use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::filter_chain_match::ChainInput;
use evenkeel_runtime_config::listener::{FilterChain, TcpProxy, Terminal};
use evenkeel_runtime_config::route::{Route, VirtualHost};
use evenkeel_runtime_config::route_filters::FilterOverrides;
use evenkeel_runtime_config::view::{ConnectionView, PlainRequest};
use evenkeel_runtime_config::{Config, Demand, HttpConnectionManager};
use evenkeel_stats::{Registry, ScopeName};

use crate::decide::tcp_destination;
use crate::http::{HttpFilters, Setup};
use crate::network;
use crate::remark::Remark;

pub use step::{Retries, Says, Step};

/// Connection managers whose filters are kept between calls.
const MAX_MANAGERS: usize = 256;

/// The call to explain.
#[derive(Debug)]
pub struct Call<'c> {
    /// Name of the listener that accepts it.
    pub listener: &'c str,
    /// What the filter chain is selected by.
    pub chain: ChainInput<'c>,
    /// The connection as filters see it.
    pub connection: &'c ConnectionView,
    /// The request, without a body; `None` for plain TCP. Its scheme is the connection's, unless it has
    /// `x-forwarded-proto` and the connection manager trusts that.
    pub request: Option<&'c PlainRequest>,
    /// The result of every random draw.
    pub random: u64,
}

/// What happens to a call, step by step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// In order; the last step is the outcome.
    pub steps: Vec<Step>,
    /// The local reply, if any; `None` if an upstream answers, or nobody does.
    pub answer: Option<LocalAnswer>,
}

/// The objects that took part in a decision, for explanations that tell more than [`Step`] does.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// The filter chain that was chosen.
    pub chain: Option<Arc<FilterChain>>,
    /// The request as it was matched: normalized, and as the filters left it.
    pub matched: Option<PlainRequest>,
    /// The virtual host.
    pub host: Option<Arc<VirtualHost>>,
    /// What the virtual host's route table says to filters.
    pub table_filters: FilterOverrides,
    /// The route.
    pub route: Option<Arc<Route>>,
    /// The request as it is forwarded, with the headers whose values the request determines.
    pub sent: Option<PlainRequest>,
    /// The client's address, as the headers of trusted proxies tell it.
    pub client: Option<SocketAddr>,
}

/// A local reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalAnswer {
    /// Status.
    pub status: u16,
    /// `%RESPONSE_CODE_DETAILS%`.
    pub details: String,
}

/// Explains a call under a configuration.
pub fn explain(config: &Config, call: &Call<'_>) -> Explanation {
    Explainer::default().explain(config, call)
}

/// Explains calls under configurations; the filters of their connection managers are created once.
#[derive(Default)]
pub struct Explainer {
    managers: Vec<(Arc<HttpConnectionManager>, Rc<HttpFilters>)>,
    /// The filters' statistics, which are not read.
    registry: Arc<Registry>,
}

impl Explainer {
    /// Explains a call under a configuration.
    pub fn explain(&mut self, config: &Config, call: &Call<'_>) -> Explanation {
        self.trace(config, call).0
    }

    /// Explains a call under a configuration, and tells which objects took part.
    pub fn trace(&mut self, config: &Config, call: &Call<'_>) -> (Explanation, Trace) {
        let (mut steps, mut trace) = (Vec::new(), Trace::default());
        let answer = self.connection(config, call, &mut steps, &mut trace);
        (Explanation { steps, answer }, trace)
    }

    fn connection(
        &mut self,
        config: &Config,
        call: &Call<'_>,
        steps: &mut Vec<Step>,
        trace: &mut Trace,
    ) -> Option<LocalAnswer> {
        let Some(listener) = config.listeners.get(call.listener) else {
            steps.push(Step::NoListener { name: call.listener.into() });
            return None;
        };
        let Some(chain) = listener.find_filter_chain(&call.chain) else {
            steps.push(Step::NoFilterChain { listener: Arc::clone(&listener.name) });
            return None;
        };
        let (listener, name, tls) = (Arc::clone(&listener.name), Arc::clone(&chain.name), chain.tls.is_some());
        steps.push(Step::FilterChain { listener, chain: name, tls });
        trace.chain = Some(Arc::clone(chain));
        let admitted = admit(chain, call.connection, steps)?;
        match &chain.terminal {
            Terminal::Tcp(proxy) => {
                tcp(config, proxy, call, &admitted, steps);
                None
            }
            Terminal::Http(manager) => {
                let filters = self.filters(manager);
                request::explain((config, &self.registry), (manager, &filters), call, call.request?, (steps, trace))
            }
        }
    }

    fn filters(&mut self, manager: &Arc<HttpConnectionManager>) -> Rc<HttpFilters> {
        if let Some((_, filters)) = self.managers.iter().find(|(known, _)| Arc::ptr_eq(known, manager)) {
            return Rc::clone(filters);
        }
        let outer = ScopeName::plain("explain.");
        let filters = Rc::new(HttpFilters::new(&manager.filters, &Setup { registry: &self.registry, outer: &outer }));
        if self.managers.len() >= MAX_MANAGERS {
            self.managers.clear();
        }
        self.managers.push((Arc::clone(manager), Rc::clone(&filters)));
        filters
    }
}

/// A connection that network filters let pass.
#[derive(Default)]
struct Admitted {
    /// A filter had no host to resolve.
    no_host: bool,
}

/// What the chain's network filters do with the connection; `None`: they close it.
fn admit(chain: &FilterChain, connection: &ConnectionView, steps: &mut Vec<Step>) -> Option<Admitted> {
    let (mut metadata, mut admitted) = (DynamicMetadata::default(), Admitted::default());
    for filter in &chain.network_filters {
        let Some(remark) = network::explain(filter, connection, &mut metadata) else { continue };
        let is_denied = matches!(&remark, Remark::Verdict(verdict) if !verdict.allowed);
        admitted.no_host |= matches!(remark, Remark::NoHost(_));
        steps.push(Step::of_remark(&filter.name, remark, false));
        if is_denied {
            return None;
        }
    }
    Some(admitted)
}

fn tcp(config: &Config, proxy: &TcpProxy, call: &Call<'_>, admitted: &Admitted, steps: &mut Vec<Step>) {
    let Some(destination) = tcp_destination(config, proxy, call.connection, call.random) else { return };
    steps.push(match (destination.demand, config.clusters.get(destination.cluster)) {
        (Some(demand), _) => held(demand),
        (None, None) => Step::NoCluster { cluster: Arc::clone(destination.cluster), status: 0 },
        (None, Some(cluster)) if admitted.no_host && matches!(cluster.discovery, Discovery::DynamicForwardProxy(_)) => {
            Step::NoHost { cluster: Arc::clone(destination.cluster) }
        }
        (None, Some(cluster)) => {
            Step::Endpoints { cluster: Arc::clone(destination.cluster), count: cluster.endpoints.hosts.len() }
        }
    });
}

fn held(demand: Demand) -> Step {
    Step::Unanswered { demand }
}
