//! Decides when a change of the configuration takes effect: the first one after a quiet time at once, those that follow
//! merged.

use std::time::{Duration, Instant};

/// Timing of pushes, under the names that istiod uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DebounceOptions {
    /// Quiet time that ends a burst (`PILOT_DEBOUNCE_AFTER`).
    pub after: Duration,
    /// Maximum time a change may wait (`PILOT_DEBOUNCE_MAX`).
    pub max: Duration,
    /// Whether changes of endpoints alone are debounced too (`PILOT_ENABLE_EDS_DEBOUNCE`).
    pub endpoints: bool,
}

impl Default for DebounceOptions {
    /// Istio waits up to 10 s, because its pushes are expensive. Here a push costs what changed, and a continuous stream of
    /// changes should not delay routes noticeably.
    fn default() -> Self {
        Self { after: Duration::from_millis(100), max: Duration::from_millis(500), endpoints: false }
    }
}

/// An environment variable with an unusable value.
#[derive(Debug, thiserror::Error)]
pub enum DebounceError {
    /// The value is not a duration.
    #[error("environment variable {name}: {reason}")]
    Duration {
        /// The name of the variable.
        name: &'static str,
        /// The error.
        reason: evenkeel_base::duration::DurationError,
    },
    /// The value is not a boolean.
    #[error("environment variable {name}: `{value}` is neither `true` nor `false`")]
    Bool {
        /// The name of the variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
}

impl DebounceOptions {
    /// Reads Istio's variables through `lookup`; variables that are not set keep their defaults.
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

/// Parses a boolean as Go programs do (`strconv.ParseBool`).
pub fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// How long a deleted endpoint file may take to reappear, as when an editor replaces it, before its endpoints are removed.
const REPLACED_WITHIN: Duration = Duration::from_millis(10);

/// What a change is about, and whether it is known to be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Complete, and only about endpoints: takes effect at once (unless `endpoints` is set).
    Endpoints,
    /// A file that holds only endpoints was deleted: takes effect almost at once (unless `endpoints` is set).
    EndpointsGone,
    /// Complete: a file was closed after writing, or renamed into place.
    Complete,
    /// Possibly incomplete: a file was deleted, or is being written. Always waits for a quiet time.
    Partial,
}

/// The set of changes that take effect together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Changes of endpoints only; the others still wait.
    Endpoints,
    /// All changes.
    Everything,
}

/// The decision, without a clock. Changes of endpoints have a separate lane, so that they neither wait for the configuration
/// nor apply it half-written.
#[derive(Debug)]
pub struct Debounce {
    options: DebounceOptions,
    last_complete: Option<Instant>,
    pending: Option<Pending>,
    /// When changes of endpoints take effect.
    endpoints_due: Option<Instant>,
}

#[derive(Debug)]
struct Pending {
    since: Instant,
    due: Instant,
}

impl Debounce {
    /// Creates a debounce without pending changes.
    pub fn new(options: DebounceOptions) -> Self {
        Self { options, last_complete: None, pending: None, endpoints_due: None }
    }

    /// Returns the lane of a change.
    pub fn lane(&self, change: Change) -> Lane {
        match change {
            Change::Endpoints | Change::EndpointsGone if !self.options.endpoints => Lane::Endpoints,
            Change::Endpoints | Change::EndpointsGone | Change::Complete | Change::Partial => Lane::Everything,
        }
    }

    /// Records a change.
    pub fn change(&mut self, change: Change, now: Instant) {
        if self.lane(change) == Lane::Endpoints {
            let wait = if change == Change::EndpointsGone { REPLACED_WITHIN } else { Duration::ZERO };
            self.endpoints_due = Some(self.endpoints_due.map_or(now + wait, |due| due.min(now + wait)));
            return;
        }
        // Writing a file causes several partial changes before the one that completes it: those do not end the quiet time.
        let quiet = self.last_complete.is_none_or(|last| now.duration_since(last) >= self.options.after);
        let complete = matches!(change, Change::Endpoints | Change::Complete);
        if complete {
            self.last_complete = Some(now);
        }
        let since = self.pending.as_ref().map_or(now, |p| p.since);
        // A change that is due stays due: the kernel reports one renamed file twice.
        let at_once = complete && (quiet || self.pending.as_ref().is_some_and(|pending| pending.due <= now));
        let due = if at_once { now } else { (now + self.options.after).min(since + self.options.max) };
        self.pending = Some(Pending { since, due });
    }

    /// Returns when the next changes take effect.
    pub fn due(&self) -> Option<Instant> {
        self.pending.as_ref().map(|p| p.due).into_iter().chain(self.endpoints_due).min()
    }

    /// Marks the changes that are due as taking effect, and returns their lane.
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

    /// Plays changes (ms, kind) and returns the times (ms) at which they take effect.
    fn play(changes: &[(u64, Change)], options: DebounceOptions) -> Vec<u64> {
        play_lanes(changes, options).into_iter().map(|(at, _)| at).collect()
    }

    /// Plays changes (ms, kind) and returns the times (ms) at which each lane takes effect.
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
