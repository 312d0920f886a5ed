//! Questions to a service, and the handling of its answers.

use std::future::ready;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use evenkeel_envoy_api::envoy::service::auth::v3::{CheckRequest, CheckResponse, OkHttpResponse, check_response};
use evenkeel_envoy_api::google::protobuf::value::Kind;
use evenkeel_http::{Headers, RequestHead, ResponseHead};
use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::ext_authz::{
    AuthzService, CallTarget, CheckAttributes, ExtAuthz, GrpcTarget, HttpTarget, Names, PathChange, RequestBody, When,
};
use evenkeel_runtime_config::fraction::Fraction;
use evenkeel_runtime_config::hcm::HttpFilterConfig;
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_runtime_config::string_match::StringMatcher;
use evenkeel_runtime_config::view::{ConnectionView, PlainRequest};
use prost::Message as _;

use super::answer::{Action, Answer, Edit, HeaderChanges, Verdict};
use super::{changes, check, service};
use crate::callouts::{
    CallOptions, Callout, CalloutError, Callouts, HttpAnswer, HttpCall, HttpStream, NoCallouts, Problem,
};
use crate::http::fixture::Fixture;
use crate::http::{Body, Decision};
use crate::wire::{Message, readable};

fn config() -> ExtAuthz {
    let call = CallTarget { cluster: "authz".into(), timeout: Some(Duration::from_secs(1)), retry: None };
    ExtAuthz {
        service: AuthzService::Grpc(GrpcTarget {
            call,
            authority: "".into(),
            metadata: Vec::new(),
            max_message_bytes: None,
            skip_envoy_headers: false,
        }),
        when: When { share: Fraction::ALL, metadata: None, deny_others: false },
        failure_mode_allow: false,
        failure_mode_allow_header_add: false,
        body: None,
        clear_route_cache: false,
        status_on_error: 403,
        validate_mutations: false,
        told: CheckAttributes::default(),
        stat_prefix: "".into(),
        allowed_headers: None,
        disallowed_headers: Names::default(),
        charge_cluster_response_stats: true,
        encode_raw_headers: false,
        mutation_rules: None,
        ingest_dynamic_metadata: true,
        emit_filter_state_stats: false,
        max_denied_body_bytes: None,
    }
}

fn ask(config: ExtAuthz, body: Body<'_>) -> Decision {
    Fixture::new(HttpFilterConfig::ExtAuthz(Arc::new(config))).ask(body)
}

/// Has no place for a call.
struct Full;

impl Callouts for Full {
    fn http(&self, _: HttpCall) -> Callout {
        Callout::new(ready(Err(CalloutError::new(Problem::TooManyCalls, 503, "too_many_callouts"))))
    }

    fn stream(&self, cluster: &Arc<str>, head: RequestHead, options: CallOptions) -> Box<dyn HttpStream> {
        NoCallouts.stream(cluster, head, options)
    }
}

/// A filter that fails open lets nothing pass because many others ask.
#[test]
fn a_question_without_a_place_is_no_failure_of_the_service() {
    let AuthzService::Grpc(target) = config().service else { panic!("a gRPC service") };
    let verdict = |callouts: &dyn Callouts| {
        let (asked, pause) = service::grpc(&target, callouts, Vec::new(), Headers::default(), Instant::now());
        let mut wait = pause.wait.expect("a call");
        assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        asked.take_grpc().answer.verdict
    };
    assert!(matches!(verdict(&Full), Verdict::Unasked));
    assert!(matches!(verdict(&NoCallouts), Verdict::Failed));
}

#[test]
fn without_a_route_nobody_is_asked() {
    assert!(matches!(ask(config(), Body::Empty), Decision::Continue));
}

#[test]
fn only_the_filter_says_that_nobody_has_decided() {
    let mut fixture = Fixture::new(HttpFilterConfig::ExtAuthz(Arc::new(config())));
    let name = "x-envoy-auth-failure-mode-allowed";
    let request = PlainRequest::new("GET", "a", "/").with_header(name, "true");
    let mut arrives = |says: bool| {
        fixture.request(&request);
        fixture.info.undecided = says;
        assert!(matches!(fixture.ask(Body::Empty), Decision::Continue));
        fixture.head.headers.find(name.as_bytes()).is_some()
    };
    assert!(!arrives(false));
    // Another filter of the chain has said so.
    assert!(arrives(true));
}

#[test]
fn a_service_over_http_cannot_be_asked_about_tunnels() {
    let (grpc, http) = (config().service, AuthzService::Http(Box::new(target())));
    for (service, method, expected) in
        [(&grpc, "GET", true), (&grpc, "CONNECT", true), (&http, "GET", true), (&http, "CONNECT", false)]
    {
        assert_eq!(service::can_be_asked(service, method.as_bytes()), expected, "{method}");
    }
}

#[test]
fn messages_are_readable_and_complete() {
    let mut metadata = DynamicMetadata::default();
    let list = MetadataValue::List(vec![MetadataValue::Bool(true), MetadataValue::Null]);
    let object = MetadataValue::Object(vec![("n".into(), MetadataValue::Number(1.5_f64.to_bits()))]);
    metadata.merge("f", &[("l".into(), list), ("o".into(), object), ("t".into(), MetadataValue::Text("x".into()))]);
    let view = ConnectionView::plaintext("10.0.0.1:1234".parse().unwrap(), "[::1]:80".parse().unwrap());
    let told = CheckAttributes { metadata_namespaces: vec!["f".into(), "none".into()], ..CheckAttributes::default() };
    let request = CheckRequest::decode(check::connection(&view, &told, &metadata).as_slice()).unwrap();
    let attributes = request.attributes.unwrap();
    let text = format!("{:?} {:?}", attributes.source, attributes.destination);
    for part in ["10.0.0.1", "1234", "::1", "80"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let all = attributes.metadata_context.unwrap().filter_metadata;
    assert_eq!(all.keys().collect::<Vec<_>>(), ["f"]);
    let fields = &all["f"].fields;
    assert_eq!(fields["t"].kind, Some(Kind::StringValue("x".into())));
    let Some(Kind::StructValue(object)) = &fields["o"].kind else { panic!("{fields:?}") };
    assert_eq!(object.fields["n"].kind, Some(Kind::NumberValue(1.5)));
    let Some(Kind::ListValue(list)) = &fields["l"].kind else { panic!("{fields:?}") };
    assert_eq!(list.values.len(), 2);
    assert_eq!(list.values[0].kind, Some(Kind::BoolValue(true)));
}

#[test]
fn bytes_that_are_no_text_become_readable() {
    for (bytes, expected) in [
        (&b"abc"[..], "abc"),
        ("\u{e9}".as_bytes(), "\u{e9}"),
        (b"a\xffb", "a!b"),
        (b"\xc3", "!"),
        (b"\xf0\x9f\x98", "!!!"),
    ] {
        assert_eq!(readable(bytes), expected.as_bytes(), "{bytes:?}");
    }
    let mut message = Message::default();
    message.number(3, 300);
    message.text(1, b"");
    assert_eq!(message.into_bytes(), [0x18, 0xac, 0x02]);
}

/// Summarizes an answer in a word.
fn verdict(message: &[u8]) -> &'static str {
    match Answer::of_grpc(message).verdict {
        Verdict::Allowed(_) => "allowed",
        Verdict::Denied(_) => "denied",
        Verdict::Failed | Verdict::FailedWith(_) | Verdict::Unasked => "failed",
    }
}

#[test]
fn only_a_decision_permits() {
    let ok = CheckResponse {
        http_response: Some(check_response::HttpResponse::OkResponse(OkHttpResponse::default())),
        ..CheckResponse::default()
    };
    assert_eq!(verdict(&ok.encode_to_vec()), "allowed");
    // An empty message is a permission in this API: the status is 0.
    assert_eq!(verdict(b""), "allowed");
    assert_eq!(verdict(&[0x0a, 0x02, 0x08, 0x07]), "denied");
    // Garbage, and what is cut short.
    for garbage in [&b"\xff"[..], b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05a", &[0x0a, 0x02, 0x08]] {
        assert_eq!(verdict(garbage), "failed", "{garbage:?}");
    }
}

fn target() -> HttpTarget {
    let names = |name: &str| Names(vec![StringMatcher::Prefix { value: name.as_bytes().into(), ignore_case: true }]);
    HttpTarget {
        call: CallTarget { cluster: "authz".into(), timeout: None, retry: None },
        path: PathChange::Prefix("".into()),
        allowed_headers: Names::default(),
        headers_to_add: Vec::new(),
        upstream_headers: names("x-up"),
        upstream_headers_to_append: names("x-add"),
        client_headers: None,
        client_headers_on_success: names("x-client"),
        metadata_headers: names("x-meta"),
    }
}

fn http(status: u16, fields: &[(&str, &str)]) -> Answer {
    let mut headers = Headers::default();
    fields.iter().for_each(|(name, value)| headers.append(name.as_bytes(), value.as_bytes()));
    let head = ResponseHead { status, headers, ..ResponseHead::default() };
    Answer::of_http(&target(), HttpAnswer { head, body: b"body".to_vec(), ..HttpAnswer::default() })
}

#[test]
fn http_statuses_decide() {
    let word = |status| match http(status, &[]).verdict {
        Verdict::Allowed(_) => "allowed",
        Verdict::Denied(refusal) if refusal.status == status => "denied",
        Verdict::Denied(_) => "denied otherwise",
        Verdict::Failed | Verdict::FailedWith(_) | Verdict::Unasked => "failed",
    };
    for (status, expected) in [
        (200, "allowed"),
        (201, "denied"),
        (204, "denied"),
        (302, "denied"),
        (401, "denied"),
        (499, "denied"),
        (500, "failed"),
        (503, "failed"),
        (599, "failed"),
        (100, "failed"),
        (999, "failed"),
    ] {
        assert_eq!(word(status), expected, "{status}");
    }
    // Fields that delimit a message belong to the service's own response.
    let fields =
        [("x-up-a", "1"), ("content-length", "4"), ("x-client-a", "2"), ("x-envoy-auth-headers-to-remove", "a, ,b")];
    let Verdict::Allowed(wanted) = http(200, &fields).verdict else { panic!("not allowed") };
    assert_eq!(wanted.request.len(), 1);
    assert_eq!(wanted.remove, ["a", "b"]);
    assert_eq!(wanted.response.len(), 1);
    let Verdict::Denied(refusal) = http(401, &fields).verdict else { panic!("not denied") };
    assert_eq!(refusal.headers.len(), 2, "{refusal:?}");
}

fn edit(name: &str, value: &str, action: Action) -> Edit {
    Edit { name: name.into(), value: value.into(), action }
}

#[test]
fn requests_change_as_wanted() {
    let wanted = |request: Vec<Edit>| HeaderChanges { request, ..HeaderChanges::default() };
    let changed = |wanted: &HeaderChanges| {
        let mut head = RequestHead::default();
        head.set_method(b"GET");
        head.set_path(b"/p?b=2&a=1&flag");
        head.set_authority(b"a.test");
        head.headers.append(b"old", b"1");
        head.headers.append(b"content-length", b"3");
        changes::change(&mut head, wanted, None).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let fields: Vec<_> =
            head.headers.iter().map(|(_, name, value)| format!("{}={}", text(name), text(value))).collect();
        format!("{} {} {} {}", text(head.method()), text(head.authority()), text(head.path()), fields.join(" "))
    };
    let same = "GET a.test /p?b=2&a=1&flag";
    for (request, expected) in [
        (edit("new", "2", Action::Add), format!("{same} old=1 content-length=3 new=2")),
        (edit("OLD", "2", Action::Add), format!("{same} old=1 content-length=3 old=2")),
        (edit("old", "2", Action::Set), format!("{same} content-length=3 old=2")),
        (edit("old", "2", Action::Append), format!("{same} content-length=3 old=1,2")),
        (edit("new", "2", Action::Append), format!("{same} old=1 content-length=3")),
        (edit("old", "2", Action::AddIfAbsent), format!("{same} old=1 content-length=3")),
        (edit("new", "2", Action::SetIfPresent), format!("{same} old=1 content-length=3")),
        // Only the client determines the length of its body.
        (edit("content-length", "300", Action::Set), format!("{same} old=1 content-length=3")),
        (edit("transfer-encoding", "chunked", Action::Add), format!("{same} old=1 content-length=3")),
        (edit(":method", "HEAD", Action::Set), format!("{same} old=1 content-length=3")),
        (edit(":method", "CONNECT", Action::Set), format!("{same} old=1 content-length=3")),
        (edit(":method", "PUT", Action::Set), "PUT a.test /p?b=2&a=1&flag old=1 content-length=3".into()),
        (edit(":path", "/q", Action::Set), "GET a.test /q old=1 content-length=3".into()),
        (edit("host", "b", Action::Set), "GET b /p?b=2&a=1&flag old=1 content-length=3".into()),
        (edit("x", "a\r\nevil: 1", Action::Set), format!("{same} old=1 content-length=3 x=a  evil: 1")),
    ] {
        let text = format!("{request:?}");
        assert_eq!(changed(&wanted(vec![request])), expected, "{text}");
    }
    let removed = HeaderChanges {
        remove: ["Old", "content-length", "host", ":path", ""].map(str::to_owned).to_vec(),
        set_parameters: vec![("c".into(), "4".into()), ("b".into(), "5".into())],
        remove_parameters: vec!["flag".into()],
        ..HeaderChanges::default()
    };
    assert_eq!(changed(&removed), "GET a.test /p?a=1&b=5&c=4 content-length=3");
}

#[test]
fn invalid_changes_are_found() {
    let valid = |name: &str, value: &str| changes::edits_are_valid(&[edit(name, value, Action::Set)]);
    assert!(valid("x-a", "b c") && valid(":path", "/") && valid("x-a", ""));
    for (name, value) in [("", "a"), ("x a", "b"), ("x\n", "b"), ("x", "a\nb"), ("x", "a\0"), (":", "b"), ("x:y", "b")]
    {
        assert!(!valid(name, value), "{name:?} {value:?}");
    }
    let parameter =
        |name: &str| HeaderChanges { set_parameters: vec![(name.into(), "1".into())], ..HeaderChanges::default() };
    assert!(changes::are_valid(&parameter("a-b.c")) && !changes::are_valid(&parameter("a b")));
    assert!(!changes::are_valid(&parameter("a&b")));
}

#[test]
fn the_beginning_of_a_body_is_marked() {
    let sent = |body: Body<'static>| {
        check::sent_body(body, 4, false).map(|sent| (String::from_utf8_lossy(sent.bytes).into_owned(), sent.partial))
    };
    assert_eq!(sent(Body::Empty), None);
    assert_eq!(sent(Body::Whole(b"abcd")), Some(("abcd".into(), false)));
    assert_eq!(sent(Body::Whole(b"abcde")), Some(("abcd".into(), true)));
    assert_eq!(sent(Body::Start(b"abcdef")), Some(("abcd".into(), true)));
    // As much as the service may get, and more is to come.
    assert_eq!(sent(Body::Start(b"abcd")), Some(("abcd".into(), true)));
    let _ = RequestBody { max_bytes: 4, partial: true, as_bytes: false };
}
