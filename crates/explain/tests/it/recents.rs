//! The output for recent requests.

use std::path::PathBuf;

use evenkeel_explain::Recent;
use evenkeel_explain::answer::ProxyName;
use evenkeel_explain::recent::RecordedRequest;
use evenkeel_filters::explain::query::{Decision, ProxyDecision, QueriedTls, RecentRequest};
use evenkeel_testkit::golden;

use crate::mesh::{recent, world};

fn kept(request: RecentRequest, now: Result<Decision, String>) -> RecordedRequest {
    let (workload, pod, namespace) = ("web".to_owned(), "web-0".to_owned(), "shop".to_owned());
    let proxy = ProxyName { side: "", workload, pod, namespace };
    RecordedRequest { proxy, request, now: now.map(|decision| ProxyDecision { decision, ..ProxyDecision::default() }) }
}

fn served() -> RecentRequest {
    let words = "GET http://reviews/beta/x?a=1 end-user:jason authorization:[redacted] x-odd:a\u{1b}[2Jb";
    let mut request = recent("7d1f0c1e-52b6-4a39-9b51-0123456789ab", words, ("outbound", "10.96.1.2:80"));
    request.call.listeners = vec!["0.0.0.0_80".to_owned()];
    RecentRequest {
        route: Some("jason.beta".to_owned()),
        cluster: Some("outbound|80|v2|reviews.shop.svc.cluster.local".to_owned()),
        endpoint: Some("10.244.0.4:9080".to_owned()),
        status: 200,
        details: "via_upstream".to_owned(),
        attempts: 1,
        bytes_sent: 512,
        duration_us: 12_345,
        first_byte_us: Some(900),
        ..request
    }
}

/// A request that the server's sidecar has refused.
fn refused(details: &str, words: &str) -> RecentRequest {
    let mut request = recent("0-1", words, ("inbound", "10.244.0.2:9080"));
    request.call.tls = Some(QueriedTls {
        alpn: vec!["istio".to_owned()],
        identities: vec!["spiffe://cluster.local/ns/shop/sa/web".to_owned()],
        ..QueriedTls::default()
    });
    RecentRequest { status: 403, details: details.to_owned(), ..request }
}

#[test]
fn what_refused_a_request_is_told_with_its_place() {
    let check = |details: &str, words: &str, expected: &[(&str, u64)]| {
        let (workload, pod, namespace) = ("reviews-v1".to_owned(), "reviews-v1-0".to_owned(), "shop".to_owned());
        let proxy = ProxyName { side: "", workload, pod, namespace };
        let record = RecordedRequest { proxy, request: refused(details, words), now: Err("not asked".to_owned()) };
        let recent = Recent::new(Some(&world("")), vec![record]);
        let json = recent.to_json();
        let policies = json["hops"][0]["policies"].as_array().cloned().unwrap_or_default();
        let told: Vec<(String, u64)> = policies
            .iter()
            .map(|policy| {
                let source = &policy["source"];
                (source["object"].as_str().unwrap_or_default().to_owned(), source["line"].as_u64().unwrap_or(0))
            })
            .collect();
        let told: Vec<(&str, u64)> = told.iter().map(|(object, line)| (&**object, *line)).collect();
        assert_eq!(told, expected, "{details}: {json:#}");
        let text = recent.to_text(false, 0);
        assert!(
            expected.iter().all(|(object, line)| text.contains(object) && text.contains(&format!("mesh.yaml:{line}"))),
            "{text}"
        );
    };
    let denied = |name: &str| format!("rbac_access_denied_matched_policy[{name}]");
    let no_admin = "AuthorizationPolicy shop/no-admin";
    check(&denied("ns[shop]-policy[no-admin]-rule[0]"), "GET http://reviews/admin", &[(no_admin, 159)]);
    check(&denied("none"), "DELETE http://reviews/x", &[("AuthorizationPolicy shop/readers", 150)]);
    check("route_not_found", "GET http://reviews/x", &[]);
}

/// The mesh's own decision now.
fn now(request: &RecentRequest) -> Decision {
    world("").replay("web-0", "shop", request).expect("the Pod is there").decision
}

#[test]
fn people_read_this() {
    let mesh = world("");
    let same = served();
    let other = RecentRequest { route: Some("split".to_owned()), ..served() };
    let denied = RecentRequest {
        status: 404,
        flags: "NR".to_owned(),
        details: "route_not_found".to_owned(),
        route: None,
        cluster: None,
        endpoint: None,
        edited: true,
        ..served()
    };
    let cases = [
        ("recent", kept(same.clone(), Ok(now(&same)))),
        ("recent_otherwise", kept(other.clone(), Ok(now(&other)))),
        ("recent_failed", kept(denied.clone(), Ok(now(&denied)))),
        ("recent_unknown", kept(same.clone(), Err("no answer within 10 s".to_owned()))),
    ];
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    for (name, kept) in cases {
        let text = Recent::new(Some(&mesh), vec![kept]).to_text(false, 1_700_000_003_200_000);
        assert!(!text.contains('\u{1b}'), "{text}");
        golden::check(folder.join(format!("{name}.txt")), &text);
    }
}

#[test]
fn programs_read_it_too() {
    let mesh = world("");
    let request = served();
    let json = Recent::new(Some(&mesh), vec![kept(request.clone(), Ok(now(&request)))]).to_json();
    let check = |pointer: &str, expected: serde_json::Value| {
        assert_eq!(json.pointer(pointer), Some(&expected), "{pointer}\n{json:#}");
    };
    check("/id", "7d1f0c1e-52b6-4a39-9b51-0123456789ab".into());
    check("/hops/0/proxy/side", "outbound".into());
    check("/hops/0/route/source/line", 99.into());
    check("/hops/0/caller", "web-0.shop".into());
    check("/hops/0/request/status", 200.into());
    check("/hops/0/request/call/request/headers/1/1", "[redacted]".into());
    check("/hops/0/now/same", true.into());
}
