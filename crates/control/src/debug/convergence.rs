//! The page an operator opens first: is what I wrote live everywhere, and how soon was it? Plain HTML without a script,
//! from the same numbers as `/debug/syncz`; it draws itself anew every few seconds.

use std::fmt::Write as _;

use serde_json::Value;

/// Types with a column of their own, as `evenkeel proxy-status` has them.
const COLUMNS: [&str; 5] = ["CDS", "LDS", "EDS", "RDS", "VHDS"];
/// How often the browser asks again, in seconds.
const REFRESH_SECONDS: u32 = 5;
/// Proxies in the table; the slowest come first.
const MAX_ROWS: usize = 500;

const STYLE: &str = "body{font-family:system-ui,sans-serif;margin:2em}table{border-collapse:collapse}\
    th,td{padding:.2em 1em .2em 0;text-align:left;vertical-align:top}th{border-bottom:1px solid #999}\
    .number{text-align:right;font-variant-numeric:tabular-nums}.SYNCED{color:#1a7f37}.STALE{color:#9a6700}\
    .NACKED{color:#cf222e;font-weight:bold}.none{color:#999}";

/// The page, of what `/debug/syncz` says.
pub fn page(syncz: &Value) -> String {
    let mut proxies: Vec<&Value> = syncz["proxies"].as_array().into_iter().flatten().collect();
    let worst = |proxy: &Value| slowest(proxy, "p99").unwrap_or(-1.0);
    proxies.sort_by(|a, b| worst(b).total_cmp(&worst(a)));
    let live = proxies.iter().filter(|proxy| proxy["live"] == true).count();
    let columns: String = COLUMNS.iter().map(|column| format!("<th>{column}</th>")).collect();
    let rows: String = proxies.iter().take(MAX_ROWS).map(|proxy| row(proxy)).collect();
    let more = match proxies.len().saturating_sub(MAX_ROWS) {
        0 => String::new(),
        more => format!("<p>and {more} more, which were faster</p>\n"),
    };
    let notes: String = proxies.iter().flat_map(|proxy| notes(proxy)).map(|note| format!("<p>{note}</p>\n")).collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" \
         content=\"{REFRESH_SECONDS}\"><title>Evenkeel: proxies</title>\n<style>{STYLE}</style></head>\n<body><h1>Proxies</h1>\n\
         <p>{} · generation {} · live on {live} of {}</p>\n<table>\n<tr><th>Proxy</th><th>Kind</th>{columns}\
         <th class=\"number\">Age p50</th><th class=\"number\">p99</th><th class=\"number\">max</th><th>Program</th></tr>\n\
         {rows}</table>\n{more}{notes}<p class=\"none\">Age: from a change's being noticed to its being applied by the proxy, by the \
         proxy's last report; the type that took longest.</p></body></html>\n",
        escaped(&syncz["control_plane"]),
        syncz["generation"],
        proxies.len(),
    )
}

fn row(proxy: &Value) -> String {
    let mut row = format!("<tr><td>{}</td><td>{}</td>", name(proxy), escaped(&proxy["kind"]));
    for column in COLUMNS {
        let state = types(proxy).find(|status| status["type"] == column).and_then(|status| status["state"].as_str());
        _ = match state {
            Some(state) => write!(row, "<td class=\"{}\">{state}</td>", state.replace(' ', "-")),
            None => write!(row, "<td class=\"none\">–</td>"),
        };
    }
    for quantile in ["p50", "p99", "max"] {
        let age = slowest(proxy, quantile).map_or_else(|| "–".to_owned(), milliseconds);
        _ = write!(row, "<td class=\"number\">{age}</td>");
    }
    _ = writeln!(row, "<td>{}</td></tr>", escaped(&proxy["program"]));
    row
}

/// What is wrong with a proxy.
fn notes(proxy: &Value) -> Vec<String> {
    let refused = types(proxy).filter(|status| !status["nack"].is_null()).map(|status| {
        let message = escaped(&status["nack"]["message"]);
        format!("<b>{}</b> refuses {}: {message}", name(proxy), escaped(&status["type"]))
    });
    let diverged = proxy["divergence"]["names"].as_array().map(|names| {
        let names: Vec<String> = names.iter().map(escaped).collect();
        let of = escaped(&proxy["divergence"]["type"]);
        format!("<b>{}</b> held other {of} resources than it was sent; healed: {}", name(proxy), names.join(", "))
    });
    refused.chain(diverged).collect()
}

fn types(proxy: &Value) -> impl Iterator<Item = &Value> {
    proxy["types"].as_array().into_iter().flatten()
}

/// Of the type that took longest, in milliseconds.
fn slowest(proxy: &Value, quantile: &str) -> Option<f64> {
    types(proxy).filter_map(|status| status["ages_ms"][quantile].as_f64()).reduce(f64::max)
}

/// `sidecar~IP~POD.NAMESPACE~DOMAIN` as POD.NAMESPACE.
fn name(proxy: &Value) -> String {
    let node = proxy["proxy"].as_str().unwrap_or_default();
    escaped(&Value::from(node.split('~').nth(2).unwrap_or(node)))
}

fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 10_000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.0} s", ms / 1e3),
    }
}

/// A text as it may stand in HTML: nodes say of themselves what they like.
fn escaped(text: &Value) -> String {
    text.as_str().unwrap_or_default().chars().fold(String::new(), |mut out, char| {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_states_ages_and_what_is_wrong_the_slowest_first() {
        let syncz = json!({
            "control_plane": "evenkeel/0.1.0 host.1",
            "generation": 7,
            "proxies": [
                {"proxy": "sidecar~10.0.0.1~web-0.shop~x", "kind": "sidecar", "program": "evenkeel 0.1.0", "live": true, "types": [
                    {"type": "CDS", "state": "SYNCED", "ages_ms": {"p50": 1.26, "p99": 4.0, "max": 12.4}},
                    {"type": "EDS", "state": "SYNCED", "ages_ms": {"p50": 2.0, "p99": 3.0, "max": 20000.0}},
                ]},
                {"proxy": "router~10.0.0.2~<b>.shop~x", "kind": "router", "program": "envoy & co", "live": false, "types": [
                    {"type": "CDS", "state": "NACKED", "ages_ms": {"p50": 9.0, "p99": 90.0, "max": 99.0},
                     "nack": {"message": "no \"such\" thing"}},
                    {"type": "RDS", "state": "NOT SENT"},
                ], "divergence": {"type": "EDS", "names": ["a", "b"]}},
            ],
        });
        let page = page(&syncz);
        let rows: Vec<&str> =
            page.lines().filter(|line| line.starts_with("<tr><td>") || line.starts_with("<p>")).collect();
        let none = "<td class=\"none\">–</td>";
        let expected = [
            "<p>evenkeel/0.1.0 host.1 · generation 7 · live on 1 of 2</p>".to_owned(),
            format!(
                "<tr><td>&lt;b&gt;.shop</td><td>router</td><td class=\"NACKED\">NACKED</td>{none}{none}\
                 <td class=\"NOT-SENT\">NOT SENT</td>{none}<td class=\"number\">9.0 ms</td><td class=\"number\">90 ms</td>\
                 <td class=\"number\">99 ms</td><td>envoy &amp; co</td></tr>"
            ),
            format!(
                "<tr><td>web-0.shop</td><td>sidecar</td><td class=\"SYNCED\">SYNCED</td>{none}<td class=\"SYNCED\">SYNCED</td>\
                 {none}{none}<td class=\"number\">2.0 ms</td><td class=\"number\">4.0 ms</td><td class=\"number\">20 s</td>\
                 <td>evenkeel 0.1.0</td></tr>"
            ),
            "<p><b>&lt;b&gt;.shop</b> refuses CDS: no &quot;such&quot; thing</p>".to_owned(),
            "<p><b>&lt;b&gt;.shop</b> held other EDS resources than it was sent; healed: a, b</p>".to_owned(),
        ];
        assert_eq!(rows, expected);
    }
}
