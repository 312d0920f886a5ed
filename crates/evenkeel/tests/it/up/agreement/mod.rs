//! What the tools say and what the mesh does, in every mode of mutual TLS: each explained call is made, each request that a
//! proxy has kept is replayed and comes to the same end, and what `plan` foretells comes about. Here policies and routes are
//! random; `examples.rs` has the examples, `tables.rs` the meshes of the tables of decisions.

mod checks;
mod examples;
mod fleet;
mod meshes;
mod recorded;
mod tables;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::PoisonError;

use evenkeel_explain::Plan;
use evenkeel_filters::explain::query::RecentRequest;
use evenkeel_testkit::{Random, cases};

use self::checks::{Round, tried};
pub use self::fleet::program;
use self::fleet::{Call, Fleet, Outcome, sampled};
pub use self::meshes::application as answering;
use super::MACHINE;

/// Meshes whose differences are shown, in meshes.
const SHOWN: usize = 4;

/// Calls from each kind of client to each kind of port, and to an address.
fn calls(fleet: &Fleet) -> Vec<Call> {
    let server = format!("{}:8080", fleet.address("server-v1", "shop"));
    let edge = fleet.published().first().expect("the gateway's port").address.to_string();
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
    let mut add = |from: &str, to: &str, path: &str, header: &str| {
        let path = format!("{path}?call={}.", all.len());
        let header = header.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
        let (from, method, to, headers) =
            (from.to_owned(), "GET".to_owned(), to.to_owned(), header.into_iter().collect());
        all.push(Call { from, method, to, path, headers });
    };
    for from in ["client.shop", "other.other", "plain.shop"] {
        targets.iter().for_each(|(to, path, header)| add(from, to, path, header));
    }
    for (path, header) in [("/", ""), ("/admin", ""), ("/", "x-user: a")] {
        add("outside", &edge, path, header);
    }
    all
}

/// The number of the call that a request belongs to.
fn number(path: &str) -> Option<usize> {
    path.split_once("?call=")?.1.split_once('.')?.0.parse().ok()
}

fn number_of(request: &RecentRequest) -> Option<usize> {
    number(&request.call.request.as_ref()?.path)
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
    let fleet = Fleet::start(&meshes::workloads(&program(folder.path())), meshes::WORKLOADS.len() + 1, &[80]);
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
        let (world, next) = fleet.read().worlds(&mesh(at + 1));
        let Round { real, kept, wrong: of_mesh } = tried((&fleet, &world, &calls), |real| match &planned {
            Some((plan, kept, before)) => wrong_plans(plan, kept, &calls, before, real),
            None => String::new(),
        });
        replays += kept.len();
        // Where the client's sidecar passes bytes on, it has no record, and `plan` does not judge how it would connect.
        let is_whole = |(_, request): &&(_, RecentRequest)| {
            let from = number_of(request).and_then(|at| calls.get(at)).map_or("", |call| &*call.from);
            request.direction != "inbound" || from == "plain.shop"
        };
        // Proxies keep a sample: of a call that a program has answered, the server's proxy has to have a record, too.
        let inbound = kept.iter().filter(|(_, request)| request.direction == "inbound");
        let at_server: BTreeSet<usize> = inbound.filter_map(|(_, request)| number_of(request)).collect();
        let is_judged = |at: &usize| at_server.contains(at) || real.get(*at).is_none_or(|(status, _)| *status != 200);
        let numbers = kept.iter().filter(is_whole).filter_map(|(_, request)| number_of(request));
        let numbers = numbers.filter(is_judged).collect();
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
