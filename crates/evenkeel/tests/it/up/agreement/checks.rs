//! What is told of calls and of records, held against what came of them.

use std::fmt::Write as _;

use evenkeel_explain::answer::{Answer, Hop, Outcome as Told, ProxyName};
use evenkeel_explain::{Caller, Question, Recent, Target, World};
use evenkeel_filters::explain::query::RecentRequest;

use super::fleet::{Call, Fleet, Outcome, replayed};

/// Draws that are tried: weighted destinations and fractions follow them, and in truth they are random.
const DRAWS: u64 = 100;

/// What is told of a call.
pub fn ask(world: &World, call: &Call, random: u64) -> Answer {
    try_ask(world, call, random).expect("an answer")
}

/// What is told of a call; `None`: nothing can be, such as where no gateway of these objects listens on its port, or of port 0.
pub fn try_ask(world: &World, call: &Call, random: u64) -> Option<Answer> {
    let from = match &*call.from {
        "outside" => Caller::Outside,
        workload => Caller::parse(workload),
    };
    let target = Target::parse_url(&call.url(), &call.method, call.headers.clone()).ok()?;
    world.ask(&Question { from, target, socket: None, random }).ok()
}

/// What the client sees of what is told. The workload is known if only one can answer.
pub fn expected(answer: &Answer) -> (u16, Option<String>) {
    let of_http = answer.hops.first().is_some_and(|hop| hop.virtual_host.is_some());
    match (answer.verdict.outcome, answer.verdict.status) {
        // The programs here speak plain text, and nobody takes the TLS of the client's sidecar off.
        (Told::Forward, None) if answer.hops.last().is_some_and(gets_tls) => (if of_http { 503 } else { 0 }, None),
        (Told::Forward, None) => {
            // A gateway that replicas call sends the call on.
            let clusters = answer.hops.iter().rfind(|hop| hop.proxy.side != "inbound").map(|hop| &hop.clusters);
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

fn gets_tls(last: &Hop) -> bool {
    last.notes.iter().any(|note| note.starts_with("the program gets TLS"))
}

/// `real`: a program that does not name itself has no name there.
fn agrees((status, pod): &(u16, Option<String>), real: &Outcome) -> bool {
    let is_by = |pod: &String| real.1.is_empty() || pod.starts_with(&real.1);
    *status == real.0 && (*status != 200 || pod.as_ref().is_none_or(is_by))
}

/// What was said otherwise than it was.
fn wrong_answers(world: &World, calls: &[Call], real: &[Outcome]) -> String {
    let mut wrong = String::new();
    for (call, real) in calls.iter().zip(real) {
        let told = |random: u64| expected(&ask(world, call, random));
        if !(0..DRAWS).any(|random| agrees(&told(random), real)) {
            let answer = ask(world, call, 0);
            let (expected, text) = (expected(&answer), answer.to_text(false));
            let _ = writeln!(wrong, "explain: {call:?}: {real:?}, told {expected:?}\n{text}");
        }
    }
    wrong
}

/// The records that a replay ends otherwise.
fn wrong_replays(world: &World, kept: &[(ProxyName, RecentRequest)]) -> String {
    let mut wrong = String::new();
    for record in kept {
        let recent = Recent::new(Some(world), vec![replayed(world, record)]);
        let now = recent.hops.first().map(|hop| hop.now.clone()).unwrap_or_default();
        // What came was no request, such as TLS at a port that speaks plain text.
        let is_read = record.1.call.request.as_ref().is_some_and(|head| !head.method.is_empty());
        // A value that is kept secret decides: the replay says so.
        let is_known = now.unknown.is_none();
        if is_read && is_known && now.same != Some(true) {
            let _ = writeln!(wrong, "replay at {}: {now:?}\n{:?}", record.0.pod, record.1);
        }
    }
    wrong
}

/// Rounds of the same calls: those on connections from before a change are decided as it was then, until these connections have
/// drained, as Envoy's do (docs/proxy.md, "Drain"). What differs in every round differs.
const ROUNDS: usize = 3;

/// What came of calls, what the proxies have kept of them, and what was told otherwise.
pub struct Round {
    /// The outcomes, one for each call.
    pub real: Vec<Outcome>,
    /// The records.
    pub kept: Vec<(ProxyName, RecentRequest)>,
    /// The differences.
    pub wrong: String,
}

/// Makes the calls, and again while something differs. `further` finds more differences.
pub fn tried((fleet, world, calls): (&Fleet, &World, &[Call]), further: impl Fn(&[Outcome]) -> String) -> Round {
    let round = || {
        let since = Fleet::now_us();
        let real = fleet.call(calls);
        let kept = fleet.kept(since);
        let wrong = wrong_answers(world, calls, &real) + &wrong_replays(world, &kept) + &further(&real);
        Round { real, kept, wrong }
    };
    let mut last = round();
    for _ in 1..ROUNDS {
        if last.wrong.is_empty() {
            break;
        }
        last = round();
    }
    last
}
