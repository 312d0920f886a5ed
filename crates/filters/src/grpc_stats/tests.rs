//! Calls as the proxy passes them to the filter, and what is counted.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_http::{Headers, ResponseHead};
use evenkeel_runtime_config::grpc_stats::{GrpcStats, Methods};
use evenkeel_stats::Registry;

use super::call::{Call, Messages};
use super::counts::ClusterCalls;
use crate::http::ClusterScope;
use crate::info::{Form, MessageCounts, StateObject};

const MESSAGE: &[u8] = &[0, 0, 0, 0, 1, 7];

/// The statistics of the cluster `c` after one call with two messages to this path, one message back, and this status.
fn counted(methods: Methods, path: &str, status: &str) -> Vec<String> {
    let registry = Registry::new();
    let cluster = ClusterCalls::new(&ClusterScope::new(Arc::clone(&registry), "c"));
    let config = Arc::new(GrpcStats { methods, upstream_time: false, emit_filter_state: true });
    let mut call = Call::new(config, Some(&cluster), path.as_bytes());
    call.sends(&[MESSAGE, MESSAGE].concat());
    call.is_answered(&head("application/grpc"), false, None);
    call.receives(MESSAGE);
    let mut trailers = Headers::default();
    trailers.append(b"grpc-status", status.as_bytes());
    call.ends(&trailers, Some(Duration::ZERO));
    let messages = call.messages().unwrap();
    for (form, expected) in [
        (Form::Plain, "2,1"),
        (Form::Typed, "{\"requestMessageCount\":\"2\",\"responseMessageCount\":\"1\"}"),
        (Form::TypedJson, "{\"request_message_count\":\"2\",\"response_message_count\":\"1\"}"),
    ] {
        let mut text = Vec::new();
        assert!(messages.write(form, &mut text));
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
    assert_eq!(StateObject::messages(&*messages), Some(MessageCounts { request: 2, response: 1 }));
    assert!(!messages.field("request_message_count", &mut Vec::new()), "Envoy's object has no fields");
    assert!(!Messages::default().write(Form::Plain, &mut Vec::new()), "nothing to say");
    shown(&registry)
}

/// What the registry reports, without the cluster's name.
fn shown(registry: &Registry) -> Vec<String> {
    registry.text().lines().filter_map(|line| line.strip_prefix("cluster.c.grpc.")).map(str::to_owned).collect()
}

fn head(content_type: &str) -> ResponseHead {
    let mut head = ResponseHead { status: 200, ..ResponseHead::default() };
    head.headers.append(b"content-type", content_type.as_bytes());
    head
}

#[test]
fn calls_are_counted_under_the_names_that_are_wanted() {
    let listed = || Methods::Listed(HashSet::from_iter([b"a.B/Say"[..].into()]));
    let all = |replace_dots| Methods::All { replace_dots };
    let messages =
        |prefix: &str| [format!("{prefix}request_message_count: 2"), format!("{prefix}response_message_count: 1")];
    for (methods, path, prefix) in [
        (all(false), "/a.B/Say", "a.B.Say."),
        (all(true), "/a.B/Say", "a_B.Say."),
        (listed(), "/a.B/Say", "a.B.Say."),
        (listed(), "/a.B/Shout", ""),
        (Methods::Listed(HashSet::default()), "/a.B/Say", ""),
    ] {
        let [requests, responses] = messages(prefix);
        let expected =
            [format!("{prefix}0: 1"), requests, responses, format!("{prefix}success: 1"), format!("{prefix}total: 1")];
        assert_eq!(counted(methods, path, "0"), expected, "{path}");
    }
    assert_eq!(counted(all(false), "/no-method", "0"), Vec::<String>::new());
}

#[test]
fn only_zero_is_success_and_only_known_statuses_have_names() {
    for (status, names) in [
        ("0", &["0", "success"][..]),
        ("14", &["14", "failure"]),
        ("16", &["16", "failure"]),
        ("10", &["10", "failure"]),
        ("17", &["failure"]),
        ("00", &["failure"]),
        ("", &["failure"]),
        ("fine", &["failure"]),
        ("-1", &["failure"]),
        ("99999999999999999999999", &["failure"]),
    ] {
        let counted = counted(Methods::Listed(HashSet::default()), "/a/b", status);
        let mut counted: Vec<_> = counted.iter().filter_map(|line| line.strip_suffix(": 1")).collect();
        let mut expected = [names, &["response_message_count", "total"]].concat();
        counted.sort_unstable();
        expected.sort_unstable();
        assert_eq!(counted, expected, "{status:?}");
    }
}

#[test]
fn clients_cannot_make_names_without_end() {
    let registry = Registry::new();
    let cluster = ClusterCalls::new(&ClusterScope::new(Arc::clone(&registry), "c"));
    let config = Arc::new(GrpcStats {
        methods: Methods::All { replace_dots: false },
        upstream_time: false,
        emit_filter_state: false,
    });
    for n in 0..2_000 {
        let mut call = Call::new(Arc::clone(&config), Some(&cluster), format!("/s/m{n}").as_bytes());
        call.sends(MESSAGE);
        assert!(call.messages().is_none());
    }
    let shown = shown(&registry);
    for line in ["s.m999.request_message_count: 1", "other.other.request_message_count: 1000"] {
        assert!(shown.iter().any(|shown| shown == line), "{shown:#?}");
    }
    assert_eq!(shown.len(), 1_001);
}
