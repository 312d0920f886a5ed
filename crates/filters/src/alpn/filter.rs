//! Leaves the protocols to offer for the connection to the cluster.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::alpn::{Alpn, AlpnOverrides};

use super::APPLICATION_PROTOCOLS;
use crate::http::{Decision, Filter, Hooks, RequestContext, Setup};
use crate::info::{Form, StateObject};
use crate::verdict::FilterVerdict;

/// `istio.alpn`.
#[derive(Debug)]
pub struct HttpFilter {
    /// One object for all requests.
    object: Rc<Offered>,
}

/// The protocols to offer, as an object of the filter state.
#[derive(Debug)]
struct Offered(Arc<AlpnOverrides>);

impl StateObject for Offered {
    fn write(&self, _: Form, _: &mut Vec<u8>) -> bool {
        // Envoy's object has no text either.
        false
    }

    fn alpn(&self) -> Option<&Arc<AlpnOverrides>> {
        Some(&self.0)
    }
}

impl Filter for HttpFilter {
    type Config = Alpn;
    type State = ();
    const HOOKS: Hooks = Hooks::REQUEST_HEAD;

    fn verdict(_: &Alpn) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(config: Arc<Alpn>, _: &Setup<'_>) -> Self {
        Self { object: Rc::new(Offered(Arc::clone(&config.overrides))) }
    }

    fn request_head(&self, (): &mut (), context: &mut RequestContext<'_>) -> Decision {
        if context.route.cluster.is_some() {
            context.info.set_object(APPLICATION_PROTOCOLS, Rc::clone(&self.object) as Rc<dyn StateObject>);
        }
        Decision::Continue
    }
}
