//! Overload protection: `overload_manager` and the limits of the static runtime layer.
//!
//! As in Envoy's overload manager, monitors measure the usage of resources and actions trigger at a share of it.
//! Per-listener limits are runtime keys in Envoy (`envoy.resource_limits.listener.NAME.connection_limit`), so they are
//! here.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::runtime_key::RuntimeKey;
use evenkeel_xds::pb::envoy::config::bootstrap::v3 as bootstrap;
use evenkeel_xds::pb::envoy::config::bootstrap::v3::runtime_layer::LayerSpecifier;
use evenkeel_xds::pb::envoy::config::overload::v3 as overload;
use evenkeel_xds::pb::envoy::extensions::resource_monitors::cgroup_memory::v3::CgroupMemoryConfig;
use evenkeel_xds::pb::envoy::extensions::resource_monitors::downstream_connections::v3::DownstreamConnectionsConfig;
use evenkeel_xds::pb::envoy::extensions::resource_monitors::fixed_heap::v3::FixedHeapConfig;
use evenkeel_xds::pb::google::protobuf::value::Kind;
use prost::Name;

use crate::FastMap;
use crate::compile::runtime::flat;
use crate::compile::{Cx, type_name};

/// Interval of resource monitoring if the bootstrap sets none (Envoy's default).
const DEFAULT_REFRESH: Duration = Duration::from_secs(1);

/// Resource monitors, overload actions, and fixed limits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overload {
    /// Interval between readings of the monitors.
    pub refresh_interval: Duration,
    /// The monitored resources.
    pub monitors: Vec<Monitor>,
    /// Overload actions, each with its triggers.
    pub actions: Vec<ActionRule>,
    /// Limit of downstream connections of the whole process; more are closed immediately. `None`: no limit.
    pub max_connections: Option<u64>,
    /// Limits by listener name.
    pub listeners: FastMap<Arc<str>, ListenerLimits>,
    /// Detection of rapid resets over HTTP/2.
    pub premature_resets: PrematureResets,
}

/// When an HTTP/2 client counts as resetting streams maliciously. Names and defaults are Envoy's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrematureResets {
    /// A connection is closed when half of its closed streams, counted as at least this many, were reset prematurely
    /// (`overload.premature_reset_total_stream_count`).
    pub total_stream_count: u32,
    /// A stream reset within this many seconds, before a response, is reset prematurely
    /// (`overload.premature_reset_min_stream_lifetime_seconds`).
    pub min_stream_lifetime_seconds: u32,
}

impl Default for PrematureResets {
    fn default() -> Self {
        Self { total_stream_count: 500, min_stream_lifetime_seconds: 1 }
    }
}

/// A resource monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Monitor {
    /// `envoy.resource_monitors.fixed_heap`: resident memory against a number of bytes.
    FixedHeap {
        /// Bytes that count as 100 %.
        max_bytes: u64,
    },
    /// `envoy.resource_monitors.cgroup_memory`: the cgroup's memory against its limit, or a lower one.
    CgroupMemory {
        /// Bytes that count as 100 %; `None`: the cgroup's own limit.
        max_bytes: Option<u64>,
    },
    /// `envoy.resource_monitors.global_downstream_max_connections`.
    DownstreamConnections {
        /// Connections that count as 100 %.
        max: u64,
    },
}

/// An overload action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// `envoy.overload_actions.stop_accepting_requests`: new requests are answered with 503.
    StopAcceptingRequests,
    /// `envoy.overload_actions.disable_http_keepalive`: connections are closed after their current request.
    DisableHttpKeepalive,
    /// `envoy.overload_actions.stop_accepting_connections`: new connections wait in the kernel's accept queue.
    StopAcceptingConnections,
    /// `envoy.overload_actions.reject_incoming_connections`: new connections are reset.
    RejectIncomingConnections,
    /// `envoy.overload_actions.shrink_heap`: free memory is returned to the system.
    ShrinkHeap,
}

impl Action {
    /// All actions.
    pub const ALL: [Self; 5] = [
        Self::StopAcceptingRequests,
        Self::DisableHttpKeepalive,
        Self::StopAcceptingConnections,
        Self::RejectIncomingConnections,
        Self::ShrinkHeap,
    ];

    /// Envoy's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StopAcceptingRequests => "envoy.overload_actions.stop_accepting_requests",
            Self::DisableHttpKeepalive => "envoy.overload_actions.disable_http_keepalive",
            Self::StopAcceptingConnections => "envoy.overload_actions.stop_accepting_connections",
            Self::RejectIncomingConnections => "envoy.overload_actions.reject_incoming_connections",
            Self::ShrinkHeap => "envoy.overload_actions.shrink_heap",
        }
    }
}

/// An action and its triggers, of which the strongest counts.
#[derive(Debug, Clone, PartialEq)]
pub struct ActionRule {
    /// The action.
    pub action: Action,
    /// When it is active.
    pub triggers: Vec<Trigger>,
}

/// A share of a resource at which an action becomes active.
#[derive(Debug, Clone, PartialEq)]
pub struct Trigger {
    /// Index in [`Overload::monitors`].
    pub monitor: usize,
    /// Share (0–1) from which the action is partly active.
    pub from: f64,
    /// Share (0–1) at which it is fully active; equal to `from` for a plain threshold.
    pub full: f64,
}

impl Trigger {
    /// Returns to what extent (0–1) the action is active at this share of the resource.
    pub fn extent(&self, share: f64) -> f64 {
        if share >= self.full {
            1.0
        } else if share <= self.from {
            0.0
        } else {
            (share - self.from) / (self.full - self.from)
        }
    }
}

/// Limits of one listener.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Open connections; more are reset (`envoy.resource_limits.listener.NAME.connection_limit`).
    pub connections: Option<u64>,
    /// Requests in flight; more are answered with 503 (`evenkeel.resource_limits.listener.NAME.request_limit`).
    pub requests: Option<u64>,
    /// Bytes in its connections' buffers; beyond it, the connections that hold the most are closed
    /// (`evenkeel.resource_limits.listener.NAME.memory_limit`).
    pub memory_bytes: Option<u64>,
}

/// Compiles the limits of both sources.
pub(crate) fn compile(cx: &mut Cx<'_>, message: &bootstrap::Bootstrap) -> Overload {
    let mut compiled = match &message.overload_manager {
        None => Overload { refresh_interval: DEFAULT_REFRESH, ..Overload::default() },
        Some(manager) => cx.at("overload_manager", |cx| overload_manager(cx, manager)),
    };
    if let Some(runtime) = &message.layered_runtime {
        cx.at("layered_runtime", |cx| {
            cx.each("layers", &runtime.layers, |cx, layer| layer_limits(cx, layer, &mut compiled));
        });
    }
    // In Envoy, listeners check this monitor before they accept a connection.
    for monitor in &compiled.monitors {
        if let Monitor::DownstreamConnections { max } = monitor {
            compiled.max_connections = Some(compiled.max_connections.map_or(*max, |limit| limit.min(*max)));
        }
    }
    compiled
}

fn overload_manager(cx: &mut Cx<'_>, manager: &overload::OverloadManager) -> Overload {
    let refresh_interval = cx.limit("refresh_interval", manager.refresh_interval.as_ref(), Some(DEFAULT_REFRESH));
    let monitors = cx.each("resource_monitors", &manager.resource_monitors, monitor);
    let names: Vec<&str> = manager.resource_monitors.iter().map(|monitor| &*monitor.name).collect();
    let actions = cx.each("actions", &manager.actions, |cx, action| action_rule(cx, action, &names));
    Overload { refresh_interval: refresh_interval.unwrap_or(DEFAULT_REFRESH), monitors, actions, ..Overload::default() }
}

fn monitor(cx: &mut Cx<'_>, monitor: &overload::ResourceMonitor) -> Option<Monitor> {
    use overload::resource_monitor::ConfigType;
    let Some(ConfigType::TypedConfig(any)) = &monitor.config_type else {
        return cx.fail_at("typed_config", "is required");
    };
    cx.at("typed_config", |cx| {
        let name = type_name(&any.type_url);
        if name == FixedHeapConfig::full_name() {
            let max_bytes = cx.unpack::<FixedHeapConfig>(any)?.max_heap_size_bytes;
            return positive(cx, "max_heap_size_bytes", max_bytes).map(|max_bytes| Monitor::FixedHeap { max_bytes });
        }
        if name == CgroupMemoryConfig::full_name() {
            let max_bytes = cx.unpack::<CgroupMemoryConfig>(any)?.max_memory_bytes;
            return Some(Monitor::CgroupMemory { max_bytes: (max_bytes > 0).then_some(max_bytes) });
        }
        if name != DownstreamConnectionsConfig::full_name() {
            return cx.fail(format!("{name} is no resource monitor"));
        }
        let max = cx.unpack::<DownstreamConnectionsConfig>(any)?.max_active_downstream_connections;
        let max = positive(cx, "max_active_downstream_connections", u64::try_from(max).unwrap_or(0))?;
        Some(Monitor::DownstreamConnections { max })
    })
}

fn positive(cx: &mut Cx<'_>, field: &str, value: u64) -> Option<u64> {
    if value == 0 { cx.fail_at(field, "must be greater than 0") } else { Some(value) }
}

fn action_rule(cx: &mut Cx<'_>, action: &overload::OverloadAction, monitors: &[&str]) -> Option<ActionRule> {
    let Some(known) = Action::ALL.into_iter().find(|known| known.name() == action.name) else {
        let known: Vec<&str> = Action::ALL.iter().map(|action| action.name()).collect();
        return cx.fail_at("name", format!("{:?} is not supported; these are: {}", action.name, known.join(", ")));
    };
    let triggers = cx.each("triggers", &action.triggers, |cx, message| trigger(cx, message, monitors));
    Some(ActionRule { action: known, triggers })
}

fn trigger(cx: &mut Cx<'_>, message: &overload::Trigger, monitors: &[&str]) -> Option<Trigger> {
    use overload::trigger::TriggerOneof;
    let Some(monitor) = monitors.iter().position(|name| *name == message.name) else {
        return cx.fail_at("name", format!("there is no resource monitor {:?}", message.name));
    };
    let (from, full) = match message.trigger_oneof.as_ref()? {
        TriggerOneof::Threshold(threshold) => (threshold.value, threshold.value),
        TriggerOneof::Scaled(scaled) => (scaled.scaling_threshold, scaled.saturation_threshold),
    };
    if !(0.0..=1.0).contains(&from) || !(0.0..=1.0).contains(&full) || from > full {
        return cx.fail("thresholds must lie between 0 and 1, and scaling must begin below saturation");
    }
    Some(Trigger { monitor, from, full })
}

fn layer_limits(cx: &mut Cx<'_>, layer: &bootstrap::RuntimeLayer, compiled: &mut Overload) -> Option<()> {
    let Some(LayerSpecifier::StaticLayer(values)) = &layer.layer_specifier else {
        return Some(());
    };
    cx.at("static_layer", |cx| {
        for (key, value) in flat(values) {
            cx.element(format!("{key:?}"), |cx| runtime_key(cx, &key, &value.kind, compiled));
        }
    });
    Some(())
}

fn runtime_key(cx: &mut Cx<'_>, key: &str, value: &Option<Kind>, compiled: &mut Overload) -> Option<()> {
    let known = RuntimeKey::parse(key)?;
    let number = whole_number(cx, value)?;
    match known {
        RuntimeKey::GlobalConnections => {
            compiled.max_connections = Some(compiled.max_connections.map_or(number, |known| known.min(number)));
        }
        RuntimeKey::PrematureResetStreams => compiled.premature_resets.total_stream_count = saturated(number),
        RuntimeKey::PrematureResetSeconds => compiled.premature_resets.min_stream_lifetime_seconds = saturated(number),
        RuntimeKey::ListenerConnections(listener) => limits(compiled, listener).connections = Some(number),
        RuntimeKey::ListenerRequests(listener) => limits(compiled, listener).requests = Some(number),
        RuntimeKey::ListenerMemory(listener) => limits(compiled, listener).memory_bytes = Some(number),
    }
    Some(())
}

fn limits<'c>(compiled: &'c mut Overload, listener: &str) -> &'c mut ListenerLimits {
    compiled.listeners.entry(listener.into()).or_default()
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Numbers may be written as text, as in Envoy's runtime.
fn whole_number(cx: &mut Cx<'_>, value: &Option<Kind>) -> Option<u64> {
    let number = match value {
        Some(Kind::NumberValue(number)) if *number >= 0.0 && number.fract() == 0.0 => Some(*number as u64),
        Some(Kind::StringValue(text)) => text.parse().ok(),
        _ => None,
    };
    number.or_else(|| cx.fail("must be a whole number, 0 or more"))
}
