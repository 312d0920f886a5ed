//! The figure of one run.

use crate::changes::ChangeKind;
use crate::results::{Results, Sample};
use evenkeel_measure::chart::{Axis, Figure, Panel, Series, Style};

/// Draws one run.
pub fn of_run(results: &Results) -> Figure {
    let mesh = &results.mesh;
    let scope = format!("{:?}", mesh.scope).to_lowercase();
    Figure {
        title: format!("evenkeel-lab {}", results.scenario),
        subtitle: format!(
            "{} services, {} sidecars, {scope} scope, {} protocol; {} with {} cores",
            mesh.services, mesh.proxies, mesh.protocol, results.machine.cpu, results.machine.cores
        ),
        panels: vec![
            changes(results),
            configured(results),
            samples(results, "Resident memory of the control plane", "MiB", |sample| sample.resident_mib),
            cpu(results),
        ],
    }
}

fn changes(results: &Results) -> Panel {
    let kinds = [
        (ChangeKind::AddService, "service added"),
        (ChangeKind::RemoveService, "service removed"),
        (ChangeKind::AddEndpoint, "endpoint added"),
        (ChangeKind::RemoveEndpoint, "endpoint removed"),
        (ChangeKind::EditRoutes, "routes changed"),
    ];
    let of_kind = |kind| results.changes.iter().filter(move |change| change.kind == kind);
    let acks = kinds.into_iter().map(|(kind, name)| {
        let points = of_kind(kind).filter_map(|change| Some((change.at_ms / 1000.0, change.ack_ms?.max)));
        Series::new(name, Style::Dots, points)
    });
    let ready = results.changes.iter().filter_map(|change| Some((change.at_ms / 1000.0, change.ready_ms?)));
    let series = acks.chain([Series::new("through the gateway", Style::Dots, ready)]).filter(|s| !s.points.is_empty());
    Panel::new(
        "From a change to the last proxy's ACK",
        Axis::linear("seconds from the start"),
        Axis::linear("ms"),
        series.collect(),
    )
}

/// The number of configured proxies over time.
fn configured(results: &Results) -> Panel {
    let mut times: Vec<f64> = results.proxies.iter().filter_map(|proxy| proxy.configured_ms).collect();
    times.sort_by(f64::total_cmp);
    // A figure is only a few hundred pixels wide, so more points would not be visible.
    let step = times.len().div_ceil(400).max(1);
    let points = times.iter().enumerate().filter(|(index, _)| index % step == 0 || index + 1 == times.len());
    let points = points.map(|(index, at)| (*at, (index + 1) as f64));
    let series = Series::new("proxies", Style::Line, points);
    Panel::new("Proxies configured after they connect", Axis::linear("ms"), Axis::linear("proxies"), vec![series])
}

fn samples(results: &Results, title: &str, unit: &str, value: impl Fn(&Sample) -> f64) -> Panel {
    let points = results.samples.iter().map(|sample| (sample.at_ms / 1000.0, value(sample)));
    let series = Series::new("control plane", Style::Line, points);
    Panel::new(title, Axis::linear("seconds from the start"), Axis::linear(unit), vec![series])
}

fn cpu(results: &Results) -> Panel {
    let pairs = results.samples.iter().zip(results.samples.iter().skip(1));
    // A restarted server starts again at 0, so pairs across the restart are left out.
    let points = pairs.filter(|(a, b)| b.at_ms > a.at_ms && b.cpu_s >= a.cpu_s).map(|(a, b)| {
        let seconds = (b.at_ms - a.at_ms) / 1000.0;
        (b.at_ms / 1000.0, 100.0 * (b.cpu_s - a.cpu_s) / seconds)
    });
    let series = Series::new("control plane", Style::Line, points);
    Panel::new(
        "CPU of the control plane",
        Axis::linear("seconds from the start"),
        Axis::linear("% of a core"),
        vec![series],
    )
}
