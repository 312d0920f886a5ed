//! The filter with one provider, where the table beside Envoy does not reach.

use std::sync::Arc;

use evenkeel_jwt::{Audiences, Jwks};
use evenkeel_runtime_config::hcm::HttpFilterConfig;
use evenkeel_runtime_config::jwt_authn::{
    ClaimHeader, HeaderLocation, Issuers, JwtAuthn, KeySource, Lenience, Locations, METADATA, Provider, Requirement,
    Rule,
};
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_runtime_config::route::{PathMatch, RouteMatch};
use evenkeel_runtime_config::view::PlainRequest;
use evenkeel_testkit::jwt::{Signer, jwks};

use super::places::MAX_TOKENS;
use crate::http::fixture::Fixture;
use crate::http::{Body, Decision};

fn provider(issuer: &str, signer: &Signer) -> Provider {
    let keys = Jwks::parse(jwks(&[signer]).as_bytes()).unwrap();
    let claim = |header: &str, path: &[&str]| ClaimHeader {
        header: header.into(),
        path: path.iter().map(|key| (*key).into()).collect(),
    };
    Provider {
        name: issuer.into(),
        issuer: issuer.into(),
        audiences: Audiences::default(),
        subjects: None,
        lifetime: None,
        clock_skew_seconds: 60,
        keys: KeySource::Local(Arc::new(keys)),
        forward: true,
        payload_header: "".into(),
        pad_payload_header: false,
        claim_headers: vec![claim("x-sub", &["sub"])],
        payload_in_metadata: "payload".into(),
        space_delimited_claims: vec!["scope".into()],
        header_in_metadata: "".into(),
        failed_status_in_metadata: "".into(),
        clear_route_cache: true,
        cache: None,
    }
}

/// A header for the tokens of issuers.
fn location(name: &str, of: &[&str]) -> HeaderLocation {
    let mut issuers = Issuers::default();
    of.iter().for_each(|issuer| issuers.add(issuer));
    HeaderLocation { name: name.into(), prefix: "".into(), issuers }
}

fn fixture(signer: &Signer) -> Fixture {
    let locations =
        Locations { headers: vec![location("x-jwt", &["me"])], filled: vec!["x-sub".into()], ..Locations::default() };
    requiring(vec![provider("me", signer)], Requirement::Provider { provider: 0, audiences: None, locations })
}

fn requiring(providers: Vec<Provider>, requirement: Requirement) -> Fixture {
    let everything = RouteMatch {
        path: PathMatch::Prefix("/".into()),
        case_sensitive: true,
        headers: Vec::new(),
        query_parameters: Vec::new(),
        fraction_ppm: 1_000_000,
        grpc_only: false,
        dynamic_metadata: Vec::new(),
    };
    Fixture::new(HttpFilterConfig::JwtAuthn(Arc::new(JwtAuthn {
        providers: providers.into_iter().map(Arc::new).collect(),
        rules: vec![Rule { matches: everything, requirement: Some(requirement) }],
        filter_state: None,
        named: Vec::new(),
        bypass_cors_preflight: true,
        strip_failure_response: false,
        stat_prefix: "".into(),
        filled_headers: vec!["x-sub".into()],
    })))
}

fn ask(fixture: &mut Fixture, tokens: &[&str]) -> Decision {
    let request = PlainRequest::new("GET", "a", "/");
    let request = tokens.iter().fold(request, |request, token| request.with_header("x-jwt", token));
    fixture.request(&request);
    fixture.ask(Body::Empty)
}

#[test]
fn a_claim_cannot_split_a_header() {
    let signer = Signer::ec("a", "P-256");
    let mut fixture = fixture(&signer);
    let token = signer.token(r#"{"iss":"me","sub":"a\r\nx-admin: 1\u0000"}"#);
    assert!(matches!(ask(&mut fixture, &[&token]), Decision::Reroute));
    let value = fixture.head.headers.find(b"x-sub").expect("the claim");
    assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)), "{value:?}");
    assert!(fixture.head.headers.find(b"x-admin").is_none());
}

#[test]
fn claims_are_metadata_and_a_known_token_has_them_too() {
    let signer = Signer::ed25519("a");
    let mut fixture = fixture(&signer);
    let token = signer.token(r#"{"iss":"me","scope":"read  write","a":{"b":[1,null]}}"#);
    let text = |text: &str| MetadataValue::Text(text.into());
    for _ in 0..3 {
        assert!(matches!(ask(&mut fixture, &[&token]), Decision::Reroute));
        let get = |path: &[&str]| {
            let path: Vec<Box<str>> = path.iter().map(|key| (*key).into()).collect();
            fixture.info.metadata.get(METADATA, &path).cloned()
        };
        assert_eq!(get(&["payload", "scope"]), Some(MetadataValue::List(vec![text("read"), text("write")])));
        let one = MetadataValue::Number(1.0_f64.to_bits());
        assert_eq!(get(&["payload", "a", "b"]), Some(MetadataValue::List(vec![one, MetadataValue::Null])));
    }
}

/// What the control plane requires where there are several issuers: every token is good, or there is none.
#[test]
fn a_good_token_does_not_cover_for_a_bad_one_of_another_issuer() {
    let (a, b, forger) = (Signer::ed25519("a"), Signer::ec("b", "P-256"), Signer::ec("b", "P-256"));
    let headers = vec![location("x-a", &["a"]), location("x-b", &["b"]), location("x-both", &["a", "b"])];
    let locations = Locations { headers, filled: vec!["x-sub".into()], ..Locations::default() };
    let lenient = Requirement::Lenient { lenience: Lenience::Missing, locations };
    let mut fixture = requiring(vec![provider("a", &a), provider("b", &b)], lenient);
    let of = |signer: &Signer, issuer: &str| signer.token(&format!(r#"{{"iss":"{issuer}","sub":"of {issuer}"}}"#));
    let (of_a, of_b, forged) = (of(&a, "a"), of(&b, "b"), of(&forger, "b"));
    let mut check = |tokens: &[(&str, &str)], expected: Result<&[&str], u16>| {
        let request = PlainRequest::new("GET", "a", "/").with_header("x-sub", "forged");
        let request = tokens.iter().fold(request, |request, (name, token)| request.with_header(name, token));
        // The second time the good ones are known.
        for _ in 0..2 {
            fixture.request(&request);
            let got = match fixture.ask(Body::Empty) {
                Decision::Continue | Decision::Reroute => {
                    let values = fixture.head.headers.find_all(b"x-sub");
                    Ok(values.map(|value| String::from_utf8_lossy(value).into_owned()).collect::<Vec<_>>())
                }
                Decision::Reply(reply) => Err(reply.status),
                other => panic!("{other:?}"),
            };
            let expected = expected.map(|values| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>());
            assert_eq!(got, expected, "{tokens:?}");
        }
    };
    check(&[], Ok(&[]));
    check(&[("x-a", &of_a)], Ok(&["of a"]));
    check(&[("x-both", &of_a)], Ok(&["of a"]));
    check(&[("x-both", &of_b)], Ok(&["of b"]));
    check(&[("x-a", &of_a), ("x-b", &of_b)], Ok(&["of a"]));
    check(&[("x-a", &of_a), ("x-b", &forged)], Err(401));
    check(&[("x-b", &forged), ("x-a", &of_a)], Err(401));
    check(&[("x-both", &of_a), ("x-both", &forged)], Err(401));
    check(&[("x-a", &of_a), ("x-b", "no token")], Err(401));
    check(&[("x-b", &of_a)], Err(401));
}

#[test]
fn a_request_may_carry_only_so_many_tokens() {
    let signer = Signer::ec("a", "P-256");
    let mut fixture = fixture(&signer);
    let token = signer.token(r#"{"iss":"me"}"#);
    let most = vec![token.as_str(); MAX_TOKENS];
    assert!(matches!(ask(&mut fixture, &most), Decision::Reroute));
    let more = vec![token.as_str(); MAX_TOKENS + 1];
    match ask(&mut fixture, &more) {
        Decision::Reply(reply) => assert_eq!((reply.status, &*reply.body), (401, &b"Found multiple Jwt tokens"[..])),
        other => panic!("{other:?}"),
    }
}
