//! Filters and one connection, for tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use evenkeel_runtime_config::listener::{NetworkFilter, NetworkFilterConfig};
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_stats::Registry;

use super::{Data, Decision, FilteredConnection, NetworkFilters, Setup, Surroundings};
use crate::callouts::{Callouts, NoCallouts};
use crate::http::Services;
use crate::http::services::{Clock, Clusters, Names, NoClusters, SystemClock, Tasks};

/// A chain of filters with a connection in progress.
pub(crate) struct Fixture {
    pub(crate) registry: Arc<Registry>,
    pub(crate) filters: NetworkFilters,
    pub(crate) state: FilteredConnection,
    pub(crate) connection: ConnectionView,
}

impl Fixture {
    pub(crate) fn new(configs: impl IntoIterator<Item = NetworkFilterConfig>) -> Self {
        let numbered = configs.into_iter().enumerate();
        let filters: Vec<_> =
            numbered.map(|(at, config)| NetworkFilter { name: format!("f{at}").into(), config }).collect();
        let registry = Registry::new();
        let nowhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
        Self {
            filters: NetworkFilters::new(&filters, &Setup { registry: &registry }),
            registry,
            state: FilteredConnection::default(),
            connection: ConnectionView::plaintext(nowhere, nowhere),
        }
    }

    /// Starts another connection.
    pub(crate) fn again(&mut self) {
        self.state = FilteredConnection::default();
    }

    pub(crate) fn open(&mut self) -> Decision {
        let around = Surroundings { connection: &self.connection, services: &Nothing, now: Instant::now() };
        self.filters.new_connection(&mut self.state, around)
    }

    pub(crate) fn data(&mut self, bytes: &mut Vec<u8>, ends: bool) -> Decision {
        let around = Surroundings { connection: &self.connection, services: &Nothing, now: Instant::now() };
        self.filters.data(&mut self.state, &mut Data { bytes, ends }, around)
    }

    pub(crate) fn upstream_data(&mut self, bytes: &mut Vec<u8>, ends: bool) -> Decision {
        let around = Surroundings { connection: &self.connection, services: &Nothing, now: Instant::now() };
        self.filters.upstream_data(&mut self.state, &mut Data { bytes, ends }, around)
    }
}

/// A worker that offers nothing to filters.
pub(crate) struct Nothing;

impl Services for Nothing {
    fn clusters(&self) -> &dyn Clusters {
        &NoClusters
    }

    fn clock(&self) -> &dyn Clock {
        &SystemClock
    }

    fn random(&self) -> u64 {
        0
    }

    fn callouts(&self) -> &dyn Callouts {
        &NoCallouts
    }

    fn tasks(&self) -> Option<&dyn Tasks> {
        None
    }

    fn names(&self) -> Option<&dyn Names> {
        None
    }
}
