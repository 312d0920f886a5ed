//! Statistics and random decisions; responses are compared with Envoy's in the interoperation tables.

use std::sync::Arc;

use evenkeel_http::ResponseHead;
use evenkeel_runtime_config::cors::{Cors, CorsPolicy};
use evenkeel_runtime_config::fraction::Fraction;
use evenkeel_runtime_config::hcm;
use evenkeel_runtime_config::string_match::StringMatcher;
use evenkeel_runtime_config::view::PlainRequest;

use crate::http::fixture::Fixture;
use crate::{Body, Decision};

fn policy(origin: &str, enabled: Fraction, shadow_enabled: Fraction) -> Arc<CorsPolicy> {
    Arc::new(CorsPolicy {
        allow_origins: vec![StringMatcher::Exact { value: origin.as_bytes().into(), ignore_case: false }],
        allow_methods: "".into(),
        allow_headers: "".into(),
        expose_headers: "".into(),
        max_age: "".into(),
        allow_credentials: None,
        allow_private_network_access: None,
        forward_not_matching_preflights: None,
        enabled,
        shadow_enabled,
    })
}

#[test]
fn origins_are_counted_and_told_where_the_policy_is_in_force() {
    let half = Fraction { numerator: 50, denominator: 100 };
    for (enabled, shadow, origin, random, counted, told) in [
        (Fraction::ALL, Fraction::NONE, "http://a", 0, "origin_valid: 1", true),
        (Fraction::ALL, Fraction::NONE, "http://b", 0, "origin_invalid: 1", false),
        (Fraction::ALL, Fraction::NONE, "", 0, "", false),
        (Fraction::NONE, Fraction::ALL, "http://a", 0, "origin_valid: 1", false),
        (Fraction::NONE, Fraction::NONE, "http://a", 0, "", false),
        (half, Fraction::NONE, "http://a", 49, "origin_valid: 1", true),
        (half, Fraction::NONE, "http://a", 50, "", false),
    ] {
        let mut filter = Fixture::new(hcm::HttpFilterConfig::Cors(Arc::new(Cors)));
        filter = filter.told(policy("http://a", enabled, shadow));
        filter.random = random;
        let request = PlainRequest::new("GET", "x", "/");
        filter.request(&if origin.is_empty() { request } else { request.with_header("origin", origin) });
        assert!(matches!(filter.ask(Body::Empty), Decision::Continue));
        let head = filter.answer(ResponseHead::default(), true);
        assert_eq!(head.headers.find(b"access-control-allow-origin").is_some(), told, "{enabled:?} {origin} {random}");
        let text = filter.registry.text();
        let counts: Vec<_> = text.lines().filter(|line| line.ends_with(": 1")).collect();
        let expected = if counted.is_empty() { vec![] } else { vec![format!("http.inbound.cors.{counted}")] };
        assert_eq!(counts, expected, "{enabled:?} {origin} {random}");
    }
}
