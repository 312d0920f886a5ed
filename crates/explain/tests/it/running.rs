//! Running proxies that are asked in addition to the files.

use std::path::PathBuf;

use evenkeel_explain::answer::ProxyName;
use evenkeel_explain::{RunningProxies, World};
use evenkeel_filters::explain::query::{EndpointState, ProxyDecision, QueriedCall, RecentRequest};
use evenkeel_testkit::golden;

use crate::mesh::{ask, question, with, world};

/// Proxies that run the configuration of another mesh, and see these endpoints.
struct Others {
    mesh: World,
    states: Vec<EndpointState>,
}

impl RunningProxies for Others {
    fn decide(&self, proxy: &ProxyName, call: &QueriedCall) -> Result<ProxyDecision, String> {
        if proxy.side == "inbound" {
            return Err("no answer within 10 s".to_owned());
        }
        let request =
            RecentRequest { direction: proxy.side.to_owned(), call: call.clone(), ..RecentRequest::default() };
        let replayed = self.mesh.replay(&proxy.pod, &proxy.namespace, &request).ok_or("no such Pod")?;
        let (decision, endpoint_states) = (replayed.decision, self.states.clone());
        Ok(ProxyDecision { decision, endpoint_states, generation: 7, silent_workers: 0 })
    }
}

fn state(address: &str, flags: &[&str]) -> EndpointState {
    let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
    EndpointState {
        address: address.to_owned(),
        healthy: flags.is_empty(),
        flags,
        active_requests: 0,
        ejected_us: None,
    }
}

/// Another rule for everything.
const ELSEWHERE: &str = "apiVersion: networking.istio.io/v1\nkind: VirtualService\n\
    metadata: {name: reviews, namespace: shop}\n\
    spec: {hosts: [reviews], http: [{name: all, route: [{destination: {host: reviews, subset: v2}}]}]}\n";

#[test]
fn people_read_what_proxies_say() {
    let mesh = world("");
    let endpoints = |question: &str| {
        let answer = ask(&mesh, question).expect("an answer");
        let chosen = answer.hops[0].clusters.iter().find(|cluster| cluster.chosen).expect("a cluster");
        chosen.endpoints.iter().map(|endpoint| endpoint.address.clone()).collect::<Vec<_>>()
    };
    let beta = "web.shop GET http://reviews/beta/x end-user:jason";
    let [first, second] = <[String; 2]>::try_from(endpoints(beta)).expect("two Pods");
    let split = "web.shop GET http://reviews/x";
    let only = endpoints(split).remove(0);
    let cases = [
        ("running", beta, "", vec![state(&first, &["failed_outlier_check"]), state(&second, &[])]),
        ("running_none", split, "", vec![state(&only, &["failed_outlier_check"])]),
        ("running_otherwise", split, ELSEWHERE, vec![state(&first, &[])]),
    ];
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    for (name, call, more, states) in cases {
        let asked = world("").with_running(Others { mesh: with(more), states });
        let answer = asked.ask(&question(call)).expect("an answer");
        golden::check(folder.join(format!("{name}.txt")), &answer.to_text(false));
    }
}

#[test]
fn programs_read_it_too() {
    let check = |more: &str, call: &str, pointer: &str, expected: serde_json::Value| {
        let asked = world("").with_running(Others { mesh: with(more), states: Vec::new() });
        let json = asked.ask(&question(call)).expect("an answer").to_json();
        assert_eq!(json.pointer(pointer), Some(&expected), "{call} {pointer}\n{json:#}");
    };
    let split = "web.shop GET http://reviews/x";
    check("", split, "/running/agrees", true.into());
    check("", split, "/running/generation", 7.into());
    check("", split, "/status", 503.into());
    check(ELSEWHERE, split, "/running/agrees", false.into());
    check(ELSEWHERE, split, "/route/name", "all".into());
    check("", "web.shop GET http://reviews/old", "/running/agrees", true.into());
    check("", "web.shop GET http://reviews/gone", "/running/agrees", true.into());
    let direct = world("").with_running(Others { mesh: world(""), states: vec![state("10.244.0.2:9080", &[])] });
    let json = direct.ask(&question(split)).expect("an answer").to_json();
    assert_eq!(json.pointer("/hops/1/running/error"), Some(&"no answer within 10 s".into()), "{json:#}");
}

#[test]
fn what_comes_from_outside_moves_no_cursor() {
    let mesh = world("");
    let text = ask(&mesh, "web.shop GET http://reviews/\u{1b}]0;title\u{7}\u{202e}x").expect("an answer").to_text(true);
    assert!(!text.contains('\u{7}') && !text.contains('\u{202e}') && !text.contains("\u{1b}]"), "{text:?}");
    assert!(text.contains("\\u{1b}]0;title\\u{7}\\u{202e}x") && text.contains("\u{1b}[1m"), "{text:?}");
}
