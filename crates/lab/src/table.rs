//! Results as text for people.

use std::fmt::Write;

use crate::results::{KindSummary, Provision, Results};
use evenkeel_measure::Distribution;

/// Renders the results as a table.
pub fn render(results: &Results) -> String {
    let mut out = String::new();
    let mesh = &results.mesh;
    let scope = format!("{:?}", mesh.scope).to_lowercase();
    let what = format!(
        "{}: {} services, {} sidecars and {} gateway ({scope} scope, {}), {}",
        results.scenario,
        mesh.services,
        mesh.proxies,
        mesh.gateways,
        mesh.protocol,
        mesh.xds.as_deref().unwrap_or("own control plane"),
    );
    line(&mut out, &what);
    start(&mut out, results);
    changes(&mut out, &results.summary);
    cost(&mut out, results);
    if let Some(restart) = &results.restart {
        line(&mut out, "");
        row(&mut out, "away", &format!("{:.0} ms, {} changes meanwhile", restart.away_ms, restart.changes_while_away));
        row(&mut out, "all connected again", &format!("{:.0} ms after its start", restart.reconnected_ms));
        row(&mut out, "all caught up", &format!("{:.0} ms after its start", restart.caught_up_ms));
        row(
            &mut out,
            "sent for that",
            &format!(
                "{}, {} resources, of them {} needlessly; {} taken away",
                bytes(restart.bytes as f64),
                restart.resources,
                restart.resources_again,
                restart.removed
            ),
        );
    }
    if let Some(sidecar) = &results.sidecar {
        line(&mut out, "");
        if let Some(first) = &sidecar.first_answer_ms {
            let text = format!("p50 {:.1}, max {:.1} ms", first.p50, first.max);
            row(&mut out, &format!("first request to {} services", sidecar.used), &text);
        }
        let text = format!("{:.1} MiB resident, {:.1} MiB before the first", sidecar.after_mib, sidecar.before_mib);
        row(&mut out, "the sidecar's memory", &text);
    }
    if let Some(provision) = &results.provision {
        line(&mut out, "");
        let Provision { before_mib, with_all_mib, after_mib, kib_per_service } = provision;
        let text = format!(
            "{before_mib:.1} MiB before, {with_all_mib:.1} MiB with all, {after_mib:.1} MiB after their removal"
        );
        row(&mut out, "the gateway's memory", &text);
        row(&mut out, "of each added service", &format!("{kib_per_service:.1} KiB"));
    }
    if let Some(labels) = &results.labels {
        line(&mut out, "");
        row(&mut out, "labels changed", &format!("{}, {} sent", labels.changes, bytes(labels.bytes as f64)));
        if let Some(cpu) = labels.cpu_ms_per_change {
            row(&mut out, "CPU for each", &format!("{cpu:.3} ms"));
        }
        if let Some(lists) = &labels.lists {
            let resources: Vec<_> = lists.iter().map(|lists| format!("{} {}", lists.resource, lists.count)).collect();
            let text = if resources.is_empty() { "none".to_owned() } else { resources.join(", ") };
            row(&mut out, "list requests meanwhile", &text);
        }
    }
    if let Some(shrink) = &results.shrink {
        line(&mut out, "");
        row(&mut out, "resident, all services", &format!("{:.1} MiB", shrink.full_mib));
        row(&mut out, &format!("resident, {} left", shrink.kept), &format!("{:.1} MiB", shrink.shrunk_mib));
        let ratio = shrink.shrunk_mib / shrink.fresh_mib;
        row(
            &mut out,
            "resident, fresh start",
            &format!("{:.1} MiB ({ratio:.2} times as much is held)", shrink.fresh_mib),
        );
    }
    out
}

fn start(out: &mut String, results: &Results) {
    let start = &results.start;
    line(out, "");
    if start.server_ready_ms > 0.0 {
        row(out, "server ready", &format!("{:.0} ms", start.server_ready_ms));
    }
    row(out, "all configured", &format!("{:.0} ms from the server's start", start.all_configured_ms));
    if let Some(spread) = &start.configured_ms {
        row(
            out,
            "configured after connect",
            &format!("p50 {:.0}, p99 {:.0}, max {:.0} ms", spread.p50, spread.p99, spread.max),
        );
    }
    row(
        out,
        "sent for that",
        &format!("{}, {} resources, {} failures", bytes(start.bytes as f64), start.resources, start.failures),
    );
    if let Some(server) = &start.server {
        let text = format!(
            "{:.2} CPU s, {:.1} MiB resident, {:.1} MiB at most",
            server.cpu_s, server.resident_mib, server.peak_mib
        );
        row(out, "the server until then", &text);
    }
}

fn changes(out: &mut String, summary: &[KindSummary]) {
    if summary.is_empty() {
        return;
    }
    line(out, "");
    let _ = writeln!(
        out,
        "{:32} {:>6} {:>9} {:>9} {:>9} {:>9}",
        "ms from the change until", "count", "p50", "p98", "p99", "max"
    );
    let mut spread = |what: String, spread: &Option<Distribution>| {
        if let Some(s) = spread {
            let _ =
                writeln!(out, "{what:32} {:>6} {:>9.1} {:>9.1} {:>9.1} {:>9.1}", s.count, s.p50, s.p98, s.p99, s.max);
        }
    };
    for kind in summary {
        spread(format!("{}: last ACK", kind.kind.title()), &kind.last_ack_ms);
        spread("  served by the gateway".to_owned(), &kind.ready_ms);
        spread("  first use to configured".to_owned(), &kind.first_use_ms);
    }
}

fn cost(out: &mut String, results: &Results) {
    let cost = &results.cost;
    line(out, "");
    row(out, "took", &format!("{:.1} s, {} changes", cost.seconds, cost.changes));
    if let Some(cpu) = cost.cpu_s {
        let each = cost.cpu_ms_per_change.filter(|_| cost.changes > 0).map(|each| format!(", {each:.2} ms per change"));
        row(out, "the server's CPU", &format!("{cpu:.3} s{}", each.unwrap_or_default()));
    }
    row(out, "sent", &bytes(cost.bytes as f64));
    if cost.changes > 0 {
        let text = format!(
            "{} to the sidecars, {} to the gateway, {:.2} resources to each",
            bytes(cost.sidecar_bytes_per_change),
            bytes(cost.gateway_bytes_per_change),
            cost.resources_per_change_and_proxy
        );
        row(out, "per change", &text);
    }
    if let Some(server) = &cost.server {
        row(
            out,
            "the server's memory",
            &format!("{:.1} MiB resident, {:.1} MiB at most", server.resident_mib, server.peak_mib),
        );
    }
    if let Some(gateway) = &cost.gateway {
        row(out, "the gateway's", &format!("{:.2} CPU s, {:.1} MiB resident", gateway.cpu_s, gateway.resident_mib));
    }
}

/// Bytes with a unit, decimal.
pub fn bytes(count: f64) -> String {
    match count {
        c if c >= 1e9 => format!("{:.2} GB", c / 1e9),
        c if c >= 1e6 => format!("{:.2} MB", c / 1e6),
        c if c >= 1e3 => format!("{:.1} KB", c / 1e3),
        c => format!("{c:.0} B"),
    }
}

fn row(out: &mut String, what: &str, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{what:32} {text}");
}

fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "{text}");
}
