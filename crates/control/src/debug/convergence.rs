//! The page that an operator opens first: whether the latest change is live everywhere, and how long that took. Plain HTML
//! without scripts, from the numbers of `/debug/syncz`; it reloads itself every few seconds.

use std::fmt::Write as _;

use evenkeel_admin::syncz::{COLUMNS, Proxy, QUANTILES, Syncz, milliseconds};

/// How often the browser reloads the page, in seconds.
const REFRESH_SECONDS: u32 = 5;
/// Maximum number of proxies in the table; the slowest come first.
const MAX_ROWS: usize = 500;

/// Other pages of this port.
const LINKS: [(&str, &str); 6] = [
    ("/debug/diagnostics", "diagnostics"),
    ("/debug/registryz", "services"),
    ("/debug/endpointz", "endpoints"),
    ("/debug/configz", "configuration"),
    ("/metrics", "metrics"),
    ("/debug", "all pages"),
];

const STYLE: &str = ":root{color-scheme:light dark;--line:#d0d7de;--dim:#656d76;--card:#f6f8fa;--good:#1a7f37;--late:#9a6700;--bad:#cf222e}\
    @media(prefers-color-scheme:dark){:root{--line:#30363d;--dim:#8d96a0;--card:#161b22;--good:#3fb950;--late:#d29922;--bad:#f85149}\
    body{background:#0d1117;color:#e6edf3}}\
    body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;padding:0 1.5em;max-width:90em}\
    header{display:flex;flex-wrap:wrap;align-items:baseline;gap:.3em 1.5em}h1{font-size:1.5em;margin:0}nav a{margin-right:1em}\
    a{color:#0969da;text-decoration:none}.dim,.none{color:var(--dim)}\
    .tiles{display:flex;flex-wrap:wrap;gap:.8em;margin:1.2em 0}\
    .tile{background:var(--card);border:1px solid var(--line);border-radius:.5em;padding:.6em 1.1em;min-width:7em}\
    .tile b{display:block;font-size:1.5em;font-variant-numeric:tabular-nums}.tile span{color:var(--dim);font-size:.85em}\
    .good b{color:var(--good)}.late b{color:var(--late)}.bad b{color:var(--bad)}\
    table{border-collapse:collapse;width:100%}th,td{padding:.35em 1.2em .35em 0;text-align:left;white-space:nowrap;\
    border-bottom:1px solid var(--line)}\
    th{font-size:.85em;color:var(--dim);font-weight:600}\
    .number{text-align:right;font-variant-numeric:tabular-nums}.SYNCED{color:var(--good)}.STALE{color:var(--late)}\
    .NACKED{color:var(--bad);font-weight:600}.NOT-SENT{color:var(--dim)}\
    .note{border-left:.25em solid var(--bad);background:var(--card);padding:.5em .9em;margin:.6em 0}";

/// Renders the page from the data of `/debug/syncz`.
pub fn page(syncz: &Syncz) -> String {
    let mut proxies: Vec<&Proxy> = syncz.proxies.iter().filter(|stream| stream.is_proxy()).collect();
    let worst = |proxy: &Proxy| proxy.slowest(|ages| ages.p99).unwrap_or(-1.0);
    proxies.sort_by(|a, b| worst(b).total_cmp(&worst(a)));
    let columns: String = COLUMNS.iter().map(|column| format!("<th>{column}</th>")).collect();
    let rows: String = proxies.iter().take(MAX_ROWS).map(|proxy| row(proxy)).collect();
    let more = match proxies.len().saturating_sub(MAX_ROWS) {
        0 => String::new(),
        more => format!("<p class=\"dim\">and {more} more, which were faster</p>\n"),
    };
    let notes: String =
        proxies.iter().flat_map(|proxy| notes(proxy)).map(|note| format!("<p class=\"note\">{note}</p>\n")).collect();
    let links: String = LINKS.iter().map(|(path, name)| format!("<a href=\"{path}\">{name}</a>")).collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" \
         content=\"{REFRESH_SECONDS}\"><meta name=\"viewport\" content=\"width=device-width\"><title>Evenkeel: proxies</title>\n\
         <style>{STYLE}</style></head>\n<body><header><h1>Proxies</h1><nav>{links}</nav></header>\n\
         <p class=\"dim\">{} · generation {}</p>\n{}{notes}<table>\n<tr><th>Proxy</th><th>Kind</th>{columns}\
         <th class=\"number\">Age p50</th><th class=\"number\">p99</th><th class=\"number\">max</th><th>Program</th></tr>\n\
         {rows}</table>\n{more}<p class=\"dim\">Age: from a change's being noticed to its being applied by the proxy, by the proxy's last \
         report; the type that took longest. Proxies that are not Evenkeel's do not report it.</p></body></html>\n",
        escaped(&syncz.control_plane),
        syncz.generation,
        tiles(&proxies),
    )
}

/// Renders the summary: whether the configuration is live everywhere, whether anything is wrong, and the age where it took
/// longest.
fn tiles(proxies: &[&Proxy]) -> String {
    let count = |is: fn(&Proxy) -> bool| proxies.iter().filter(|proxy| is(proxy)).count();
    let live = count(|proxy| proxy.live);
    let refusing = count(|proxy| proxy.refused().next().is_some());
    let diverged = count(|proxy| proxy.divergence.is_some());
    let is_bad = |count: usize| if count > 0 { "bad" } else { "good" };
    let mut all = vec![
        (if live == proxies.len() { "good" } else { "late" }, format!("{live} of {}", proxies.len()), "proxies live"),
        (is_bad(refusing), refusing.to_string(), "refuse something"),
        (is_bad(diverged), diverged.to_string(), "had diverged"),
    ];
    for ((_, age), what) in QUANTILES.into_iter().zip(["age, p50", "age, p99", "age, max"]) {
        let age = proxies.iter().filter_map(|proxy| proxy.slowest(age)).reduce(f64::max);
        all.push(("", age.map_or_else(|| "–".to_owned(), milliseconds), what));
    }
    let tile = |(class, value, what): &(&str, String, &str)| {
        format!("<div class=\"tile {class}\"><b>{value}</b><span>{what}</span></div>\n")
    };
    format!("<div class=\"tiles\">\n{}</div>\n", all.iter().map(tile).collect::<String>())
}

fn row(proxy: &Proxy) -> String {
    let mut row = format!("<tr><td>{}</td><td>{}</td>", escaped(proxy.name()), escaped(&proxy.kind));
    for column in COLUMNS {
        _ = match proxy.of(column).map(|status| status.state.as_str()) {
            Some(state) => write!(row, "<td class=\"{}\">{state}</td>", state.replace(' ', "-")),
            None => write!(row, "<td class=\"none\">–</td>"),
        };
    }
    for (_, age) in QUANTILES {
        let age = proxy.slowest(age).map_or_else(|| "–".to_owned(), milliseconds);
        _ = write!(row, "<td class=\"number\">{age}</td>");
    }
    _ = writeln!(row, "<td>{}</td></tr>", escaped(&proxy.program));
    row
}

/// Returns what is wrong with a proxy.
fn notes(proxy: &Proxy) -> Vec<String> {
    let name = escaped(proxy.name());
    let refused = proxy
        .refused()
        .map(|refused| format!("<b>{name}</b> refuses {}: {}", escaped(refused.kind), escaped(&refused.nack.message)));
    let diverged = proxy.divergence.as_ref().map(|divergence| {
        let names: Vec<String> = divergence.names.iter().map(|name| escaped(name)).collect();
        let of = escaped(&divergence.kind);
        format!("<b>{name}</b> held other {of} resources than it was sent; healed: {}", names.join(", "))
    });
    refused.chain(diverged).collect()
}

/// Escapes a text for HTML: nodes choose what they report.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, char| {
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
                {"proxy": "sidecar~10.0.0.1~web-0.shop~x", "kind": "sidecar", "program": "evenkeel-agent", "live": false,
                 "types": [{"type": "NDS", "state": "SYNCED"}]},
                {"proxy": "router~10.0.0.2~<b>.shop~x", "kind": "router", "program": "envoy & co", "live": false, "types": [
                    {"type": "CDS", "state": "NACKED", "ages_ms": {"p50": 9.0, "p99": 90.0, "max": 99.0},
                     "nack": {"message": "no \"such\" thing"}},
                    {"type": "RDS", "state": "NOT SENT"},
                ], "divergence": {"type": "EDS", "names": ["a", "b"]}},
            ],
        });
        let page = page(&serde_json::from_value(syncz).expect("the page's data"));
        let rows: Vec<&str> = page
            .lines()
            .filter(|line| ["<tr><td>", "<p", "<div class=\"tile "].iter().any(|start| line.starts_with(start)))
            .collect();
        let none = "<td class=\"none\">–</td>";
        let tile = |class: &str, value: &str, what: &str| {
            format!("<div class=\"tile {class}\"><b>{value}</b><span>{what}</span></div>")
        };
        let expected = [
            "<p class=\"dim\">evenkeel/0.1.0 host.1 · generation 7</p>".to_owned(),
            tile("late", "1 of 2", "proxies live"),
            tile("bad", "1", "refuse something"),
            tile("bad", "1", "had diverged"),
            tile("", "9.0 ms", "age, p50"),
            tile("", "90 ms", "age, p99"),
            tile("", "20 s", "age, max"),
            "<p class=\"note\"><b>&lt;b&gt;.shop</b> refuses CDS: no &quot;such&quot; thing</p>".to_owned(),
            "<p class=\"note\"><b>&lt;b&gt;.shop</b> held other EDS resources than it was sent; healed: a, b</p>"
                .to_owned(),
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
        ];
        assert_eq!(rows.get(..expected.len()), Some(&expected.each_ref().map(|line| &**line)[..]), "{rows:#?}");
    }
}
