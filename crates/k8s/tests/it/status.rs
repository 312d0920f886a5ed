//! Statuses in a real API server: written by the leader, once per change, beside those of others.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::{Diagnostic, ObjectRef, Rank, SourceId, Span};
use evenkeel_k8s::lease::{Candidate, LeaseTimes};
use evenkeel_k8s::ownership::Ownership;
use evenkeel_k8s::status::{StatusQueue, StatusWriter};
use evenkeel_model::{Status, StatusSink as _};
use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::fixture::{admin, until};

const TIMES: LeaseTimes = LeaseTimes {
    duration: Duration::from_secs(4),
    deadline: Duration::from_secs(3),
    retry: Duration::from_millis(300),
};

/// A control plane, as far as it writes statuses.
struct Plane {
    queue: StatusQueue,
    tasks: [JoinHandle<()>; 2],
}

impl Plane {
    async fn start(server: &ApiServer, namespace: &str, identity: &str) -> Self {
        let (client, queue) = (admin(server).await, StatusQueue::default());
        let candidate = Candidate::new(client.clone(), namespace, "evenkeel-status", identity, TIMES);
        let writer = StatusWriter::new(
            queue.clone(),
            candidate.leadership(),
            "evenkeel-status",
            Ownership::new(client, "default"),
        );
        let tasks = [tokio::spawn(candidate.run(std::future::pending())), tokio::spawn(writer.run())];
        Self { queue, tasks }
    }

    fn kill(&self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn object(group: &'static str, kind: &'static str, namespace: &str, name: &str) -> ObjectRef {
    let source = SourceId::new("kubernetes", Rank(200));
    ObjectRef { group, kind, namespace: namespace.into(), name: name.into(), source }
}

fn get(server: &ApiServer, kind: &str, namespace: &str, name: &str) -> Value {
    let text = server.kubectl(&["get", kind, name, "--namespace", namespace, "--output=json", "--show-managed-fields"]);
    serde_json::from_str(&text).expect("JSON")
}

fn missing_gateway() -> Diagnostic {
    Diagnostic::warning("missing-gateway", Span::default(), "there is no Gateway `absent`")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_writes_each_change_once_and_keeps_the_conditions_of_others() {
    let server = ApiServer::start();
    server.install(CustomResources::Istio);
    let shop = server.namespace("shop");
    server.apply(&format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: web, namespace: {shop}}}\n\
         spec: {{hosts: [web], gateways: [absent], http: [{{route: [{{destination: {{host: web}}}}]}}]}}\n"
    ));
    let others = r#"{"status":{"conditions":[{"type":"Reconciled","status":"True","reason":"Other"}]}}"#;
    let web = ["virtualservices.networking.istio.io", "web"];
    server.kubectl(&["patch", web[0], web[1], "-n", &shop, "--subresource=status", "--type=merge", "-p", others]);
    let route = object("networking.istio.io", "VirtualService", &shop, "web");
    let [first, second] = [Plane::start(&server, &shop, "a").await, Plane::start(&server, &shop, "b").await];
    let write = |status: Status| {
        let status = Arc::new(status);
        [&first, &second].into_iter().for_each(|plane| plane.queue.clone().write(&route, &status));
    };
    write(Status::of(Some(1), &[missing_gateway()]));
    let read = || get(&server, web[0], &shop, web[1]);
    let condition = |object: &Value, kind: &str| {
        let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
    };
    until(async || condition(&read(), "ResolvedRefs")["status"] == "False").await;
    let written = read();
    assert_eq!(condition(&written, "Reconciled")["reason"], "Other", "{written}");
    assert_eq!(condition(&written, "Accepted")["status"], "True", "{written}");
    assert_eq!(condition(&written, "ResolvedRefs")["message"], "there is no Gateway `absent`");
    assert_eq!(written["status"]["validationMessages"][0]["type"]["code"], "IST0101", "{written}");
    let managers = written["metadata"]["managedFields"].as_array().expect("a list");
    assert!(managers.iter().any(|m| m["manager"] == "evenkeel-status" && m["operation"] == "Apply"), "{managers:?}");

    // The same again, of either control plane, changes nothing: not even the version of the object.
    write(Status::of(Some(1), &[missing_gateway()]));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(read()["metadata"]["resourceVersion"], written["metadata"]["resourceVersion"]);

    // The leader dies: the other one writes what has changed meanwhile.
    let leader =
        server.kubectl(&["get", "lease", "evenkeel-status", "-n", &shop, "-o", "jsonpath={.spec.holderIdentity}"]);
    if leader == "a" {
        first.kill()
    } else {
        second.kill()
    }
    write(Status::of(Some(1), &[]));
    until(async || condition(&read(), "ResolvedRefs")["status"] == "True").await;
    let written = read();
    assert!(written["status"].get("validationMessages").is_none(), "{written}");
    assert_eq!(condition(&written, "Reconciled")["reason"], "Other", "{written}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn findings_about_kinds_without_a_status_of_ours_are_events_each_of_them_once() {
    let server = ApiServer::shared();
    let shop = server.namespace("shop");
    server.apply(&format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: keys, namespace: {shop}}}\nspec: {{ports: [{{port: 80}}]}}\n"
    ));
    let plane = Plane::start(server, &shop, "a").await;
    let service = object("", "Service", &shop, "keys");
    let status = |finding: Diagnostic| Arc::new(Status::of(None, &[finding.with_help("add one")]));
    let events = || {
        let text = server.kubectl(&["get", "events", "--namespace", &shop, "--output=json"]);
        let events: Value = serde_json::from_str(&text).expect("JSON");
        let lines = events["items"].as_array().expect("a list").iter();
        lines.map(|e| format!("{} {} {}", e["involvedObject"]["name"], e["reason"], e["message"])).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        plane.queue.clone().write(&service, &status(missing_gateway()));
        until(async || !events().is_empty()).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(events(), [r#""keys" "MissingGateway" "there is no Gateway `absent` (add one)""#]);
    }
    // One that is gone is nobody's concern.
    plane.queue.clone().write(&object("", "Service", &shop, "gone"), &status(missing_gateway()));
    plane.queue.clone().write(&object("none.example.com", "None", &shop, "gone"), &status(missing_gateway()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(events().len(), 1);
    let status = &get(server, "service", &shop, "keys")["status"];
    assert!(status.get("conditions").is_none(), "that is Kubernetes' own: {status}");
    plane.kill();
}
