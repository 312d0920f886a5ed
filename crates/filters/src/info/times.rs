//! Times of events in a request's life.

use std::time::{Duration, Instant};

use evenkeel_runtime_config::substitution_format::TimePoint;

/// Times of events of a request or proxied connection, by Envoy's names for them ([`TimePoint`]).
#[derive(Debug, Clone)]
pub struct Times {
    start: Instant,
    points: [Option<Instant>; TimePoint::ALL.len()],
}

impl Times {
    /// Only the start is known.
    pub fn new(start: Instant) -> Self {
        Self { start, points: [None; TimePoint::ALL.len()] }
    }

    /// Clears all points but the start.
    pub(super) fn forget(&mut self) {
        self.points = [None; TimePoint::ALL.len()];
    }

    /// When the request began (`DS_RX_BEG`).
    #[inline]
    pub fn start(&self) -> Instant {
        self.start
    }

    /// Sets the start.
    #[inline]
    pub fn set_start(&mut self, start: Instant) {
        self.start = start;
    }

    /// Sets the time of an event, replacing an earlier one.
    #[inline]
    pub fn set(&mut self, point: TimePoint, at: Instant) {
        self.points[point as usize] = Some(at);
    }

    /// As [`Times::set`], unless the event already has a time.
    #[inline]
    pub fn set_first(&mut self, point: TimePoint, at: Instant) {
        self.points[point as usize].get_or_insert(at);
    }

    /// The time of an event.
    #[inline]
    pub fn get(&self, point: TimePoint) -> Option<Instant> {
        match point {
            TimePoint::DownstreamRxBegin => Some(self.start),
            point => self.points[point as usize],
        }
    }

    /// Time from the start to an event.
    pub fn since_start(&self, point: TimePoint) -> Option<Duration> {
        self.between(TimePoint::DownstreamRxBegin, point)
    }

    /// Time from one event to another; `None` if one of them has not happened, or they happened in reverse order.
    pub fn between(&self, from: TimePoint, to: TimePoint) -> Option<Duration> {
        self.get(to)?.checked_duration_since(self.get(from)?)
    }

    /// Starts another try: clears the upstream events of the one before.
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
