//! Settling: brings everything in line with the resources held. It subscribes to what is referred to, builds the
//! configuration, hands it to the workers, and derives the server's phase from what is missing.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::builder::Interest;
use evenkeel_runtime_config::{Demand, Reference};
use evenkeel_xds::ResourceType;
use tokio::task::AbortHandle;

use crate::dns::Dns;
use crate::readiness::of_each_type;
use crate::state::{Phase, Settle, Shared};
use crate::subscribe::Subscriptions;

/// State kept between two calls of `settle`.
pub(crate) struct Settler {
    subscriptions: RefCell<Subscriptions>,
    dns: RefCell<Dns>,
    /// Timers (`initial_fetch_timeout`) of references whose first answer is awaited.
    timers: RefCell<HashMap<(ResourceType, Reference), AbortHandle>>,
}

impl Settler {
    pub fn new(subscriptions: Subscriptions) -> Self {
        Self { subscriptions: RefCell::new(subscriptions), dns: RefCell::default(), timers: RefCell::default() }
    }
}

impl Settle for Settler {
    fn settle(&self, shared: &Shared) {
        let mut guard = shared.state.borrow_mut();
        let state = &mut *guard;
        let config = state.builder.build();
        state.note_admitted();
        let asked = state.builder.take_asked();
        // As in Envoy: LDS is subscribed once the clusters of the first CDS answer are warmed.
        let clusters_ready = !state.awaits.clusters && state.builder.clusters_are_answered();
        self.subscriptions.borrow_mut().update(&asked, clusters_ready, shared);
        state.forget_records(&asked);
        if state.builder.take_dns_changed() {
            self.dns.borrow_mut().update(&state.builder.dns_clusters(), shared);
        }
        state.resolving = self.dns.borrow().is_resolving();
        if !Arc::ptr_eq(&config, &state.config) {
            state.health.update(&config, &state.config);
            let errors = state.pool.apply(&config);
            state.config = config;
            if let Some(errors) = errors {
                state.note_bind_errors(errors);
            }
        }
        if state.builder.take_missing_changed() {
            self.watch_timeouts(&state.builder.missing(), shared);
        }
        let phase = state.next_phase();
        if phase != state.phase {
            if let (Phase::Live, Some(waits)) = (phase, state.waits_for()) {
                tracing::warn!("what is remembered of the workload is not waited for any longer: {waits}");
            }
            state.phase = phase;
            let elapsed_ms = state.started.elapsed().as_millis();
            tracing::info!(state = phase.as_str(), elapsed_ms, "server state");
        }
        drop(guard);
        shared.settled.notify_waiters();
    }
}

impl Settler {
    /// Starts and cancels the `initial_fetch_timeout` timers of references that await their first answer.
    fn watch_timeouts(&self, missing: &Interest, shared: &Shared) {
        let mut timers = self.timers.borrow_mut();
        let kinds = of_each_type(missing);
        let still_missing: HashSet<(ResourceType, &Reference)> =
            kinds.iter().flat_map(|(kind, references)| references.iter().map(|reference| (*kind, reference))).collect();
        timers.retain(|(kind, reference), timer| {
            let awaited = still_missing.contains(&(*kind, reference));
            if !awaited {
                timer.abort();
            }
            awaited
        });
        for (kind, references) in kinds {
            for reference in references {
                let Some(timeout) = reference.initial_fetch_timeout else { continue };
                let key = (kind, reference.clone());
                let start = || start_timer(shared.clone(), kind, reference.clone(), timeout);
                timers.entry(key).or_insert_with(start);
            }
        }
    }
}

/// Gives up waiting for a resource when `timeout` has passed.
fn start_timer(
    shared: Shared,
    kind: ResourceType,
    reference: Reference,
    timeout: Duration,
) -> tokio::task::AbortHandle {
    let give_up = async move {
        tokio::time::sleep(timeout).await;
        tracing::warn!(
            kind = kind.short_name(),
            name = &*reference.name,
            timeout_ms = timeout.as_millis(),
            "no first answer within initial_fetch_timeout; going on without"
        );
        let mut state = shared.state.borrow_mut();
        let demand = Demand::of(kind, &reference.name);
        state.note_given_up(usize::from(demand.is_some()));
        let builder = &mut state.builder;
        match kind {
            ResourceType::Cluster | ResourceType::Listener | ResourceType::VirtualHost => {
                demand.iter().for_each(|demand| builder.give_up(demand));
            }
            ResourceType::Endpoint => builder.give_up_endpoints(&reference),
            ResourceType::Route => builder.give_up_route(&reference),
            ResourceType::ExtensionConfig => builder.give_up_extension(&reference),
            _ => builder.give_up_secret(&reference),
        }
        drop(state);
        shared.dirty.notify_one();
    };
    tokio::task::spawn_local(give_up).abort_handle()
}
