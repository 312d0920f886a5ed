//! Slow start: the weight of a host that has just joined grows gradually.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_runtime_config::cluster::{Health, SlowStart};
use tokio::time::Instant;

use crate::host::Host;
use crate::turn;

/// Computes the weights of hosts in slow start.
#[derive(Debug)]
pub(super) struct Ramp {
    options: Option<SlowStart>,
    /// When the last host leaves slow start; `None` once that has passed.
    until: Cell<Option<Instant>>,
}

impl Ramp {
    /// For hosts with their current health.
    pub fn new(hosts: &[Rc<Host>], options: Option<SlowStart>) -> Self {
        let last = hosts.iter().filter(|host| host.health() == Health::Healthy).map(|host| host.joined()).max();
        let until = options.zip(last).map(|(options, last)| last + options.window);
        Self { options, until: Cell::new(until) }
    }

    /// Whether any host is still in slow start. Reads the clock only while that is possible.
    pub fn is_on(&self) -> bool {
        let on = self.until.get().is_some_and(|until| turn::now() < until);
        if !on {
            self.until.set(None);
        }
        on
    }

    /// A host's current weight.
    pub fn weight(&self, host: &Host, weight: f64) -> f64 {
        match (self.until.get(), &self.options) {
            (Some(_), Some(options)) if host.health() == Health::Healthy => {
                weight * factor(options, turn::now().saturating_duration_since(host.joined()))
            }
            _ => weight,
        }
    }
}

/// The fraction of its weight that a host has at a given time after it joined: `max(min_weight_percent, (time ÷
/// window)^(1 ÷ aggression))`.
fn factor(options: &SlowStart, since: Duration) -> f64 {
    if since >= options.window {
        return 1.0;
    }
    let millis = since.as_millis().max(1) as f64;
    let time = millis / options.window.as_millis().max(1) as f64;
    let grown = if options.aggression == 1.0 { time } else { time.powf(1.0 / options.aggression) };
    grown.max(options.min_weight_percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{hosts, spread};
    use super::super::round_robin;
    use super::*;
    use crate::random::Random;

    fn slow_start(aggression: f64, min_weight_percent: f64) -> SlowStart {
        SlowStart { window: Duration::from_secs(60), aggression, min_weight_percent }
    }

    #[test]
    fn weights_grow_by_the_formula() {
        let check = |aggression, minimum, seconds, expected: f64| {
            let seen = factor(&slow_start(aggression, minimum), Duration::from_secs(seconds));
            assert!(
                (seen - expected).abs() < 1e-3,
                "aggression {aggression} after {seconds} s: {seen}, not {expected}"
            );
        };
        check(1.0, 10.0, 0, 0.1);
        check(1.0, 10.0, 30, 0.5);
        check(1.0, 10.0, 60, 1.0);
        check(1.0, 0.0, 0, 1.0 / 60_000.0);
        check(2.0, 10.0, 15, 0.5);
        check(0.5, 10.0, 30, 0.25);
        check(0.5, 30.0, 30, 0.3);
    }

    #[test]
    fn a_newcomer_gets_its_share_bit_by_bit() {
        let options = Some(slow_start(1.0, 10.0));
        let random = Random::seeded(7);
        for (seconds_ago, percent) in [(0, 3), (15, 7), (30, 14), (45, 20), (100, 25)] {
            let all = hosts(&[1; 4]);
            let long_ago = Instant::now() - Duration::from_secs(1000);
            all.iter().for_each(|host| host.set_joined(long_ago));
            all[3].set_joined(Instant::now() - Duration::from_secs(seconds_ago));
            let balancer = round_robin::new(all, options, &random);
            let seen = spread(&*balancer, 4, 10_000, &random);
            assert!(seen[3].abs_diff(percent * 100) < 100, "{seen:?} {seconds_ago} s after it joined");
        }
    }

    #[test]
    fn weights_differ_no_longer_once_the_window_is_past() {
        let all = hosts(&[1, 1]);
        assert!(Ramp::new(&all, Some(slow_start(1.0, 10.0))).is_on());
        assert!(!Ramp::new(&all, None).is_on());
        all.iter().for_each(|host| host.set_joined(Instant::now() - Duration::from_secs(60)));
        let ramp = Ramp::new(&all, Some(slow_start(1.0, 10.0)));
        assert!(!ramp.is_on());
        assert_eq!(ramp.weight(&all[0], 3.0), 3.0);
    }
}
