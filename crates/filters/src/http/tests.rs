//! Several filters: which is called when.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::fault::{Abort, AbortStatus, Delay, Fault, RateLimit};
use evenkeel_runtime_config::fraction::Fraction;
use evenkeel_runtime_config::hcm::{self, HttpFilterConfig};
use evenkeel_runtime_config::rbac::{FieldNames, RbacAction, RbacFilter, Rules};
use evenkeel_runtime_config::route_filters::FilterOverride;

use super::fixture::Fixture;
use super::{Body, Data, Decision, Flow, Woken};

fn filter(name: &str, disabled: bool, config: HttpFilterConfig) -> hcm::HttpFilter {
    hcm::HttpFilter { name: name.into(), disabled, skip: None, config }
}

fn fault(delay: Option<u64>, abort: Option<u16>, kib: Option<u64>) -> HttpFilterConfig {
    let share = Fraction::ALL;
    HttpFilterConfig::Fault(Arc::new(Fault {
        delay: delay.map(|millis| Delay { fixed: Some(Duration::from_millis(millis)), share }),
        abort: abort.map(|status| Abort { status: AbortStatus::Http(status), share }),
        rate_limit: kib.map(|kib| RateLimit { fixed_kib: Some(kib), share }),
        upstream_cluster: "".into(),
        downstream_nodes: vec![],
        headers: vec![],
        max_active: None,
        disable_downstream_cluster_stats: true,
        metadata: vec![],
    }))
}

fn nobody() -> HttpFilterConfig {
    HttpFilterConfig::Rbac(Arc::new(RbacFilter {
        stat_prefix: "".into(),
        rules: Some(Arc::new(Rules::new(RbacAction::Allow, vec![], FieldNames::default()))),
        shadow_rules: None,
        shadow_stat_prefix: "".into(),
    }))
}

fn status(decision: &Decision) -> Option<u16> {
    match decision {
        Decision::Continue => None,
        Decision::Reply(reply) => Some(reply.status),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_filter_is_on_or_off_as_the_route_says_and_else_as_it_is_configured() {
    for (off, told, expected) in [
        (false, None, Some(503)),
        (true, None, None),
        (false, Some(true), None),
        (true, Some(false), Some(503)),
        (true, Some(true), None),
    ] {
        let mut chain = Fixture::chain(&[filter("f", off, fault(None, Some(503), None))]);
        let says = told.map(|disabled| FilterOverride { filter: "f".into(), disabled, config: None });
        chain.says.extend(says);
        assert_eq!(status(&chain.ask(Body::Empty)), expected, "{off} {told:?}");
    }
}

#[test]
fn a_request_goes_on_where_it_waited() {
    let first = filter("f", false, fault(Some(10), None, None));
    let mut chain = Fixture::chain(&[first, filter("r", false, nobody())]);
    let Decision::Pause(pause) = chain.ask(Body::Empty) else { panic!("the first filter waits") };
    assert_eq!(pause.limit, Duration::from_millis(10));
    chain.streams.wake(Woken::TimedOut);
    assert_eq!(status(&chain.ask(Body::Empty)), Some(403));
    assert!(chain.streams.pass() && !chain.streams.pass(), "once");
}

#[test]
fn an_answer_that_two_filters_keep_back_passes_both_in_order_and_ends_once() {
    let limits = [("slow", 1), ("slower", 2)].map(|(name, kib)| filter(name, false, fault(None, None, Some(kib))));
    let mut chain = Fixture::chain(&limits);
    assert_eq!(status(&chain.ask(Body::Empty)), None);
    let body: Vec<u8> = (0..2000).map(|n| n as u8).collect();
    let mut data = Data { bytes: body.as_slice().into(), ends: true, now: chain.now };
    let mut flow = chain.filters.response_data(&mut chain.streams, &mut data);
    let mut seen = data.bytes.to_vec();
    let mut rounds = 0;
    while let Flow::Pause(pause) = flow {
        assert!(!data.ends, "nothing is kept back behind the end");
        data = Data { bytes: b"".into(), ends: false, now: data.now + pause.limit };
        flow = chain.filters.resume_response(&mut chain.streams, &mut data);
        seen.extend_from_slice(&data.bytes);
        rounds += 1;
    }
    assert!(data.ends);
    assert!(seen == body, "{} bytes came through", seen.len());
    // 1,949 bytes after the first 51, at 51.2 every 50 ms.
    assert_eq!(rounds, 39);
}
