//! The pages `/ready`, `/server_info`, `/listeners`, `/scope`, `/workers`, `/xds`.

use evenkeel_runtime_config::address::ListenAddress;
use evenkeel_xds::json::to_json;
use evenkeel_xds::{ResourceType, Schema};
use http::StatusCode;
use serde_json::json;

use super::apart::Drawing;
use super::{Admin, Query, Reply};
use crate::pool::{BoundListener, WorkerSnapshot};
use crate::scope::ScopeEntry;
use crate::state::{Phase, Record, StreamState};
use crate::subscribe::key::StreamKey;

/// `evenkeel/VERSION`, in the format of the version that Envoy reports here.
pub(super) fn version() -> String {
    let profile = if cfg!(debug_assertions) { "DEBUG" } else { "RELEASE" };
    format!("evenkeel/{}/{profile}", env!("CARGO_PKG_VERSION"))
}

pub(super) fn ready(admin: &Admin, _: &Query) -> Reply {
    let state = admin.shared.state.borrow();
    let status = if state.phase == Phase::Live { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Envoy sends only the first line.
    let waits = state.waits_for().map_or_else(String::new, |waits| format!("waits for {waits}\n"));
    Reply::error(status, format!("{}\n{waits}", state.phase.as_str()))
}

pub(super) fn server_info(admin: &Admin, _: &Query) -> Reply {
    let state = admin.shared.state.borrow();
    let node = state.bootstrap.node.clone().unwrap_or_default();
    let uptime = format!("{}s", state.started.elapsed().as_secs());
    let bootstrap = &admin.options.bootstrap;
    Reply::json(&json!({
        "version": version(),
        "state": state.phase.as_str(),
        "hot_restart_version": "disabled",
        "command_line_options": {
            "concurrency": state.pool.concurrency(),
            "config_path": bootstrap.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
            // The text may contain keys.
            "config_yaml": bootstrap.text.as_ref().map(|_| "[redacted]").unwrap_or_default(),
            "log_level": admin.options.log_level.to_string(),
            "service_cluster": node.cluster,
            "service_node": node.id,
            "drain_time": format!("{}s", admin.options.drain_time.as_secs()),
            "mode": "Serve",
        },
        "confinement": evenkeel_process::confinement::describe(),
        "user": rustix::process::geteuid().as_raw(),
        "node": to_json(&Schema::acquire(), &node),
        "uptime_current_epoch": uptime,
        "uptime_all_epochs": uptime,
    }))
}

/// The resources that the workload uses: each name, its state, and when it was last used.
pub(super) fn scope(admin: &Admin, query: &Query) -> Result<Drawing, Reply> {
    let (entries, wants_json) = (admin.shared.state.borrow().scope_entries(), query.wants_json());
    Ok(Box::new(move |_| draw_scope(&entries, wants_json)))
}

fn draw_scope(entries: &[ScopeEntry], wants_json: bool) -> Reply {
    if wants_json {
        let entries: Vec<_> = entries
            .iter()
            .map(|entry| {
                let (kind, name) = (entry.demand.kind().short_name(), entry.demand.name());
                let unused_s = entry.idle.as_secs();
                json!({"type": kind, "name": &*name, "state": entry.state, "unused_for_s": unused_s, "used": entry.used})
            })
            .collect();
        return Reply::json(&json!({ "scope": entries }));
    }
    let lines = entries.iter().map(|ScopeEntry { demand, state, idle, used }| {
        let (kind, what) = (demand.kind().short_name(), if *used { "used" } else { "remembered" });
        format!("{kind:4} {} {state}, {what} {} s ago\n", demand.name(), idle.as_secs())
    });
    Reply::text(lines.collect::<String>())
}

pub(super) fn listeners(admin: &Admin, query: &Query) -> Result<Drawing, Reply> {
    let (mut listeners, wants_json) = (admin.shared.state.borrow().pool.bound(), query.wants_json());
    Ok(Box::new(move |_| {
        listeners.sort_by(|a, b| a.name.cmp(&b.name));
        draw_listeners(&listeners, wants_json)
    }))
}

fn draw_listeners(listeners: &[BoundListener], wants_json: bool) -> Reply {
    if wants_json {
        let statuses: Vec<_> = listeners
            .iter()
            .map(|listener| {
                let local = match &listener.address {
                    ListenAddress::Socket(address) => {
                        json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
                    }
                    ListenAddress::Datagram(address) => json!({"socket_address": {
                        "protocol": "UDP", "address": address.ip().to_string(), "port_value": address.port(),
                    }}),
                    ListenAddress::Pipe(path) => json!({"pipe": {"path": &**path}}),
                };
                json!({"name": &*listener.name, "local_address": local})
            })
            .collect();
        return Reply::json(&json!({ "listener_statuses": statuses }));
    }
    Reply::text(
        listeners.iter().map(|listener| format!("{}::{}\n", listener.name, listener.address)).collect::<String>(),
    )
}

pub(super) fn workers(admin: &Admin, query: &Query) -> Result<Drawing, Reply> {
    let state = admin.shared.state.borrow();
    let (workers, samples, wants_json) = (state.pool.workers(), state.pool.samples(), query.wants_json());
    Ok(Box::new(move |_| draw_workers(&workers, samples, wants_json)))
}

fn draw_workers(workers: &[WorkerSnapshot], samples: u32, wants_json: bool) -> Reply {
    let columns: [(&str, Column); 7] = [
        ("connections_active", |worker| f64::from(worker.connections_active)),
        ("connections_total", |worker| worker.connections_total as f64),
        ("moved_in", |worker| worker.moved_in as f64),
        ("moved_out", |worker| worker.moved_out as f64),
        ("requests_total", |worker| worker.requests_total as f64),
        ("busy_s", |worker| worker.busy.as_secs_f64()),
        ("busy_%", |worker| worker.busy_share * 100.0),
    ];
    let uneven = |column: Column| max_over_mean(workers.iter().map(column));
    if wants_json {
        let rows: Vec<_> = workers
            .iter()
            .map(|worker| {
                json!({
                    "worker": worker.worker,
                    "connections_active": worker.connections_active,
                    "connections_total": worker.connections_total,
                    "moved_in": worker.moved_in,
                    "moved_out": worker.moved_out,
                    "requests_total": worker.requests_total,
                    "busy_ms": u64::try_from(worker.busy.as_millis()).unwrap_or(u64::MAX),
                    "busy_share": worker.busy_share,
                })
            })
            .collect();
        let max_over_mean: serde_json::Map<_, _> =
            columns.iter().map(|(name, column)| (name.replace('%', "share"), json!(uneven(*column)))).collect();
        return Reply::json(&json!({ "workers": rows, "max_over_mean": max_over_mean, "samples": samples }));
    }
    let line = |first: &str, cells: [String; 7]| {
        let cells =
            columns.iter().zip(cells).map(|((name, _), cell)| format!("  {cell:>width$}", width = name.len().max(8)));
        format!("{first:>8}{}\n", cells.collect::<String>())
    };
    let mut text = line("worker", columns.map(|(name, _)| name.to_owned()));
    for worker in workers {
        let cells = columns.map(|(name, column)| match name {
            "busy_s" => format!("{:.3}", column(worker)),
            "busy_%" => format!("{:.1}", column(worker)),
            _ => format!("{:.0}", column(worker)),
        });
        text += &line(&worker.worker.to_string(), cells);
    }
    text += &line(
        "max/mean",
        columns.map(|(_, column)| uneven(column).map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))),
    );
    Reply::text(text)
}

/// A column of the table: one value of a worker.
type Column = fn(&WorkerSnapshot) -> f64;

/// Imbalance of the values: 1 when all are equal; `None` when all are zero.
fn max_over_mean(values: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let (sum, max) = values.clone().fold((0.0, 0.0), |(sum, max): (f64, f64), value| (sum + value, max.max(value)));
    (sum > 0.0).then(|| max * values.count() as f64 / sum)
}

pub(super) fn xds(admin: &Admin, _: &Query) -> Result<Drawing, Reply> {
    let state = admin.shared.state.borrow();
    let of_stream = |(key, stream): (&StreamKey, &StreamState)| Stream {
        key: key.clone(),
        connected: stream.connected,
        last_error: stream.last_error.clone(),
    };
    let of_record = |((kind, name), record): (&(ResourceType, String), &Record)| {
        let refused = record.refused.as_ref()?;
        Some(Refused {
            kind: *kind,
            name: name.clone(),
            reason: refused.reason.clone(),
            version: refused.version.clone(),
            in_use: record.version.clone(),
        })
    };
    let streams: Vec<Stream> = state.streams.iter().map(of_stream).collect();
    let refused: Vec<Refused> = state.records.iter().filter_map(of_record).collect();
    Ok(Box::new(move |_| draw_xds(&streams, &refused)))
}

/// An xDS stream.
struct Stream {
    key: StreamKey,
    connected: bool,
    last_error: Option<String>,
}

/// A rejected resource.
struct Refused {
    kind: ResourceType,
    name: String,
    reason: String,
    version: String,
    in_use: String,
}

fn draw_xds(streams: &[Stream], refused: &[Refused]) -> Reply {
    let stream = |stream: &Stream| json!({"stream": stream.key.to_string(), "connected": stream.connected, "last_error": stream.last_error});
    let refusal = |refused: &Refused| {
        json!({
            "type": refused.kind.short_name(),
            "name": refused.name,
            "reason": refused.reason,
            "version_refused": refused.version,
            "version_in_use": refused.in_use,
        })
    };
    Reply::json(&json!({
        "streams": streams.iter().map(stream).collect::<Vec<_>>(),
        "refused": refused.iter().map(refusal).collect::<Vec<_>>(),
    }))
}
