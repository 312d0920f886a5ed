//! Why a recent request failed, or was slow: whose fault it was, in a sentence with numbers, and where its time went at the
//! proxies on its way.

mod limit;
mod sentence;
mod share;
pub mod summary;
mod table;

use evenkeel_filters::explain::cause::{Cause, Fault, VIA_UPSTREAM, has_failed, of_failure};
use evenkeel_filters::explain::query::{PhaseKind, RecentRequest};
use serde::Serialize;
use serde_json::Value;

use crate::answer::{Policy, ProxyName, Route};
use crate::place::Source;
use crate::recent::{RecordedRequest, hop};
use crate::world::World;

use self::share::{Part, Recorded, Share, greatest, greatest_of_last_try};

/// Why a request failed, or was slow.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// Its id: that of `x-request-id`.
    pub id: String,
    /// Its method and its URL.
    pub request: String,
    /// When it began, in microseconds since 1970.
    pub started_us: u64,
    /// How long it took where it began, in microseconds.
    pub duration_us: u64,
    /// The status that its client got; 0: none.
    pub status: u16,
    /// Whether it failed, or was refused.
    pub failed: bool,
    /// Whose fault it was.
    pub fault: Fault,
    /// Why.
    pub cause: Cause,
    /// The cause in a sentence.
    pub sentence: String,
    /// The rule, the limit or the policy that decided.
    pub source: Option<Source>,
    /// The proxy that decided, or that waited longest: the number of its record in `hops`.
    pub decided_at: usize,
    /// The proxies that kept it, in the order in which it reached them.
    pub hops: Vec<Side>,
    /// Further notes.
    pub notes: Vec<String>,
}

/// A request at one proxy.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Side {
    /// The proxy.
    pub proxy: ProxyName,
    /// The Pod behind the endpoint.
    pub server: Option<String>,
    /// The route, with its place.
    pub route: Option<Route>,
    /// The policies that refused the request.
    pub policies: Vec<Policy>,
    /// The rules that judge tokens, if the token was the reason.
    pub tokens: Vec<String>,
    /// The record.
    pub request: RecentRequest,
}

/// What decided.
struct Verdict {
    cause: Cause,
    /// The record of the proxy that decided.
    hop: usize,
    /// The greatest part of the time.
    share: Option<Share>,
}

impl Why {
    /// Judges the proxies' records of one request; `None` without records. `world`: the mesh's files, if they can be read.
    pub fn new(world: Option<&World>, mut records: Vec<RecordedRequest>) -> Option<Self> {
        records.sort_by_key(|kept| (kept.request.started_us, kept.request.direction == "inbound"));
        let sides: Vec<Side> = records.into_iter().map(|record| side(world, record)).collect();
        let verdict = judge(&sides);
        let first = &sides.first()?.request;
        let decided = sides.get(verdict.hop)?;
        let limit = world.and_then(|world| limit::of(world, decided, verdict.cause));
        let sentence = sentence::sentence(&sides, &verdict, limit.as_ref());
        let source = limit.and_then(|limit| limit.source).or_else(|| sentence::source(decided, verdict.cause));
        let head = first.call.request.clone().unwrap_or_default();
        let mut notes = Vec::new();
        if sides.iter().any(|side| side.request.phases.is_empty()) {
            notes.push("a proxy of an older version says nothing about its phases".to_owned());
        }
        if sides.len() == 1 && first.direction == "outbound" && first.details == VIA_UPSTREAM {
            notes.push("the server's proxy has kept no record of it: what happened there is not known".to_owned());
        }
        Some(Self {
            id: first.id.clone(),
            request: format!("{} {}://{}{}", head.method, head.scheme, head.authority, head.path),
            started_us: first.started_us,
            duration_us: first.duration_us,
            status: first.status,
            failed: !matches!(verdict.cause, Cause::Slow(_) | Cause::Network | Cause::Throttled) || has_failed(first),
            fault: fault(&verdict, decided),
            cause: verdict.cause,
            sentence,
            source,
            decided_at: verdict.hop,
            hops: sides,
            notes,
        })
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

fn side(world: Option<&World>, record: RecordedRequest) -> Side {
    let hop = hop(world, record);
    Side {
        proxy: hop.proxy,
        server: hop.server,
        route: hop.route,
        policies: hop.policies,
        tokens: hop.tokens,
        request: hop.request,
    }
}

/// Whose fault it was. A delay that is injected is a filter's, but nobody's service.
fn fault(verdict: &Verdict, decided: &Side) -> Fault {
    let is_injected = verdict.cause == Cause::Slow(PhaseKind::Filter) && sentence::is_injected(&decided.request);
    if is_injected { Fault::Configuration } else { verdict.cause.fault() }
}

/// The proxy whose CPU limit throttled it for at least half of the request's time: then its own clock readings blame others.
fn throttled(sides: &[Side]) -> Option<usize> {
    let total = sides.first()?.request.duration_us;
    let of = |hop: &usize| sides.get(*hop).and_then(|side| side.request.throttled_us).unwrap_or(0);
    let hop = (0..sides.len()).max_by_key(of)?;
    (of(&hop) > 0 && of(&hop).saturating_mul(2) >= total).then_some(hop)
}

/// Finds the proxy that decided, and its reason.
fn judge(sides: &[Side]) -> Verdict {
    let records: Vec<Recorded<'_>> =
        sides.iter().map(|side| Recorded { pod: &side.proxy.pod, request: &side.request }).collect();
    let share = greatest(&records);
    let failed = |hop: &usize| sides.get(*hop).is_some_and(|side| has_failed(&side.request));
    let cause_at = |hop: usize| sides.get(hop).map_or(Cause::Other, |side| of_failure(&side.request));
    let all: Vec<usize> = (0..sides.len()).filter(failed).collect();
    // The innermost proxy that failed knows the reason; but what ended because its client left did not begin there.
    let own = all.iter().rev().find(|hop| cause_at(**hop) != Cause::ClientLeft).or(all.first());
    // Where the first proxy did not pass the failure on, an application has coped with the failure of a call of its own.
    let is_passed_on = |hop: usize| {
        let status = |at: usize| sides.get(at).map_or(0, |side| side.request.status);
        failed(&0) || (status(0) >= 400 && status(0) == status(hop))
    };
    if let Some(hop) = own.copied().filter(|hop| is_passed_on(*hop)) {
        let cause = cause_at(hop);
        let share = if cause == Cause::TryTimeout { greatest_of_last_try(&records) } else { share };
        return Verdict { cause, hop, share };
    }
    if let Some(hop) = throttled(sides) {
        return Verdict { cause: Cause::Throttled, hop, share };
    }
    match share {
        Some(Share { hop, kind: Part::Between, .. }) => Verdict { cause: Cause::Network, hop, share },
        Some(Share { hop, kind: Part::Phase(kind), .. }) => Verdict { cause: Cause::Slow(kind), hop, share },
        None => Verdict { cause: Cause::Other, hop: 0, share },
    }
}
