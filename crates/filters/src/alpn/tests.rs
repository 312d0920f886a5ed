//! Which requests get protocols to offer.

use std::sync::Arc;

use evenkeel_runtime_config::alpn::{Alpn, AlpnOverrides};
use evenkeel_runtime_config::hcm::HttpFilterConfig;
use evenkeel_runtime_config::view::PlainRequest;

use super::APPLICATION_PROTOCOLS;
use crate::http::fixture::Fixture;
use crate::{Body, StateObject};

#[test]
fn requests_carry_the_protocols() {
    let overrides = Arc::new(AlpnOverrides { http1: vec![b"istio-http/1.1".to_vec()], http2: Vec::new() });
    let mut filter = Fixture::new(HttpFilterConfig::Alpn(Arc::new(Alpn { overrides: Arc::clone(&overrides) })));
    filter.request(&PlainRequest::new("GET", "web", "/"));
    filter.ask(Body::Empty);
    let found = filter.info.object(APPLICATION_PROTOCOLS).and_then(StateObject::alpn);
    assert_eq!(found, Some(&overrides));
}
