//! `helm template` and the program give the same objects; a real API server takes them.

use std::path::PathBuf;
use std::time::Duration;

use evenkeel_base::yaml;
use evenkeel_install::{Release, Values};
use evenkeel_testkit::kubernetes::{ApiServer, helm};
use evenkeel_testkit::{wait, workspace};
use serde_json::Value;

const NAMESPACE: &str = "istio-system";

fn chart(name: &str) -> String {
    let path: PathBuf = workspace::root().join("charts").join(name);
    path.to_str().expect("a path in UTF-8").to_owned()
}

fn documents(text: &str) -> Vec<Value> {
    let (nodes, found) = yaml::parse(&"rendered".into(), text);
    assert!(!found.has_errors(), "{found}");
    nodes.iter().filter(|node| !node.is_null()).map(yaml::Node::to_json).collect()
}

fn sorted(mut objects: Vec<Value>) -> Vec<Value> {
    objects.sort_by_key(|object| {
        let metadata = &object["metadata"];
        format!("{}/{}/{}", object["kind"], metadata["name"], metadata["namespace"])
    });
    objects
}

fn by_helm(settings: &[&str], flags: &[&str]) -> Result<Vec<Value>, String> {
    let chart = chart("evenkeel");
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let text = helm::template(&[&["evenkeel", &chart, "--namespace", NAMESPACE], &settings[..], flags].concat())?;
    Ok(sorted(documents(&text)))
}

fn by_program(settings: &[&str], is_first: bool) -> Result<Vec<Value>, String> {
    let mut values = Values::default();
    settings.iter().try_for_each(|setting| values.set(setting)).map_err(|error| error.to_string())?;
    let (namespace, manager) = (NAMESPACE.to_owned(), "Helm".to_owned());
    let rendered = Release { namespace, manager, is_first, values }.render().map_err(|error| error.to_string())?;
    Ok(sorted(rendered.objects))
}

#[test]
fn helm_and_the_program_give_the_same_objects() {
    let check = |settings: &[&str]| {
        for (is_first, flags) in [(true, &[][..]), (false, &["--is-upgrade"][..])] {
            let (helm, program) = (by_helm(settings, flags), by_program(settings, is_first));
            let (helm, program) = (helm.expect("Helm renders"), program.expect("the program renders"));
            let names = |objects: &[Value]| -> Vec<String> {
                objects.iter().map(|o| format!("{} {}", o["kind"], o["metadata"]["name"])).collect()
            };
            assert_eq!(names(&helm), names(&program), "{settings:?}");
            for (helm, program) in helm.iter().zip(&program) {
                assert_eq!(helm, program, "{settings:?}");
            }
        }
    };
    check(&[]);
    check(&["revision=canary", "revisionTags={default,prod}"]);
    check(&["pilot.autoscaleEnabled=false", "pilot.replicaCount=3", "defaultPodDisruptionBudget.enabled=false"]);
    check(&["pilot.env.PILOT_DEBOUNCE_AFTER=1s", "pilot.env.B=2", "pilot.extraContainerArgs={--log-level,debug}"]);
    check(&["pilot.caCertsSecret=cacerts", "pilot.plaintextXds=true", "pilot.cni.enabled=true"]);
    check(&["global.networkPolicy.enabled=true", "global.imagePullSecrets={a,b}", "global.imagePullPolicy=Always"]);
    check(&["meshConfig.accessLogFile=/dev/stdout", r"pilot.podAnnotations.a\.b/c=d", "pilot.podLabels.app=other"]);
    check(&["pilot.nodeSelector.disk=ssd", "pilot.tolerations[0].operator=Exists", "base.validation=false"]);
    check(&[
        "sidecarInjectorWebhook.enableNamespacesByDefault=true",
        "sidecarInjectorWebhook.reinvocationPolicy=IfNeeded",
    ]);
    check(&["pilot.topologySpreadConstraints[0].maxSkew=2", "global.meshNetworks.n.gateways[0].port=15443"]);
    check(&["pilot.secretNamespaces={shop,edge}"]);
    check(&["pilot.env.EXTERNAL_CA=ISTIOD_RA_KUBERNETES_API", "pilot.env.K8S_SIGNER=issuers.example.com/mesh"]);
    check(&["revision=canary", "pilot.secretNamespaces={shop}"]);
    check(&["base.podWarnings=false", "experimental.stableValidationPolicy=true"]);
    check(&["revision=canary", "experimental.stableValidationPolicy=true"]);
    check(&["global.hub=a/b", "global.tag=v1", "pilot.tag=v2", "global.priorityClassName=system-cluster-critical"]);
}

#[test]
fn helm_and_the_program_refuse_the_same_values() {
    let check = |setting: &str, expected: &str| {
        for error in [by_helm(&[setting], &[]), by_program(&[setting], true)].map(|refused| refused.expect_err(setting))
        {
            assert!(error.contains(expected), "{setting}: {error}");
        }
    };
    check("pilto.image=a", "pilto");
    check("pilot.autoscaleMin=-1", "autoscaleMin");
    check("revision=UPPER", "revision");
    check("pilot.secretNamespaces={UPPER}", "secretNamespaces");
    check("global.istioNamespace=other", "global.istioNamespace");
}

#[test]
fn a_real_api_server_takes_both_charts_from_helm_twice() {
    let api = ApiServer::start();
    let [mesh, gateway] = ["evenkeel", "gateway"].map(chart);
    for _ in 0..2 {
        let arguments = ["upgrade", "--install", "evenkeel", &mesh, "--namespace", NAMESPACE, "--create-namespace"];
        let notes = api.helm(&arguments);
        assert!(notes.contains("evenkeel check"), "{notes}");
        api.helm(&["upgrade", "--install", "istio-ingress", &gateway, "--namespace", "edge", "--create-namespace"]);
        // What a controller writes must not come back at the next upgrade.
        let validator = "istio-validator-istio-system";
        let working = r#"[{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}]"#;
        let policy =
            ["get", "validatingwebhookconfiguration", validator, "-o", "jsonpath={.webhooks[0].failurePolicy}"];
        if api.kubectl(&policy) == "Ignore" {
            api.kubectl(&["patch", "validatingwebhookconfiguration", validator, "--type=json", "-p", working]);
        }
        assert_eq!(api.kubectl(&policy), "Fail");
    }
    let of = |kind: &str, name: &str, path: &str| {
        api.kubectl(&["get", kind, name, "-n", NAMESPACE, "-o", &format!("jsonpath={path}")])
    };
    assert_eq!(of("service", "istiod", "{.spec.ports[*].port}"), "15012 443 15014");
    assert_eq!(of("deployment", "istiod", "{.spec.template.spec.containers[0].resources.limits}"), "");
    let injectors = of("mutatingwebhookconfiguration", "istio-sidecar-injector", "{.webhooks[*].name}");
    assert_eq!(injectors.split(' ').count(), 4, "{injectors}");
}

/// Policies of the API server hold without a control plane: there is none here.
#[test]
fn policies_hold_without_a_control_plane() {
    let api = ApiServer::start();
    let settings = ["experimental.stableValidationPolicy=true", "base.validation=false"];
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let chart = chart("evenkeel");
    let install = ["install", "evenkeel", &chart, "--namespace", NAMESPACE, "--create-namespace"];
    api.helm(&[&install[..], &settings[..]].concat());
    api.kubectl(&["delete", "mutatingwebhookconfigurations", "--all"]);
    for namespace in ["meshed", "plain"] {
        api.kubectl(&["create", "namespace", namespace]);
        api.kubectl(&["create", "serviceaccount", "default", "-n", namespace]);
    }
    api.kubectl(&["label", "namespace", "meshed", "istio-injection=enabled"]);
    let check = |object: &str, is_accepted: bool, message: &str| {
        // Policies are in force some seconds after they are stored.
        let is_so = || {
            let verdicts = api.verdicts(object);
            (verdicts.accepted.is_empty() != is_accepted && verdicts.messages.contains(message)).then_some(())
        };
        assert!(wait::poll(Duration::from_secs(60), is_so).is_some(), "{object}: {:?}", api.verdicts(object));
    };
    let pod = |namespace: &str, spec: &str| {
        format!("{{apiVersion: v1, kind: Pod, metadata: {{name: a, namespace: {namespace}}}, spec: {spec}}}")
    };
    let telemetry = |spec: &str| {
        format!(
            "{{apiVersion: telemetry.istio.io/v1, kind: Telemetry, metadata: {{name: a, namespace: plain}}, spec: {spec}}}"
        )
    };
    let as_sidecar = "{containers: [{name: a, image: a, securityContext: {runAsUser: 1337}}]}";
    check(&pod("meshed", as_sidecar), true, "user 1337");
    check(&pod("meshed", "{securityContext: {runAsUser: 1337}, containers: [{name: a, image: a}]}"), true, "user 1337");
    check(&pod("meshed", "{hostNetwork: true, containers: [{name: a, image: a}]}"), true, "outside the mesh");
    let filter = "{apiVersion: networking.istio.io/v1alpha3, kind: EnvoyFilter, metadata: {name: a, namespace: plain}, spec: {}}";
    check(filter, false, "EnvoyFilter is no stable kind");
    check(&telemetry("{metrics: [{reportingInterval: 5s}]}"), false, "`reportingInterval` is not stable");
    check(&telemetry("{accessLogging: [{filter: {expression: a}}]}"), false, "`filter` of an access log");
    check(&telemetry("{accessLogging: [{disabled: true}]}"), true, "");
    for quiet in [
        pod("plain", as_sidecar),
        pod(
            "meshed",
            "{containers: [{name: a, image: a}, {name: istio-proxy, image: b, securityContext: {runAsUser: 1337}}]}",
        ),
    ] {
        assert_eq!(api.verdicts(&quiet).messages, "", "{quiet}");
    }
}

/// What the agent of a node may do, and is told to do, follows from the values.
#[test]
fn the_agent_of_the_cni_has_the_rights_that_the_values_need() {
    let chart = chart("cni");
    let rendered = |settings: &[&str]| {
        let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
        helm::template(&[&["cni", &chart, "--namespace", NAMESPACE], &settings[..]].concat())
            .map(|text| documents(&text))
    };
    let check = |settings: &[&str], rights: &[&str], flags: &[&str]| {
        let objects = rendered(settings).expect("Helm renders");
        let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind).expect("it is there");
        let rules = of("ClusterRole")["rules"].as_array().into_iter().flatten();
        let words = |list: &Value| -> Vec<String> {
            list.as_array().into_iter().flatten().filter_map(|word| Some(word.as_str()?.to_owned())).collect()
        };
        let found: Vec<String> = rules
            .map(|rule| format!("{}: {}", words(&rule["resources"]).join(","), words(&rule["verbs"]).join(",")))
            .collect();
        assert_eq!(found, rights, "{settings:?}");
        let arguments = words(&of("DaemonSet")["spec"]["template"]["spec"]["containers"][0]["args"]);
        flags.iter().for_each(|flag| assert!(arguments.iter().any(|word| word == flag), "{flag}: {arguments:?}"));
    };
    let (follow, report) = ("pods: get,list,watch", "events: create");
    check(&[], &[follow, report], &["--broken-pods=repair", "--netns-dir=/host/netns"]);
    check(&["repair.enabled=false"], &["pods: get"], &["--broken-pods=ignore"]);
    check(&["repair.repairPods=false"], &[follow, report], &["--broken-pods=report"]);
    let deletes = ["repair.repairPods=false", "repair.deletePods=true", "repair.labelPods=true"];
    check(&deletes, &[follow, report, "pods: delete"], &["--broken-pods=delete"]);
    let label = "--broken-pod-label=cni.istio.io/uninitialized=true";
    check(
        &["repair.repairPods=false", "repair.labelPods=true"],
        &[follow, report, "pods: patch"],
        &["--broken-pods=label", label],
    );
    check(&["taint.enabled=true"], &[follow, report, "nodes: get,patch"], &["--remove-taint"]);
    check(&["istioOwnedCNIConfig=true"], &[follow, report], &["--own-config=02-evenkeel-cni.conflist"]);
    check(&["chained=false"], &[follow, report], &["--standalone-config=YYY-evenkeel-cni.conflist"]);
    for refused in ["repair.repairPod=true", "cniConfFileName=a.conf", "istioOwnedCNIConfigFileName=../a.conflist"] {
        assert!(rendered(&[refused]).is_err(), "{refused}");
    }
}
