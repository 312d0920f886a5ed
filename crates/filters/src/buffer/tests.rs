//! Who waits for a body, and for how much of it.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use evenkeel_runtime_config::buffer::{Buffer, BufferPerRoute};
use evenkeel_runtime_config::explain::PlainRequest;
use evenkeel_runtime_config::hcm;
use evenkeel_runtime_config::route::{HeaderEdits, PathMatch, PerRouteFilters, Route, RouteAction, RouteMatch};
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_stats::{Registry, ScopeName};

use crate::{Body, Decision, HttpFilters, Kept, Position, RequestContext};

/// What a filter with a limit of 5 bytes says of a body.
fn decide(per_route: Option<BufferPerRoute>, body: Body<'_>) -> Decision {
    let config = hcm::HttpFilter::Buffer(Arc::new(Buffer { max_request_bytes: 5 }));
    let filters = HttpFilters::new(&[config], &Registry::new(), &ScopeName::plain("http.test."));
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let connection = ConnectionView::plaintext(nowhere, nowhere);
    let (request, route) = (PlainRequest::new("POST", "a", "/"), route(per_route));
    let context =
        RequestContext { connection: &connection, remote: nowhere.ip(), request: &request, route: Some(&route), body };
    let (mut position, mut kept) = (Position::default(), Kept::default());
    let future = pin!(filters.on_request(&mut position, &context, &mut kept));
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => decision,
        Poll::Pending => panic!("waiting is not the filter's"),
    }
}

fn route(buffer: Option<BufferPerRoute>) -> Route {
    Route {
        name: "r".into(),
        matches: RouteMatch {
            path: PathMatch::Prefix("/".into()),
            case_sensitive: true,
            headers: vec![],
            query_parameters: vec![],
            fraction_ppm: 1_000_000,
            grpc_only: false,
        },
        action: RouteAction::DirectResponse { status: 200, body: Arc::from(&b""[..]) },
        headers: HeaderEdits::default(),
        filters: PerRouteFilters { buffer, ..PerRouteFilters::default() },
        origin: None,
    }
}

#[test]
fn a_request_goes_on_with_its_whole_body_or_without_any() {
    let own = Some(BufferPerRoute::Buffer(Buffer { max_request_bytes: 7 }));
    for (per_route, body, expected) in [
        (None, Body::Empty, Decision::Continue),
        (None, Body::Coming, Decision::Collect { max_bytes: 5 }),
        (None, Body::Whole(b"12345"), Decision::Continue),
        // Collected for another filter: too much for this one.
        (None, Body::Whole(b"123456"), Decision::Collect { max_bytes: 5 }),
        (own, Body::Coming, Decision::Collect { max_bytes: 7 }),
        (own, Body::Whole(b"123456"), Decision::Continue),
        (Some(BufferPerRoute::Disabled), Body::Coming, Decision::Continue),
    ] {
        assert_eq!(decide(per_route, body), expected, "{per_route:?} {body:?}");
    }
}
