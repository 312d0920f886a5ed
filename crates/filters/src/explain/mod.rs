//! "What would happen to this call?": a connection and a request taken through a [`Config`] without a socket, by the code the proxy
//! itself runs. [`decide`] decides, the configuration's own filters are asked, and what they say is written down.

mod request;
mod step;

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::listener::{ChainInput, FilterChain, NetworkFilterConfig, TcpProxy, Terminal};
use evenkeel_runtime_config::view::{ConnectionView, PlainRequest};
use evenkeel_runtime_config::{Config, Demand, HttpConnectionManager};
use evenkeel_stats::{Registry, ScopeName};

use crate::decide::tcp_destination;
use crate::http::{HttpFilters, Setup};
use crate::rbac::Verdict;

pub use step::{Retries, Says, Step};

/// Connection managers whose filters are kept from one call to the next.
const MAX_MANAGERS: usize = 256;

/// The call to explain.
#[derive(Debug)]
pub struct Call<'c> {
    /// Listener that accepts it, by name.
    pub listener: &'c str,
    /// What chooses the filter chain.
    pub chain: ChainInput<'c>,
    /// The connection as filters see it.
    pub connection: &'c ConnectionView,
    /// The request, without a body; `None` for plain TCP. Its scheme is the connection's, unless it has `x-forwarded-proto` and the
    /// connection manager believes that.
    pub request: Option<&'c PlainRequest>,
    /// Every number that is drawn.
    pub random: u64,
}

/// What happens to a call, step by step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// In order; the last one is how it ends.
    pub steps: Vec<Step>,
    /// What the proxy answers itself; `None`: an upstream answers, or nobody does.
    pub answer: Option<LocalAnswer>,
}

/// An answer of the proxy's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalAnswer {
    /// Status.
    pub status: u16,
    /// `%RESPONSE_CODE_DETAILS%`.
    pub details: String,
}

/// Takes a call through a configuration.
pub fn explain(config: &Config, call: &Call<'_>) -> Explanation {
    Explainer::default().explain(config, call)
}

/// Takes calls through configurations; the filters of their connection managers are made once.
#[derive(Default)]
pub struct Explainer {
    managers: Vec<(Arc<HttpConnectionManager>, Rc<HttpFilters>)>,
    /// Statistics of the filters, which nobody reads.
    registry: Arc<Registry>,
}

impl Explainer {
    /// Takes a call through a configuration.
    pub fn explain(&mut self, config: &Config, call: &Call<'_>) -> Explanation {
        let mut steps = Vec::new();
        let answer = self.connection(config, call, &mut steps);
        Explanation { steps, answer }
    }

    fn connection(&mut self, config: &Config, call: &Call<'_>, steps: &mut Vec<Step>) -> Option<LocalAnswer> {
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
        if !admits(chain, call.connection, steps) {
            return None;
        }
        match &chain.terminal {
            Terminal::Tcp(proxy) => {
                tcp(config, proxy, call, steps);
                None
            }
            Terminal::Http(manager) => {
                let filters = self.filters(manager);
                request::explain((config, &self.registry), (manager, &filters), call, call.request?, steps)
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

/// Whether the chain's network filters let the connection pass.
fn admits(chain: &FilterChain, connection: &ConnectionView, steps: &mut Vec<Step>) -> bool {
    chain.network_filters.iter().all(|filter| match &filter.config {
        NetworkFilterConfig::Rbac(rbac) => {
            let verdict = Verdict::of_connection(&rbac.filter, connection);
            let allowed = verdict.allowed;
            steps.push(Step::Rbac { verdict });
            allowed
        }
        NetworkFilterConfig::ConnectionLimit(_) => true,
    })
}

fn tcp(config: &Config, proxy: &TcpProxy, call: &Call<'_>, steps: &mut Vec<Step>) {
    let Some(destination) = tcp_destination(config, proxy, call.connection, call.random) else { return };
    steps.push(match (destination.demand, config.clusters.get(destination.cluster)) {
        (Some(demand), _) => held(demand),
        (None, None) => Step::NoCluster { cluster: Arc::clone(destination.cluster), status: 0 },
        (None, Some(cluster)) => {
            Step::Endpoints { cluster: Arc::clone(destination.cluster), count: cluster.endpoints.hosts.len() }
        }
    });
}

fn held(demand: Demand) -> Step {
    Step::Unanswered { demand }
}
