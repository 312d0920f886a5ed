//! Sampling, contexts, encodings, and what becomes of spans that no collector takes.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use evenkeel_http::{Headers, RequestHead, ResponseHead};
use evenkeel_runtime_config::fraction::Fraction;
use evenkeel_runtime_config::tracing::{Exporter, OpenTelemetry, OwnNode, Provider, Sampling, Tracing, Zipkin};
use evenkeel_stats::Registry;

use super::b3::{self, Extracted};
use super::context::{Malformed, SpanContext};
use super::reporter::Reporter;
use super::sampling::{self, Reason};
use super::span::{Kind, Span};
use super::{otlp, w3c, zipkin};
use crate::callouts::{CallOptions, Callout, CalloutError, Callouts, HttpAnswer, HttpCall, HttpStream, Problem};
use crate::http::services::{Clock, Clusters, Names, NoClusters, SystemClock, Tasks};
use crate::http::{Services, Wait};

const TRACE: &str = "80f198ee56343ba864fe8b2a57d3eff7";
const TRACE_ID: u128 = 0x80f1_98ee_5634_3ba8_64fe_8b2a_57d3_eff7;
const SPAN: &str = "e457b5a2e4d86bd1";
const SPAN_ID: u64 = 0xe457_b5a2_e4d8_6bd1;
const PARENT: &str = "05e3ac9a4f6e3b90";
const PARENT_ID: u64 = 0x05e3_ac9a_4f6e_3b90;

fn headers(fields: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::default();
    fields.iter().for_each(|(name, value)| headers.append(name.as_bytes(), value.as_bytes()));
    headers
}

fn text(headers: &Headers) -> String {
    let line = |(_, name, value): (_, &[u8], &[u8])| {
        format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
    };
    headers.iter().map(line).collect::<Vec<_>>().join(" ")
}

fn tracing(client: u32, random: u32, overall: u32) -> Tracing {
    let share = |numerator| Fraction { numerator, denominator: 10_000 };
    Tracing {
        provider: None,
        sampling: Sampling { client: share(client), random: share(random), overall: share(overall) },
        max_path_bytes: 256,
        custom_tags: Vec::new(),
        spawn_upstream_span: false,
        start_child_span: false,
        use_request_id: true,
        node: Arc::default(),
    }
}

fn only(id: &str) -> [(&str, &str); 1] {
    [("x-request-id", id)]
}

#[test]
fn the_decision_is_in_the_request_id() {
    // 0x00001388 is 5000.
    let id = |digit: char| format!("00001388-aaaa-{digit}aaa-8aaa-aaaaaaaaaaaa");
    let check = |(client, random, overall): (u32, u32, u32), fields: &[(&str, &str)], expected: Reason, after: &str| {
        let config = tracing(client, random, overall);
        let mut headers = headers(fields);
        let reason = sampling::decide(&mut headers, &config, (None, true), || 7_000);
        assert_eq!(reason, expected, "{client} {random} {overall} {fields:?}");
        let id = headers.find(b"x-request-id").map(|id| String::from_utf8_lossy(id).into_owned());
        assert_eq!(id.unwrap_or_default(), after, "{client} {random} {overall} {fields:?}");
    };
    use Reason::{ClientForced, NotTraceable, Sampling, ServiceForced};
    let all = (10_000, 10_000, 10_000);
    let (plain, sampled, forced, asked) = (id('4'), id('9'), id('a'), id('b'));
    check(all, &only(&plain), Sampling, &sampled);
    check((10_000, 0, 10_000), &only(&plain), NotTraceable, &plain);
    // The request's own number decides: 5000.
    check((10_000, 5_001, 10_000), &only(&plain), Sampling, &sampled);
    check((10_000, 5_000, 10_000), &only(&plain), NotTraceable, &plain);
    // An earlier decision is kept, unless fewer requests are traced here altogether.
    for (id, reason) in [(&sampled, Sampling), (&forced, ServiceForced), (&asked, ClientForced)] {
        check((0, 0, 10_000), &only(id), reason, id);
        check((0, 0, 5_001), &only(id), reason, id);
        check((0, 0, 5_000), &only(id), NotTraceable, &plain);
    }
    let client = [("x-request-id", &*plain), ("x-client-trace-id", "me")];
    check((10_000, 0, 10_000), &client, ClientForced, &asked);
    check((7_001, 0, 10_000), &client, ClientForced, &asked);
    check((7_000, 0, 10_000), &client, NotTraceable, &plain);
    check((10_000, 0, 0), &client, NotTraceable, &plain);
    let force = [("x-request-id", &*plain), ("x-envoy-force-trace", "1")];
    check((0, 0, 10_000), &force, ServiceForced, &forced);
    // An id that is no UUID carries no decision; without a number there is none.
    check(all, &only("00001388"), Sampling, "00001388");
    check(all, &only("short"), NotTraceable, "short");
    check(all, &only("zzzzzzzz-aaaa-9aaa-8aaa-aaaaaaaaaaaa"), NotTraceable, "zzzzzzzz-aaaa-9aaa-8aaa-aaaaaaaaaaaa");
    check(all, &[], NotTraceable, "");
    // `pack_trace_reason` off; the route's own shares; `use_request_id_for_trace_sampling` off.
    let mut kept = headers(&only(&plain));
    assert_eq!(sampling::decide(&mut kept, &tracing(0, 10_000, 10_000), (None, false), || 0), Sampling);
    assert_eq!(text(&kept), format!("x-request-id={plain}"));
    let mut forced_before = headers(&only(&forced));
    assert_eq!(sampling::decide(&mut forced_before, &tracing(0, 0, 10_000), (None, false), || 0), NotTraceable);
    let none = tracing(0, 0, 10_000).sampling;
    assert_eq!(sampling::decide(&mut kept, &tracing(0, 10_000, 10_000), (Some(&none), true), || 0), NotTraceable);
    for (random, expected) in [(7_001, Sampling), (7_000, NotTraceable)] {
        let config = Tracing { use_request_id: false, ..tracing(0, random, 10_000) };
        let mut forced = headers(&only(&forced));
        assert_eq!(sampling::decide(&mut forced, &config, (None, true), || 7_000), expected);
        assert_eq!(text(&forced), format!("x-request-id={}", id('a')));
    }
    let mut chosen = headers(&only(&forced));
    sampling::clear_reason(&mut chosen);
    assert_eq!(text(&chosen), format!("x-request-id={plain}"));
}

/// Trace, span and parent.
#[derive(Debug, PartialEq)]
struct Caller(u128, u64, Option<u64>);

#[test]
fn b3_is_read_and_malformed_contexts_are_not_trusted() {
    let check = |fields: &[(&str, &str)], expected: Result<(Option<bool>, Option<Caller>), Malformed>| {
        let extracted = b3::extract(&headers(fields)).map(|Extracted { sampled, caller, .. }| {
            (sampled, caller.map(|caller| Caller(caller.trace_id, caller.span_id, caller.parent_id)))
        });
        assert_eq!(extracted, expected, "{fields:?}");
    };
    let ids = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN)];
    let with = |name, value| [ids[0], ids[1], (name, value)];
    let caller = |parent| Some(Caller(TRACE_ID, SPAN_ID, parent));
    check(&[], Ok((None, None)));
    check(&ids, Ok((None, caller(None))));
    check(&with("x-b3-parentspanid", PARENT), Ok((None, caller(Some(PARENT_ID)))));
    check(&with("x-b3-parentspanid", ""), Ok((None, caller(None))));
    check(&with("x-b3-parentspanid", "zz"), Err(Malformed));
    for (value, sampled) in [("1", true), ("true", true), ("0", false), ("d", false), ("", false), ("2", false)] {
        check(&with("x-b3-sampled", value), Ok((Some(sampled), caller(None))));
        check(&[("x-b3-sampled", value)], Ok((Some(sampled), None)));
    }
    // As in Envoy, the debug flag alone has no effect, nor has one id without the other.
    check(&[("x-b3-flags", "1")], Ok((None, None)));
    check(&ids[..1], Ok((None, None)));
    check(&[("x-b3-traceid", "1"), ("x-b3-spanid", "f")], Ok((None, Some(Caller(1, 15, None)))));
    for (trace, span) in [
        ("", SPAN),
        (TRACE, ""),
        ("zz", SPAN),
        (TRACE, "-1"),
        ("11111111111111111", SPAN),
        ("80f198ee56343ba864fe8b2a57d3eff7a", SPAN),
        ("80f198ee56343ba8-4fe8b2a57d3eff7", SPAN),
        (TRACE, "0xe457b5a2e4d86b"),
        (TRACE, "e457b5a2e4d86bd1e"),
    ] {
        check(&[("x-b3-traceid", trace), ("x-b3-spanid", span)], Err(Malformed));
    }
    let low = &TRACE[16..];
    let single = |value: &str, expected| check(&[("b3", value), ("x-b3-sampled", "1")], expected);
    single("0", Ok((Some(false), None)));
    single("1", Ok((Some(true), None)));
    single("d", Ok((Some(true), None)));
    single(&format!("{TRACE}-{SPAN}"), Ok((None, caller(None))));
    single(&format!("{TRACE}-{SPAN}-0"), Ok((Some(false), caller(None))));
    single(&format!("{TRACE}-{SPAN}-d-{PARENT}"), Ok((Some(true), caller(Some(PARENT_ID)))));
    single(&format!("{low}-{SPAN}-1"), Ok((Some(true), Some(Caller(0x64fe_8b2a_57d3_eff7, SPAN_ID, None)))));
    for value in [
        "".to_owned(),
        "x".into(),
        low.into(),
        format!("{low}-"),
        format!("{low}-{SPAN}-"),
        format!("{low}-{SPAN}-x"),
        format!("{low}-{SPAN}-1-"),
        format!("{low}-{SPAN}-{PARENT}"),
        format!("{low}-{SPAN}-1-{PARENT}-1"),
        format!("{low}-{SPAN}-1-{PARENT}0"),
        format!("z{}-{SPAN}-1", &low[1..]),
        format!("{TRACE}{TRACE}-{SPAN}"),
        "-".repeat(33),
    ] {
        single(&value, Err(Malformed));
    }
}

#[test]
fn contexts_are_written() {
    let span = SpanContext { trace_id: 0xabc, span_id: 1, sampled: true, ..SpanContext::default() };
    let child = SpanContext { trace_id: TRACE_ID, parent_id: Some(2), sampled: false, ..span.clone() };
    let check =
        |inject: fn(&mut Headers, &SpanContext), span: &SpanContext, before: &[(&str, &str)], expected: &str| {
            let mut headers = headers(before);
            inject(&mut headers, span);
            assert_eq!(text(&headers), expected);
            inject(&mut headers, span);
            assert_eq!(text(&headers), expected, "again, for a retry");
        };
    check(
        b3::inject,
        &span,
        &[("x-b3-sampled", "0")],
        "x-b3-traceid=0000000000000abc x-b3-spanid=0000000000000001 x-b3-sampled=1",
    );
    check(
        b3::inject,
        &child,
        &[],
        &format!("x-b3-traceid={TRACE} x-b3-spanid=0000000000000001 x-b3-parentspanid=0000000000000002 x-b3-sampled=0"),
    );
    let single = SpanContext { single_header: true, ..child.clone() };
    check(b3::inject, &single, &[("b3", "0")], &format!("b3={TRACE}-0000000000000001-0-0000000000000002"));
    let with_state = SpanContext { state: (*b"a=b").into(), ..child };
    check(w3c::inject, &with_state, &[], &format!("traceparent=00-{TRACE}-0000000000000001-00 tracestate=a=b"));
}

#[test]
fn w3c_is_read_and_malformed_contexts_are_not_trusted() {
    let check = |fields: &[(&str, &str)], expected: Result<Option<(bool, &str)>, Malformed>| {
        let read = w3c::extract(&headers(fields));
        if let Ok(Some(context)) = &read {
            assert_eq!((context.trace_id, context.span_id), (TRACE_ID, SPAN_ID));
        }
        let said = read.map(|context| {
            context.map(|context| (context.sampled, String::from_utf8_lossy(&context.state).into_owned()))
        });
        assert_eq!(said, expected.map(|said| said.map(|(sampled, state)| (sampled, state.to_owned()))), "{fields:?}");
    };
    let parent = |version: &str, flags: &str| format!("{version}-{TRACE}-{SPAN}-{flags}");
    check(&[], Ok(None));
    check(&[("tracestate", "a=b")], Ok(None));
    check(&[("traceparent", &parent("00", "01")), ("tracestate", "a=b")], Ok(Some((true, "a=b"))));
    check(&[("traceparent", &parent("00", "00"))], Ok(Some((false, ""))));
    check(&[("traceparent", &parent("ff", "03"))], Ok(Some((true, ""))));
    for malformed in [
        String::new(),
        "nonsense".into(),
        parent("00", ""),
        parent("00", "1"),
        parent("00", "0g"),
        parent("0", "01"),
        parent("zz", "01"),
        parent("00", "01-"),
        parent("00", "01-more"),
        format!("00-{}-{SPAN}-01", "0".repeat(32)),
        format!("00-{TRACE}-{}-01", "0".repeat(16)),
        format!("00-{}-{TRACE}-01", SPAN),
    ] {
        check(&[("traceparent", &malformed)], Err(Malformed));
    }
}

fn zipkin(shared: bool, wide: bool, split: bool) -> Zipkin {
    Zipkin {
        cluster: "zipkin".into(),
        path: "/api/v2/spans".into(),
        host: "zipkin".into(),
        trace_id_128bit: wide,
        shared_span_context: shared,
        split_spans_for_request: split,
        uses_w3c: false,
        timeout: Duration::from_secs(5),
        headers: Vec::new(),
    }
}

#[test]
fn spans_follow_from_each_other() {
    let caller = headers(&[("x-b3-traceid", "a"), ("x-b3-spanid", "b"), ("x-b3-parentspanid", "c")]);
    let none = Headers::default();
    let check = |config: Zipkin, headers: &Headers, (split, egress): (bool, bool), expected: &str| {
        let (request, kind) = zipkin::of_request(headers, &config, (split, egress, true), || 7).unwrap();
        let (attempt, of_try) = zipkin::of_try(&request, &config, (split, egress), || 9);
        let ids = |context: &SpanContext| (context.trace_id, context.span_id, context.parent_id.unwrap_or_default());
        let said = format!("{kind:?} {:x?} {of_try:?} {:x?}", ids(&request), ids(&attempt));
        assert_eq!(said, expected, "{config:?} {split} {egress}");
    };
    let usual = || zipkin(true, false, false);
    check(usual(), &none, (false, false), "Server (7, 7, 0) Server (7, 7, 0)");
    check(usual(), &none, (false, true), "Client (7, 7, 0) Client (7, 9, 7)");
    check(usual(), &none, (true, true), "Server (7, 7, 0) Client (7, 9, 7)");
    check(usual(), &caller, (false, false), "Server (a, b, c) Server (a, b, c)");
    check(usual(), &caller, (false, true), "Client (a, 7, b) Client (a, 9, 7)");
    check(usual(), &caller, (true, false), "Server (a, b, c) Client (a, 9, b)");
    check(zipkin(true, false, true), &caller, (false, true), "Server (a, b, c) Client (a, 9, b)");
    check(zipkin(false, false, false), &caller, (false, false), "Server (a, 7, b) Server (a, 9, 7)");
    check(
        zipkin(true, true, false),
        &none,
        (false, true),
        "Client (70000000000000007, 7, 0) Client (70000000000000007, 9, 7)",
    );
    for (traceparent, traced, sampled) in [("01", true, true), ("01", false, false), ("00", true, false)] {
        let caller = headers(&[("traceparent", &format!("00-{TRACE}-{SPAN}-{traceparent}"))]);
        let (request, _) = otlp::of_request(&caller, (false, false, traced), || 7).unwrap();
        assert_eq!((request.sampled, request.parent_id, request.span_id), (sampled, Some(SPAN_ID), 7));
    }
}

#[test]
fn zipkins_spans_take_and_pass_on_w3cs_context() {
    const ID: &str = "0000000000000007";
    let both = Zipkin { uses_w3c: true, ..zipkin(false, true, false) };
    let only_b3 = Zipkin { uses_w3c: false, ..both.clone() };
    let sorted = |text: &str| {
        let mut fields: Vec<_> = text.split(' ').map(str::to_owned).collect();
        fields.sort();
        fields
    };
    // The configuration, the head before, and after.
    let check = |config: &Zipkin, before: &[(&str, &str)], expected: Result<&str, Malformed>| {
        let mut headers = headers(before);
        let after = zipkin::of_request(&headers, config, (false, false, true), || 7).map(|(context, _)| {
            zipkin::inject(&mut headers, config, &context);
            sorted(&text(&headers))
        });
        assert_eq!(after, expected.map(sorted), "{before:?}");
    };
    let parent = |flags: &str| format!("00-{TRACE}-{SPAN}-{flags}");
    let b3 = |trace: &str, parent: &str, sampled: u8| {
        format!("x-b3-traceid={trace} x-b3-spanid={ID}{parent} x-b3-sampled={sampled}")
    };
    let (sampled, state) = (parent("01"), ("tracestate", "a=b"));
    let w3c = ("traceparent", sampled.as_str());
    let flag = ("x-b3-sampled", "0");
    let of_b3 = [("x-b3-traceid", "a"), ("x-b3-spanid", "b"), flag, w3c];
    let own = format!("{ID}{ID}");
    check(&only_b3, &[w3c], Ok(&format!("traceparent={sampled} {}", b3(&own, "", 1))));
    check(&both, &[], Ok(&format!("traceparent=00-{own}-{ID}-01 {}", b3(&own, "", 1))));
    let caller = format!(" x-b3-parentspanid={SPAN}");
    let followed = |flag: u8| format!("traceparent=00-{TRACE}-{ID}-0{flag} {}", b3(TRACE, &caller, flag));
    check(&both, &[w3c, state], Ok(&format!("tracestate=a=b {}", followed(1))));
    check(&both, &[("traceparent", &parent("00"))], Ok(&followed(0)));
    // B3's goes first, also where it has nothing but the decision.
    let first = b3("000000000000000a", " x-b3-parentspanid=000000000000000b", 0);
    check(&both, &of_b3, Ok(&format!("traceparent=00-0000000000000000000000000000000a-{ID}-00 {first}")));
    check(&both, &[flag, w3c], Ok(&followed(0)));
    let own = format!("traceparent=00-{own}-{ID}-01 {}", b3(&own, "", 1));
    check(&both, &[("traceparent", "nonsense")], Ok(&own));
    check(&both, &[("x-b3-traceid", "zz"), ("x-b3-spanid", "b"), w3c], Err(Malformed));
}

fn span(kind: Kind, tags: &[(&'static str, &str)]) -> Span {
    let context = SpanContext {
        trace_id: TRACE_ID,
        span_id: SPAN_ID,
        parent_id: Some(PARENT_ID),
        sampled: true,
        ..SpanContext::default()
    };
    let start = UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
    let mut span = Span { duration: Duration::from_micros(2_500), ..Span::new(context, "web.shop", kind, start) };
    tags.iter().for_each(|(name, value)| span.tags.set(*name, value));
    span
}

#[test]
fn zipkins_json() {
    let node = OwnNode { cluster: "web.shop".into(), address: Some("10.0.0.1".parse().unwrap()), ..OwnNode::default() };
    let spans = [
        span(Kind::Server, &[("http.method", "GET"), ("zone", ""), ("quoted", "a\"b\\c\nd")]),
        Span {
            context: SpanContext { trace_id: 1, parent_id: None, ..SpanContext::default() },
            ..span(Kind::Client, &[])
        },
    ];
    let json = String::from_utf8(zipkin::encode(&spans, &zipkin(true, false, false), &node)).unwrap();
    let expected = concat!(
        r#"[{"traceId":"80f198ee56343ba864fe8b2a57d3eff7","parentId":"05e3ac9a4f6e3b90","id":"e457b5a2e4d86bd1","kind":"SERVER","#,
        r#""shared":true,"name":"web.shop","timestamp":1700000000123456,"duration":2500,"#,
        r#""annotations":[{"timestamp":1700000000125956,"value":"ss"}],"#,
        r#""localEndpoint":{"ipv4":"10.0.0.1","port":0,"serviceName":"web.shop"},"#,
        r#""tags":{"http.method":"GET","quoted":"a\"b\\c\nd"}},"#,
        r#"{"traceId":"0000000000000001","id":"0000000000000000","kind":"CLIENT","name":"web.shop","#,
        r#""timestamp":1700000000123456,"duration":2500,"annotations":[{"timestamp":1700000000125956,"value":"cr"}],"#,
        r#""localEndpoint":{"ipv4":"10.0.0.1","port":0,"serviceName":"web.shop"}}]"#,
    );
    assert_eq!(json, expected);
    let unshared =
        String::from_utf8(zipkin::encode(&spans, &zipkin(false, false, false), &OwnNode::default())).unwrap();
    assert!(!unshared.contains("shared") && unshared.contains(r#""localEndpoint":{}"#), "{unshared}");
}

fn otlp_config(exporter: Exporter) -> OpenTelemetry {
    OpenTelemetry {
        cluster: "otel".into(),
        exporter,
        timeout: Duration::from_secs(5),
        headers: vec![("x-key".into(), "1".into())],
        resource: vec![("host.name".into(), "a".into())],
        service_name: "web.shop".into(),
    }
}

/// `ExportTraceServiceRequest`, as far as the tests read it.
mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Request {
        #[prost(message, repeated, tag = "1")]
        pub resources: Vec<OfResource>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct OfResource {
        #[prost(message, optional, tag = "1")]
        pub resource: Option<Resource>,
        #[prost(message, repeated, tag = "2")]
        pub scopes: Vec<OfScope>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Resource {
        #[prost(message, repeated, tag = "1")]
        pub attributes: Vec<Attribute>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct OfScope {
        #[prost(message, repeated, tag = "2")]
        pub spans: Vec<Span>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Span {
        #[prost(bytes = "vec", tag = "1")]
        pub trace_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub span_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "4")]
        pub parent_span_id: Vec<u8>,
        #[prost(string, tag = "5")]
        pub name: String,
        #[prost(int32, tag = "6")]
        pub kind: i32,
        #[prost(fixed64, tag = "7")]
        pub start: u64,
        #[prost(fixed64, tag = "8")]
        pub end: u64,
        #[prost(message, repeated, tag = "9")]
        pub attributes: Vec<Attribute>,
        #[prost(message, optional, tag = "15")]
        pub status: Option<Status>,
        #[prost(fixed32, tag = "16")]
        pub flags: u32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Attribute {
        #[prost(string, tag = "1")]
        pub key: String,
        #[prost(message, optional, tag = "2")]
        pub value: Option<Text>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Text {
        #[prost(string, tag = "1")]
        pub text: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Status {
        #[prost(int32, tag = "3")]
        pub code: i32,
    }
}

#[test]
fn otlps_messages() {
    let config = otlp_config(Exporter::Http { host: "otel".into(), path: "/v1/traces".into() });
    let decode = |spans: &[Span]| {
        let request = <proto::Request as prost::Message>::decode(&*otlp::encode(spans, &config)).unwrap();
        let [resource] = &request.resources[..] else { panic!("{request:?}") };
        let service = &resource.resource.as_ref().unwrap().attributes[0];
        assert_eq!((&*service.key, &*service.value.as_ref().unwrap().text), ("service.name", "web.shop"));
        assert_eq!(&*resource.resource.as_ref().unwrap().attributes[1].key, "host.name");
        resource.scopes[0].spans.clone()
    };
    let remote = Span { remote_parent: true, ..span(Kind::Server, &[("http.method", "GET")]) };
    let [read] = &decode(&[remote])[..] else { panic!("one span") };
    assert_eq!((&read.trace_id[..], &read.span_id[..]), (&TRACE_ID.to_be_bytes()[..], &SPAN_ID.to_be_bytes()[..]));
    assert_eq!((&read.parent_span_id[..], &*read.name, read.kind), (&PARENT_ID.to_be_bytes()[..], "web.shop", 2));
    assert_eq!((read.start, read.end), (1_700_000_000_123_456_000, 1_700_000_000_125_956_000));
    assert_eq!((read.flags, &*read.attributes[0].key), (0x301, "http.method"));
    for (kind, tags, error) in [
        (Kind::Server, &[("http.status_code", "404")][..], false),
        (Kind::Client, &[("http.status_code", "404")], true),
        (Kind::Server, &[("http.status_code", "503")], true),
        (Kind::Client, &[("http.status_code", "0")], false),
        (Kind::Server, &[("http.status_code", "200"), ("grpc.status_code", "14")], true),
        (Kind::Server, &[("http.status_code", "200"), ("grpc.status_code", "5")], false),
        (Kind::Client, &[("http.status_code", "200"), ("grpc.status_code", "5")], true),
        (Kind::Client, &[("http.status_code", "200"), ("grpc.status_code", "0")], false),
    ] {
        let code = decode(&[span(kind, tags)])[0].status.as_ref().map_or(0, |status| status.code);
        assert_eq!(code == 2, error, "{kind:?} {tags:?}");
    }
}

/// A collector: the reports it was sent, and its answers. `None`: it does not answer.
struct Collector {
    calls: RefCell<Vec<HttpCall>>,
    answer: Option<Result<u16, Problem>>,
    under_way: RefCell<Vec<Wait>>,
}

impl Callouts for Collector {
    fn http(&self, call: HttpCall) -> Callout {
        self.calls.borrow_mut().push(call);
        let Some(answer) = self.answer else { return Callout::new(std::future::pending()) };
        let answer = answer.map_err(|problem| CalloutError::new(problem, 503, "")).map(|status| HttpAnswer {
            head: ResponseHead { status, ..ResponseHead::default() },
            ..HttpAnswer::default()
        });
        Callout::new(std::future::ready(answer))
    }

    fn stream(&self, _: &Arc<str>, _: RequestHead, _: CallOptions) -> Box<dyn HttpStream> {
        unreachable!("spans are not streamed")
    }
}

impl Services for Collector {
    fn clusters(&self) -> &dyn Clusters {
        &NoClusters
    }

    fn clock(&self) -> &dyn Clock {
        &SystemClock
    }

    fn tasks(&self) -> Option<&dyn Tasks> {
        Some(self)
    }

    fn names(&self) -> Option<&dyn Names> {
        None
    }

    fn random(&self) -> u64 {
        0
    }

    fn callouts(&self) -> &dyn Callouts {
        self
    }
}

impl Tasks for Collector {
    fn run(&self, mut task: Wait) {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        if task.as_mut().poll(&mut context).is_pending() {
            self.under_way.borrow_mut().push(task);
        }
    }
}

/// The reporter's counters that are not zero, after so many spans of so many bytes, and the reports that went out.
fn counted(
    provider: Provider,
    answer: Option<Result<u16, Problem>>,
    (spans, bytes): (usize, usize),
    late: bool,
) -> (String, Vec<HttpCall>) {
    let registry = Registry::new();
    let now = Instant::now();
    let collector = Collector { calls: RefCell::default(), answer, under_way: RefCell::default() };
    let reporter = Reporter::new(Arc::new(provider), Arc::default(), &registry, now);
    for _ in 0..spans {
        reporter.report(span(Kind::Server, &[("filling", &"x".repeat(bytes))]), &collector);
    }
    reporter.tick(now, &collector);
    if late {
        reporter.tick(now + Duration::from_secs(5), &collector);
    }
    let text = registry.text();
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("tracing.") && !line.ends_with(": 0")).collect();
    let short = lines.join(", ").replace("tracing.zipkin.", "").replace("tracing.opentelemetry.", "");
    (short, collector.calls.take())
}

#[test]
fn reports_are_sent_and_losses_are_counted() {
    let check = |answer, spans: usize, late, expected: &str, reports: usize| {
        let provider = Provider::Zipkin(zipkin(true, false, false));
        let (counters, calls) = counted(provider, answer, (spans, 1), late);
        let mut sorted: Vec<_> = counters.split(", ").collect();
        sorted.sort_unstable();
        assert_eq!((sorted.join(", "), calls.len()), (expected.to_owned(), reports), "{answer:?} {spans} {late}");
    };
    let taken = Some(Ok(202));
    check(taken, 4, false, "", 0);
    check(taken, 4, true, "reports_sent: 1, spans_sent: 4, timer_flushed: 1", 1);
    check(taken, 0, true, "timer_flushed: 1", 0);
    check(taken, 12, true, "reports_sent: 3, spans_sent: 12, timer_flushed: 1", 3);
    check(Some(Ok(200)), 5, false, "reports_dropped: 1, spans_dropped: 5, spans_sent: 5", 1);
    check(
        Some(Err(Problem::UnknownCluster)),
        5,
        false,
        "reports_skipped_no_cluster: 1, spans_dropped: 5, spans_sent: 5",
        1,
    );
    check(Some(Err(Problem::Connect)), 5, false, "reports_dropped: 1, spans_dropped: 5, spans_sent: 5", 1);
    check(Some(Err(Problem::Timeout)), 5, false, "reports_dropped: 1, spans_dropped: 5, spans_sent: 5", 1);
    check(Some(Err(Problem::Reset)), 5, false, "reports_failed: 1, spans_dropped: 5, spans_sent: 5", 1);
    // A collector that never answers: 16 reports of 5 spans, and 1,024 spans that wait.
    check(None, 2_000, true, "spans_dropped: 896, spans_sent: 80, timer_flushed: 1", 16);
    // Large spans: 4 MiB of them at most.
    let (large, _) = counted(Provider::Zipkin(zipkin(true, false, false)), None, (2_000, 100_000), false);
    let dropped = large.split(", ").find_map(|line| line.strip_prefix("spans_dropped: ")?.parse::<usize>().ok());
    let kept = 2_000 - dropped.unwrap_or_default();
    assert!((900..1_024).contains(&kept), "a tag is cut off at 4 KiB: {kept} {large}");
}

#[test]
fn collectors_are_called_as_configured() {
    let one = |provider| counted(provider, Some(Ok(200)), (5, 1), false).1.pop().expect("a report");
    let call = one(Provider::Zipkin(zipkin(true, false, false)));
    let said = |call: &HttpCall| {
        let head = &call.head;
        let words =
            [head.method(), head.authority(), head.path()].map(|word| String::from_utf8_lossy(word).into_owned());
        format!("{} {} {}", &*call.cluster, words.join(" "), text(&head.headers))
    };
    assert_eq!(said(&call), "zipkin POST zipkin /api/v2/spans content-type=application/json");
    assert_eq!(call.options.timeout, Some(Duration::from_secs(5)));
    let (timeout, headers) = (Duration::from_secs(2), vec![("x-key".into(), "1".into())]);
    let call = one(Provider::Zipkin(Zipkin { timeout, headers, ..zipkin(true, false, false) }));
    assert_eq!(said(&call), "zipkin POST zipkin /api/v2/spans content-type=application/json x-key=1");
    assert_eq!(call.options.timeout, Some(timeout));
    let http = Exporter::Http { host: "otel.test".into(), path: "/v1/traces".into() };
    let call = one(Provider::OpenTelemetry(otlp_config(http)));
    assert_eq!(said(&call), "otel POST otel.test /v1/traces content-type=application/x-protobuf x-key=1");
    let grpc = Exporter::Grpc { authority: "otel.test".into(), max_message_bytes: None, skip_envoy_headers: true };
    let call = one(Provider::OpenTelemetry(otlp_config(grpc)));
    let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    assert!(said(&call).starts_with(&format!("otel POST otel.test {path} ")), "{}", said(&call));
    assert!(said(&call).ends_with(" x-key=1") && !call.options.envoy_headers, "{}", said(&call));
    assert_eq!(call.body.get(..5).map(|prefix| prefix[0]), Some(0), "a gRPC frame");
}
