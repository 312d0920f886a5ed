//! The metrics of a mesh's proxies, as a Prometheus on the machine finds them.

use std::sync::PoisonError;

use evenkeel_testkit::{Connection, Process, Signal, eventually};
use serde_json::Value;

use super::proxy_settings::inside;
use super::user::User;
use super::{MACHINE, PATIENCE, state, wait_ready};

/// The answer to a GET of this server.
fn get(address: &str, path: &str, host: &str) -> (u16, String) {
    let mut connection = Connection::open(address.parse().expect("an address")).expect("it listens");
    let response = connection.get(host, path, "accept: text/plain\r\n").expect("an answer");
    (response.status, response.text())
}

#[test]
fn every_proxy_is_found_and_read_from_the_machine() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let objects = super::deployment("clock", 2, "exec python3 -m http.server 8000");
    std::fs::write(folder.path().join("objects.yaml"), objects).expect("it can be written");
    let mut up = Process::spawn(user.evenkeel(&["up"]).arg(folder.path()).arg("--state").arg(user.state.path()));
    wait_ready(&mut up, 2);
    let line = up.wait_for_line("/targets");
    let url = line.rsplit("http://").next().expect("a URL").trim().to_owned();
    let address = url.strip_suffix("/targets").expect("the list").to_owned();

    let (status, list) = get(&address, "/targets", &address);
    assert_eq!(status, 200, "{list}");
    let list: Vec<Value> = serde_json::from_str(&list).expect("JSON");
    let pods = list.iter().filter(|target| target["labels"]["app"] == "clock").count();
    assert_eq!(pods, 2, "{list:#?}");
    for target in &list {
        assert_eq!(target["targets"][0], address.as_str());
        let path = target["labels"]["__metrics_path__"].as_str().expect("a path");
        let read = || {
            let (status, page) = get(&address, path, &address);
            (status == 200 && page.contains("# TYPE ")).then_some(())
        };
        eventually(&format!("{path} shows metrics"), read);
    }
    // Keys of a page's own, others' pages, and pages of strangers in a browser.
    assert_eq!(get(&address, "/metrics/default/nobody", &address).0, 404);
    assert_eq!(get(&address, "/config_dump", &address).0, 404);
    assert_eq!(get(&address, "/targets", "stranger.example").0, 403);
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}

/// Two pages with metrics, as of two containers.
const PROGRAMS: &str = "\
import http.server, threading, time, urllib.request
def serve(port, text):
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)
    threading.Thread(target=http.server.HTTPServer(('', port), Page).serve_forever).start()
serve(8000, b'first_total 1\\n')
serve(8001, b'second_total 2\\n')
";

const ASK: &str =
    "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:15020/stats/prometheus').read().decode())";

#[test]
fn the_page_of_a_sidecar_has_all_programs_and_the_selected_statistics() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let annotated = |name: &str, annotations: &str| {
        let objects = super::deployment(name, 1, "exec python3 programs.py");
        objects.replacen("annotations:", &format!("annotations:\n        {annotations}"), 1)
    };
    let targets = "prometheus.istio.io/scrape-targets: '8001,8002:/none,8000:/stats'\n        \
                   sidecar.istio.io/statsInclusionSuffixes: downstream_cx_total";
    let matcher =
        "proxy.istio.io/config: '{proxyStatsMatcher: {inclusionRegexps: [\"cluster.*upstream_cx_rx_bytes_total\"]}}'";
    let objects = annotated("several", targets) + "---\n" + &annotated("matched", matcher);
    std::fs::write(folder.path().join("programs.py"), PROGRAMS).expect("it can be written");
    std::fs::write(folder.path().join("objects.yaml"), &objects).expect("it can be written");
    let mut up = Process::spawn(user.evenkeel(&["up"]).arg(folder.path()).arg("--state").arg(user.state.path()));
    wait_ready(&mut up, 2);
    let page = |workload: &str, lines: &[&str], absent: &str| {
        let mut last = String::new();
        let read = || {
            last = inside(&user, user.state.path(), workload, &["python3", "-c", ASK]);
            lines.iter().all(|line| last.contains(line)).then_some(())
        };
        eventually(&format!("{lines:?} of {workload}"), read);
        assert!(!last.contains(absent), "{absent} in {last}");
    };
    let failed = "istio_agent_scrape_failures_total{type=\"application\"}";
    let (received, connections) = (
        "envoy_cluster_upstream_cx_rx_bytes_total{envoy_cluster_name=\"PassthroughCluster\"}",
        "envoy_listener_downstream_cx_total{",
    );
    page("several", &["second_total 2\nfirst_total 1\n", failed, connections], received);
    page("matched", &[received], connections);
    let state = user.state.path().display().to_string();
    let logs = user.evenkeel(&["logs", "several", "--proxy", "--state", &state]).output().expect("it runs");
    let logs = String::from_utf8_lossy(&logs.stdout).into_owned();
    assert!(logs.contains("port=8002"), "{logs}");
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
