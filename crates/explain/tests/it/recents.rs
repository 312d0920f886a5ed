//! The output for recent requests.

use std::path::PathBuf;

use evenkeel_explain::Recent;
use evenkeel_explain::answer::ProxyName;
use evenkeel_explain::recent::RecordedRequest;
use evenkeel_filters::explain::query::{Decision, ProxyDecision, RecentRequest};
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
