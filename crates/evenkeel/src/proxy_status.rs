//! `evenkeel proxy-status`: which of its resources each proxy holds, and how old they were when it applied them.

use std::io::Write;
use std::net::SocketAddr;

use anyhow::{Context, bail};
use evenkeel_base::replica::{NameMatch, match_name, workload_of};
use evenkeel_base::suggest::instead;
use evenkeel_explain::columns::{columns_within, filled};
use evenkeel_local::exec::{Failing, ReplicaInfo};
use evenkeel_xds::evenkeel::IN_AGENT;
use serde_json::{Value, json};

use crate::formats::width;
use crate::{admin, ca};

/// Types with a column of their own: those istioctl shows, and ours.
const COLUMNS: [&str; 5] = ["CDS", "LDS", "EDS", "RDS", "VHDS"];

/// Maximum number of proxies named in a line.
const MAX_NAMED: usize = 5;

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// A table.
    Table,
    /// The queried program's own JSON; a list if several are queried.
    Json,
}

/// Prints the status of every proxy connected to these control planes. Returns 1 if what runs is not what the files
/// say: a file is refused in part, a proxy refuses a resource, a replica is not ready or keeps ending, or a control
/// plane does not answer.
///
/// With a name, prints only the proxies that it matches. `replicas` are those of the running mesh; the output shows
/// which of them keep ending.
pub fn run(
    control_planes: &[SocketAddr],
    replicas: &[ReplicaInfo],
    wanted: Option<&str>,
    output: Output,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let (mut pages, mut failures) = (Vec::new(), Vec::new());
    for address in control_planes {
        match page(*address) {
            Ok(page) => pages.push(page),
            Err(error) => failures.push(error),
        }
    }
    if pages.is_empty()
        && let Some(error) = failures.pop()
    {
        return Err(error);
    }
    if let Some(first) = pages.first_mut() {
        first["failing"] = failing(replicas);
    }
    if let Some(wanted) = wanted {
        keep(&mut pages, wanted)?;
    }
    match (output, pages.as_slice()) {
        (Output::Json, [page]) if failures.is_empty() => writeln!(out, "{page:#}")?,
        (Output::Json, pages) => writeln!(out, "{:#}", Value::Array(pages.to_vec()))?,
        (Output::Table, pages) => out.write_all(table(pages, wanted.is_some(), width()).as_bytes())?,
    }
    for error in &failures {
        writeln!(std::io::stderr(), "error: {error:#}")?;
    }
    let is_well = failures.is_empty() && pages.iter().all(|page| config_problems(page).is_empty());
    Ok(u8::from(!is_well))
}

/// Reasons why the mesh does not run what the files say, one line for each.
fn config_problems(page: &Value) -> Vec<String> {
    let texts = |name: &str| page[name].as_array().into_iter().flatten().filter_map(Value::as_str);
    let proxies = page["proxies"].as_array().into_iter().flatten();
    let mut refusals: Vec<String> = proxies
        .flat_map(|proxy| {
            let name = pod(proxy["proxy"].as_str().unwrap_or_default());
            let refused = types(proxy).filter(|status| !status["nack"].is_null());
            refused.map(move |status| refusal(&name, status)).collect::<Vec<_>>()
        })
        .collect();
    refusals.sort();
    let written = texts("refused").map(|finding| format!("not in force: {finding}\n"));
    let waiting = texts("not_ready").map(|name| format!("{name} is not ready\n"));
    let unregistered = page["not_registered"].as_array().into_iter().flatten().map(|one| {
        let text = |name: &str| one[name].as_str().unwrap_or_default();
        format!("{} is not registered: {}\n", pod(text("proxy")), text("reason"))
    });
    let failing = page["failing"].as_array().into_iter().flatten().map(|part| {
        let text = |name: &str| part[name].as_str().unwrap_or_default();
        let state = if part["runs"] == true { "is running" } else { "waits to be restarted" };
        let (name, kind, last) = (text("replica"), text("part"), text("last_end"));
        let (times, ago) = (&part["restarts"], &part["seconds_ago"]);
        format!("{name}: its {kind} keeps ending: restarts: {times}, {state}; {ago} s ago: {last}\n")
    });
    written.chain(refusals).chain(waiting).chain(unregistered).chain(failing).collect()
}

/// The programs and proxies of replicas that keep ending.
fn failing(replicas: &[ReplicaInfo]) -> Value {
    let part = |replica: &ReplicaInfo, part: &Failing| {
        json!({
            "replica": format!("{}.{}", replica.pod, replica.namespace),
            "part": part.part,
            "runs": part.runs,
            "restarts": part.restarts,
            "last_end": part.last_end,
            "seconds_ago": part.seconds_ago,
        })
    };
    replicas.iter().flat_map(|replica| replica.failing.iter().map(move |of_it| part(replica, of_it))).collect()
}

/// Keeps only the proxies that a name matches.
fn keep(pages: &mut [Value], wanted: &str) -> anyhow::Result<()> {
    let name = |proxy: &Value| pod(proxy["proxy"].as_str().unwrap_or_default());
    let fits = |proxy: &Value| {
        let name = name(proxy);
        let (pod, namespace) = name.rsplit_once('.').unwrap_or((&name, ""));
        match proxy["proxy"].as_str() == Some(wanted) {
            true => Some(NameMatch::Pod),
            false => match_name(wanted, pod, namespace, workload_of(pod)),
        }
    };
    let proxies = |page: &Value| page["proxies"].as_array().cloned().unwrap_or_default();
    let all: Vec<Value> = pages.iter().flat_map(proxies).collect();
    let Some(best) = all.iter().filter_map(fits).max() else {
        let mut names: Vec<String> = all.iter().map(name).collect();
        names.sort();
        names.dedup();
        bail!("no proxy {wanted} is connected; {}", instead(wanted, names.iter().map(String::as_str)));
    };
    for page in pages {
        let kept = proxies(page).into_iter().filter(|proxy| fits(proxy) == Some(best)).collect();
        page["proxies"] = Value::Array(kept);
        let is_meant = |name: &Value| {
            let (pod, namespace) = name.as_str().and_then(|name| name.rsplit_once('.')).unwrap_or_default();
            match_name(wanted, pod, namespace, workload_of(pod)).is_some()
        };
        let list = |name: &str| page[name].as_array().cloned().unwrap_or_default().into_iter();
        let waiting: Value = list("not_ready").filter(|name| is_meant(name)).collect();
        let failing: Value = list("failing").filter(|part| is_meant(&part["replica"])).collect();
        let refused =
            list("not_registered").filter(|one| is_meant(&json!(pod(one["proxy"].as_str().unwrap_or_default()))));
        let refused: Value = refused.collect();
        (page["not_ready"], page["failing"], page["not_registered"]) = (waiting, failing, refused);
    }
    Ok(())
}

fn page(control_plane: SocketAddr) -> anyhow::Result<Value> {
    let body = admin::get(admin::CONTROL_PLANE, control_plane, "/debug/syncz")?;
    let page: Value = serde_json::from_slice(&body)
        .with_context(|| format!("the answer of the control plane's HTTP port {control_plane} is not JSON"))?;
    match page["proxies"].is_array() {
        true => Ok(page),
        false => {
            bail!("{control_plane} is not the HTTP port of Evenkeel's control plane; for Istio's there is istioctl")
        }
    }
}

/// `asked`: about one workload, of which more is told.
fn table(pages: &[Value], asked: bool, width: usize) -> String {
    let mut head: Vec<String> = ["NAME", "KIND"].iter().chain(&COLUMNS).map(ToString::to_string).collect();
    head.extend(["AGE p50", "p99", "max", "PROGRAM", "CONTROL PLANE"].map(str::to_owned));
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    let mut wrong: Vec<String> = pages.iter().flat_map(config_problems).collect();
    // Several control planes may read the same files.
    let mut seen = std::collections::BTreeSet::new();
    wrong.retain(|line| seen.insert(line.clone()));
    for page in pages {
        let control_plane = page["control_plane"].as_str().unwrap_or_default();
        for proxy in page["proxies"].as_array().into_iter().flatten().filter(|proxy| is_proxy(proxy)) {
            let name = pod(proxy["proxy"].as_str().unwrap_or_default());
            notes.extend(remarks(&name, proxy).into_iter().map(|remark| (name.clone(), remark)));
            rows.push(row(name, proxy, control_plane));
        }
    }
    let mut ending: Vec<String> = pages.iter().flat_map(ending).collect();
    ending.sort();
    ending.dedup();
    wrong.append(&mut ending);
    if rows.is_empty() {
        let names: Vec<&str> = pages.iter().filter_map(|page| page["control_plane"].as_str()).collect();
        return format!("no proxy is connected to {}\n{}", names.join(" or "), wrong.concat());
    }
    rows.sort();
    rows.insert(0, head);
    notes.sort();
    notes.extend(in_agents(pages).filter(|_| asked).map(|line| (String::new(), line)));
    let mut printed = columns_within(&rows, 3, width);
    if !notes.is_empty() || !wrong.is_empty() {
        printed.push('\n');
        printed.extend(notes.into_iter().map(|(_, remark)| remark).chain(wrong).map(|line| filled(&line, width)));
    }
    printed
}

/// Certificates that end soon and were not replaced.
fn ending(page: &Value) -> Vec<String> {
    let alarms = page["certificates_ending"].as_array().into_iter().flatten();
    alarms.map(|alarm| ca::alarm_line(alarm) + "\n").collect()
}

fn row(name: String, proxy: &Value, control_plane: &str) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let types: Vec<&Value> = types(proxy).collect();
    let mut row = vec![name, text(&proxy["kind"])];
    for column in COLUMNS {
        let state = types.iter().find(|status| status["type"] == column).map(|status| state(status));
        row.push(state.unwrap_or_else(|| "-".to_owned()));
    }
    for quantile in ["p50", "p99", "max"] {
        let worst = types.iter().filter_map(|status| status["ages_ms"][quantile].as_f64()).reduce(f64::max);
        row.push(worst.map_or_else(|| "-".to_owned(), milliseconds));
    }
    row.extend([text(&proxy["program"]), control_plane.to_owned()]);
    row
}

fn types(proxy: &Value) -> impl Iterator<Item = &Value> {
    proxy["types"].as_array().into_iter().flatten()
}

/// The state in a word, with the time that an answer has been outstanding if that is long.
fn state(status: &Value) -> String {
    let state = status["state"].as_str().unwrap_or_default();
    match status["waiting_ms"].as_u64() {
        Some(waiting @ 1_000..) if state == "STALE" => format!("{state} {} s", waiting / 1_000),
        _ => state.to_owned(),
    }
}

/// Remarks about a proxy, shown below the table.
fn remarks(name: &str, proxy: &Value) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(names) = proxy["divergence"]["names"].as_array() {
        let of = proxy["divergence"]["type"].as_str().unwrap_or_default();
        remarks.push(format!("{name} held other {of} resources than it was sent; corrected: {}\n", list(names.iter())));
    }
    if let Some(state) = proxy["confinement"].as_str().filter(|state| !state.starts_with(IN_AGENT)) {
        let lacks = |part: &str| state.contains(&format!("{part}=off")) || state.contains(&format!("{part}=partly"));
        match (lacks("seccomp"), lacks("landlock") || state.contains("capabilities=all")) {
            (true, true) => remarks.push(format!("{name} is not confined: {state}\n")),
            (false, false) => {}
            _ => remarks.push(format!("{name} is confined in part: {state}\n")),
        }
    }
    remarks
}

/// Reports proxies that run inside their agents, without a system call filter.
fn in_agents(pages: &[Value]) -> Option<String> {
    let proxies = pages.iter().flat_map(|page| page["proxies"].as_array().into_iter().flatten());
    let is_inside = |proxy: &&Value| proxy["confinement"].as_str().is_some_and(|state| state.starts_with(IN_AGENT));
    let names: std::collections::BTreeSet<String> =
        proxies.filter(is_inside).map(|proxy| pod(proxy["proxy"].as_str().unwrap_or_default())).collect();
    let first: Vec<&str> = names.iter().take(MAX_NAMED).map(String::as_str).collect();
    let more = match names.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = first.join(", ");
    (!names.is_empty()).then(|| {
        format!(
            "no filter of system calls (seccomp) limits the proxies of {named}{more}: they run in their agents' processes, which start \
             programs (docs/hardening.md)\n"
        )
    })
}

/// Whether a stream is a proxy's. An agent has a stream of its own under the proxy's node id, on which it asks only for
/// DNS names.
fn is_proxy(stream: &Value) -> bool {
    let mut types = stream["types"].as_array().into_iter().flatten().peekable();
    types.peek().is_none() || types.any(|status| COLUMNS.iter().any(|column| status["type"] == *column))
}

/// `sidecar~IP~POD.NAMESPACE~DOMAIN` as POD.NAMESPACE.
pub fn pod(node: &str) -> String {
    node.split('~').nth(2).unwrap_or(node).to_owned()
}

fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 10_000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.0} s", ms / 1e3),
    }
}

/// Describes what a proxy rejects, and where the user wrote it.
pub fn refusal(name: &str, status: &Value) -> String {
    let nack = &status["nack"];
    let resources: Vec<Value> = nack["resources"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|resource| {
            let origin = resource["origin"].as_str().map(|origin| format!(" (from {origin})")).unwrap_or_default();
            Value::String(format!("{}{origin}", resource["name"].as_str().unwrap_or_default()))
        })
        .collect();
    let (kind, message) = (status["type"].as_str().unwrap_or_default(), nack["message"].as_str().unwrap_or_default());
    format!("{name} refuses {kind} {}: {message}\n", list(resources.iter()))
}

fn list<'a>(values: impl Iterator<Item = &'a Value>) -> String {
    values.filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_a_row_for_each_proxy_and_what_is_wrong() {
        let page = json!({
            "control_plane": "evenkeel/0.1.0 host.1",
            "proxies": [
                {
                    "proxy": "sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local",
                    "kind": "sidecar",
                    "program": "evenkeel 0.1.0",
                    "types": [
                        {"type": "CDS", "state": "SYNCED", "ages_ms": {"p50": 1.26, "p99": 4.0, "max": 12.4}},
                        {"type": "EDS", "state": "STALE", "waiting_ms": 12_345, "ages_ms": {"p50": 2.0, "p99": 3.0, "max": 20000.0}},
                        {"type": "RDS", "state": "NACKED", "nack": {
                            "message": "no such cluster",
                            "resources": [{"name": "80", "origin": "routes.yaml:3:1"}],
                        }},
                    ],
                },
                {"proxy": "sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local", "kind": "sidecar",
                 "program": "evenkeel-agent", "types": [{"type": "NDS", "state": "SYNCED"}]},
                {"proxy": "router~10.0.0.2~gw.shop~x", "kind": "router", "program": "envoy 1.40.0", "types": [],
                 "divergence": {"type": "CDS", "names": ["a", "b"]}},
                {"proxy": "router~10.0.0.3~one.edge~x", "kind": "router", "program": "evenkeel 0.1.0", "types": [],
                 "confinement": "seccomp=off (not asked for) landlock=off (not asked for) capabilities=none user=0"},
                {"proxy": "router~10.0.0.3~two.edge~x", "kind": "router", "program": "evenkeel 0.1.0", "types": [],
                 "confinement": "seccomp=on landlock=partly capabilities=none user=0"},
                {"proxy": "router~10.0.0.3~three.edge~x", "kind": "router", "program": "evenkeel 0.1.0", "types": [],
                 "confinement": "seccomp=on landlock=on capabilities=NET_ADMIN user=7"},
                {"proxy": "sidecar~10.0.0.4~api-0.shop~x", "kind": "sidecar", "program": "evenkeel 0.1.0", "types": [],
                 "confinement": "in its agent: seccomp=off (not asked for) landlock=off (not asked for) capabilities=NET_ADMIN user=9"},
            ],
        });
        let expected = "\
NAME         KIND      CDS      LDS   EDS          RDS      VHDS   AGE p50   p99      max    PROGRAM          CONTROL PLANE
api-0.shop   sidecar   -        -     -            -        -      -         -        -      evenkeel 0.1.0   evenkeel/0.1.0 host.1
gw.shop      router    -        -     -            -        -      -         -        -      envoy 1.40.0     evenkeel/0.1.0 host.1
one.edge     router    -        -     -            -        -      -         -        -      evenkeel 0.1.0   evenkeel/0.1.0 host.1
three.edge   router    -        -     -            -        -      -         -        -      evenkeel 0.1.0   evenkeel/0.1.0 host.1
two.edge     router    -        -     -            -        -      -         -        -      evenkeel 0.1.0   evenkeel/0.1.0 host.1
web-0.shop   sidecar   SYNCED   -     STALE 12 s   NACKED   -      2.0 ms    4.0 ms   20 s   evenkeel 0.1.0   evenkeel/0.1.0 host.1

gw.shop held other CDS resources than it was sent; corrected: a, b
one.edge is not confined: seccomp=off (not asked for) landlock=off (not asked for) capabilities=none user=0
two.edge is confined in part: seccomp=on landlock=partly capabilities=none user=0
web-0.shop refuses RDS 80 (from routes.yaml:3:1): no such cluster
";
        assert_eq!(table(std::slice::from_ref(&page), false, usize::MAX), expected);
        // Where nothing is wrong, what holds for every proxy of `up` is told of those that are asked about.
        let asked =
            "no filter of system calls (seccomp) limits the proxies of api-0.shop: they run in their agents' processes";
        assert!(table(&[page], true, usize::MAX).contains(asked));
    }

    #[test]
    fn a_proxy_is_found_by_every_name_that_is_printed() {
        let proxy = |name: &str| json!({"proxy": format!("sidecar~10.0.0.1~{name}.shop~x"), "types": []});
        let page =
            json!({"control_plane": "one", "proxies": [proxy("web-5d-a"), proxy("web-5d-b"), proxy("web2-6-c")]});
        let check = |wanted: &str, expected: usize| {
            let mut pages = [page.clone()];
            let found = keep(&mut pages, wanted).map(|()| pages[0]["proxies"].as_array().map_or(0, Vec::len));
            assert_eq!(found.unwrap_or_default(), expected, "{wanted}");
        };
        check("web", 2);
        check("web.shop", 2);
        check("web-5d-a.shop", 1);
        check("web2", 1);
        check("we", 3);
        check("sidecar~10.0.0.1~web-5d-a.shop~x", 1);
        let error = keep(&mut [page.clone()], "wbe2-6-c.shop").expect_err("none");
        assert!(error.to_string().contains("did you mean `web2-6-c.shop`?"), "{error}");
    }

    #[test]
    fn what_was_written_and_does_not_run_is_said() {
        let well = json!({"control_plane": "one", "proxies": [], "refused": [], "not_ready": []});
        assert!(config_problems(&well).is_empty());
        let finding = "routes.yaml:3:5: error[unknown-field]: `spec.htpt`: there is no such field";
        let ill = json!({"control_plane": "one", "proxies": [], "refused": [finding], "not_ready": ["web-0.shop"]});
        let said = format!("not in force: {finding}\nweb-0.shop is not ready\n");
        assert_eq!(config_problems(&ill).concat(), said);
        let node = "sidecar~10.0.0.1~vm-0.shop~shop.svc.cluster.local";
        let unregistered =
            json!({"proxies": [], "not_registered": [{"proxy": node, "reason": "there is no WorkloadGroup"}]});
        let reason = "vm-0.shop is not registered: there is no WorkloadGroup\n";
        assert_eq!(config_problems(&unregistered).concat(), reason);
        // Two control planes that read the same files report a finding once.
        assert_eq!(
            table(&[ill.clone(), ill], false, usize::MAX),
            format!("no proxy is connected to one or one\n{said}")
        );
    }

    #[test]
    fn what_ends_again_and_again_is_said_of_those_that_are_meant() {
        let replica = |pod: &str, failing: &[Failing]| ReplicaInfo {
            namespace: "shop".to_owned(),
            workload: pod.split('-').next().unwrap_or_default().to_owned(),
            pod: pod.to_owned(),
            failing: failing.to_vec(),
        };
        let last_end = "exited with status 7".to_owned();
        let part = Failing { part: "program".to_owned(), runs: false, restarts: 5, last_end, seconds_ago: 3 };
        let replicas = [
            replica("web-5d-a", std::slice::from_ref(&part)),
            replica("api-6-b", &[]),
            replica("db-7-c", std::slice::from_ref(&part)),
        ];
        let proxy = |name: &str| json!({"proxy": format!("sidecar~10.0.0.1~{name}.shop~x"), "types": []});
        let page = json!({"control_plane": "one", "proxies": [proxy("web-5d-a"), proxy("api-6-b")], "failing": failing(&replicas)});
        let check = |wanted: &str, expected: &str| {
            let mut pages = [page.clone()];
            keep(&mut pages, wanted).expect("it is there");
            assert_eq!(config_problems(&pages[0]).concat(), expected, "{wanted}");
        };
        check("api", "");
        let said = "web-5d-a.shop: its program keeps ending: restarts: 5, waits to be restarted; 3 s ago: exited with status 7\n";
        check("web", said);
        assert_eq!(config_problems(&page).len(), 2);
    }

    #[test]
    fn several_control_planes_make_one_table() {
        let proxy =
            |name: &str| json!({"proxy": format!("sidecar~10.0.0.1~{name}.shop~x"), "kind": "sidecar", "types": []});
        let page = |name: &str, proxies: &[Value]| json!({"control_plane": name, "proxies": proxies});
        let pages = [page("one", &[proxy("b"), proxy("c")]), page("two", &[proxy("a")]), page("three", &[])];
        let printed = table(&pages, false, usize::MAX);
        let column =
            |n: usize| -> Vec<&str> { printed.lines().filter_map(|row| row.split_whitespace().nth(n)).collect() };
        assert_eq!(column(0), ["NAME", "a.shop", "b.shop", "c.shop"]);
        assert!(
            printed.lines().zip(["CONTROL PLANE", "two", "one", "one"]).all(|(row, end)| row.ends_with(end)),
            "{printed}"
        );
        assert_eq!(
            table(&[page("one", &[]), page("two", &[])], false, usize::MAX),
            "no proxy is connected to one or two\n"
        );
    }
}
