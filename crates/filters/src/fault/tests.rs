//! Which requests get faults, and what is counted; their effects are compared with Envoy in the interoperation tables.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::fault::{Abort, AbortStatus, Delay, Fault, RateLimit};
use evenkeel_runtime_config::fraction::Fraction;
use evenkeel_runtime_config::hcm;
use evenkeel_runtime_config::view::PlainRequest;

use crate::http::fixture::Fixture;
use crate::{Body, Decision, ResponseFlags, StreamInfo, Woken};

const HALF: Fraction = Fraction { numerator: 50, denominator: 100 };

fn fault() -> Fault {
    Fault {
        delay: None,
        abort: None,
        rate_limit: None,
        upstream_cluster: "".into(),
        downstream_nodes: vec![],
        headers: vec![],
        max_active: None,
        disable_downstream_cluster_stats: false,
        metadata: vec![],
    }
}

fn abort(status: AbortStatus, share: Fraction) -> Option<Abort> {
    Some(Abort { status, share })
}

fn filter(fault: Fault) -> Fixture {
    Fixture::new(hcm::HttpFilterConfig::Fault(Arc::new(fault)))
}

/// The outcome for a request with these headers when this random number is drawn.
fn ask(filter: &mut Fixture, random: u64, headers: &[(&str, &str)]) -> String {
    let request = headers
        .iter()
        .fold(PlainRequest::new("GET", "a", "/"), |request, (name, value)| request.with_header(name, value));
    filter.random = random;
    filter.request(&request);
    said(filter.ask(Body::Empty))
}

fn said(decision: Decision) -> String {
    match decision {
        Decision::Continue => "goes on".to_owned(),
        Decision::Pause(pause) => format!("waits {:?}", pause.limit),
        Decision::Reply(reply) => match reply.grpc_status {
            None => format!("{}", reply.status),
            Some(status) => format!("{} grpc {status}", reply.status),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_may_say_what_they_want_and_how_often_but_no_more_than_is_configured() {
    let by_header = |share| Fault {
        delay: Some(Delay { fixed: None, share }),
        abort: abort(AbortStatus::Header, share),
        ..fault()
    };
    let (delay, delay_share) = ("x-envoy-fault-delay-request", "x-envoy-fault-delay-request-percentage");
    let (status, grpc) = ("x-envoy-fault-abort-request", "x-envoy-fault-abort-grpc-request");
    let share = "x-envoy-fault-abort-request-percentage";
    for (config, random, headers, expected) in [
        (by_header(HALF), 0, &[][..], "goes on"),
        (by_header(HALF), 0, &[(delay, "250")], "waits 250ms"),
        (by_header(HALF), 0, &[(delay, " +250 ")], "waits 250ms"),
        (by_header(HALF), 50, &[(delay, "250")], "goes on"),
        (by_header(HALF), 49, &[(delay, "250"), (delay_share, "90")], "waits 250ms"),
        (by_header(HALF), 20, &[(delay, "250"), (delay_share, "20")], "goes on"),
        (by_header(HALF), 20, &[(delay, "250"), (delay_share, "some")], "waits 250ms"),
        (by_header(HALF), 0, &[(delay, "0")], "goes on"),
        (by_header(HALF), 0, &[(delay, "soon")], "goes on"),
        (by_header(HALF), 0, &[(status, "429")], "429"),
        (by_header(HALF), 0, &[(status, "429"), (grpc, "5")], "429"),
        (by_header(HALF), 0, &[(status, "600"), (grpc, "5")], "200 grpc 5"),
        (by_header(HALF), 0, &[(status, "199")], "goes on"),
        (by_header(HALF), 30, &[(status, "503"), (share, "30")], "goes on"),
        (by_header(Fraction::NONE), 0, &[(delay, "250"), (status, "503")], "goes on"),
        (Fault { abort: abort(AbortStatus::Http(418), HALF), ..fault() }, 49, &[(share, "1")], "418"),
        (Fault { abort: abort(AbortStatus::Grpc(14), Fraction::ALL), ..fault() }, 0, &[(status, "1")], "200 grpc 14"),
        (Fault { abort: abort(AbortStatus::Http(418), HALF), ..fault() }, 50, &[], "goes on"),
    ] {
        assert_eq!(ask(&mut filter(config), random, headers), expected, "{random} {headers:?}");
    }
}

#[test]
fn only_the_requests_that_are_meant_suffer() {
    let all = || Fault { abort: abort(AbortStatus::Http(503), Fraction::ALL), ..fault() };
    let node = "x-envoy-downstream-service-node";
    let of_node = || Fault { downstream_nodes: vec![(*b"one").into(), (*b"two").into()], ..all() };
    for (config, headers, expected) in [
        (Fault { upstream_cluster: "c".into(), ..all() }, &[][..], "503"),
        (Fault { upstream_cluster: "d".into(), ..all() }, &[], "goes on"),
        (of_node(), &[], "goes on"),
        (of_node(), &[(node, "two")], "503"),
        (of_node(), &[(node, "three")], "goes on"),
    ] {
        assert_eq!(ask(&mut filter(config), 0, headers), expected, "{headers:?}");
    }
    // The route's configuration replaces the filter's own entirely.
    let mut told = filter(all()).told(Arc::new(fault()));
    assert_eq!(ask(&mut told, 0, &[]), "goes on");
}

#[test]
fn a_request_may_be_delayed_and_then_answered_and_counts_until_then() {
    let delay = Some(Delay { fixed: Some(Duration::from_secs(1)), share: Fraction::ALL });
    let both = Fault { delay, abort: abort(AbortStatus::Http(503), HALF), max_active: Some(1), ..fault() };
    let mut filter = filter(both);
    let active = |filter: &Fixture| filter.registry.text().contains("http.inbound.fault.active_faults: 1");
    let from = ("x-envoy-downstream-service-cluster", "shop.v1");
    assert_eq!(ask(&mut filter, 50, &[from]), "waits 1s");
    assert!(active(&filter));
    assert_eq!(filter.info.flags, ResponseFlags::DELAY_INJECTED);
    // Another request in the meantime gets no fault.
    let other = StreamInfo::new(filter.now);
    let (streams, info) = (std::mem::take(&mut filter.streams), std::mem::replace(&mut filter.info, other));
    assert_eq!(ask(&mut filter, 0, &[]), "goes on");
    (filter.streams, filter.info, filter.random) = (streams, info, 50);
    filter.streams.wake(Woken::TimedOut);
    assert_eq!(said(filter.ask(Body::Empty)), "goes on");
    assert!(!active(&filter));
    assert_eq!(ask(&mut filter, 0, &[from]), "waits 1s");
    filter.streams.wake(Woken::TimedOut);
    assert_eq!(said(filter.ask(Body::Empty)), "503");
    assert_eq!(filter.info.flags, ResponseFlags::DELAY_INJECTED | ResponseFlags::FAULT_INJECTED);
    assert!(active(&filter));
    filter.complete();
    assert!(!active(&filter));
    let text = filter.registry.text();
    for line in [
        "http.inbound.fault.delays_injected: 2\n",
        "http.inbound.fault.aborts_injected: 1\n",
        "http.inbound.fault.faults_overflow: 2\n",
        "http.inbound.fault.shop.v1.delays_injected: 2\n",
        "http.inbound.fault.shop.v1.aborts_injected: 1\n",
    ] {
        assert!(text.contains(line), "{line} not in\n{text}");
    }
}

#[test]
fn answers_are_slowed_down_where_that_is_asked_for() {
    let limit = |fixed_kib| Fault { rate_limit: Some(RateLimit { fixed_kib, share: Fraction::ALL }), ..fault() };
    for (config, headers, injected) in [
        (limit(Some(3)), &[][..], true),
        (limit(None), &[], false),
        (limit(None), &[("x-envoy-fault-throughput-response", "0")], false),
        (limit(None), &[("x-envoy-fault-throughput-response", "7")], true),
    ] {
        let mut filter = filter(config);
        assert_eq!(ask(&mut filter, 0, headers), "goes on");
        let text = filter.registry.text();
        assert_eq!(text.contains("http.inbound.fault.response_rl_injected: 1\n"), injected, "{headers:?}");
    }
}
