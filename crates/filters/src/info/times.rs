//! When things happened to a request.

use std::time::{Duration, Instant};

use evenkeel_runtime_config::access_log::TimePoint;

/// Points in the life of a request or a proxied connection, by Envoy's names for them ([`TimePoint`]).
#[derive(Debug, Clone)]
pub struct Times {
    start: Instant,
    points: [Option<Instant>; TimePoint::ALL.len()],
}

impl Times {
    /// Nothing has happened but its begin.
    pub fn new(start: Instant) -> Self {
        Self { start, points: [None; TimePoint::ALL.len()] }
    }

    /// Nothing has happened.
    pub(super) fn forget(&mut self) {
        self.points = [None; TimePoint::ALL.len()];
    }

    /// When it began (`DS_RX_BEG`).
    #[inline]
    pub fn start(&self) -> Instant {
        self.start
    }

    /// It began then.
    #[inline]
    pub fn set_start(&mut self, start: Instant) {
        self.start = start;
    }

    /// This happened then, whatever was said before.
    #[inline]
    pub fn set(&mut self, point: TimePoint, at: Instant) {
        self.points[point as usize] = Some(at);
    }

    /// As [`Times::set`], unless it has happened before.
    #[inline]
    pub fn set_first(&mut self, point: TimePoint, at: Instant) {
        self.points[point as usize].get_or_insert(at);
    }

    /// When this happened.
    #[inline]
    pub fn get(&self, point: TimePoint) -> Option<Instant> {
        match point {
            TimePoint::DownstreamRxBegin => Some(self.start),
            point => self.points[point as usize],
        }
    }

    /// How long after the begin this happened.
    pub fn since_start(&self, point: TimePoint) -> Option<Duration> {
        self.between(TimePoint::DownstreamRxBegin, point)
    }

    /// From one point to another; `None` if one of them has not come, or they came the other way round.
    pub fn between(&self, from: TimePoint, to: TimePoint) -> Option<Duration> {
        self.get(to)?.checked_duration_since(self.get(from)?)
    }

    /// Another try begins: what happened upstream before is no longer of interest.
    pub fn begin_try(&mut self) {
        use TimePoint::{
            UpstreamConnectBegin, UpstreamConnectEnd, UpstreamHandshakeEnd, UpstreamRxBegin, UpstreamRxBodyBegin,
            UpstreamRxEnd, UpstreamTxBegin, UpstreamTxEnd,
        };
        for point in [
            UpstreamConnectBegin,
            UpstreamConnectEnd,
            UpstreamHandshakeEnd,
            UpstreamTxBegin,
            UpstreamTxEnd,
            UpstreamRxBegin,
            UpstreamRxBodyBegin,
            UpstreamRxEnd,
        ] {
            self.points[point as usize] = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_have_places_of_their_own() {
        for (place, (name, point)) in TimePoint::ALL.into_iter().enumerate() {
            assert_eq!(point as usize, place, "{name}");
        }
    }

    #[test]
    fn durations_are_between_points_that_came() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut times = Times::new(start);
        times.set_first(TimePoint::UpstreamTxBegin, at(3));
        times.set_first(TimePoint::UpstreamTxBegin, at(4));
        times.set(TimePoint::DownstreamTxEnd, at(9));
        times.set(TimePoint::DownstreamTxEnd, at(10));
        let check = |times: &Times, from, to, expected: Option<u64>| {
            assert_eq!(times.between(from, to), expected.map(Duration::from_millis), "{from:?} {to:?}");
        };
        check(&times, TimePoint::DownstreamRxBegin, TimePoint::UpstreamTxBegin, Some(3));
        check(&times, TimePoint::UpstreamTxBegin, TimePoint::DownstreamTxEnd, Some(7));
        check(&times, TimePoint::DownstreamTxEnd, TimePoint::UpstreamTxBegin, None);
        check(&times, TimePoint::DownstreamRxBegin, TimePoint::UpstreamRxBegin, None);
        times.begin_try();
        check(&times, TimePoint::DownstreamRxBegin, TimePoint::UpstreamTxBegin, None);
        check(&times, TimePoint::DownstreamRxBegin, TimePoint::DownstreamTxEnd, Some(10));
    }
}
