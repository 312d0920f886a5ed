//! Changes, and their effects on recent requests.

use std::path::PathBuf;

use evenkeel_explain::Plan;
use evenkeel_explain::plan::Sampled;
use evenkeel_testkit::golden;

use crate::mesh::{recent, with, world};

fn sample() -> Vec<Sampled> {
    let at = |pod: &str, id: usize, words: &str, arrival| Sampled {
        pod: pod.to_owned(),
        namespace: "shop".to_owned(),
        request: recent(&format!("request-{id}"), words, arrival),
    };
    let out = ("outbound", "10.96.1.2:80");
    let mut all: Vec<Sampled> = (0..20).map(|id| at("web-0", id, "GET http://reviews/x", out)).collect();
    all.push(at("web-0", 20, "GET http://reviews/beta/x end-user:jason", out));
    all.push(at("web-0", 21, "GET http://reviews/beta/x cookie:[redacted]", out));
    all.push(at("web-0", 22, "GET http://reviews/old", out));
    all.push(at("web-0", 23, "GET http://reviews/gone", out));
    all.push(at("gone-0", 24, "GET http://reviews/x", out));
    let mut cut = at("web-0", 25, "GET http://reviews/x", out);
    cut.request.call.request.as_mut().expect("a head").left_out = 2;
    all.push(cut);
    all
}

const CHANGE: &str = "apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews]
  http:
  - name: beta
    match: [{uri: {prefix: /beta}, headers: {cookie: {regex: '.*tester.*'}}}]
    route: [{destination: {host: reviews, subset: v2}}]
  - name: old
    match: [{uri: {exact: /old}}]
    route: [{destination: {host: reviews, subset: v9}}]
  - name: rest
    route: [{destination: {host: reviews, subset: v2}}]
";

#[test]
fn people_read_this() {
    let same = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other, namespace: shop}\ndata: {a: b}\n";
    let slower = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\n\
        spec: {hosts: [web], http: [{timeout: 3s, route: [{destination: {host: web}}]}]}\n";
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    let to_web = |id| Sampled {
        pod: "web-0".to_owned(),
        namespace: "shop".to_owned(),
        request: recent(id, "GET http://web/\u{1b}[2J", ("outbound", "10.96.1.1:80")),
    };
    for (name, change, sample) in [
        ("plan", CHANGE, sample()),
        ("plan_same", same, sample()),
        ("plan_changes", slower, vec![to_web("a"), to_web("b")]),
        ("plan_nothing", CHANGE, Vec::new()),
    ] {
        let text = Plan::new(&world(""), &with(change), &sample).to_text(false);
        assert!(!text.contains('\u{1b}'), "{text}");
        golden::check(folder.join(format!("{name}.txt")), &text);
    }
}

#[test]
fn programs_read_it_too() {
    let plan = Plan::new(&world(""), &with(CHANGE), &sample());
    let json = plan.to_json();
    let count = |list: &str| {
        let groups = json[list].as_array().expect("a list");
        groups.iter().filter_map(|group| group["decisions"].as_u64()).sum::<u64>()
    };
    let judged = json["unaffected"].as_u64().unwrap_or(0)
        + ["fails", "moves", "changes", "repairs"].map(count).iter().sum::<u64>();
    let not_judged: u64 = json["notJudged"].as_object().expect("a map").values().filter_map(|n| n.as_u64()).sum();
    assert_eq!((json["decisions"].as_u64(), judged + not_judged), (Some(26), 26), "{json:#}");
    assert_eq!((count("fails"), not_judged), (1, 3), "{json:#}");
    assert_eq!(json["fails"][0]["to"]["responseFlag"], "NC", "{json:#}");
    assert_eq!(json["fails"][0]["examples"][0]["request"], "GET http://reviews/old", "{json:#}");
    assert_eq!(plan.failing(), 1);
}

#[test]
fn what_is_renamed_or_deleted_in_use_shows_before_it_is_done() {
    let judged = |change: &str| {
        let json = Plan::new(&world(""), &with(change), &sample()).to_json();
        let count = |list: &str| {
            let groups = json[list].as_array().expect("a list");
            groups.iter().filter_map(|group| group["decisions"].as_u64()).sum::<u64>()
        };
        let counts = ["fails", "moves", "repairs"].map(count);
        (counts, json)
    };
    // A subset that routes name: those that it served have no cluster.
    let rule = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: reviews, namespace: shop}\n\
        spec: {host: reviews, subsets: [{name: v1, labels: {version: v1}}]}\n";
    let ([fails, ..], json) = judged(rule);
    assert!(fails > 0, "{json:#}");
    let groups = json["fails"].as_array().expect("a list");
    assert!(groups.iter().all(|group| group["to"]["responseFlag"] == "NC"), "{json:#}");
    // The host of a VirtualService: the old name falls to its service, and the route that led nowhere to nothing.
    let renamed = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: reviews, namespace: shop}\n\
        spec: {hosts: [opinions], http: [{route: [{destination: {host: reviews, subset: v2}}]}]}\n";
    let ([fails, moves, repairs], json) = judged(renamed);
    assert_eq!((fails, repairs), (0, 1), "{json:#}");
    assert!(moves > 0, "{json:#}");
}
