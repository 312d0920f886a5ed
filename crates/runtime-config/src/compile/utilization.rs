//! `ClientSideWeightedRoundRobin`: how the weights of hosts follow from their load reports.

use std::time::Duration;

use evenkeel_xds::pb::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3 as pb;

use super::Cx;
use crate::cluster::{Metric, MetricMap, Utilization};

/// Envoy's defaults and lower limit.
const DEFAULT_BLACKOUT: Duration = Duration::from_secs(10);
const DEFAULT_EXPIRATION: Duration = Duration::from_secs(180);
const DEFAULT_UPDATE: Duration = Duration::from_secs(1);
const MIN_UPDATE: Duration = Duration::from_millis(100);

/// Compiles the settings besides slow start.
pub(super) fn utilization(cx: &mut Cx<'_>, config: &pb::ClientSideWeightedRoundRobin) -> Option<Utilization> {
    let mut period = |field: &str, value: Option<&_>, default| match value {
        None => Some(default),
        Some(_) => cx.duration(field, value),
    };
    let blackout = period("blackout_period", config.blackout_period.as_ref(), DEFAULT_BLACKOUT)?;
    let expiration = period("weight_expiration_period", config.weight_expiration_period.as_ref(), DEFAULT_EXPIRATION)?;
    let update = period("weight_update_period", config.weight_update_period.as_ref(), DEFAULT_UPDATE)?;
    // The field's documentation says 1, but Envoy takes 0.
    let error_penalty = config.error_utilization_penalty.map_or(0.0, |penalty| f64::from(penalty.value));
    if error_penalty.is_nan() || error_penalty < 0.0 {
        return cx.fail_at("error_utilization_penalty", "must not be below 0");
    }
    let metrics = config.metric_names_for_computing_utilization.iter().filter_map(|name| metric(name)).collect();
    Some(Utilization { blackout, expiration, update: update.max(MIN_UPDATE), error_penalty, metrics })
}

/// The metric of a name; `None` for names that no report can have, which Envoy ignores.
fn metric(name: &str) -> Option<Metric> {
    Some(match name {
        "cpu_utilization" => Metric::CpuUtilization,
        "mem_utilization" => Metric::MemUtilization,
        "application_utilization" => Metric::ApplicationUtilization,
        "eps" => Metric::ErrorsPerSecond,
        "rps_fractional" => Metric::RequestsPerSecond,
        name => {
            let (map, key) = name.split_once('.')?;
            let map = match map {
                "named_metrics" => MetricMap::Named,
                "utilization" => MetricMap::Utilization,
                "request_cost" => MetricMap::RequestCost,
                _ => return None,
            };
            Metric::Entry(map, (key != "*").then(|| key.into()))
        }
    })
}
