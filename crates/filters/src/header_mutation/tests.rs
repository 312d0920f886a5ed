//! Which edits are made, in which order.

use std::sync::Arc;

use evenkeel_http::{Headers, ResponseHead};
use evenkeel_runtime_config::hcm::HttpFilterConfig;
use evenkeel_runtime_config::header_edits::{AppendAction, HeaderAddition, HeaderMutation};
use evenkeel_runtime_config::header_mutation::{HeaderMutationFilter, Mutations};
use evenkeel_runtime_config::substitution_format::Format;

use crate::Body;
use crate::http::fixture::Fixture;

fn add(name: &str, value: &str, action: AppendAction) -> HeaderMutation {
    let value = Format::parse(value, &|_| None).expect("a format");
    HeaderMutation::Add(HeaderAddition { name: name.into(), value, action, keep_empty_value: false })
}

fn set(name: &str, value: &str) -> HeaderMutation {
    add(name, value, AppendAction::OverwriteIfExistsOrAdd)
}

fn level(value: &str) -> Arc<Mutations> {
    let response = vec![set("x-level", value), add("x-levels", value, AppendAction::AppendIfExistsOrAdd)];
    Arc::new(Mutations { response, ..Mutations::default() })
}

#[test]
fn the_filter_edits_first_and_the_most_specific_level_first_or_last() {
    for (most_specific_wins, last, all) in [(false, "host", "own,route,host"), (true, "route", "own,host,route")] {
        let config = HeaderMutationFilter { mutations: level("own"), most_specific_wins };
        let mut filter = Fixture::new(HttpFilterConfig::HeaderMutation(Arc::new(config)));
        // The fixture's first level is the most specific.
        filter = filter.told(level("route")).told(level("host"));
        filter.ask(Body::Empty);
        let answer = filter.answer(ResponseHead { status: 200, ..ResponseHead::default() }, false);
        assert_eq!(answer.headers.find(b"x-level"), Some(last.as_bytes()));
        let levels: Vec<_> = answer.headers.find_all(b"x-levels").collect();
        assert_eq!(levels.join(&b","[..]), all.as_bytes());
    }
}

#[test]
fn values_may_come_from_the_messages() {
    let mutations = Mutations {
        request: vec![set("x-path", "at %REQ(:PATH)%"), HeaderMutation::Remove("x-gone".into())],
        response: vec![set("x-answer", "%REQ(X-PATH)%: %RESP(:STATUS):2%"), set("x-none", "%REQ(X-GONE)%")],
        ..Mutations::default()
    };
    let config = HeaderMutationFilter { mutations: Arc::new(mutations), most_specific_wins: false };
    let mut filter = Fixture::new(HttpFilterConfig::HeaderMutation(Arc::new(config)));
    filter.head.headers.append(b"x-gone", b"1");
    filter.ask(Body::Empty);
    assert_eq!(filter.head.headers.find(b"x-path"), Some(&b"at /"[..]));
    assert_eq!(filter.head.headers.find(b"x-gone"), None);
    let answer = filter.answer(ResponseHead { status: 204, ..ResponseHead::default() }, false);
    assert_eq!(answer.headers.find(b"x-answer"), Some(&b"at /: 20"[..]));
    assert_eq!(answer.headers.find(b"x-none"), None, "an empty value");
}

#[test]
fn values_may_tell_what_is_known_of_the_stream() {
    let mutations = Mutations {
        request: vec![set("x-from", "%DOWNSTREAM_REMOTE_PORT% %UPSTREAM_CLUSTER% %RESPONSE_CODE% %UPSTREAM_HOST%|")],
        request_trailers: vec![set("x-end", "%REQ(X-FROM):4% %PROTOCOL%")],
        response: vec![set(
            "x-code",
            "%RESPONSE_CODE% %RESP(:STATUS)% %RESPONSE_FLAGS%%UPSTREAM_TRANSPORT_FAILURE_REASON%",
        )],
        response_trailers: vec![set("x-end", "%RESP(X-CODE):3% %TRAILER(X-T)% %RESPONSE_CODE_DETAILS%")],
        ..Mutations::default()
    };
    let config = HeaderMutationFilter { mutations: Arc::new(mutations), most_specific_wins: false };
    let mut filter = Fixture::new(HttpFilterConfig::HeaderMutation(Arc::new(config)));
    filter.info.protocol = Some("HTTP/1.1");
    filter.ask(Body::Empty);
    assert_eq!(filter.head.headers.find(b"x-from"), Some(&b"1 c 0 |"[..]));
    let mut trailers = Headers::default();
    filter.end_request(&mut trailers);
    assert!(trailers.is_empty(), "a request without trailers gets none");
    trailers.append(b"x-t", b"1");
    filter.end_request(&mut trailers);
    assert_eq!(trailers.find(b"x-end"), Some(&b"1 c  HTTP/1.1"[..]));
    filter.info.details = "via_upstream".into();
    let answer = filter.answer(ResponseHead { status: 204, ..ResponseHead::default() }, false);
    assert_eq!(answer.headers.find(b"x-code"), Some(&b"204 204 -"[..]));
    filter.end(&answer, &mut trailers);
    assert_eq!(trailers.find(b"x-end"), Some(&b"204 1 via_upstream"[..]));
}
