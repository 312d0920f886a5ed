//! The registry's open arm: network filters that the registry does not know by name, called by dynamic dispatch.

use std::any::Any;
use std::fmt;
use std::ops::Deref;

use evenkeel_runtime_config::custom as config;

use super::{Close, ConnectionContext, ConnectionFacts, Data, Decision, End, Hooks, Setup};

/// A custom filter's state for one connection: whatever the filter puts there.
pub type State = Option<Box<dyn Any>>;

/// A network filter that is not in the registry. Each worker has its own. The hooks are those of the registry's filters, see
/// docs/contributing/how-to-add.md, "How to add a filter".
#[allow(missing_docs)]
pub trait CustomFilter {
    /// The hooks it has; the others are never called.
    fn hooks(&self) -> Hooks {
        Hooks::ALL
    }

    fn new_connection(&self, _state: &mut State, _context: &mut ConnectionContext<'_>) -> Decision {
        Decision::Continue
    }

    fn data(&self, _state: &mut State, _data: &mut Data<'_>, _context: &mut ConnectionContext<'_>) -> Decision {
        Decision::Continue
    }

    fn upstream_data(
        &self,
        _state: &mut State,
        _data: &mut Data<'_>,
        _context: &mut ConnectionContext<'_>,
    ) -> Decision {
        Decision::Continue
    }

    fn complete(&self, _state: &mut State, _end: &End, _facts: &mut ConnectionFacts) {}
}

/// Creates a worker's filter. It is the `factory` of a configured [custom filter](config::CustomFilter).
pub struct CustomFactory(Box<Create>);

type Create = dyn Fn(&Setup<'_>) -> Box<dyn CustomFilter> + Send + Sync;

impl CustomFactory {
    /// Wraps the function that creates a worker's filter.
    pub fn new(create: impl Fn(&Setup<'_>) -> Box<dyn CustomFilter> + Send + Sync + 'static) -> Self {
        Self(Box::new(create))
    }
}

impl fmt::Debug for CustomFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomFactory")
    }
}

/// A worker's custom filter.
pub(crate) struct NetworkFilter(Box<dyn CustomFilter>);

impl NetworkFilter {
    pub(super) fn new(config: &config::CustomFilter, setup: &Setup<'_>) -> Self {
        match config.factory.downcast_ref::<CustomFactory>() {
            Some(factory) => Self((factory.0)(setup)),
            None if config.factory.is::<config::MissingConfig>() => Self(Box::new(Missing)),
            None => Self(Box::new(Broken)),
        }
    }

    #[cfg(feature = "test-filter")]
    pub(super) fn of(filter: impl CustomFilter + 'static) -> Self {
        Self(Box::new(filter))
    }
}

impl Deref for NetworkFilter {
    type Target = dyn CustomFilter;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for NetworkFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetworkFilter")
    }
}

/// Stands for a filter whose configuration has no [`CustomFactory`]: no connection passes it.
struct Broken;

impl CustomFilter for Broken {
    fn new_connection(&self, _: &mut State, _: &mut ConnectionContext<'_>) -> Decision {
        Decision::broken()
    }
}

/// Stands for a filter whose configuration has not arrived: no connection passes it.
struct Missing;

impl CustomFilter for Missing {
    fn new_connection(&self, _: &mut State, _: &mut ConnectionContext<'_>) -> Decision {
        Decision::Close(Close { flag: Some("NFCF"), ..Close::new("extension_config_missing") })
    }
}
