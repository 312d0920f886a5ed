//! The effect of a change on recent requests: each is decided twice, in the mesh as it is and in the mesh with the change.

mod path;

use std::collections::BTreeMap;

use evenkeel_filters::explain::query::Decision;
use serde::Serialize;
use serde_json::Value;

use crate::hop::short;
use crate::place::Source;
use crate::recent;
use crate::replay::Replayed;
use crate::text::{Look, Style, Text};
use crate::world::World;

use self::path::{Coming, Records};

pub use self::path::Sampled;

/// Examples of each group, in requests, if the question does not say how many.
pub const EXAMPLES: usize = 3;
/// Groups that the text shows, in groups.
const MAX_SHOWN: usize = 20;

/// Why a request that the change does not affect is not judged.
const CONTRARY: &str = "the mesh as it is decides otherwise than the proxy did, which had another configuration then";

/// The effect of a change on recent requests.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Decisions that were replayed: a request is decided by each proxy on its way that kept it.
    pub decisions: usize,
    /// Requests among them, as far as their ids tell.
    pub requests: usize,
    /// Proxies that decided.
    pub proxies: usize,
    /// The time between the first and the last of them, in milliseconds.
    pub period_ms: u64,
    /// Number of decisions that stay the same.
    pub unaffected: usize,
    /// Decisions that fail with the change and do not without.
    pub fails: Vec<Group>,
    /// Decisions that lead elsewhere.
    pub moves: Vec<Group>,
    /// Decisions that lead to the same place by another rule, or with other time limits, retries, headers.
    pub changes: Vec<Group>,
    /// Decisions that fail without the change and not with it.
    pub repairs: Vec<Group>,
    /// Decisions that cannot be judged, by reason.
    pub not_judged: BTreeMap<String, usize>,
    /// Limitations of the answer.
    pub notes: Vec<String>,
}

/// Decisions that change in the same way.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// The outcome without the change.
    pub from: Ending,
    /// The outcome with the change.
    pub to: Ending,
    /// Other differences, one line each.
    pub differs: Vec<String>,
    /// Number of decisions.
    pub decisions: usize,
    /// How many of them depend on a random number, so that the count is a sample.
    pub by_chance: usize,
    /// Some of them.
    pub examples: Vec<Example>,
}

/// The end of a request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ending {
    /// `outbound`, `inbound` or `gateway`.
    pub side: &'static str,
    /// `forward`, `direct`, `redirect`, `deny` or `reset`.
    pub outcome: String,
    /// The status that the proxy answers with.
    pub status: Option<u16>,
    /// Envoy's flag.
    pub response_flag: Option<String>,
    /// Envoy's details.
    pub details: Option<String>,
    /// The route: its object and name.
    pub route: Option<String>,
    /// The position of the route.
    #[serde(skip)]
    pub place: Option<String>,
    /// The cluster.
    pub cluster: Option<String>,
    /// The target of a redirect.
    pub location: Option<String>,
}

/// A request of a group.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Example {
    /// Its id.
    pub id: String,
    /// The proxy, as `POD.NAMESPACE`.
    pub proxy: String,
    /// The request's method and URL.
    pub request: String,
    /// The client's identity, or address.
    pub client: String,
}

impl Plan {
    /// Replays the requests. `before`: the mesh as it is. `most_examples`: of each group.
    pub fn new(before: &World, after: &World, sampled: &[Sampled], most_examples: usize) -> Self {
        let mut plan = Self { decisions: sampled.len(), ..Self::default() };
        let mut ids: Vec<&str> = sampled.iter().map(|sample| &*sample.request.id).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut pods: Vec<(&str, &str)> = sampled.iter().map(|sample| (&*sample.namespace, &*sample.pod)).collect();
        pods.sort_unstable();
        pods.dedup();
        (plan.requests, plan.proxies) = (ids.len(), pods.len());
        let times = || sampled.iter().map(|sample| sample.request.started_us);
        plan.period_ms = times().max().unwrap_or(0).saturating_sub(times().min().unwrap_or(0)) / 1000;
        let records = Records::new(sampled);
        let mut groups = Groups { most_examples, ..Groups::default() };
        for sample in sampled {
            plan.judge((before, after), sample, &records, &mut groups);
        }
        let mut groups: Vec<Group> = groups.all.into_values().collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.decisions));
        for group in groups {
            let list = match (group.from.is_failure(), group.to.is_failure()) {
                (false, true) => &mut plan.fails,
                (true, false) => &mut plan.repairs,
                _ if group.from.goes_as(&group.to) => &mut plan.changes,
                _ => &mut plan.moves,
            };
            list.push(group);
        }
        plan.add_notes(sampled);
        plan
    }

    fn judge(
        &mut self,
        (before, after): (&World, &World),
        sample: &Sampled,
        records: &Records<'_>,
        groups: &mut Groups,
    ) {
        let Sampled { pod, namespace, request } = sample;
        let mut not_judged = |reason: String| *self.not_judged.entry(reason).or_default() += 1;
        let (Some(from), Some(to)) = (before.replay(pod, namespace, request), after.replay(pod, namespace, request))
        else {
            return not_judged("its Pod is not in the configuration".to_owned());
        };
        if !recent::is_read(request) {
            return not_judged("its head was not read: what came was no request".to_owned());
        }
        let unknown = [&from, &to].into_iter().flat_map(|own| own.decision.unknown_headers.clone()).next();
        if let Some(name) = unknown {
            return not_judged(format!("a route or a filter asks for {name}, whose value is not kept"));
        }
        if request.call.request.as_ref().is_some_and(|head| head.left_out > 0) {
            return not_judged("not all of its headers were kept".to_owned());
        }
        let to = match records.coming((before, after), sample) {
            Coming::Same => to,
            Coming::Otherwise(to) => *to,
            // The proxy that sent it tells where it goes.
            Coming::Gone => {
                self.unaffected += 1;
                return;
            }
            Coming::Assumed
                if to.fails() != from.fails() && [&from, &to].iter().any(|own| own.decision.outcome == "reset") =>
            {
                return not_judged(
                    "how the client's proxy connects decides, and that proxy has no record of it".to_owned(),
                );
            }
            Coming::Assumed => to,
        };
        let by_chance = from.decision.by_chance || to.decision.by_chance;
        if let Some((later_from, later_to)) = records.later((before, after), (&from, &to), request) {
            let differs = told(differences(&later_from.decision, &later_to.decision));
            let example = Example { proxy: later_to.proxy(), ..Example::of(sample) };
            return groups.add((Ending::of(&later_from), Ending::of(&later_to), differs), by_chance, example);
        }
        let mut differs = differences(&from.decision, &to.decision);
        let by_state = to.decision.by_state && !from.decision.by_state;
        let is_contrary = recent::is_contrary(request, &from.decision);
        let (from, to) = (Ending::of(&from), Ending::of(&to));
        if !from.goes_as(&to) {
            // Another route has other limits, and filters may explain the difference.
            differs = told(differs);
        }
        if from.is_as(&to) && differs.is_empty() {
            if is_contrary {
                not_judged(CONTRARY.to_owned())
            } else {
                self.unaffected += 1
            }
            return;
        }
        if by_state && from.is_as(&to) {
            return not_judged("a filter of the change depends on bodies, answers or earlier requests".to_owned());
        }
        groups.add((from, to, differs), by_chance, Example::of(sample));
    }

    fn add_notes(&mut self, sampled: &[Sampled]) {
        let groups = [&self.fails, &self.moves, &self.repairs].into_iter().flatten();
        if groups.map(|group| group.by_chance).sum::<usize>() > 0 {
            let text = "weights and fractions are drawn anew, with the same number before and after: counts of what chance decides are a sample";
            self.notes.push(text.to_owned());
        }
        let edited = sampled.iter().filter(|sample| sample.request.edited).count();
        if edited > 0 {
            self.notes.push(format!(
                "{edited} requests were kept only because they failed: their heads are as the route had changed them"
            ));
        }
        if self.decisions > 0 {
            let text = "bodies, TCP connections, load, and what programs answer are not replayed";
            self.notes.push(text.to_owned());
        }
    }

    /// Returns how many decisions fail with the change and not without.
    pub fn failing(&self) -> usize {
        self.fails.iter().map(|group| group.decisions).sum()
    }

    /// Returns how many decisions were compared.
    pub fn judged(&self) -> usize {
        self.decisions - self.not_judged.values().sum::<usize>()
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// For people.
    pub fn to_text(&self, look: impl Into<Look>) -> String {
        let mut out = Text::new(look);
        let Style { bold, dim, good, bad, end, .. } = out.style;
        let seconds = self.period_ms.div_ceil(1000);
        let head = format!(
            "{bold}{}{end} of {} about {}, from {seconds} s of traffic",
            counted(self.decisions, "decision"),
            counted(self.proxies, "proxy"),
            counted(self.requests, "recent request"),
        );
        out.wrapped("", "", &head);
        match self.failing() {
            0 if self.judged() == 0 => out.line(&format!("{bad}nothing was judged{end}")),
            0 => out.line(&format!("{good}✓ none fails that does not fail now{end}")),
            failing => out.line(&format!("{bad}✗ {} with the change{end}", fail(failing))),
        }
        if self.judged() > 0 {
            out.line(&format!("  {dim}{} unaffected{end}", counted(self.unaffected, "decision")));
        }
        for (title, groups) in [
            ("fail", &self.fails),
            ("lead elsewhere", &self.moves),
            ("change otherwise", &self.changes),
            ("fail no longer", &self.repairs),
        ] {
            if groups.is_empty() {
                continue;
            }
            out.blank();
            let total = groups.iter().map(|group| group.decisions).sum::<usize>();
            out.line(&format!("── {bold}{total} {title}{end}"));
            groups.iter().take(MAX_SHOWN).for_each(|group| group.write(&mut out));
            if groups.len() > MAX_SHOWN {
                out.line(&format!("{dim}and {} more kinds{end}", groups.len() - MAX_SHOWN));
            }
        }
        if !self.not_judged.is_empty() {
            out.blank();
            let total: usize = self.not_judged.values().sum();
            out.line(&format!("── {bold}{total} not judged{end}"));
            for (reason, count) in &self.not_judged {
                out.fact(&count.to_string(), std::slice::from_ref(reason));
            }
        }
        for note in &self.notes {
            out.blank();
            out.wrapped("", "note: ", note);
        }
        out.out
    }
}

/// Decisions by the way in which they change.
#[derive(Default)]
struct Groups {
    most_examples: usize,
    all: BTreeMap<(Ending, Ending, Vec<String>), Group>,
}

impl Groups {
    fn add(&mut self, key: (Ending, Ending, Vec<String>), by_chance: bool, example: Example) {
        let (from, to, differs) = key.clone();
        let (decisions, examples) = (0, Vec::new());
        let group = self.all.entry(key).or_insert(Group { from, to, differs, decisions, by_chance: 0, examples });
        group.decisions += 1;
        group.by_chance += usize::from(by_chance);
        let is_other = |known: &Example| (&known.request, &known.client) != (&example.request, &example.client);
        if group.examples.len() < self.most_examples && group.examples.iter().all(is_other) {
            group.examples.push(example);
        }
    }
}

/// The differences that explain another end.
fn told(mut differs: Vec<String>) -> Vec<String> {
    differs.retain(|line| line.starts_with(['-', '+']) && (line.contains(" RBAC:") || line.contains(" filter ")));
    differs
}

fn counted(count: usize, what: &str) -> String {
    match (count, what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (count, Some(stem)) => format!("{count} {stem}ies"),
        (count, None) => format!("{count} {what}s"),
    }
}

fn fail(count: usize) -> String {
    if count == 1 { "1 decision fails".to_owned() } else { format!("{count} decisions fail") }
}

/// Returns the differences in the steps, beyond the end of the request.
fn differences(from: &Decision, to: &Decision) -> Vec<String> {
    // Routes carry positions, which other lines shift; how many endpoints there are is no decision.
    let is_told = |step: &&String| {
        !["route ", "cluster ", "listener ", "forward to "].iter().any(|prefix| step.starts_with(prefix))
    };
    let lines = |own: &Decision| own.steps.iter().filter(is_told).cloned().collect::<Vec<_>>();
    let (before, after) = (lines(from), lines(to));
    let rewritten = |own: &Decision| (own.path.clone(), own.authority.clone());
    let mut differs: Vec<String> =
        before.iter().filter(|line| !after.contains(line)).map(|line| format!("- {line}")).collect();
    differs.extend(after.iter().filter(|line| !before.contains(line)).map(|line| format!("+ {line}")));
    if from.cluster == to.cluster && from.cluster.is_some() && rewritten(from) != rewritten(to) {
        let text = |own: &Decision| {
            format!("sent as {} to {}", own.path.as_deref().unwrap_or("?"), own.authority.as_deref().unwrap_or("?"))
        };
        differs.push(format!("- {}", text(from)));
        differs.push(format!("+ {}", text(to)));
    }
    differs
}

impl Ending {
    fn of(replayed: &Replayed) -> Self {
        let Decision { outcome, status, response_flag, details, route, cluster, location, .. } =
            replayed.decision.clone();
        let object = replayed.source.as_ref().map(|source| source.object.clone());
        let route = match (object, route) {
            (Some(object), Some(name)) if !name.is_empty() => Some(format!("{name} of {object}")),
            (Some(object), _) => Some(object),
            (None, name) => name.filter(|name| !name.is_empty()),
        };
        let place = replayed.source.as_ref().and_then(Source::position);
        let side = replayed.side;
        Self { side, outcome, status, response_flag, details, route, place, cluster, location }
    }

    /// Whether both are the same, wherever they are written.
    fn is_as(&self, other: &Self) -> bool {
        Self { place: None, ..self.clone() } == Self { place: None, ..other.clone() }
    }

    /// Whether both lead to the same destination, by any rule.
    fn goes_as(&self, other: &Self) -> bool {
        let place = |own: &Self| {
            (own.outcome.clone(), own.status, own.response_flag.clone(), own.cluster.clone(), own.location.clone())
        };
        place(self) == place(other)
    }

    fn is_failure(&self) -> bool {
        matches!(&*self.outcome, "deny" | "reset")
            || self.status.is_some_and(|status| status >= 400)
            || self.response_flag.is_some()
    }

    fn text(&self) -> String {
        let status = self.status.map(|status| format!(" {status}")).unwrap_or_default();
        let flag = self.response_flag.as_ref().map(|flag| format!(" ({flag})")).unwrap_or_default();
        let cluster = self.cluster.as_deref().map(short);
        let what = match (&*self.outcome, cluster) {
            ("forward", Some(cluster)) if self.status.is_none() => cluster,
            ("forward" | "direct", Some(cluster)) => format!("fails with{status}{flag}: {cluster}"),
            ("direct", None) => format!("answered by the proxy with{status}{flag}"),
            ("redirect", _) => format!("redirected with{status} to {}", self.location.as_deref().unwrap_or("?")),
            ("deny", _) => {
                let details = self.details.as_deref().unwrap_or_default();
                format!("denied{} {details}", if status.is_empty() { " 403" } else { &status })
            }
            _ => {
                let why = self.details.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                format!("the connection is closed{flag}{why}")
            }
        };
        let route = self.route.as_ref().map(|route| format!(", route {route}")).unwrap_or_default();
        let place = self.place.as_ref().map(|place| format!("  {place}")).unwrap_or_default();
        if self.side == "inbound" && self.outcome == "forward" && self.status.is_none() {
            let port = self.cluster.as_deref().and_then(|name| name.strip_prefix("inbound|")?.split('|').next());
            return port.map_or(what, |port| format!("served by the program, on port {port}"));
        }
        format!("{what}{route}{place}")
    }
}

impl Example {
    fn of(sample: &Sampled) -> Self {
        let call = &sample.request.call;
        let head = call.request.clone().unwrap_or_default();
        let identity = call.tls.as_ref().and_then(|tls| tls.identities.first().cloned());
        let source = || call.source.map_or_else(|| "unknown".to_owned(), |source| source.ip().to_string());
        Self {
            id: sample.request.id.clone(),
            proxy: format!("{}.{}", sample.pod, sample.namespace),
            request: format!("{} {}://{}{}", head.method, head.scheme, head.authority, head.path),
            client: identity.unwrap_or_else(source),
        }
    }
}

impl Group {
    fn write(&self, out: &mut Text) {
        let Style { dim, end, .. } = out.style;
        let chance = match self.by_chance {
            0 => String::new(),
            count if count == self.decisions => "  by chance".to_owned(),
            count => format!("  {count} of them by chance"),
        };
        let lines = [format!("{}{dim}{chance}{end}", self.from.text()), format!("→ {}", self.to.text())];
        if self.from.is_as(&self.to) {
            out.fact(&self.decisions.to_string(), lines.get(..1).unwrap_or_default())
        } else {
            out.fact(&self.decisions.to_string(), &lines)
        }
        let differs: Vec<String> = self.differs.iter().take(6).map(|line| format!("  {line}")).collect();
        out.fact("", &differs);
        let examples: Vec<String> = self
            .examples
            .iter()
            .map(|example| {
                let request: String = example.request.chars().take(120).collect();
                format!("{dim}{request} from {} at {}{end}", example.client, example.proxy)
            })
            .collect();
        out.fact("  such as", &examples);
    }
}
