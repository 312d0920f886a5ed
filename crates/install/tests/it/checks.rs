//! Each check fails for its reason, and passes for what the chart installs.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use evenkeel_install::checks::{self, Answer, NEEDED, Outcome, Picture, RIGHTS, Stage, Verdict};
use evenkeel_install::{Release, Values, crds};
use serde_json::{Value, json};

/// A cluster with what the chart installs, and controllers that have done their part.
fn installed() -> Picture {
    static INSTALLED: LazyLock<Picture> = LazyLock::new(picture);
    INSTALLED.clone()
}

fn picture() -> Picture {
    let (namespace, manager) = ("istio-system".to_owned(), "evenkeel".to_owned());
    let release = Release { namespace: namespace.clone(), manager, is_first: true, values: Values::default() };
    let mut objects: BTreeMap<&'static str, Result<Vec<Value>, String>> =
        NEEDED.iter().map(|needed| (needed.kind, Ok(Vec::new()))).collect();
    let mut add = |kind: &'static str, object: Value| {
        if let Some(Ok(all)) = objects.get_mut(kind) {
            all.push(object);
        }
    };
    for object in release.render().expect("objects").objects {
        if let Some(kind) = NEEDED.iter().map(|needed| needed.kind).find(|kind| *kind == object["kind"]) {
            add(kind, working(object));
        }
    }
    let now = "2026-11-30T23:59:50.000000Z";
    for replica in ["istiod-a", "istiod-b"] {
        add(
            "Pod",
            json!({
                "metadata": {"name": replica, "namespace": namespace, "labels": {"app": "istiod", "istio.io/rev": "default"}},
                "spec": {"nodeName": replica.replace("istiod", "node"), "containers": [{"name": "discovery"}]},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            }),
        );
        let node = replica.replace("istiod", "node");
        add(
            "Node",
            json!({"metadata": {"name": node}, "status": {"nodeInfo": {"kubeletVersion": "v1.37.1"},
            "conditions": [{"type": "Ready", "status": "True"}]}}),
        );
        add("Lease", json!({"metadata": {"name": node, "namespace": "kube-node-lease"}, "spec": {"renewTime": now}}));
    }
    add(
        "Lease",
        json!({"metadata": {"name": "evenkeel-status", "namespace": namespace},
        "spec": {"renewTime": now, "holderIdentity": "istiod-a"}}),
    );
    add(
        "EndpointSlice",
        json!({"metadata": {"name": "istiod-x", "labels": {"kubernetes.io/service-name": "istiod"}},
        "endpoints": [{"conditions": {"ready": true}}]}),
    );
    add("Namespace", json!({"metadata": {"name": "istio-system"}}));
    add("Namespace", json!({"metadata": {"name": "shop", "labels": {"istio-injection": "enabled"}}}));
    Picture {
        namespace,
        revision: String::new(),
        version: "0.1.0".to_owned(),
        server_version: Some(Ok("v1.37.1".to_owned())),
        skew_s: Some(0),
        now_s: 1_796_083_199,
        objects,
        rights: RIGHTS.iter().map(|right| Answer { right: *right, allowed: Ok(true) }).collect(),
    }
}

/// The object with what controllers write.
fn working(mut object: Value) -> Value {
    match object["kind"].as_str().unwrap_or_default() {
        "Deployment" => {
            object["status"] = json!({"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2,
                "conditions": [{"type": "Available", "status": "True"}]});
        }
        "CustomResourceDefinition" => {
            object["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]})
        }
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => {
            for webhook in object["webhooks"].as_array_mut().into_iter().flatten() {
                webhook["clientConfig"]["caBundle"] = ROOT.into();
                webhook["failurePolicy"] = "Fail".into();
            }
        }
        _ => {}
    }
    object
}

/// A certificate, PEM in Base64, valid until 2126.
const ROOT: &str = include_str!("root.txt");

fn outcome(outcomes: &[Outcome], name: &str) -> Verdict {
    let found = outcomes.iter().find(|outcome| outcome.name == name);
    found.unwrap_or_else(|| panic!("no check {name}")).verdict.clone()
}

#[test]
fn what_the_chart_installs_passes() {
    for (stage, least) in [(Stage::Before, 30), (Stage::After, 60)] {
        let outcomes = checks::run(stage, &installed());
        let bad: Vec<_> = outcomes
            .iter()
            .filter(|outcome| matches!(outcome.verdict, Verdict::Failed(_) | Verdict::Warning(_)))
            .collect();
        assert!(bad.is_empty(), "{bad:#?}");
        assert!(outcomes.len() >= least, "{} checks", outcomes.len());
    }
}

/// A change of the cluster after which a check must not pass: the kind, the name of the object (empty: a new one), and the patch,
/// merged into it; null removes the object.
struct Change {
    check: &'static str,
    kind: &'static str,
    name: &'static str,
    patch: Value,
}

fn changed(change: &Change) -> Picture {
    let mut picture = installed();
    let Some(Ok(all)) = picture.objects.get_mut(change.kind) else { panic!("no {}s are read", change.kind) };
    if change.name.is_empty() {
        all.push(change.patch.clone());
    } else if change.patch.is_null() {
        all.retain(|object| object["metadata"]["name"] != change.name);
    } else {
        let object = all.iter_mut().find(|object| object["metadata"]["name"] == change.name).expect("the object");
        merge(object, &change.patch);
    }
    picture
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn changes() -> Vec<Change> {
    let row = |check, kind, name, patch| Change { check, kind, name, patch };
    let crd = "gateways.networking.istio.io";
    let pod = |labels: Value, spec: Value, status: Value| json!({"metadata": {"name": "web", "namespace": "shop", "labels": labels}, "spec": spec, "status": status});
    let proxy = |image: &str| json!({"initContainers": [{"name": "istio-proxy", "image": image}]});
    let injector = "istio-sidecar-injector";
    vec![
        row(
            "nodes are ready",
            "Node",
            "node-a",
            json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
        ),
        row(
            "kubelets are 1.29 or newer",
            "Node",
            "node-a",
            json!({"status": {"nodeInfo": {"kubeletVersion": "v1.28.9"}}}),
        ),
        row(
            "clocks of the nodes agree with the API server's",
            "Lease",
            "node-a",
            json!({"spec": {"renewTime": "2026-11-30T23:50:00Z"}}),
        ),
        row(
            "no definition is newer than this program",
            "CustomResourceDefinition",
            crd,
            json!({"metadata": {"annotations": {"evenkeel.dev/version": "0.2.0"}}}),
        ),
        row(
            "stored objects have versions that are served",
            "CustomResourceDefinition",
            crd,
            json!({"status": {"storedVersions": ["v2"]}}),
        ),
        row("Istio's kinds are defined", "CustomResourceDefinition", crd, Value::Null),
        row("the API server serves them", "CustomResourceDefinition", crd, json!({"status": {"conditions": []}})),
        row(
            "they have the versions of this program",
            "CustomResourceDefinition",
            crd,
            json!({"spec": {"versions": [{"name": "v1", "served": true}]}}),
        ),
        row(
            "what they define is read",
            "CustomResourceDefinition",
            "",
            json!({"metadata": {"name": "xbackends.gateway.networking.x-k8s.io"},
                "spec": {"group": "gateway.networking.x-k8s.io", "names": {"kind": "XBackend"}}}),
        ),
        row(
            "the Gateway API is 1.1 or newer",
            "CustomResourceDefinition",
            "",
            json!({"metadata": {"name": "gateways.gateway.networking.k8s.io", "annotations": {"gateway.networking.k8s.io/bundle-version": "v1.0.0"}}}),
        ),
        row(
            "the Gateway API is of the standard channel",
            "CustomResourceDefinition",
            "",
            json!({"metadata": {"name": "tcproutes.gateway.networking.k8s.io", "annotations": {"gateway.networking.k8s.io/channel": "experimental"}}}),
        ),
        row(
            "no other control plane has the revision",
            "Deployment",
            "istiod",
            json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "istiod-1.32.0"}}}),
        ),
        row(
            "no other mesh injects sidecars",
            "MutatingWebhookConfiguration",
            "",
            json!({"metadata": {"name": "linkerd-proxy-injector-webhook-config"}}),
        ),
        row(
            "the namespace is not being deleted",
            "Namespace",
            "istio-system",
            json!({"status": {"phase": "Terminating"}}),
        ),
        row(
            "the namespace admits the control plane's Pods",
            "Namespace",
            "istio-system",
            json!({"metadata": {"labels": {"istio-injection": "enabled"}}}),
        ),
        row("the Deployment exists", "Deployment", "istiod", Value::Null),
        row(
            "the Deployment is available",
            "Deployment",
            "istiod",
            json!({"status": {"conditions": [{"type": "Available", "status": "False", "message": "no"}]}}),
        ),
        row("the Deployment is rolled out", "Deployment", "istiod", json!({"status": {"updatedReplicas": 1}})),
        row("there are two replicas or more", "Deployment", "istiod", json!({"status": {"readyReplicas": 1}})),
        row("replicas are on different nodes", "Pod", "istiod-b", json!({"spec": {"nodeName": "node-a"}})),
        row(
            "Pods are scheduled",
            "Pod",
            "istiod-b",
            json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no room"}]}}),
        ),
        row(
            "images are there, and containers start",
            "Pod",
            "istiod-b",
            json!({"status": {"containerStatuses": [{"name": "discovery", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}}),
        ),
        row(
            "Pods are ready",
            "Pod",
            "istiod-b",
            json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
        ),
        row(
            "Pods do not restart",
            "Pod",
            "istiod-b",
            json!({"status": {"containerStatuses": [{"name": "discovery", "restartCount": 9}]}}),
        ),
        row(
            "memory suffices",
            "Pod",
            "istiod-b",
            json!({"status": {"containerStatuses": [{"name": "discovery", "lastState": {"terminated": {"reason": "OOMKilled"}}}]}}),
        ),
        row(
            "its version is that of this program",
            "Deployment",
            "istiod",
            json!({"metadata": {"labels": {"app.kubernetes.io/version": "0.0.9"}}}),
        ),
        row("the Service exists", "Service", "istiod", Value::Null),
        row(
            "the Service has the ports of proxies and webhooks",
            "Service",
            "istiod",
            json!({"spec": {"ports": [{"port": 15012}]}}),
        ),
        row("the Service has ready endpoints", "EndpointSlice", "istiod-x", Value::Null),
        row("a PodDisruptionBudget protects it", "PodDisruptionBudget", "istiod", Value::Null),
        row(
            "autoscaling works",
            "HorizontalPodAutoscaler",
            "istiod",
            json!({"status": {"conditions": [{"type": "ScalingActive", "status": "False", "message": "no metrics"}]}}),
        ),
        row("the ServiceAccount exists", "ServiceAccount", "istiod", Value::Null),
        row("its rights are granted", "ClusterRoleBinding", "istiod-clusterrole-istio-system", json!({"subjects": []})),
        row("a replica leads", "Lease", "evenkeel-status", json!({"spec": {"renewTime": "2026-11-30T23:00:00Z"}})),
        row("the mesh's configuration can be read", "ConfigMap", "istio", json!({"data": {"mesh": "a: ["}})),
        row("the injector is configured", "MutatingWebhookConfiguration", injector, Value::Null),
        row(
            "revision tags name a revision",
            "MutatingWebhookConfiguration",
            "",
            json!({"metadata": {"name": "istio-revision-tag-prod", "labels": {"istio.io/tag": "prod", "istio.io/rev": "gone"}}}),
        ),
        row(
            "only one injector is the default",
            "MutatingWebhookConfiguration",
            "",
            json!({"metadata": {"name": "other"}, "webhooks": [{"namespaceSelector": {"matchExpressions": [{"key": "istio-injection", "operator": "In", "values": ["enabled"]}]}}]}),
        ),
        row(
            "no injector of others injects the same Pods",
            "MutatingWebhookConfiguration",
            "",
            json!({"metadata": {"name": "other"}, "webhooks": [{"namespaceSelector": {"matchExpressions": [{"key": "istio-injection", "operator": "In", "values": ["enabled"]}]}}]}),
        ),
        row("validation is configured", "ValidatingWebhookConfiguration", "istio-validator-istio-system", Value::Null),
        row(
            "validation answers",
            "ValidatingWebhookConfiguration",
            "istio-validator-istio-system",
            json!({"webhooks": [{"name": "v", "failurePolicy": "Ignore"}]}),
        ),
        row(
            "validation has roots",
            "ValidatingWebhookConfiguration",
            "istio-validator-istio-system",
            json!({"webhooks": [{"name": "v"}]}),
        ),
        row("the injector has roots", "MutatingWebhookConfiguration", injector, json!({"webhooks": [{"name": "v"}]})),
        row(
            "Pods are refused while the injector does not answer",
            "MutatingWebhookConfiguration",
            injector,
            json!({"webhooks": [{"name": "v", "failurePolicy": "Ignore"}]}),
        ),
        row(
            "the injector calls the revision's Service",
            "MutatingWebhookConfiguration",
            injector,
            json!({"webhooks": [{"name": "v", "clientConfig": {"service": {"name": "other", "namespace": "istio-system"}}}]}),
        ),
        row(
            "the injector leaves the system out",
            "MutatingWebhookConfiguration",
            injector,
            json!({"webhooks": [{"name": "v"}]}),
        ),
        row(
            "all webhooks of the revision have the same roots",
            "MutatingWebhookConfiguration",
            injector,
            json!({"webhooks": [{"name": "v", "clientConfig": {"caBundle": "b3RoZXI="}}]}),
        ),
        row(
            "the roots can be read and are valid",
            "MutatingWebhookConfiguration",
            injector,
            json!({"webhooks": [{"name": "v", "clientConfig": {"caBundle": "b3RoZXI="}}]}),
        ),
        row(
            "the roots are those of the mesh",
            "ConfigMap",
            "",
            json!({"metadata": {"name": "istio-ca-root-cert"}, "data": {"root-cert.pem": "other"}}),
        ),
        row(
            "labels do not contradict each other",
            "Namespace",
            "shop",
            json!({"metadata": {"labels": {"istio.io/rev": "default"}}}),
        ),
        row(
            "istio-injection is enabled or disabled",
            "Namespace",
            "shop",
            json!({"metadata": {"labels": {"istio-injection": "true"}}}),
        ),
        row(
            "labels of Pods are not on namespaces",
            "Namespace",
            "shop",
            json!({"metadata": {"labels": {"sidecar.istio.io/inject": "true"}}}),
        ),
        row(
            "labels are not written as annotations",
            "Namespace",
            "shop",
            json!({"metadata": {"annotations": {"istio-injection": "enabled"}}}),
        ),
        row(
            "namespaces of the system are not injected",
            "Namespace",
            "",
            json!({"metadata": {"name": "kube-system", "labels": {"istio-injection": "enabled"}}}),
        ),
        row(
            "revisions that namespaces name exist",
            "Namespace",
            "",
            json!({"metadata": {"name": "a", "labels": {"istio.io/rev": "gone"}}}),
        ),
        row("some namespace is injected", "Namespace", "shop", Value::Null),
        row(
            "Pods of injected namespaces have sidecars",
            "Pod",
            "",
            pod(json!({}), json!({}), json!({"phase": "Running"})),
        ),
        row(
            "sidecars have the version of the control plane",
            "Pod",
            "",
            pod(json!({"istio.io/rev": "default"}), proxy("old:1"), json!({})),
        ),
        row("revisions of Pods exist", "Pod", "", pod(json!({"istio.io/rev": "gone"}), proxy("old:1"), json!({}))),
        row(
            "sidecars are ready",
            "Pod",
            "",
            pod(json!({}), proxy("a"), json!({"initContainerStatuses": [{"name": "istio-proxy", "ready": false}]})),
        ),
        row(
            "sidecars start",
            "Pod",
            "",
            pod(
                json!({}),
                proxy("a"),
                json!({"initContainerStatuses": [{"name": "istio-proxy", "state": {"waiting": {"reason": "ErrImagePull"}}}]}),
            ),
        ),
        row("gateways are injected", "Pod", "", pod(json!({}), proxy("auto"), json!({}))),
        row(
            "sidecars do not restart",
            "Pod",
            "",
            pod(json!({}), proxy("a"), json!({"initContainerStatuses": [{"name": "istio-proxy", "restartCount": 7}]})),
        ),
        row(
            "Pods choose injection by labels",
            "Pod",
            "",
            json!({"metadata": {"name": "web", "namespace": "a", "annotations": {"sidecar.istio.io/inject": "true"}}}),
        ),
    ]
}

#[test]
fn each_check_sees_what_it_is_for() {
    for change in changes() {
        let outcomes = checks::run(Stage::After, &changed(&change));
        assert_ne!(outcome(&outcomes, change.check), Verdict::Passed, "{}", change.check);
    }
}

#[test]
fn the_api_server_and_rights_are_checked() {
    let check = |change: fn(&mut Picture), name: &str, expected: &str| {
        let mut picture = installed();
        change(&mut picture);
        match outcome(&checks::run(Stage::Before, &picture), name) {
            Verdict::Failed(reason) => assert!(reason.contains(expected), "{reason}"),
            other => panic!("{name}: {other:?}"),
        }
    };
    check(|p| p.server_version = Some(Err("refused".to_owned())), "the API server answers", "refused");
    check(|p| p.server_version = Some(Ok("v1.28.3".to_owned())), "the API server is 1.29 or newer", "v1.28.3");
    check(|p| p.skew_s = Some(-90), "clocks of the API server and this machine agree", "-90 s");
    check(
        |p| p.rights[5].allowed = Ok(false),
        "the user may create validatingwebhookconfigurations.admissionregistration.k8s.io",
        "RBAC",
    );
}

#[test]
fn what_cannot_be_read_is_skipped_and_named() {
    let mut picture = installed();
    picture.objects.insert("Pod", Err("pods is forbidden".to_owned()));
    let outcomes = checks::run(Stage::After, &picture);
    match outcome(&outcomes, "Pods are ready") {
        Verdict::Skipped(reason) => assert!(reason.contains("pods is forbidden"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_check_has_a_row() {
    let rows: Vec<&str> = changes().iter().map(|change| change.check).collect();
    let rarely = [
        "the API server",
        "clocks of the API",
        "there are nodes",
        "the Gateway API's definitions",
        "the roots are valid for",
    ];
    let outcomes = checks::run(Stage::After, &installed());
    let without = outcomes.iter().filter(|outcome| !rows.contains(&outcome.name.as_str()));
    let without: Vec<_> =
        without.filter(|outcome| !rarely.iter().any(|begin| outcome.name.starts_with(begin))).collect();
    assert!(without.is_empty(), "{without:#?}");
    assert!(crds::definitions().len() > 10);
}
