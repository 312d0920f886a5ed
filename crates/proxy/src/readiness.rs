//! Determines whether the process is ready, and what it waits for if not.

use std::fmt::Write as _;
use std::time::Duration;

use evenkeel_runtime_config::Reference;
use evenkeel_runtime_config::builder::Interest;
use evenkeel_xds::ResourceType;
use tokio::time::Instant;

use crate::scope::usage::REMEMBERED_HOLD;
use crate::state::{Phase, Shared, State};

/// Interval at which a process that is not ready logs what it waits for.
const SAY_INTERVAL: Duration = Duration::from_secs(5);
/// Names of one type that are listed; the others are only counted.
const MAX_SAID: usize = 3;

impl State {
    /// The phase that results from what is missing.
    pub fn next_phase(&self) -> Phase {
        // Warming after the start does not make the process unready again.
        if matches!(self.phase, Phase::Live | Phase::Draining) {
            return self.phase;
        }
        let missing = self.builder.missing();
        let waits_for_clusters = self.awaits.clusters
            || !missing.clusters.is_empty()
            || !self.builder.clusters_are_answered()
            || self.resolving;
        let waits_for = [&missing.listeners, &missing.routes, &missing.virtual_hosts, &missing.secrets];
        let waits = waits_for_clusters || self.awaits.listeners || waits_for.iter().any(|names| !names.is_empty());
        match waits {
            false => Phase::Live,
            true if self.waits_for_remembered_only() => Phase::Live,
            true if waits_for_clusters => Phase::PreInitializing,
            true => Phase::Initializing,
        }
    }

    /// Whether only remembered names are missing, and have been waited for long enough, while everything wanted from
    /// the start is there.
    fn waits_for_remembered_only(&self) -> bool {
        self.scope.remembered_is_overdue(Instant::now())
            && !self.awaits.clusters
            && !self.awaits.listeners
            && self.builder.basis_is_answered()
    }

    /// A short description of what an unready process waits for; `None`: nothing.
    pub fn waits_for(&self) -> Option<String> {
        if matches!(self.phase, Phase::Live | Phase::Draining) {
            return None;
        }
        let mut text = String::new();
        let mut say = |what: &str| {
            let comma = if text.is_empty() { "" } else { ", " };
            // Writing to a string cannot fail.
            let _ = write!(text, "{comma}{what}");
        };
        if self.streams.iter().any(|(key, stream)| key.is_aggregated() && !stream.connected) {
            say("the control plane");
        }
        if self.awaits.clusters {
            say("its first clusters");
        }
        if self.awaits.listeners {
            say("its first listeners");
        }
        let missing = self.builder.missing();
        for (kind, references) in of_each_type(&missing) {
            for reference in references.iter().take(MAX_SAID) {
                say(&format!("{kind} {}", reference.name));
            }
            if let Some(more @ 1..) = references.len().checked_sub(MAX_SAID) {
                say(&format!("{more} more of {kind}"));
            }
        }
        if self.resolving {
            say("DNS");
        }
        (!text.is_empty()).then_some(text)
    }
}

/// The missing names, by type.
pub(crate) fn of_each_type(interest: &Interest) -> [(ResourceType, &[Reference]); 7] {
    [
        (ResourceType::Cluster, &interest.clusters),
        (ResourceType::Listener, &interest.listeners),
        (ResourceType::VirtualHost, &interest.virtual_hosts),
        (ResourceType::Endpoint, &interest.endpoints),
        (ResourceType::Route, &interest.routes),
        (ResourceType::Secret, &interest.secrets),
        (ResourceType::ExtensionConfig, &interest.extensions),
    ]
}

impl Shared {
    /// Logs what is waited for, until the process is ready.
    pub async fn say_what_is_awaited(&self) {
        loop {
            tokio::time::sleep(SAY_INTERVAL).await;
            let state = self.state.borrow();
            if matches!(state.phase, Phase::Live | Phase::Draining) {
                return;
            }
            if let Some(waits) = state.waits_for() {
                tracing::warn!(state = state.phase.as_str(), "not ready: waits for {waits}");
            }
        }
    }

    /// Settles again when the remembered names have been waited for long enough.
    pub fn limit_remembered(&self) {
        let shared = self.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(REMEMBERED_HOLD).await;
            shared.dirty.notify_one();
        });
    }
}
