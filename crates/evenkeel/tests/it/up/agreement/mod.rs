//! What the tools say and what the mesh does, in every mode of mutual TLS: each explained call is made, each request that a
//! proxy has kept is replayed and comes to the same end, and what `plan` foretells comes about. Policies and routes are random.

mod fleet;
mod meshes;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::PoisonError;

use evenkeel_explain::answer::{Answer, Outcome as Told};
use evenkeel_explain::{Caller, Plan, Question, Recent, Target, World};
use evenkeel_filters::explain::query::RecentRequest;
use evenkeel_testkit::{Random, cases};

use self::fleet::{Call, Fleet, Outcome, program, replayed, sampled};
use super::MACHINE;

/// Meshes whose differences are shown, in meshes.
const SHOWN: usize = 4;

/// Calls from each kind of client to each kind of port, and to an address.
fn calls(fleet: &Fleet) -> Vec<Call> {
    let server = fleet.address("server-v1", "shop") + ":8080";
    let edge = fleet.gateway().to_string();
    let targets = [
        ("server.shop", "/", ""),
        ("server.shop", "/admin", ""),
        ("server.shop", "/", "x-user: a"),
        ("server.shop:81", "/", ""),
        ("server.shop:82", "/", ""),
        ("other.other", "/admin", ""),
        (&*server, "/", ""),
    ];
    let mut all: Vec<Call> = Vec::new();
    let mut add = |from, to: &str, path: &str, header| {
        let path = format!("{path}?call={}.", all.len());
        all.push(Call { from, to: to.to_owned(), path, header });
    };
    for from in ["client.shop", "other.other", "plain.shop"] {
        targets.iter().for_each(|(to, path, header)| add(from, to, path, header));
    }
    for (path, header) in [("/", ""), ("/admin", ""), ("/", "x-user: a")] {
        add("outside", &edge, path, header);
    }
    all
}

fn ask(world: &World, call: &Call) -> Answer {
    let headers = call.header.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
    // Outside is the port of the machine that stands for the gateway's.
    let (url, from) = match call.from {
        "outside" => (format!("http://127.0.0.1{}", call.path), Caller::Outside),
        workload => (call.url(), Caller::parse(workload)),
    };
    let target = Target::parse_url(&url, "GET", headers.into_iter().collect()).expect("a URL");
    world.ask(&Question { from, target, socket: None, random: 0 }).expect("an answer")
}

/// What the client sees of what is told. The workload is known if only one can answer.
fn expected(answer: &Answer) -> (u16, Option<String>) {
    let of_http = answer.hops.first().is_some_and(|hop| hop.virtual_host.is_some());
    match (answer.verdict.outcome, answer.verdict.status) {
        (Told::Forward, None) => {
            let clusters = answer.hops.iter().find(|hop| hop.proxy.side != "inbound").map(|hop| &hop.clusters);
            let endpoints =
                clusters.into_iter().flatten().filter(|cluster| cluster.chosen).flat_map(|own| &own.endpoints);
            let pods: Vec<&String> = endpoints.filter_map(|endpoint| endpoint.workload.as_ref()).collect();
            (200, if let [pod] = pods.as_slice() { Some(pod.to_string()) } else { None })
        }
        (_, Some(status)) => (status, None),
        // A sidecar or gateway whose upstream closes the connection answers; one that passes bytes on closes it, too.
        _ if answer.hops.len() > 1 && of_http => (503, None),
        _ => (0, None),
    }
}

fn agrees((status, pod): &(u16, Option<String>), real: &Outcome) -> bool {
    *status == real.0 && (*status != 200 || pod.as_ref().is_none_or(|pod| pod.starts_with(&real.1)))
}

/// The number of the call that a request belongs to.
fn number(path: &str) -> Option<usize> {
    path.split_once("?call=")?.1.split_once('.')?.0.parse().ok()
}

fn number_of(request: &RecentRequest) -> Option<usize> {
    number(&request.call.request.as_ref()?.path)
}

/// What was said otherwise than it was.
fn wrong_answers(world: &World, calls: &[Call], real: &[Outcome]) -> String {
    let mut wrong = String::new();
    for (call, real) in calls.iter().zip(real) {
        let answer = ask(world, call);
        let expected = expected(&answer);
        if !agrees(&expected, real) {
            let text = answer.to_text(false);
            let _ = writeln!(wrong, "explain: {call:?}: {real:?}, told {expected:?}\n{text}");
        }
    }
    wrong
}

/// The records that a replay ends otherwise.
fn wrong_replays(world: &World, kept: &[(evenkeel_explain::answer::ProxyName, RecentRequest)]) -> String {
    let mut wrong = String::new();
    for record in kept {
        let recent = Recent::new(Some(world), vec![replayed(world, record)]);
        let now = recent.hops.first().map(|hop| hop.now.clone()).unwrap_or_default();
        // What came was no request, such as TLS at a port that speaks plain text.
        let is_read = record.1.call.request.as_ref().is_some_and(|head| !head.method.is_empty());
        if is_read && now.same != Some(true) {
            let _ = writeln!(wrong, "replay at {}: {now:?}\n{:?}", record.0.pod, record.1);
        }
    }
    wrong
}

/// The calls that fail with a change, by what `plan` says, and in truth: those that a proxy has kept.
fn wrong_plans(plan: &Plan, kept: &BTreeSet<usize>, calls: &[Call], before: &[Outcome], after: &[Outcome]) -> String {
    let mut wrong = String::new();
    let is_good = |outcome: Option<&Outcome>| outcome.is_some_and(|(status, _)| (200..400).contains(status));
    let examples = plan.fails.iter().flat_map(|group| &group.examples);
    let foretold: BTreeSet<usize> = examples.filter_map(|example| number(&example.request)).collect();
    for at in kept.iter().copied().filter(|at| is_good(before.get(*at))) {
        let fails = !is_good(after.get(at));
        if foretold.contains(&at) != fails {
            let (told, real) = (foretold.contains(&at), after.get(at));
            let _ = writeln!(wrong, "plan: {:?}: fails: {told}, but it came to {real:?}", calls.get(at));
        }
    }
    if !wrong.is_empty() {
        wrong += &plan.to_text(false);
    }
    wrong
}

#[test]
fn every_explained_call_and_every_replayed_request_ends_as_it_does() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let folder = super::state();
    let fleet = Fleet::start(&meshes::workloads(&program(folder.path())), meshes::WORKLOADS.len() + 1);
    let calls = calls(&fleet);
    let first = std::env::var("AGREEMENT_FIRST").ok().and_then(|first| first.parse().ok()).unwrap_or(0);
    let numbers = first..first + cases(9, 500) as u64;
    let mesh = |number: u64| {
        let mode = meshes::MODES[(number % 3) as usize];
        meshes::random(&mut Random::new(number), mode)
    };
    let (mut wrong, mut count, mut replays) = (String::new(), 0, 0);
    let mut planned: Option<(Plan, BTreeSet<usize>, Vec<Outcome>)> = None;
    for at in numbers {
        let text = mesh(at);
        fleet.write(&text);
        let since = Fleet::now_us();
        let real = fleet.call(&calls);
        let kept = fleet.kept(since);
        let (world, next) = fleet.read().worlds(&mesh(at + 1));
        let mut of_mesh = wrong_answers(&world, &calls, &real) + &wrong_replays(&world, &kept);
        if let Some((plan, kept, before)) = &planned {
            of_mesh += &wrong_plans(plan, kept, &calls, before, &real);
        }
        replays += kept.len();
        // Where the client's sidecar passes bytes on, it has no record, and `plan` does not judge how it would connect.
        let is_whole = |(_, request): &&(_, RecentRequest)| {
            let from = number_of(request).and_then(|at| calls.get(at)).map_or("", |call| call.from);
            request.direction != "inbound" || from == "plain.shop"
        };
        let numbers = kept.iter().filter(is_whole).filter_map(|(_, request)| number_of(request)).collect();
        planned = Some((Plan::new(&world, &next, &sampled(&kept), usize::MAX), numbers, real));
        if !of_mesh.is_empty() {
            count += 1;
            if count <= SHOWN {
                let _ = writeln!(wrong, "──── mesh {at}\n{text}\n{of_mesh}");
            }
        }
    }
    fleet.end();
    assert!(count == 0, "{count} meshes\n{wrong}");
    assert!(replays > 0, "the proxies keep what is called");
}
