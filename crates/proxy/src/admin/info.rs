//! `/ready`, `/server_info`, `/listeners`, `/workers`, `/xds`.

use std::fmt::Write as _;

use evenkeel_xds::Schema;
use evenkeel_xds::json::to_json;
use http::StatusCode;
use serde_json::json;

use super::{Admin, Query, Reply};
use crate::state::Phase;

/// `evenkeel/VERSION`, in the shape Envoy's version has there.
pub(super) fn version() -> String {
    let profile = if cfg!(debug_assertions) { "DEBUG" } else { "RELEASE" };
    format!("evenkeel/{}/{profile}", env!("CARGO_PKG_VERSION"))
}

pub(super) fn ready(admin: &Admin, _: &Query) -> Reply {
    let phase = admin.shared.state.borrow().phase;
    let status = if phase == Phase::Live { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Reply::error(status, format!("{}\n", phase.as_str()))
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
            "config_yaml": bootstrap.text.clone().unwrap_or_default(),
            "log_level": admin.options.log_level.to_string(),
            "service_cluster": node.cluster,
            "service_node": node.id,
            "drain_time": format!("{}s", admin.options.drain_time.as_secs()),
            "mode": "Serve",
        },
        "node": to_json(&Schema::acquire(), &node),
        "uptime_current_epoch": uptime,
        "uptime_all_epochs": uptime,
    }))
}

pub(super) fn listeners(admin: &Admin, query: &Query) -> Reply {
    let listeners = admin.shared.state.borrow().pool.listeners();
    if query.wants_json() {
        let statuses: Vec<_> = listeners
            .iter()
            .map(|listener| {
                let (address, port) = (listener.address.ip().to_string(), listener.address.port());
                let local = json!({"socket_address": {"address": address, "port_value": port}});
                json!({"name": &*listener.name, "local_address": local})
            })
            .collect();
        return Reply::json(&json!({ "listener_statuses": statuses }));
    }
    Reply::text(
        listeners.iter().map(|listener| format!("{}::{}\n", listener.name, listener.address)).collect::<String>(),
    )
}

pub(super) fn workers(admin: &Admin, query: &Query) -> Reply {
    let workers = admin.shared.state.borrow().pool.workers();
    if query.wants_json() {
        let rows: Vec<_> = workers
            .iter()
            .map(|worker| {
                json!({
                    "worker": worker.worker,
                    "connections_active": worker.connections_active,
                    "connections_total": worker.connections_total,
                    "requests_total": worker.requests_total,
                    "busy_ms": u64::try_from(worker.busy.as_millis()).unwrap_or(u64::MAX),
                    "busy_share": worker.busy_share,
                })
            })
            .collect();
        return Reply::json(&json!({ "workers": rows }));
    }
    let mut text = format!(
        "{:>6}  {:>18}  {:>17}  {:>14}  {:>9}  {:>6}\n",
        "worker", "connections_active", "connections_total", "requests_total", "busy_s", "busy_%"
    );
    for worker in &workers {
        // Writing to a String cannot fail.
        _ = writeln!(
            text,
            "{:>6}  {:>18}  {:>17}  {:>14}  {:>9.3}  {:>6.1}",
            worker.worker,
            worker.connections_active,
            worker.connections_total,
            worker.requests_total,
            worker.busy.as_secs_f64(),
            worker.busy_share * 100.0
        );
    }
    Reply::text(text)
}

pub(super) fn xds(admin: &Admin, _: &Query) -> Reply {
    let state = admin.shared.state.borrow();
    let streams: Vec<_> = state
        .streams
        .iter()
        .map(|(key, stream)| {
            json!({"stream": key.to_string(), "connected": stream.connected, "last_error": stream.last_error})
        })
        .collect();
    let refused: Vec<_> = state
        .records
        .iter()
        .filter_map(|((kind, name), record)| {
            let refused = record.refused.as_ref()?;
            Some(json!({
                "type": kind.short_name(),
                "name": name,
                "reason": refused.reason,
                "version_refused": refused.version,
                "version_in_use": record.version,
            }))
        })
        .collect();
    Reply::json(&json!({ "streams": streams, "refused": refused }))
}
