//! Divides a request's time into phases, from the times of its events and its notes.

use std::time::Instant;

use evenkeel_filters::Times;
use evenkeel_filters::explain::query::{Phase, PhaseKind};
use evenkeel_runtime_config::substitution_format::TimePoint;

use super::notes::Notes;

/// What is known of a request that has ended.
pub(super) struct Course<'r> {
    pub(super) times: &'r Times,
    pub(super) notes: &'r Notes,
    /// Whether the number of connections to its cluster is limited.
    pub(super) is_limited: bool,
    /// When it ended.
    pub(super) end: Instant,
}

/// Collects phases, in order.
struct Phases {
    start: Instant,
    /// The end of the latest phase.
    at: Instant,
    all: Vec<Phase>,
}

impl Phases {
    /// Adds a phase from the end of the one before to `until`.
    fn until(&mut self, kind: PhaseKind, until: Instant) {
        let Some(duration) = until.checked_duration_since(self.at).filter(|duration| duration.as_micros() > 0) else {
            return;
        };
        let micros = |duration: std::time::Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let start_us = micros(self.at.saturating_duration_since(self.start));
        self.all.push(Phase { kind, filter: None, start_us, duration_us: micros(duration) });
        self.at = until;
    }

    /// Adds a phase between two times. What is before it is the proxy's own.
    fn between(&mut self, kind: PhaseKind, begin: Instant, end: Instant) {
        self.until(PhaseKind::Proxy, begin);
        self.until(kind, end);
    }
}

/// Divides a request's time.
pub(super) fn phases(course: &Course<'_>) -> Vec<Phase> {
    let start = course.times.start();
    let mut phases = Phases { start, at: start, all: Vec::new() };
    before_tries(course, &mut phases);
    if let Some(retry) = course.notes.retry {
        phases.until(PhaseKind::EarlierTries, retry.into_std());
    }
    connection(course, &mut phases);
    exchange(course, &mut phases);
    phases.until(PhaseKind::Proxy, course.end);
    phases.all
}

/// What precedes the first try: filters, and configuration.
fn before_tries(course: &Course<'_>, phases: &mut Phases) {
    let Course { times, notes, .. } = course;
    let held = times.get(TimePoint::HeldBegin).zip(times.get(TimePoint::HeldEnd));
    let mut held = held.into_iter().peekable();
    for wait in &notes.filters {
        if let Some((begin, end)) = held.next_if(|(begin, _)| *begin <= wait.span.begin.into_std()) {
            phases.between(PhaseKind::Configuration, begin, end);
        }
        let before = phases.all.len();
        phases.between(PhaseKind::Filter, wait.span.begin.into_std(), wait.span.end.into_std());
        if let Some(phase) = phases.all.get_mut(before..).and_then(<[Phase]>::last_mut)
            && phase.kind == PhaseKind::Filter
        {
            phase.filter = wait.filter.as_deref().map(str::to_owned);
        }
    }
    if let Some((begin, end)) = held.next() {
        phases.between(PhaseKind::Configuration, begin, end);
    }
}

/// The wait for a connection, of the last try.
fn connection(course: &Course<'_>, phases: &mut Phases) {
    let Course { times, notes, is_limited, .. } = course;
    let Some(span) = notes.connection else { return };
    let (begin, end) = (span.begin.into_std(), span.end.into_std());
    phases.until(PhaseKind::Proxy, begin);
    let connecting = times.get(TimePoint::UpstreamConnectBegin).filter(|connecting| *connecting >= begin);
    match connecting {
        Some(connecting) => {
            phases.until(PhaseKind::Pool, connecting);
            let connected = times.get(TimePoint::UpstreamConnectEnd).unwrap_or(end);
            phases.until(PhaseKind::Connect, connected);
            if let Some(secured) = times.get(TimePoint::UpstreamHandshakeEnd) {
                phases.until(PhaseKind::Tls, secured);
            }
        }
        // Another request's connection, or none: it was still waiting for one, or for its end.
        None if *is_limited || times.get(TimePoint::UpstreamConnectBegin).is_some() => {
            phases.until(PhaseKind::Pool, end);
        }
        None => phases.until(PhaseKind::Connect, end),
    }
}

/// The request to the endpoint, and its response.
fn exchange(course: &Course<'_>, phases: &mut Phases) {
    let Course { times, notes, end, .. } = course;
    let Some(sent) = times.get(TimePoint::UpstreamTxBegin) else { return };
    phases.until(PhaseKind::Proxy, sent);
    let first = times.get(TimePoint::UpstreamRxBegin);
    let complete = times.get(TimePoint::UpstreamTxEnd);
    if let Some(complete) = complete.filter(|complete| first.is_none_or(|first| *complete <= first)) {
        phases.until(PhaseKind::RequestBody, complete);
    }
    let Some(first) = first else {
        let is_waiting = complete.is_some() || times.get(TimePoint::DownstreamRxEnd).is_some();
        return phases.until(if is_waiting { PhaseKind::Endpoint } else { PhaseKind::RequestBody }, *end);
    };
    phases.until(PhaseKind::Endpoint, first);
    let received = times.get(TimePoint::UpstreamRxEnd);
    if let Some(blocked) = notes.blocked.map(tokio::time::Instant::into_std) {
        phases.until(PhaseKind::ResponseBody, blocked);
        return phases.until(PhaseKind::ClientReads, *end);
    }
    phases.until(PhaseKind::ResponseBody, received.unwrap_or(*end));
    phases.until(PhaseKind::ClientReads, *end);
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::time::Duration;

    use evenkeel_filters::explain::query::FailedTry;
    use tokio::time;

    use super::super::notes::Span;
    use super::*;

    /// A request: its events and its notes, both in milliseconds after its start, and the phases in this form: `KIND MILLISECONDS`.
    fn check(events: &[(TimePoint, u64)], note: impl Fn(&mut Notes, &dyn Fn(u64) -> time::Instant), expected: &str) {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut times = Times::new(start);
        events.iter().for_each(|(point, millis)| times.set(*point, at(*millis)));
        let mut notes = Notes::default();
        note(&mut notes, &|millis| time::Instant::from_std(at(millis)));
        let course = Course { times: &times, notes: &notes, is_limited: false, end: at(100) };
        let mut text = String::new();
        for phase in phases(&course) {
            let _ = write!(text, "{:?} {}, ", phase.kind, phase.duration_us / 1000);
        }
        assert_eq!(text.trim_end_matches(", "), expected);
    }

    #[test]
    fn the_time_of_a_request_is_divided() {
        use TimePoint::*;
        let nothing = |_: &mut Notes, _: &dyn Fn(u64) -> time::Instant| {};
        check(&[], nothing, "Proxy 100");
        let plain = [(DownstreamRxEnd, 0), (UpstreamTxBegin, 0), (UpstreamTxEnd, 0), (UpstreamRxBegin, 90)];
        check(&[&plain[..], &[(UpstreamRxEnd, 99)]].concat(), nothing, "Endpoint 90, ResponseBody 9, ClientReads 1");
        check(&plain[..3], nothing, "Endpoint 100");
        check(&[(UpstreamTxBegin, 1)], nothing, "Proxy 1, RequestBody 99");
        let late = [(DownstreamRxEnd, 60), (UpstreamTxBegin, 0), (UpstreamTxEnd, 60), (UpstreamRxBegin, 90)];
        check(&late, nothing, "RequestBody 60, Endpoint 30, ResponseBody 10");
        // A connection of its own, one that another request has used, and none.
        let waits = |notes: &mut Notes, at: &dyn Fn(u64) -> time::Instant| {
            notes.waited_for_connection(Span { begin: at(0), end: at(50) });
        };
        let connected = [(UpstreamConnectBegin, 10), (UpstreamConnectEnd, 30), (UpstreamHandshakeEnd, 50)];
        let sent = [(UpstreamTxBegin, 50), (UpstreamTxEnd, 50), (UpstreamRxBegin, 100)];
        check(&[&connected[..], &sent].concat(), waits, "Pool 10, Connect 20, Tls 20, Endpoint 50");
        let later = |notes: &mut Notes, at: &dyn Fn(u64) -> time::Instant| {
            notes.waited_for_connection(Span { begin: at(20), end: at(50) });
        };
        check(&[&connected[..2], &sent].concat(), later, "Proxy 20, Pool 30, Endpoint 50");
        check(&[], waits, "Connect 50, Proxy 50");
        // Filters, configuration, tries, and a client that does not read.
        let filters = |notes: &mut Notes, at: &dyn Fn(u64) -> time::Instant| {
            notes.waited_for_filter(Some("fault".into()), Span { begin: at(30), end: at(40) });
            notes.try_ended(FailedTry::default());
            notes.retry_begins(at(60));
            notes.client_blocks(at(95));
        };
        let held = [(HeldBegin, 5), (HeldEnd, 20), (UpstreamTxBegin, 60), (UpstreamRxBegin, 90)];
        check(
            &held,
            filters,
            "Proxy 5, Configuration 15, Proxy 10, Filter 10, EarlierTries 20, Endpoint 30, ResponseBody 5, ClientReads 5",
        );
    }
}
