//! Several filters: which is called when.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::custom::CustomFilter as CustomConfig;
use evenkeel_runtime_config::fault::{Abort, AbortStatus, Delay, Fault, RateLimit};
use evenkeel_runtime_config::fraction::Fraction;
use evenkeel_runtime_config::hcm::{self, HttpFilterConfig};
use evenkeel_runtime_config::rbac::{FieldNames, RbacAction, RbacFilter, Rules};
use evenkeel_runtime_config::route_filters::FilterOverride;

use super::custom::State;
use super::fixture::Fixture;
use super::{Body, CustomFactory, CustomFilter, Data, Decision, Flow, Hooks, Pause, Reply, RequestContext, Woken};

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

/// A custom filter that lets a request pass when it is asked for the second time, and shortens bodies.
struct Hesitant;

impl CustomFilter for Hesitant {
    fn hooks(&self) -> Hooks {
        Hooks::REQUEST_HEAD.and(Hooks::RESPONSE_DATA)
    }

    fn request_head(&self, state: &mut State, _: &mut RequestContext<'_>) -> Decision {
        if state.replace(Box::new("asked")).is_some() {
            return Decision::Continue;
        }
        Decision::Pause(Pause::for_time(Duration::from_millis(7)))
    }

    fn response_data(&self, state: &mut State, data: &mut Data<'_>) -> Flow {
        assert_eq!(state.as_ref().and_then(|state| state.downcast_ref()), Some(&"asked"), "the request's state");
        data.bytes = data.bytes.to_vec().split_off(1).into();
        Flow::Continue
    }

    fn response_head(&self, _: &mut State, _: &mut super::ResponseContext<'_>) -> super::ResponseDecision {
        panic!("a hook that it does not have")
    }
}

fn custom(factory: impl std::any::Any + Send + Sync) -> HttpFilterConfig {
    let config = CustomConfig { message: "test.Hesitant", clusters: Vec::new(), factory: Arc::new(factory) };
    HttpFilterConfig::Custom(config)
}

#[test]
fn filters_of_the_open_arm_stand_among_the_others() {
    let hesitant = custom(CustomFactory::new(|_| Box::new(Hesitant)));
    let mut chain = Fixture::chain(&[filter("custom", false, hesitant), filter("r", false, nobody())]);
    let Decision::Pause(pause) = chain.ask(Body::Empty) else { panic!("it waits") };
    assert_eq!(pause.limit, Duration::from_millis(7));
    chain.streams.wake(Woken::TimedOut);
    assert_eq!(status(&chain.ask(Body::Empty)), Some(403));
    let mut data = Data { bytes: b"body"[..].into(), ends: true, now: chain.now };
    assert!(matches!(chain.filters.response_data(&mut chain.streams, &mut data), Flow::Continue));
    assert_eq!(&*data.bytes, b"ody");
    // A configuration that creates no filter lets nothing pass.
    let mut broken = Fixture::chain(&[filter("custom", false, custom("no factory"))]);
    assert_eq!(status(&broken.ask(Body::Empty)), status(&Decision::Reply(Reply::broken())));
}
