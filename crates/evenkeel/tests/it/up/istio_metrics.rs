//! Istio's metrics in a running mesh: both sides of a call report it, and Telemetry objects change what they report.

use std::fs;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually};

use super::proxy_settings::inside;
use super::user::User;
use super::{MACHINE, PATIENCE, state, wait_ready};

const CLIENT: &str = "import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode('latin-1'))
";

/// A gRPC call with one message, over HTTP/1.1.
const CALL: &str = "import http.client
connection = http.client.HTTPConnection('web', timeout=20)
connection.request('POST', '/a.Service/Method', bytes(5), {'content-type': 'application/grpc', 'te': 'trailers'})
print(connection.getresponse().status)
";

const SERVICES: &str = "apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8000}, {name: tcp, port: 9000, targetPort: 8000}]}
";

const TELEMETRY: &str = "apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: fewer, namespace: default}
spec:
  metrics:
  - overrides:
    - {match: {metric: RESPONSE_SIZE, mode: CLIENT}, disabled: true}
    - {match: {metric: REQUEST_COUNT}, tagOverrides: {source_cluster: {operation: REMOVE}}}
    - {match: {metric: REQUEST_COUNT}, tagOverrides: {request_host: {value: 'request.host + request.method'}}}
  accessLogging:
  - {providers: [{name: envoy}], filter: {expression: 'request.url_path == \"/client.py\" && response.code == 200'}}
";

fn workload(name: &str) -> String {
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata:\n      labels: {{app: {name}, version: v1}}\n      \
         annotations:\n        local.evenkeel.dev/run: exec python3 -m http.server 8000\n    \
         spec: {{containers: [{{name: main, ports: [{{containerPort: 8000}}]}}]}}\n"
    )
}

#[test]
fn both_sides_report_what_telemetry_objects_leave() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("it can be written");
    write("client.py", CLIENT);
    write("call.py", CALL);
    write("objects.yaml", &(SERVICES.to_owned() + &workload("client") + &workload("web")));
    let mut up = Process::spawn(user.evenkeel(&["up"]).arg(folder.path()).arg("--state").arg(user.state.path()));
    wait_ready(&mut up, 2);
    let get = |workload: &str, url: &str| inside(&user, user.state.path(), workload, &["python3", "client.py", url]);
    let called = |what: &str, url: &str, workload: &str, is_expected: &dyn Fn(&str) -> bool| {
        eventually(what, || {
            assert!(get("client", url).contains("client.py"), "{}", up.output());
            is_expected(&get(workload, "http://127.0.0.1:15090/stats/prometheus")).then_some(())
        });
    };
    let line = |page: &str, metric: &str, labels: &[&str]| {
        page.lines().any(|line| line.starts_with(metric) && labels.iter().all(|label| line.contains(label)))
    };
    let service = "destination_service=\"web.default.svc.cluster.local\"";
    let client = [
        "reporter=\"source\"",
        "source_workload=\"client\"",
        "destination_workload=\"web\"",
        "destination_app=\"web\"",
        "destination_version=\"v1\"",
        "destination_service_name=\"web\"",
        "source_principal=\"spiffe://cluster.local/ns/default/sa/default\"",
        "source_cluster=\"Kubernetes\"",
        service,
    ];
    called("the client's report", "http://web/", "client", &|page| line(page, "istio_requests_total{", &client));
    let server = [
        "reporter=\"destination\"",
        "source_workload=\"client\"",
        "source_app=\"client\"",
        "source_version=\"v1\"",
        "source_canonical_service=\"client\"",
        "source_canonical_revision=\"v1\"",
        "source_cluster=\"Kubernetes\"",
        "source_workload_namespace=\"default\"",
        "source_principal=\"spiffe://cluster.local/ns/default/sa/default\"",
        "destination_workload=\"web\"",
        "connection_security_policy=\"mutual_tls\"",
        "response_code=\"200\"",
        service,
    ];
    called("the server's report", "http://web/", "web", &|page| line(page, "istio_requests_total{", &server));
    let tcp = ["reporter=\"source\"", "destination_workload=\"web\"", "request_protocol=\"tcp\""];
    called("connections", "http://web:9000/", "client", &|page| {
        line(page, "istio_tcp_connections_closed_total{", &tcp)
    });
    let messages = ["reporter=\"source\"", "destination_workload=\"web\"", "request_protocol=\"grpc\""];
    eventually("messages of a gRPC call", || {
        inside(&user, user.state.path(), "client", &["python3", "call.py"]);
        let page = get("client", "http://127.0.0.1:15090/stats/prometheus");
        line(&page, "istio_request_messages_total{", &messages).then_some(())
    });

    write("telemetry.yaml", TELEMETRY);
    let before = |page: &str| {
        page.lines()
            .filter(|line| line.starts_with("istio_response_bytes_count"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    called("fewer labels", "http://web/", "client", &|page| {
        line(page, "istio_requests_total{", &["request_host=\"webGET\""])
            && page.lines().any(|line| line.starts_with("istio_requests_total{") && !line.contains("source_cluster"))
    });
    let log = || {
        let state = user.state.path().display().to_string();
        let output = user.evenkeel(&["logs", "client", "--proxy", "--state", &state]).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let wanted = |number: usize| {
        eventually("the request that the expression wants", || {
            get("client", &format!("http://web/client.py?{number}"));
            log().contains(&format!("\"GET /client.py?{number} HTTP/1.1\" 200")).then_some(())
        });
    };
    // Requests before the change may be written for a moment more.
    wanted(1);
    let others = || log().matches("\"GET / HTTP/1.1\"").count();
    let earlier = others();
    get("client", "http://web/");
    wanted(2);
    assert_eq!(others(), earlier, "{}", log());
    let sizes = before(&get("client", "http://127.0.0.1:15090/stats/prometheus"));
    called("one more request", "http://web/", "client", &|page| before(page) == sizes);
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
