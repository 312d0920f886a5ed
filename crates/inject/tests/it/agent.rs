//! The command line of the agent, which the agent reads as it is meant.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use clap::{Args as _, FromArgMatches as _};
use evenkeel_agent::options::{self, Options};
use evenkeel_api::annotations::LogLevels;
use evenkeel_api::istio::InterceptionMode;
use evenkeel_inject::{ADMIN_PORT, ANNOTATIONS_VARIABLE, PROMETHEUS_VARIABLE};
use evenkeel_inject::{Agent, Defaults, Expansion, Files, Identity, Membership, ProxySettings, Role};

/// The options that the agent reads, without the program's own flags.
pub fn read(arguments: &[String]) -> Options {
    // The log level is one of the program's, not of the agent's.
    let words = arguments.iter().enumerate().filter(|(index, word)| {
        let before = index.checked_sub(1).and_then(|before| arguments.get(before));
        *word != "--log-level" && before.is_none_or(|before| before != "--log-level")
    });
    let command = Options::augment_args(clap::Command::new("agent"));
    let matches = command.try_get_matches_from(words.map(|(_, word)| word)).unwrap_or_else(|error| panic!("{error}"));
    Options::from_arg_matches(&matches).expect("options")
}

fn defaults() -> Defaults {
    Defaults {
        trust_domain: "mesh.example".to_owned(),
        discovery_address: "10.244.0.1:15012".to_owned(),
        log_level: "info".to_owned(),
        concurrency: Some(1),
        drain: Some(Duration::from_secs(3)),
        recent_requests: Some(100),
        certificate_ttl: Some(Duration::from_secs(3600)),
        proxy_resolver: Some("10.244.0.1:53".to_owned()),
    }
}

fn agent<'a>(settings: &'a ProxySettings, defaults: &'a Defaults, labels: &'a BTreeMap<String, String>) -> Agent<'a> {
    let identity = Identity {
        pod: "web-1",
        namespace: "shop",
        service_account: "web",
        workload: "web",
        address: "10.244.1.1",
        labels,
    };
    let [roots, token, state] = ["/run/root.pem", "/run/token", "/run/state"].map(Path::new);
    Agent {
        role: Role::Sidecar,
        identity,
        settings,
        defaults,
        files: Files { roots, token, state },
        envoy: None,
        has_full_scope: false,
        has_own_user: false,
        expansion: Expansion::None,
    }
}

fn line(agent: &Agent<'_>) -> String {
    agent.arguments().iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

const BEGIN: &str = "agent sidecar --log-level info --id web-1.shop --namespace shop --service-account web --workload-name web \
                     --ip 10.244.1.1 --labels app=web --trust-domain mesh.example --discovery-address 10.244.0.1:15012";
const FILES: &str = "--recent-requests 100 --root-cert /run/root.pem --token /run/token --certificate-ttl-s 3600 --state /run/state \
                     --proxy-resolver 10.244.0.1:53";

#[test]
fn settings_become_flags() {
    let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
    let check = |settings: ProxySettings, change: fn(&mut Agent<'_>), expected: &str| {
        let defaults = defaults();
        let mut agent = agent(&settings, &defaults, &labels);
        change(&mut agent);
        assert_eq!(line(&agent), expected, "{settings:?}");
    };
    let none = ProxySettings::default;
    let plain = format!("{BEGIN} --concurrency 1 --drain-time-s 3 {FILES} --metadata INTERCEPTION_MODE=REDIRECT");
    check(none(), |_| {}, &plain);
    let more = ProxySettings {
        concurrency: Some(4),
        drain: Some(Duration::from_secs(9)),
        metadata: [("ISTIO_META_A", "b"), ("OTHER", "c")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        membership: Some(Membership { group: "vms".to_owned(), probe: Some(serde_json::json!({"periodSeconds": 2})) }),
        status_port: Some(9020),
        ..none()
    };
    let expected = format!(
        "{BEGIN} --concurrency 4 --drain-time-s 9 {FILES} --metadata A=b --metadata INTERCEPTION_MODE=REDIRECT \
         --metadata AUTO_REGISTER_GROUP=vms --proxy-config {{\"readinessProbe\":{{\"periodSeconds\":2}}}} --status-port 9020"
    );
    check(more, |_| {}, &expected);
    let uncaptured = ProxySettings { mode: InterceptionMode::None, ..none() };
    check(uncaptured, |_| {}, &format!("{} --no-capture", plain.replace("REDIRECT", "NONE")));
    let with_envoy = |agent: &mut Agent<'_>| agent.envoy = Some(Path::new("/bin/envoy"));
    check(none(), with_envoy, &format!("{plain} --envoy /bin/envoy"));
    check(none(), |agent| agent.has_own_user = true, &format!("{plain} --no-socket-mark"));
    let gateway = |agent: &mut Agent<'_>| (agent.role, agent.has_full_scope) = (Role::Gateway, true);
    let plain = plain.replace("agent sidecar", "agent router").replace(" --metadata INTERCEPTION_MODE=REDIRECT", "");
    check(none(), gateway, &format!("{plain} --scope full"));
}

#[test]
fn annotations_say_at_which_level_proxies_and_agents_log() {
    let check = |levels: [Option<&str>; 3], is_envoy: bool, expected: &str| {
        let [proxy, components, agent_level] = levels.map(|level| level.map(str::to_owned));
        let log_levels = LogLevels { proxy, components, agent: agent_level };
        let (settings, defaults, labels) =
            (ProxySettings { log_levels, ..ProxySettings::default() }, defaults(), BTreeMap::new());
        let mut agent = agent(&settings, &defaults, &labels);
        agent.envoy = is_envoy.then_some(Path::new("/bin/envoy"));
        let line = line(&agent);
        let words = line.strip_prefix("agent sidecar ").and_then(|rest| rest.split_once(" --id "));
        assert_eq!(words.map(|(levels, _)| levels), Some(expected), "{levels:?}");
    };
    check([None; 3], false, "--log-level info");
    check([None; 3], true, "--log-level info");
    check([Some("debug"), None, Some("error")], false, "--log-level debug");
    check(
        [None, Some("http2:debug"), Some("error")],
        false,
        "--log-level error --proxy-component-log-level http2:debug",
    );
    check(
        [Some("debug"), Some("http2:trace"), Some("error")],
        true,
        "--log-level error --proxy-log-level debug --proxy-component-log-level http2:trace",
    );
}

#[test]
fn names_are_the_agents() {
    assert_eq!(ANNOTATIONS_VARIABLE, options::ANNOTATIONS_VARIABLE);
    assert_eq!(PROMETHEUS_VARIABLE, options::PROMETHEUS_VARIABLE);
    assert_eq!(ADMIN_PORT, options::ADMIN_PORT);
    assert_eq!(evenkeel_capture::PROXY_MARK, options::SOCKET_MARK);
}

#[test]
fn the_agent_reads_what_is_written() {
    let (labels, defaults) = (BTreeMap::from([("app".to_owned(), "web".to_owned())]), defaults());
    let settings = ProxySettings { concurrency: Some(4), status_port: Some(9020), ..ProxySettings::default() };
    let mut agent = agent(&settings, &defaults, &labels);
    let arguments = |agent: &Agent<'_>| -> Vec<String> {
        agent.arguments().into_iter().map(|word| word.into_string().expect("text")).collect()
    };
    let options = read(&arguments(&agent));
    assert_eq!(options.pod().expect("a Pod"), "web-1");
    assert_eq!(options.all_labels(), labels);
    assert_eq!(
        (options.concurrency(), options.drain_time(), options.status_port()),
        (4, Duration::from_secs(3), Some(9020))
    );
    assert_eq!(options.mark(), Some(evenkeel_capture::PROXY_MARK));
    assert!(options.learns());
    (agent.has_own_user, agent.has_full_scope) = (true, true);
    let options = read(&arguments(&agent));
    assert_eq!((options.mark(), options.learns()), (None, false));
}
