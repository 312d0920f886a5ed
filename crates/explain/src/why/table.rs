//! The answer for people: the sentence, and a small table of the phases at each proxy.

use std::time::Duration;

use evenkeel_filters::explain::query::{Phase, PhaseKind};

use super::sentence::{endpoint, written};
use super::{Side, Why};
use crate::text::{Look, Style, Text, at};

/// Width of a bar for the whole time, in columns.
const BAR: u64 = 40;

impl Why {
    /// For people. `now_us`: the time, in microseconds since 1970.
    pub fn to_text(&self, look: impl Into<Look>, now_us: u64) -> String {
        let mut out = Text::new(look);
        let Style { bold, dim, good, bad, end, .. } = out.style;
        out.line(&format!("{bold}{}{end}", self.request));
        let (mark, style) = if self.failed { ("✗", bad) } else { ("✓", good) };
        let status = if self.status == 0 { "no response".to_owned() } else { self.status.to_string() };
        out.line(&format!("{style}{mark} {status}{end} after {}", written(self.duration_us)));
        let ago = Duration::from_micros(now_us.saturating_sub(self.started_us)).as_secs();
        out.line(&format!("  {dim}{ago}s ago, id {}{end}", self.id));
        out.blank();
        out.wrapped(bold, "", &capitalized(&self.sentence));
        for side in &self.hops {
            side.write(&mut out);
        }
        for note in &self.notes {
            out.blank();
            out.wrapped("", "note: ", note);
        }
        out.out
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).chain(['.']).collect()).unwrap_or_default()
}

impl Side {
    fn write(&self, out: &mut Text) {
        let Style { dim, end, .. } = out.style;
        let request = &self.request;
        out.title(&self.proxy);
        let flags = Some(&request.flags).filter(|flags| !flags.is_empty());
        let flags = flags.map(|flags| format!(" ({flags})")).unwrap_or_default();
        let status = if request.status == 0 { "no response".to_owned() } else { request.status.to_string() };
        out.fact(
            "result",
            &[format!("{status}{flags} after {}  {dim}{}{end}", written(request.duration_us), request.details)],
        );
        if let Some(route) = self.route.as_ref().filter(|route| !route.name.is_empty()) {
            let place = route.source.as_ref().map(|source| format!("  {dim}{}{end}", at(source))).unwrap_or_default();
            out.fact("route", &[format!("{}{place}", route.name)]);
        }
        let mut chosen: Vec<String> = Vec::new();
        if let Some(endpoint) = &request.endpoint {
            let policy = request.choice.as_ref().map(|choice| format!("  {dim}by {}{end}", choice.policy));
            let server = self.server.as_ref().map(|name| format!("  {name}")).unwrap_or_default();
            chosen.push(format!("{endpoint}{server}{}", policy.unwrap_or_default()));
        }
        if let Some(choice) = request.choice.as_ref().filter(|choice| choice.passed_over > 0) {
            chosen.push(format!("passed over: {} of {}", choice.passed_over, choice.endpoints));
            chosen.extend(choice.first_passed_over.iter().map(|state| format!("  {}", endpoint(state))));
        }
        out.fact("endpoint", &chosen);
        let tries = request.failed_tries.iter().map(|failed| {
            let endpoint = failed.endpoint.clone().unwrap_or_else(|| "no endpoint".to_owned());
            let how = if failed.status > 0 { failed.status.to_string() } else { failed.details.clone() };
            format!("{endpoint}: {how}, after {}", written(failed.end_us))
        });
        out.fact("failed tries", &tries.collect::<Vec<_>>());
        let phases: Vec<String> = request.phases.iter().map(|phase| line(phase, request.duration_us)).collect();
        out.fact("phases", &phases);
        if let Some(throttled) = request.throttled_us.filter(|throttled| *throttled > 0) {
            let text = format!("the CPU limit throttled this proxy for up to {} meanwhile", written(throttled));
            out.fact("throttled", &[text]);
        }
    }
}

/// A phase, with a bar for its share.
fn line(phase: &Phase, total: u64) -> String {
    let name = match (&phase.kind, &phase.filter) {
        (PhaseKind::Filter, Some(filter)) => filter.rsplit('.').next().unwrap_or(filter).to_owned(),
        (kind, _) => name(*kind).to_owned(),
    };
    let width = phase.duration_us.saturating_mul(BAR) / total.max(1);
    let bar = "█".repeat(usize::try_from(width.min(BAR)).unwrap_or(0));
    // Text is filled by words: blanks that align are those that do not break.
    format!("{name:<20}{:>9}  {bar}", written(phase.duration_us)).replace(' ', "\u{a0}")
}

fn name(kind: PhaseKind) -> &'static str {
    match kind {
        PhaseKind::Proxy => "proxy",
        PhaseKind::Filter => "filter",
        PhaseKind::Configuration => "configuration",
        PhaseKind::EarlierTries => "earlier tries",
        PhaseKind::Pool => "pool",
        PhaseKind::Connect => "connect",
        PhaseKind::Tls => "TLS",
        PhaseKind::RequestBody => "request body",
        PhaseKind::Endpoint => "endpoint",
        PhaseKind::ResponseBody => "response body",
        PhaseKind::ClientReads => "client reads",
    }
}
