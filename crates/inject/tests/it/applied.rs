//! Pods with their sidecars, as an API server gets them.

use std::collections::BTreeMap;

use evenkeel_api::istio::ProxyConfig;
use evenkeel_base::Span;
use evenkeel_inject::{InitContainer, Mesh, SidecarForm, Template};
use serde_json::{Value, json};

use crate::support::mesh;

/// Injects a manifest, and returns how many Pods got a sidecar.
fn inject(manifest: &mut Value, template: &Template) -> usize {
    let enabled = BTreeMap::from([("istio-injection".to_owned(), "enabled".to_owned())]);
    let disabled = BTreeMap::from([("istio-injection".to_owned(), "disabled".to_owned())]);
    let mesh = Mesh {
        template,
        namespace: "shop",
        namespace_labels: &|namespace| if namespace == "out" { disabled.clone() } else { enabled.clone() },
        config: &|_, _| ProxyConfig::default(),
    };
    mesh.inject(manifest, &Span::of_object("Pod shop/web")).unwrap_or_else(|found| panic!("{found}"))
}

fn pod(metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

fn injected(metadata: Value, spec: Value) -> Value {
    let mut pod = pod(metadata, spec);
    assert_eq!(inject(&mut pod, &mesh()), 1);
    pod
}

fn names(pod: &Value, list: &str) -> Vec<String> {
    let list = pod["spec"][list].as_array().into_iter().flatten();
    list.map(|container| container["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// The proxy's container.
fn proxy(pod: &Value) -> &Value {
    let lists = ["containers", "initContainers"].into_iter().filter_map(|list| pod["spec"][list].as_array());
    lists.flatten().find(|container| container["name"] == "istio-proxy").expect("a proxy")
}

fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let variables = container["env"].as_array()?;
    variables.iter().find(|variable| variable["name"] == name)?["value"].as_str()
}

/// The lines of two objects that differ.
fn difference(before: &Value, after: &Value) -> String {
    let (before, after) = (format!("{before:#}"), format!("{after:#}"));
    let differ = before.lines().zip(after.lines()).filter(|(before, after)| before != after);
    differ.map(|(before, after)| format!("- {before}\n+ {after}\n")).collect()
}

/// Ids of the Pod's users are below 65536, a container with all privileges has none of its own users, and not all volumes can be mounted
/// with mapped ids.
#[test]
fn pods_with_users_of_their_own_get_nothing_that_needs_those_of_the_node() {
    for init in [InitContainer::Rules, InitContainer::Cni] {
        for mode in ["REDIRECT", "TPROXY"] {
            let metadata = json!({"name": "web", "annotations": {"sidecar.istio.io/interceptionMode": mode}});
            let mut pod = pod(metadata, json!({"hostUsers": false, "containers": [{"name": "web"}]}));
            assert_eq!(inject(&mut pod, &Template { init, ..mesh() }), 1);
            let spec = &pod["spec"];
            assert_eq!(spec["hostUsers"], false);
            for container in ["initContainers", "containers"].iter().filter_map(|list| spec[list].as_array()).flatten()
            {
                let context = &container["securityContext"];
                assert_ne!(context["privileged"], true, "{container}");
                assert!(context["runAsUser"].as_u64().unwrap_or_default() < 65536, "{container}");
                let added = context.pointer("/capabilities/add").and_then(Value::as_array).into_iter().flatten();
                let is_of_network = |name: &Value| name == "NET_ADMIN" || name == "NET_RAW";
                assert!(added.into_iter().all(is_of_network), "a capability over the Pod's own network: {container}");
            }
            const MAPPED: [&str; 4] = ["emptyDir", "configMap", "downwardAPI", "projected"];
            let volumes = spec["volumes"].as_array().expect("volumes");
            let is_mapped = |volume: &Value| MAPPED.iter().any(|kind| !volume[kind].is_null());
            assert!(volumes.iter().all(is_mapped), "{volumes:?}");
            for field in ["hostNetwork", "hostPID", "hostIPC"] {
                assert!(spec[field].is_null(), "{field}");
            }
        }
    }
}

#[test]
fn every_kind_with_pods_is_known() {
    let check = |kind: &str, place: &str, namespace: &str, expected: usize| {
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web"}]}});
        let mut manifest =
            json!({"apiVersion": "x/v1", "kind": kind, "metadata": {"name": "web", "namespace": namespace}});
        let fields = place.split('/').skip(1).collect::<Vec<_>>();
        let nested = fields.iter().rev().fold(template, |inner, field| json!({*field: inner}));
        manifest.as_object_mut().expect("fields").extend(nested.as_object().expect("fields").clone());
        let before = manifest.clone();
        assert_eq!(inject(&mut manifest, &mesh()), expected, "{kind}");
        assert_eq!(manifest == before, expected == 0, "{kind}");
        if expected == 1 {
            let template = manifest.pointer(place).expect("the template");
            assert_eq!(names(template, "initContainers"), ["istio-init", "istio-proxy"], "{kind}");
        }
    };
    check("Deployment", "/spec/template", "shop", 1);
    check("Deployment", "/spec/template", "out", 0);
    check("StatefulSet", "/spec/template", "shop", 1);
    check("Job", "/spec/template", "shop", 1);
    check("CronJob", "/spec/jobTemplate/spec/template", "shop", 1);
    check("Rollout", "/spec/template", "shop", 1);
    check("Service", "/spec/template", "shop", 0);
    let one = pod(json!({"name": "a"}), json!({"containers": [{"name": "a"}]}));
    let mut list = json!({"apiVersion": "v1", "kind": "List", "items": [one, {"kind": "Service"}, one]});
    assert_eq!(inject(&mut list, &mesh()), 2);
}

#[test]
fn what_the_pod_has_stays() {
    let pod = injected(
        json!({"name": "web", "labels": {"app": "web"}, "annotations": {"note": "x"}, "finalizers": ["a"]}),
        json!({
            "containers": [{"name": "web", "unknownField": {"a": 1}}],
            "initContainers": [{"name": "migrate"}],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "hostUsers": false,
        }),
    );
    assert_eq!(names(&pod, "containers"), ["web"]);
    assert_eq!(names(&pod, "initContainers"), ["istio-init", "istio-proxy", "migrate"]);
    assert_eq!(pod["spec"]["containers"][0]["unknownField"], json!({"a": 1}));
    assert_eq!(pod["spec"]["volumes"][0]["name"], "data");
    assert_eq!(pod["spec"]["hostUsers"], false);
    let metadata = &pod["metadata"];
    assert_eq!((&metadata["annotations"]["note"], &metadata["finalizers"]), (&json!("x"), &json!(["a"])));
    assert_eq!(metadata["labels"]["service.istio.io/canonical-name"], "web");
}

#[test]
fn probes_go_to_the_agent() {
    let check = |annotations: Value, container: Value, probes: &[&str], table: Value| {
        let spec = json!({"containers": [container]});
        let pod = injected(json!({"name": "web", "annotations": annotations}), spec);
        let paths: Vec<&str> = ["readinessProbe", "livenessProbe", "startupProbe"]
            .into_iter()
            .filter_map(|field| pod["spec"]["containers"][0][field]["httpGet"]["path"].as_str())
            .collect();
        assert_eq!(paths, probes, "{container}");
        let found = variable(proxy(&pod), "ISTIO_KUBE_APP_PROBERS");
        let found = found.map_or(Value::Null, |text| serde_json::from_str(&text.replace("$$", "$")).expect("JSON"));
        assert_eq!(found, table, "{container}");
    };
    let none = || json!({});
    check(
        none(),
        json!({"name": "web", "ports": [{"name": "http", "containerPort": 8080}],
               "readinessProbe": {"httpGet": {"path": "/$(ok)", "port": "http", "scheme": "HTTPS"}, "periodSeconds": 5}}),
        &["/app-health/web/readyz"],
        json!({"/app-health/web/readyz": {"httpGet": {"path": "/$(ok)", "port": 8080, "scheme": "HTTPS"}, "timeoutSeconds": 1}}),
    );
    check(
        none(),
        json!({"name": "web", "livenessProbe": {"tcpSocket": {"port": 9}, "timeoutSeconds": 3}, "startupProbe": {"grpc": {"port": 7}}}),
        &["/app-health/web/livez", "/app-health/web/startupz"],
        json!({
            "/app-health/web/livez": {"tcpSocket": {"port": 9}, "timeoutSeconds": 3},
            "/app-health/web/startupz": {"grpc": {"port": 7}, "timeoutSeconds": 1},
        }),
    );
    // Kubelet runs commands in the container, and says itself that a port has no such name.
    check(none(), json!({"name": "web", "livenessProbe": {"exec": {"command": ["true"]}}}), &[], Value::Null);
    check(none(), json!({"name": "web", "livenessProbe": {"tcpSocket": {"port": "gone"}}}), &[], Value::Null);
    let own = json!({"name": "web", "readinessProbe": {"httpGet": {"path": "/ok", "port": 80}}});
    check(json!({"sidecar.istio.io/rewriteAppHTTPProbers": "false"}), own.clone(), &["/ok"], Value::Null);
    check(json!({"status.sidecar.istio.io/port": "0"}), own, &["/ok"], Value::Null);
}

#[test]
fn a_container_named_istio_proxy_changes_the_sidecar() {
    let own = json!({
        "name": "istio-proxy", "image": "auto", "env": [{"name": "MINE", "value": "1"}],
        "resources": {"limits": {"memory": "1Gi"}}, "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
    });
    let metadata = json!({"name": "web"});
    let spec = json!({"containers": [{"name": "web"}, own]});
    let pod = injected(metadata, spec);
    assert_eq!(
        (names(&pod, "containers"), names(&pod, "initContainers")),
        (vec!["web".to_owned()], vec!["istio-init".to_owned(), "istio-proxy".to_owned()],)
    );
    let proxy = proxy(&pod);
    assert_eq!(proxy["image"], "example.org/evenkeel:0.1.0");
    assert_eq!(variable(proxy, "MINE"), Some("1"));
    assert_eq!(
        (&proxy["resources"]["limits"]["memory"], &proxy["resources"]["requests"]["cpu"]),
        (&json!("1Gi"), &json!("100m"))
    );
    assert_eq!(proxy["lifecycle"], own["lifecycle"]);
    let overrides = pod["metadata"]["annotations"]["proxy.istio.io/overrides"].as_str().expect("the annotation");
    assert_eq!(serde_json::from_str::<Value>(overrides).expect("JSON"), json!({"containers": [own]}));
}

/// Other webhooks may run in between, and the API server calls again.
#[test]
fn a_second_injection_changes_nothing() {
    let check = |metadata: Value, spec: Value| {
        let once = injected(metadata, spec);
        let mut twice = once.clone();
        assert_eq!(inject(&mut twice, &mesh()), 1);
        assert!(twice == once, "{}", difference(&once, &twice));
        // A new installation replaces what the old one has injected.
        let next = Template { image: "example.org/evenkeel:2".to_owned(), form: SidecarForm::Container, ..mesh() };
        assert_eq!(inject(&mut twice, &next), 1);
        assert_eq!(proxy(&twice)["image"], "example.org/evenkeel:2");
        let table = |pod: &Value| variable(proxy(pod), "ISTIO_KUBE_APP_PROBERS").map(str::to_owned);
        assert_eq!(table(&twice), table(&once));
    };
    let probed = json!({"name": "web", "readinessProbe": {"httpGet": {"path": "/$ok", "port": 80}}});
    check(json!({"name": "web"}), json!({"containers": [probed]}));
    check(
        json!({"name": "web", "annotations": {"prometheus.io/port": "9090", "prometheus.io/scrape": "true"}}),
        json!({"containers": [probed]}),
    );
    let own = json!({"name": "istio-proxy", "env": [{"name": "MINE", "value": "1"}]});
    check(json!({"name": "web"}), json!({"containers": [own, probed], "volumes": [{"name": "x", "emptyDir": {}}]}));
}

#[test]
fn a_gateway_s_container_is_the_proxy() {
    let metadata = json!({"name": "edge", "annotations": {"inject.istio.io/templates": "gateway"}});
    let ports = json!([{"containerPort": 8080, "protocol": "TCP"}]);
    let pod = injected(metadata, json!({"containers": [{"name": "istio-proxy", "image": "auto", "ports": ports}]}));
    assert_eq!(names(&pod, "containers"), ["istio-proxy"]);
    let proxy = proxy(&pod);
    assert_eq!(proxy["image"], "example.org/evenkeel:0.1.0");
    assert!(proxy["args"].as_array().expect("arguments").contains(&json!("router")));
    assert_eq!(proxy["ports"].as_array().map(Vec::len), Some(2));
}
