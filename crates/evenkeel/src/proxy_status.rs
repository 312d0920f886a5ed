//! `evenkeel proxy-status`: which of its resources each proxy holds, and how old they were when it applied them.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::bail;
use evenkeel_admin::client::Address;
use evenkeel_admin::syncz::{
    self, COLUMNS, Divergence, Failing, Proxy, QUANTILES, State, Syncz, TypeStatus, milliseconds, pod,
};
use evenkeel_base::replica::{NameMatch, match_name, workload_of};
use evenkeel_base::suggest::instead;
use evenkeel_explain::columns::{columns_within, filled};
use evenkeel_local::exec::ReplicaInfo;
use evenkeel_xds::evenkeel::IN_AGENT;
use serde_json::json;

use crate::formats::width;
use crate::{admin, ca};

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
    control_planes: &[Address],
    replicas: &[ReplicaInfo],
    wanted: Option<&str>,
    output: Output,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let (mut pages, mut failures) = (Vec::new(), Vec::new());
    for address in control_planes {
        match admin::read::<Syncz>(address.clone(), syncz::PATH) {
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
        first.failing = Some(failing(replicas));
    }
    if let Some(wanted) = wanted {
        keep(&mut pages, wanted)?;
    }
    match (output, pages.as_slice()) {
        (Output::Json, [page]) if failures.is_empty() => writeln!(out, "{:#}", json!(page))?,
        (Output::Json, pages) => writeln!(out, "{:#}", json!(pages))?,
        (Output::Table, pages) => out.write_all(table(pages, wanted.is_some(), width()).as_bytes())?,
    }
    for error in &failures {
        writeln!(std::io::stderr(), "error: {error:#}")?;
    }
    let is_well = failures.is_empty() && pages.iter().all(|page| config_problems(page).is_empty());
    Ok(u8::from(!is_well))
}

/// Reasons why the mesh does not run what the files say, one line for each.
fn config_problems(page: &Syncz) -> Vec<String> {
    let refusing = page.proxies.iter().flat_map(|proxy| {
        let name = proxy.name();
        proxy.refused().map(move |refused| format!("{name} refuses {refused}\n"))
    });
    let mut refusals: Vec<String> = refusing.collect();
    refusals.sort();
    let written = page.refused.iter().map(|finding| format!("not in force: {finding}\n"));
    let waiting = page.not_ready.iter().map(|name| format!("{name} is not ready\n"));
    let unregistered = page.not_registered.iter();
    let unregistered = unregistered.map(|one| format!("{} is not registered: {}\n", pod(&one.proxy), one.reason));
    let failing = page.failing.iter().flatten().map(|failing| {
        let Failing { replica, part, runs, restarts, last_end, seconds_ago } = failing;
        let state = if *runs { "is running" } else { "waits to be restarted" };
        format!("{replica}: its {part} keeps ending: restarts: {restarts}, {state}; {seconds_ago} s ago: {last_end}\n")
    });
    written.chain(refusals).chain(waiting).chain(unregistered).chain(failing).collect()
}

/// The programs and proxies of replicas that keep ending.
fn failing(replicas: &[ReplicaInfo]) -> Vec<Failing> {
    let of = |replica: &ReplicaInfo| {
        let name = format!("{}.{}", replica.pod, replica.namespace);
        let parts = replica.failing.iter().map(move |part| Failing {
            replica: name.clone(),
            part: part.part.clone(),
            runs: part.runs,
            restarts: part.restarts,
            last_end: part.last_end.clone(),
            seconds_ago: part.seconds_ago,
        });
        parts.collect::<Vec<_>>()
    };
    replicas.iter().flat_map(of).collect()
}

/// Keeps only the proxies that a name matches.
fn keep(pages: &mut [Syncz], wanted: &str) -> anyhow::Result<()> {
    let fits = |proxy: &Proxy| {
        let (pod, namespace) = proxy.name().rsplit_once('.').unwrap_or((proxy.name(), ""));
        if proxy.proxy == wanted { Some(NameMatch::Pod) } else { match_name(wanted, pod, namespace, workload_of(pod)) }
    };
    let all = || pages.iter().flat_map(|page| &page.proxies);
    let Some(best) = all().filter_map(fits).max() else {
        let names: BTreeSet<&str> = all().map(Proxy::name).collect();
        bail!("no proxy {wanted} is connected; {}", instead(wanted, names.into_iter()));
    };
    let is_meant = |name: &str| {
        let (pod, namespace) = name.rsplit_once('.').unwrap_or_default();
        match_name(wanted, pod, namespace, workload_of(pod)).is_some()
    };
    for page in pages {
        page.proxies.retain(|proxy| fits(proxy) == Some(best));
        page.not_ready.retain(|name| is_meant(name));
        page.not_registered.retain(|one| is_meant(pod(&one.proxy)));
        if let Some(failing) = &mut page.failing {
            failing.retain(|part| is_meant(&part.replica));
        }
    }
    Ok(())
}

/// `asked`: about one workload, of which more is told.
fn table(pages: &[Syncz], asked: bool, width: usize) -> String {
    let mut head: Vec<String> = ["NAME", "KIND"].iter().chain(&COLUMNS).map(ToString::to_string).collect();
    head.extend(["AGE p50", "p99", "max", "PROGRAM", "CONTROL PLANE"].map(str::to_owned));
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    let mut wrong: Vec<String> = pages.iter().flat_map(config_problems).collect();
    // Several control planes may read the same files.
    let mut seen = BTreeSet::new();
    wrong.retain(|line| seen.insert(line.clone()));
    for page in pages {
        for proxy in page.proxies.iter().filter(|proxy| proxy.is_proxy()) {
            notes.extend(remarks(proxy).into_iter().map(|remark| (proxy.name(), remark)));
            rows.push(row(proxy, &page.control_plane));
        }
    }
    let ending: BTreeSet<String> =
        pages.iter().flat_map(|page| &page.certificates_ending).map(|alarm| ca::alarm_line(alarm) + "\n").collect();
    wrong.extend(ending);
    if rows.is_empty() {
        let names: Vec<&str> = pages.iter().map(|page| &*page.control_plane).collect();
        return format!("no proxy is connected to {}\n{}", names.join(" or "), wrong.concat());
    }
    rows.sort();
    rows.insert(0, head);
    notes.sort();
    notes.extend(in_agents(pages).filter(|_| asked).map(|line| ("", line)));
    let mut printed = columns_within(&rows, 3, width);
    if !notes.is_empty() || !wrong.is_empty() {
        printed.push('\n');
        printed.extend(notes.into_iter().map(|(_, remark)| remark).chain(wrong).map(|line| filled(&line, width)));
    }
    printed
}

fn row(proxy: &Proxy, control_plane: &str) -> Vec<String> {
    let mut row = vec![proxy.name().to_owned(), proxy.kind.clone()];
    row.extend(COLUMNS.map(|column| proxy.of(column).map_or_else(|| "-".to_owned(), state)));
    let ages = QUANTILES.map(|(_, age)| proxy.slowest(age).map_or_else(|| "-".to_owned(), milliseconds));
    row.extend(ages);
    row.extend([proxy.program.clone(), control_plane.to_owned()]);
    row
}

/// The state in a word, with the time that an answer has been outstanding if that is long.
fn state(status: &TypeStatus) -> String {
    let state = status.state.as_str();
    match status.waiting_ms {
        Some(waiting @ 1_000..) if status.state == State::Stale => format!("{state} {} s", waiting / 1_000),
        _ => state.to_owned(),
    }
}

/// Remarks about a proxy, shown below the table.
fn remarks(proxy: &Proxy) -> Vec<String> {
    let (name, mut remarks) = (proxy.name(), Vec::new());
    if let Some(Divergence { kind, names, .. }) = &proxy.divergence {
        let names = names.join(", ");
        remarks.push(format!("{name} held other {kind} resources than it was sent; corrected: {names}\n"));
    }
    if let Some(state) = proxy.confinement.as_ref().filter(|state| !state.starts_with(IN_AGENT)) {
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
fn in_agents(pages: &[Syncz]) -> Option<String> {
    let is_inside = |proxy: &&Proxy| proxy.confinement.as_ref().is_some_and(|state| state.starts_with(IN_AGENT));
    let names: BTreeSet<&str> =
        pages.iter().flat_map(|page| &page.proxies).filter(is_inside).map(Proxy::name).collect();
    let first: Vec<&str> = names.iter().take(MAX_NAMED).copied().collect();
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

#[cfg(test)]
mod tests {
    use evenkeel_local::exec::Failing as Part;
    use serde_json::Value;

    use super::*;

    fn syncz(page: Value) -> Syncz {
        serde_json::from_value(page).expect("a page")
    }

    #[test]
    fn prints_a_row_for_each_proxy_and_what_is_wrong() {
        let page = syncz(json!({
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
        }));
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
        let page = syncz(
            json!({"control_plane": "one", "proxies": [proxy("web-5d-a"), proxy("web-5d-b"), proxy("web2-6-c")]}),
        );
        let check = |wanted: &str, expected: usize| {
            let mut pages = [page.clone()];
            let found = keep(&mut pages, wanted).map(|()| pages[0].proxies.len());
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
        let well = syncz(json!({"control_plane": "one", "proxies": [], "refused": [], "not_ready": []}));
        assert!(config_problems(&well).is_empty());
        let finding = "routes.yaml:3:5: error[unknown-field]: `spec.htpt`: there is no such field";
        let ill = json!({"control_plane": "one", "proxies": [], "refused": [finding], "not_ready": ["web-0.shop"]});
        let ill = syncz(ill);
        let said = format!("not in force: {finding}\nweb-0.shop is not ready\n");
        assert_eq!(config_problems(&ill).concat(), said);
        let node = "sidecar~10.0.0.1~vm-0.shop~shop.svc.cluster.local";
        let unregistered =
            syncz(json!({"proxies": [], "not_registered": [{"proxy": node, "reason": "there is no WorkloadGroup"}]}));
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
        let replica = |pod: &str, failing: &[Part]| ReplicaInfo {
            namespace: "shop".to_owned(),
            workload: pod.split('-').next().unwrap_or_default().to_owned(),
            pod: pod.to_owned(),
            failing: failing.to_vec(),
        };
        let last_end = "exited with status 7".to_owned();
        let part = Part { part: "program".to_owned(), runs: false, restarts: 5, last_end, seconds_ago: 3 };
        let replicas = [
            replica("web-5d-a", std::slice::from_ref(&part)),
            replica("api-6-b", &[]),
            replica("db-7-c", std::slice::from_ref(&part)),
        ];
        let proxy = |name: &str| json!({"proxy": format!("sidecar~10.0.0.1~{name}.shop~x"), "types": []});
        let proxies = [proxy("web-5d-a"), proxy("api-6-b")];
        let page = syncz(json!({"control_plane": "one", "proxies": proxies, "failing": failing(&replicas)}));
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
        let page = |name: &str, proxies: &[Value]| syncz(json!({"control_plane": name, "proxies": proxies}));
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
