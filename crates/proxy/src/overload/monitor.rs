//! Monitors resources on the control thread, and activates and deactivates overload actions.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use evenkeel_runtime_config::overload::{Action, Monitor, Overload as Config};
use evenkeel_stats::{Registry, ScopeName, Writer, layout};
use tokio::time::MissedTickBehavior;

use super::Overload;
use crate::memory;
use crate::pool::WorkerPool;

layout! {
    /// `overload.MONITOR.`
    pub mod resource {
        counters { failed_updates }
        gauges { pressure }
        histograms {}
        statuses None
    }
}

layout! {
    /// `overload.ACTION.`
    pub mod action {
        counters {}
        gauges { active, scale_percent }
        histograms {}
        statuses None
    }
}

/// Monitors the resources for the life of the process. Returns at once when no action is configured.
pub(crate) async fn watch(config: Config, overload: Arc<Overload>, pool: Arc<WorkerPool>, registry: Arc<Registry>) {
    if config.actions.is_empty() {
        return;
    }
    let mut watching = Watching::new(config, overload, &registry);
    let mut ticks = tokio::time::interval(watching.config.refresh_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let connections = u64::from(pool.active_connections());
        watching.observe(|monitor| used(monitor, connections));
        if watching.overload.is_on_at_all(Action::ShrinkHeap) {
            memory::collect();
        }
    }
}

/// The rules and their latest results.
struct Watching {
    config: Config,
    overload: Arc<Overload>,
    resources: Vec<Writer<resource::Stats>>,
    actions: Vec<Writer<action::Stats>>,
    /// Used share of each resource, 0–1; the last known one when it cannot be read.
    shares: Vec<f64>,
}

impl Watching {
    fn new(config: Config, overload: Arc<Overload>, registry: &Registry) -> Self {
        let resource = |monitor: &Monitor| registry.scope(stat_name(monitor_name(monitor))).writer();
        let action = |name: &str| registry.scope(stat_name(name)).writer();
        Self {
            resources: config.monitors.iter().map(resource).collect(),
            actions: config.actions.iter().map(|rule| action(rule.action.name())).collect(),
            shares: vec![0.0; config.monitors.len()],
            config,
            overload,
        }
    }

    fn observe(&mut self, used: impl Fn(&Monitor) -> io::Result<f64>) {
        for ((monitor, share), stats) in self.config.monitors.iter().zip(&mut self.shares).zip(&self.resources) {
            match used(monitor) {
                Ok(now) => *share = now,
                Err(error) => {
                    stats.inc(resource::Counter::failed_updates);
                    tracing::warn!(monitor = monitor_name(monitor), %error, "cannot say how much is used");
                }
            }
            stats.set(resource::Gauge::pressure, (*share * 100.0) as i64);
        }
        for (rule, stats) in self.config.actions.iter().zip(&self.actions) {
            let shares = &self.shares;
            let extents = rule.triggers.iter().map(|trigger| trigger.extent(shares[trigger.monitor]));
            let extent = extents.fold(0.0, f64::max);
            self.say(rule.action, extent);
            stats.set(action::Gauge::active, i64::from(extent >= 1.0));
            stats.set(action::Gauge::scale_percent, (extent * 100.0) as i64);
        }
    }

    /// Sets an action's extent, and logs when it becomes active and inactive.
    fn say(&self, action: Action, extent: f64) {
        let before = self.overload.is_on_at_all(action);
        self.overload.set_extent(action, extent);
        match (before, extent > 0.0) {
            (false, true) => tracing::warn!(action = action.name(), extent, "overload action begins"),
            (true, false) => tracing::warn!(action = action.name(), "overload action ends"),
            _ => {}
        }
    }
}

fn stat_name(name: &str) -> ScopeName {
    ScopeName::plain(&format!("overload.{name}."))
}

fn monitor_name(monitor: &Monitor) -> &'static str {
    match monitor {
        Monitor::FixedHeap { .. } => "envoy.resource_monitors.fixed_heap",
        Monitor::CgroupMemory { .. } => "envoy.resource_monitors.cgroup_memory",
        Monitor::DownstreamConnections { .. } => "envoy.resource_monitors.global_downstream_max_connections",
    }
}

/// Used share of a resource, 0–1 or more.
fn used(monitor: &Monitor, connections: u64) -> io::Result<f64> {
    match monitor {
        // Resident memory is what the OOM killer counts, whatever the allocator considers free.
        Monitor::FixedHeap { max_bytes } => Ok(memory::resident_bytes()? as f64 / *max_bytes as f64),
        Monitor::CgroupMemory { max_bytes } => cgroup_share(Path::new("/sys/fs/cgroup"), *max_bytes),
        Monitor::DownstreamConnections { max } => Ok(connections as f64 / *max as f64),
    }
}

/// Memory used by the cgroup mounted at `root`, version 2 or 1, relative to its limit or `max_bytes`, whichever is
/// less.
fn cgroup_share(root: &Path, max_bytes: Option<u64>) -> io::Result<f64> {
    let versions = [("memory.current", "memory.max"), ("memory/memory.usage_in_bytes", "memory/memory.limit_in_bytes")];
    let (usage, limit) = versions.iter().find(|(usage, _)| root.join(usage).exists()).unwrap_or(&versions[0]);
    let number = |file: &str| fs::read_to_string(root.join(file)).map(|text| text.trim().parse::<u64>().ok());
    let usage = number(usage)?.ok_or_else(|| io::Error::other("the cgroup's usage is not a number"))?;
    // No file, or `max`: the root cgroup, or no limit.
    let limit = number(limit).ok().flatten().unwrap_or(u64::MAX).min(max_bytes.unwrap_or(u64::MAX));
    Ok(usage as f64 / limit.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use evenkeel_runtime_config::overload::{ActionRule, Trigger};

    use super::*;

    #[test]
    fn actions_follow_the_strongest_trigger_and_end_with_the_pressure() {
        let rule = |action, triggers: &[(usize, f64, f64)]| ActionRule {
            action,
            triggers: triggers.iter().map(|&(monitor, from, full)| Trigger { monitor, from, full }).collect(),
        };
        let config = Config {
            monitors: vec![Monitor::FixedHeap { max_bytes: 1 }, Monitor::DownstreamConnections { max: 1 }],
            actions: vec![
                rule(Action::StopAcceptingRequests, &[(0, 0.9, 0.9), (1, 0.5, 1.0)]),
                rule(Action::ShrinkHeap, &[(0, 0.8, 0.8)]),
            ],
            ..Config::default()
        };
        let overload = Overload::new(&config);
        let registry = Registry::new();
        let mut watching = Watching::new(config, Arc::clone(&overload), &registry);
        let (heap, connections) = (Cell::new(Some(0.0)), Cell::new(0.0));
        let mut check = |now: Option<f64>, cx: f64, requests: u64, shrink: u64| {
            heap.set(now);
            connections.set(cx);
            watching.observe(|monitor| match monitor {
                Monitor::FixedHeap { .. } => heap.get().ok_or_else(|| io::Error::other("unreadable")),
                _ => Ok(connections.get()),
            });
            let text = registry.text();
            for (action, percent) in [(Action::StopAcceptingRequests, requests), (Action::ShrinkHeap, shrink)] {
                let line = format!("overload.{}.scale_percent: {percent}\n", action.name());
                assert!(text.contains(&line), "{line} not in {text}");
            }
        };
        check(Some(0.5), 0.5, 0, 0);
        check(Some(0.85), 0.75, 50, 100);
        check(Some(0.95), 0.0, 100, 100);
        // A resource that cannot be read keeps its value.
        check(None, 0.0, 100, 100);
        check(Some(0.1), 0.0, 0, 0);
        assert_eq!(overload.shrinks(), 3);
        assert!(registry.text().contains("overload.envoy.resource_monitors.fixed_heap.failed_updates: 1\n"));
    }

    #[test]
    fn a_cgroups_memory_is_read_in_both_versions() {
        let check = |files: &[(&str, &str)], max_bytes, expected: Option<f64>| {
            let root = tempfile::tempdir().expect("a folder");
            for (name, text) in files {
                let path = root.path().join(name);
                fs::create_dir_all(path.parent().expect("inside root")).expect("writable");
                fs::write(path, text).expect("writable");
            }
            assert_eq!(cgroup_share(root.path(), max_bytes).ok(), expected, "{files:?}");
        };
        check(&[("memory.current", "50\n"), ("memory.max", "100\n")], None, Some(0.5));
        check(&[("memory.current", "50\n"), ("memory.max", "100\n")], Some(50), Some(1.0));
        check(&[("memory.current", "50\n"), ("memory.max", "max\n")], Some(200), Some(0.25));
        let v1 = [("memory/memory.usage_in_bytes", "1"), ("memory/memory.limit_in_bytes", "4")];
        check(&v1, None, Some(0.25));
        check(&[("memory.current", "many\n")], None, None);
        check(&[], None, None);
    }
}
