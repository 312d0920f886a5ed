//! The age of changes when real proxies applied them: in `evenkeel proxy-status`, its JSON, the page for browsers and the
//! metrics.

use evenkeel_testkit::{Backend, eventually};
use serde_json::Value;

use crate::mesh::{Plane, Proxy, host};

/// The table's cells of a proxy, once its ages are known.
fn cells(table: &str, pod: &str) -> Option<Vec<String>> {
    let row = table.lines().find(|line| line.starts_with(&format!("{pod}.shop ")))?;
    let cells: Vec<String> =
        row.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect();
    (cells.len() == 12 && cells[7..10].iter().all(|age| age.ends_with(" ms"))).then_some(cells)
}

#[test]
fn ages_of_real_proxies_are_shown() {
    let backends = ["one", "two"].map(Backend::echo);
    let plane = Plane::new();
    plane.write("a", &host("a", backends[0].address()));
    let _control = plane.start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let learned = Proxy::start(&plane, folder.path(), "client-0", "learned", 1);
    let _full = Proxy::start(&plane, folder.path(), "other-0", "full", 1);
    eventually("the host", || (learned.get("a.test").0 == 200).then_some(()));

    // Its endpoint moves to and fro: that reaches both, and both report how long it took.
    let mut moves = (0..).map(|number| plane.write("a", &host("a", backends[number % 2].address())));
    for pod in ["client-0", "other-0"] {
        let cells = eventually("ages", || {
            moves.next()?;
            cells(&plane.proxy_status(&[]), pod)
        });
        assert!(cells[4] == "SYNCED" || cells[4] == "STALE", "{cells:?}");
        assert!(cells[10].starts_with("evenkeel ") && cells[11].starts_with("evenkeel/"), "{cells:?}");
    }
    let status: Value = serde_json::from_str(&plane.proxy_status(&["-o", "json"])).expect("JSON");
    let proxies = status["proxies"].as_array().expect("proxies");
    assert_eq!(proxies.len(), 2);
    for proxy in proxies {
        let types = proxy["types"].as_array().expect("types");
        let ages = types.iter().find(|of| of["type"] == "EDS").map(|of| of["ages_ms"].clone()).expect("endpoints");
        let [count, p50, p99, max] = ["count", "p50", "p99", "max"].map(|name| ages[name].as_f64().expect("a number"));
        assert!(count >= 1.0 && p50 <= p99 && p99 <= max && 0.0 < max, "{ages}");
    }
    let page = plane.page("/debug/proxies");
    for pod in ["client-0", "other-0"] {
        let row = page.lines().find(|line| line.contains(&format!("<td>{pod}.shop</td>"))).expect("a row");
        assert_eq!(row.matches(" ms</td>").count(), 3, "{row}");
    }
    let metrics = plane.page("/metrics");
    assert!(metrics.contains("evenkeel_proxy_config_age_seconds_count{type=\"eds\"}"), "{metrics}");
    assert!(metrics.contains("pilot_proxy_convergence_time_count"), "{metrics}");
}
