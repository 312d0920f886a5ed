//! When a change of the configuration is acted on: the first one after quiet at once, those that follow merged.

use std::time::{Duration, Instant};

/// Timing of pushes, under the names Istio's control plane uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DebounceOptions {
    /// Quiet time that ends a burst (`PILOT_DEBOUNCE_AFTER`).
    pub after: Duration,
    /// Longest time a change may wait (`PILOT_DEBOUNCE_MAX`).
    pub max: Duration,
    /// Whether changes of Pods alone wait too (`PILOT_ENABLE_EDS_DEBOUNCE`).
    pub endpoints: bool,
}

impl Default for DebounceOptions {
    /// Istio waits 10 s at most, as its pushes are dear. Here a push costs what changed, and a stream of changes that never
    /// pauses should not keep routes from anybody for longer than a glance.
    fn default() -> Self {
        Self { after: Duration::from_millis(100), max: Duration::from_millis(500), endpoints: false }
    }
}

/// A value of the environment that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DebounceError {
    /// Not a duration.
    #[error("environment variable {name}: {reason}")]
    Duration {
        /// Its name.
        name: &'static str,
        /// What is wrong.
        reason: evenkeel_base::duration::DurationError,
    },
    /// Not a truth value.
    #[error("environment variable {name}: `{value}` is neither `true` nor `false`")]
    Bool {
        /// Its name.
        name: &'static str,
        /// What it holds.
        value: String,
    },
}

impl DebounceOptions {
    /// Reads Istio's variables through `lookup`; what is not set keeps its default.
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, DebounceError> {
        let default = Self::default();
        let duration = |name: &'static str, fallback| match lookup(name) {
            None => Ok(fallback),
            Some(text) => {
                evenkeel_base::duration::parse(&text).map_err(|reason| DebounceError::Duration { name, reason })
            }
        };
        let name = "PILOT_ENABLE_EDS_DEBOUNCE";
        let endpoints = match lookup(name) {
            None => default.endpoints,
            Some(value) => truth(&value).ok_or(DebounceError::Bool { name, value })?,
        };
        Ok(Self {
            after: duration("PILOT_DEBOUNCE_AFTER", default.after)?,
            max: duration("PILOT_DEBOUNCE_MAX", default.max)?,
            endpoints,
        })
    }
}

/// A truth value as Go's programs read it from their environment (`strconv.ParseBool`).
pub fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// How long an endpoint file that vanished may take to come back, as when an editor replaces it, before its endpoints go.
const REPLACED_WITHIN: Duration = Duration::from_millis(10);

/// How sure it is that a change is complete, and what it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Complete, and only about endpoints: acted on at once (unless `endpoints` is set).
    Endpoints,
    /// A file that holds only endpoints vanished: acted on almost at once (unless `endpoints` is set).
    EndpointsGone,
    /// Complete: a file was closed after writing, or renamed into place.
    Complete,
    /// Perhaps half of a change: a file vanished, or is being written. Always waits for quiet.
    Partial,
}

/// Which changes are to be acted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Those about endpoints only; the others still wait.
    Endpoints,
    /// All.
    Everything,
}

/// The decision, without a clock of its own. Changes of endpoints have a lane of their own, so that they neither wait for
/// the configuration nor take it along half-written.
#[derive(Debug)]
pub struct Debounce {
    options: DebounceOptions,
    last_complete: Option<Instant>,
    pending: Option<Pending>,
    /// When to act on changes of endpoints.
    endpoints_due: Option<Instant>,
}

#[derive(Debug)]
struct Pending {
    since: Instant,
    due: Instant,
}

impl Debounce {
    /// Nothing pending.
    pub fn new(options: DebounceOptions) -> Self {
        Self { options, last_complete: None, pending: None, endpoints_due: None }
    }

    /// The lane a change goes.
    pub fn lane(&self, change: Change) -> Lane {
        match change {
            Change::Endpoints | Change::EndpointsGone if !self.options.endpoints => Lane::Endpoints,
            Change::Endpoints | Change::EndpointsGone | Change::Complete | Change::Partial => Lane::Everything,
        }
    }

    /// Takes note of a change.
    pub fn change(&mut self, change: Change, now: Instant) {
        if self.lane(change) == Lane::Endpoints {
            let wait = if change == Change::EndpointsGone { REPLACED_WITHIN } else { Duration::ZERO };
            self.endpoints_due = Some(self.endpoints_due.map_or(now + wait, |due| due.min(now + wait)));
            return;
        }
        // Writing a file gives a stream of partial changes before the one that completes it: those do not end the quiet.
        let quiet = self.last_complete.is_none_or(|last| now.duration_since(last) >= self.options.after);
        let complete = matches!(change, Change::Endpoints | Change::Complete);
        if complete {
            self.last_complete = Some(now);
        }
        let since = self.pending.as_ref().map_or(now, |p| p.since);
        // What is due at once stays so: the kernel tells of one renamed file twice.
        let at_once = complete && (quiet || self.pending.as_ref().is_some_and(|pending| pending.due <= now));
        let due = match at_once {
            true => now,
            false => (now + self.options.after).min(since + self.options.max),
        };
        self.pending = Some(Pending { since, due });
    }

    /// When to act next.
    pub fn due(&self) -> Option<Instant> {
        self.pending.as_ref().map(|p| p.due).into_iter().chain(self.endpoints_due).min()
    }

    /// What is due is being acted on.
    pub fn act(&mut self, now: Instant) -> Lane {
        self.endpoints_due = None;
        match self.pending.take_if(|pending| pending.due <= now) {
            Some(_) => Lane::Everything,
            None => Lane::Endpoints,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays changes (ms, kind) and yields the times (ms) at which they are acted on.
    fn play(changes: &[(u64, Change)], options: DebounceOptions) -> Vec<u64> {
        play_lanes(changes, options).into_iter().map(|(at, _)| at).collect()
    }

    /// Plays changes (ms, kind) and yields the times (ms) at which what is acted on.
    fn play_lanes(changes: &[(u64, Change)], options: DebounceOptions) -> Vec<(u64, Lane)> {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut debounce = Debounce::new(options);
        let mut acted = Vec::new();
        let mut act_until = |debounce: &mut Debounce, limit: Option<Instant>| {
            while let Some(due) = debounce.due().filter(|due| limit.is_none_or(|l| *due < l)) {
                acted.push((u64::try_from(due.duration_since(start).as_millis()).unwrap(), debounce.act(due)));
            }
        };
        for &(ms, change) in changes {
            act_until(&mut debounce, Some(at(ms)));
            debounce.change(change, at(ms));
        }
        act_until(&mut debounce, None);
        acted
    }

    #[test]
    fn first_at_once_then_merged() {
        use Change::{Complete, Partial};
        let options = DebounceOptions::default();
        let check =
            |changes: &[(u64, Change)], expected: &[u64]| assert_eq!(play(changes, options), expected, "{changes:?}");
        check(&[(0, Complete)], &[0]);
        check(&[(0, Complete), (10, Complete), (60, Complete)], &[0, 160]);
        check(&[(0, Complete), (10, Complete), (300, Complete)], &[0, 110, 300]);
        check(&[(0, Partial)], &[100]);
        check(&[(0, Partial), (20, Complete)], &[20]);
        check(&[(0, Complete), (10, Partial), (20, Complete)], &[0, 120]);
        check(&[(0, Complete), (0, Complete)], &[0]);
    }

    #[test]
    fn endpoints_wait_for_nobody_and_take_nobody_along() {
        use Change::{Complete, Endpoints, EndpointsGone, Partial};
        use Lane::{Endpoints as Fast, Everything};
        let check = |changes: &[(u64, Change)], expected: &[(u64, Lane)]| {
            assert_eq!(play_lanes(changes, DebounceOptions::default()), expected, "{changes:?}");
        };
        check(&[(0, Endpoints)], &[(0, Fast)]);
        check(&[(0, EndpointsGone)], &[(10, Fast)]);
        check(&[(0, EndpointsGone), (3, Endpoints)], &[(3, Fast)]);
        check(&[(0, EndpointsGone), (8, EndpointsGone)], &[(10, Fast)]);
        check(&[(0, Complete), (10, Endpoints)], &[(0, Everything), (10, Fast)]);
        check(&[(0, Complete), (10, Complete), (20, Endpoints)], &[(0, Everything), (20, Fast), (110, Everything)]);
        check(&[(0, Partial), (20, EndpointsGone)], &[(30, Fast), (100, Everything)]);
        check(&[(0, Endpoints), (1, Endpoints), (2, Complete)], &[(0, Fast), (1, Fast), (2, Everything)]);
    }

    #[test]
    fn endpoints_go_however_long_the_configuration_streams() {
        let mut changes: Vec<_> = (0..200).map(|i| (i * 50, Change::Complete)).collect();
        changes.push((5_003, Change::EndpointsGone));
        changes.sort_by_key(|(at, _)| *at);
        assert!(play_lanes(&changes, DebounceOptions::default()).contains(&(5_013, Lane::Endpoints)));
    }

    #[test]
    fn a_steady_stream_is_acted_on_within_the_maximum() {
        let changes: Vec<_> = (0..300).map(|i| (i * 50, Change::Complete)).collect();
        let acted = play(&changes, DebounceOptions::default());
        assert_eq!(acted[..3], [0, 550, 1100]);
    }

    #[test]
    fn endpoints_can_be_debounced_too() {
        let options = DebounceOptions { endpoints: true, ..DebounceOptions::default() };
        assert_eq!(play(&[(0, Change::Endpoints), (10, Change::Endpoints)], options), [0, 110]);
    }

    #[test]
    fn reads_istio_variables() {
        let read = |name: &'static str, value: &'static str| {
            DebounceOptions::from_env(|n| (n == name).then(|| value.to_owned())).map_err(|e| e.to_string())
        };
        assert_eq!(read("PILOT_DEBOUNCE_AFTER", "250ms").unwrap().after, Duration::from_millis(250));
        assert_eq!(read("PILOT_DEBOUNCE_MAX", "1s").unwrap().max, Duration::from_secs(1));
        assert!(read("PILOT_ENABLE_EDS_DEBOUNCE", "true").unwrap().endpoints);
        assert!(
            read("PILOT_DEBOUNCE_MAX", "soon").unwrap_err().contains("PILOT_DEBOUNCE_MAX: `soon` is not a duration")
        );
        assert_eq!(read("PILOT_ENABLE_EDS_DEBOUNCE", "True").map(|options| options.endpoints), Ok(true));
        assert!(read("PILOT_ENABLE_EDS_DEBOUNCE", "maybe").unwrap_err().contains("neither"));
    }
}
