//! Which connections are admitted, and what is counted.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::connection_limit::ConnectionLimit;
use evenkeel_runtime_config::listener::NetworkFilterConfig;

use crate::network::fixture::Fixture;
use crate::network::{ClosedBy, Decision, End, FilteredConnection};

const END: End = End { by: ClosedBy::Client, received: 0, sent: 0 };
const DELAY: Duration = Duration::from_millis(5);

fn limit(max: u64, enabled: bool) -> Fixture {
    let config = ConnectionLimit::new("p".into(), max, DELAY, enabled);
    Fixture::new([NetworkFilterConfig::ConnectionLimit(Arc::new(config))])
}

fn assert_counted(filter: &Fixture, lines: &[&str]) {
    let text = filter.registry.text();
    lines.iter().for_each(|line| assert!(text.contains(line), "{line} not in\n{text}"));
}

#[test]
fn a_connection_too_many_is_closed_and_makes_room_when_it_has_ended() {
    let mut filter = limit(2, true);
    assert!(filter.filters.follow() && !filter.filters.see_data());
    let open = |filter: &mut Fixture| {
        filter.again();
        let decision = filter.open();
        let let_in = match decision {
            Decision::Continue => true,
            Decision::Close(close) => {
                assert_eq!((close.after, &*close.details), (DELAY, ""));
                false
            }
            Decision::Pause(_) => panic!("nothing to wait for"),
        };
        (let_in, std::mem::take(&mut filter.state))
    };
    let (first, second, mut third) = (open(&mut filter), open(&mut filter), open(&mut filter));
    assert!(first.0 && second.0 && !third.0);
    assert_counted(&filter, &["connection_limit.p.active_connections: 3", "connection_limit.p.limited_connections: 1"]);
    // A refused connection counts until it is closed, as in Envoy.
    assert!(!open(&mut filter).0);
    let end = |filter: &Fixture, state: &mut FilteredConnection| filter.filters.complete(state, &END);
    end(&filter, &mut third.1);
    end(&filter, &mut third.1);
    assert_counted(&filter, &["connection_limit.p.active_connections: 3"]);
    let mut first = first.1;
    end(&filter, &mut first);
    assert!(!open(&mut filter).0, "the one refused before is there still");
}

#[test]
fn a_limit_that_is_switched_off_costs_nothing() {
    let filter = limit(1, false);
    assert!(!filter.filters.follow());
}
