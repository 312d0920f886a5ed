//! The figure that shows how costs grow with the size of the mesh.

use super::list::{MB_PER_MIB, RunResults, added};
use super::plan::BY_SERVICES;
use crate::results::Results;
use evenkeel_measure::chart::{Axis, Figure, Panel, Series, Style};

/// How the cost of a change grows with the number of services, with 200 sidecars that hold the whole mesh.
pub fn growth(played: &RunResults) -> Figure {
    let runs: Vec<(&str, &Results)> = BY_SERVICES.iter().filter_map(|name| Some((*name, played.get(*name)?))).collect();
    let line = |name: &str, value: &dyn Fn(&str, &Results) -> Option<f64>| {
        let points =
            runs.iter().filter_map(|(run, results)| Some((results.mesh.services as f64, value(run, results)?)));
        Series::new(name, Style::LineAndDots, points)
    };
    let services = || Axis::log("services in the mesh");
    let ack = vec![
        line("p50", &|run, _| Some(added(played, run)?.p50)),
        line("p99", &|run, _| Some(added(played, run)?.p99)),
        line("max", &|run, _| Some(added(played, run)?.max)),
    ];
    let cpu = vec![line("control plane", &|_, results| results.cost.cpu_ms_per_change)];
    let bytes = vec![
        line("to all sidecars", &|_, results| Some(results.cost.sidecar_bytes_per_change / 1000.0)),
        line("to the gateway", &|_, results| Some(results.cost.gateway_bytes_per_change / 1000.0)),
    ];
    let memory = vec![line("resident", &|_, results| Some(results.cost.server?.resident_mib * MB_PER_MIB))];
    let bar = |panel: Panel, limit: f64, name: &str| Panel { bar: Some((limit, name.to_owned())), ..panel };
    Figure {
        title: "One service more: what it costs, by the size of the mesh".to_owned(),
        subtitle: "200 sidecars that hold everything, one service added every 200 ms".to_owned(),
        panels: vec![
            Panel::new("From the change to the last ACK", services(), Axis::log("ms"), ack),
            bar(Panel::new("CPU per service added", services(), Axis::log("ms"), cpu), 30.0, "bar at 1,400: 30 ms"),
            bar(Panel::new("Sent per service added", services(), Axis::log("KB"), bytes), 1000.0, "bar at 1,400: 1 MB"),
            bar(Panel::new("Resident memory", services(), Axis::log("MB"), memory), 150.0, "bar at 1,400: 150 MB"),
        ],
    }
}
