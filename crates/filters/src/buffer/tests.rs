//! Which requests wait for their body, and the maximum size.

use std::sync::Arc;

use evenkeel_runtime_config::buffer::{Buffer, BufferPerRoute};
use evenkeel_runtime_config::hcm;

use crate::http::fixture::Fixture;
use crate::{Body, Decision};

#[test]
fn a_request_goes_on_with_its_whole_body_or_without_any() {
    let own = Some(BufferPerRoute::Buffer(Buffer { max_request_bytes: 7 }));
    for (per_route, body, collects) in [
        (None, Body::Empty, None),
        (None, Body::Coming, Some(5)),
        (None, Body::Whole(b"12345"), None),
        // Collected for another filter: too large for this one.
        (None, Body::Whole(b"123456"), Some(5)),
        (own, Body::Coming, Some(7)),
        (own, Body::Whole(b"123456"), None),
        (Some(BufferPerRoute::Disabled), Body::Coming, None),
    ] {
        let filter = Fixture::new(hcm::HttpFilterConfig::Buffer(Arc::new(Buffer { max_request_bytes: 5 })));
        let mut filter = match per_route {
            Some(per_route) => filter.told(per_route),
            None => filter,
        };
        let decision = match filter.ask(body) {
            Decision::Continue => None,
            Decision::Collect { max_bytes } => Some(max_bytes),
            other => panic!("{other:?}"),
        };
        assert_eq!(decision, collects, "{per_route:?} {body:?}");
    }
}
