//! Resolves the names of STRICT_DNS and LOGICAL_DNS clusters on the control thread, and refreshes them.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::builder::DnsCluster;
use evenkeel_runtime_config::dns::DnsOptions;
use tokio::task::AbortHandle;

use crate::resolver::{Found, Resolvers, failure_pause, jitter, resolve, resolver, sorted};
use crate::state::Shared;

/// Minimum refresh interval that results from a TTL.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Runs one task per name of a DNS cluster.
#[derive(Default)]
pub(crate) struct Dns {
    tasks: HashMap<Target, Task>,
    resolvers: Rc<Resolvers>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Target {
    cluster: Arc<str>,
    host: Arc<str>,
}

struct Task {
    options: DnsOptions,
    keeps_last: bool,
    /// The first lookup has ended, in success or failure.
    answered: Rc<Cell<bool>>,
    abort: AbortHandle,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

impl Dns {
    /// Whether the first lookup of any name is still running.
    pub fn is_resolving(&self) -> bool {
        self.tasks.values().any(|task| !task.answered.get())
    }

    /// Starts and stops tasks so that there is one for each name.
    pub fn update(&mut self, clusters: &[DnsCluster], shared: &Shared) {
        let wanted: HashMap<Target, &DnsCluster> = clusters
            .iter()
            .flat_map(|cluster| {
                cluster.targets.iter().map(move |target| {
                    (Target { cluster: cluster.cluster.clone(), host: target.host.clone() }, cluster)
                })
            })
            .collect();
        let same = |task: &Task, cluster: &DnsCluster| {
            (&task.options, task.keeps_last) == (&cluster.options, cluster.keeps_last)
        };
        self.tasks.retain(|target, task| wanted.get(target).is_some_and(|cluster| same(task, cluster)));
        for (target, cluster) in wanted {
            if !self.tasks.contains_key(&target) {
                let (options, keeps_last) = (cluster.options.clone(), cluster.keeps_last);
                let answered = Rc::new(Cell::new(false));
                let name = Name {
                    target: target.clone(),
                    options: options.clone(),
                    keeps_last,
                    answered: answered.clone(),
                    resolvers: self.resolvers.clone(),
                    shared: shared.clone(),
                };
                let abort = tokio::task::spawn_local(name.keep_resolved()).abort_handle();
                self.tasks.insert(target, Task { options, keeps_last, answered, abort });
            }
        }
    }
}

/// One name of one cluster.
struct Name {
    target: Target,
    options: DnsOptions,
    keeps_last: bool,
    answered: Rc<Cell<bool>>,
    resolvers: Rc<Resolvers>,
    shared: Shared,
}

impl Name {
    async fn keep_resolved(self) {
        let Self { target, options, keeps_last, answered, resolvers, shared } = self;
        let mut known: Option<Vec<IpAddr>> = None;
        let mut failures = 0;
        loop {
            let found = match resolver(&resolvers, &options) {
                Some(resolver) => resolve(&resolver, &target.host).await,
                None => Found::Failure("no resolver".into()),
            };
            let found = sorted(&target.host, found);
            failures = if matches!(found, Found::Addresses(..)) { 0 } else { failures + 1 };
            let pause = match &found {
                Found::Addresses(_, ttl) => pause(&options, *ttl),
                Found::Nothing(Some(ttl), _) if options.respect_ttl => pause(&options, *ttl),
                Found::Nothing(..) | Found::Failure(_) => failure_pause(&options, failures),
            };
            let addresses = match found {
                Found::Addresses(addresses, _) => Some(addresses),
                Found::Nothing(..) if !keeps_last => Some(Vec::new()),
                // Keeps the known addresses; after a first failure the cluster continues without endpoints.
                Found::Nothing(..) | Found::Failure(_) => known.is_none().then(Vec::new),
            };
            if let Some(addresses) = addresses.filter(|addresses| known.as_ref() != Some(addresses)) {
                shared.state.borrow_mut().builder.set_dns_endpoints(&target.cluster, &target.host, &addresses);
                answered.set(true);
                known = Some(addresses);
                shared.dirty.notify_one();
            }
            tokio::time::sleep(pause + jitter(options.jitter)).await;
        }
    }
}

/// Pause after an answer. A TTL of 0 does not say when to refresh.
fn pause(options: &DnsOptions, ttl: Duration) -> Duration {
    if options.respect_ttl && !ttl.is_zero() { ttl.max(MIN_PAUSE) } else { options.refresh }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_after_answers_follow_the_time_to_live_or_the_rate() {
        let rate = DnsOptions { refresh: Duration::from_secs(7), ..DnsOptions::default() };
        let ttl = DnsOptions { respect_ttl: true, ..rate.clone() };
        let check = |options: &DnsOptions, millis: u64, expected: u64| {
            assert_eq!(pause(options, Duration::from_millis(millis)), Duration::from_millis(expected), "{millis}");
        };
        check(&rate, 30_000, 7_000);
        check(&ttl, 30_000, 30_000);
        check(&ttl, 300, 1_000);
        check(&ttl, 0, 7_000);
    }
}
