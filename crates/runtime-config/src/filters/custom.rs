//! HTTP and network filters whose implementation the registries do not know: the open arm, for filters of programs that embed the proxy and of virtual
//! machines. [`Environment::custom_filters`](crate::Environment) lists the kinds that a process has.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::filter_needs::FilterNeeds;
use crate::route_filters::PerRoute;

/// A kind of custom filters.
#[derive(Debug, Clone, Copy)]
pub struct CustomFilterKind {
    /// The full name of its message.
    pub message: &'static str,
    /// Compiles the encoded message, or says what is wrong with it.
    pub compile: fn(&[u8]) -> Result<CustomFilter, String>,
    /// The configuration that a route table, virtual host, route or weighted cluster may have for HTTP filters of this kind.
    pub per_route: Option<CustomRouteKind>,
}

impl CustomFilterKind {
    /// Whether this is the name of a message of the kind.
    pub(crate) fn has_message(&self, name: &str) -> bool {
        self.message == name || self.per_route.is_some_and(|route| route.message == name)
    }
}

/// The per-route configuration of a kind of custom filters.
#[derive(Debug, Clone, Copy)]
pub struct CustomRouteKind {
    /// The full name of its message; it may be that of the filter.
    pub message: &'static str,
    /// Compiles the encoded message to what the filter reads with `RequestContext::per_route`, or says what is wrong with it.
    pub compile: CompileRoute,
}

/// Compiles an encoded message of a route.
pub type CompileRoute = fn(&[u8]) -> Result<Arc<dyn PerRoute>, String>;

/// A configured custom filter.
#[derive(Clone)]
pub struct CustomFilter {
    /// The full name of its message.
    pub message: &'static str,
    /// Clusters that it calls.
    pub clusters: Vec<Arc<str>>,
    /// What crate `filters` creates the filter from: its `CustomFactory`.
    pub factory: Arc<dyn Any + Send + Sync>,
}

/// The `factory` of a filter whose configuration has not arrived: nothing may pass it.
#[derive(Debug)]
pub struct MissingConfig;

impl CustomFilter {
    /// Stands for a filter whose configuration has not arrived.
    pub(crate) fn missing() -> Self {
        Self { message: "", clusters: Vec::new(), factory: Arc::new(MissingConfig) }
    }
}

impl fmt::Debug for CustomFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CustomFilter({})", self.message)
    }
}

impl FilterNeeds for CustomFilter {
    fn clusters(&self) -> Vec<&Arc<str>> {
        self.clusters.iter().collect()
    }

    /// Nobody knows what it reads.
    fn reads(&self, _name: &str) -> bool {
        true
    }
}
