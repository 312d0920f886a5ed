//! What Pods get.

use std::collections::BTreeMap;
use std::path::PathBuf;

use evenkeel_api::istio::ProxyConfig;
use evenkeel_capture::Capture;
use evenkeel_inject::container::{Container, Variable};
use evenkeel_inject::{
    InitContainer, Injection, SidecarForm, Template, VALIDATION, VALIDATION_FLAGS, canonical_name, canonical_revision,
};
use evenkeel_testkit::golden;

use crate::agent::read;
use crate::support::{injected, mesh, pod_template};

const WEB: &str = "serviceAccountName: web, containers: [{name: web, ports: [{name: http, containerPort: 8080}]}]";

fn of(metadata: &str, mesh: &Template) -> Injection {
    injected(&pod_template(metadata, WEB), &ProxyConfig::default(), mesh).expect("it is in the mesh")
}

fn named<'a>(containers: &'a [Container], name: &str) -> Option<&'a Container> {
    containers.iter().find(|container| container.name == name)
}

fn sidecar(injection: &Injection) -> &Container {
    let all = [&injection.init_containers, &injection.containers];
    all.into_iter().find_map(|containers| named(containers, "istio-proxy")).expect("a sidecar")
}

#[test]
fn pods_get_what_the_golden_files_have() {
    let check = |name: &str, injection: &Injection| {
        let text = serde_json::to_string_pretty(injection).expect("JSON") + "\n";
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
        golden::check(folder.join(format!("{name}.json")), &text);
    };
    check("sidecar", &of("", &mesh()));
    let annotations = "annotations: {sidecar.istio.io/interceptionMode: TPROXY, sidecar.istio.io/proxyCPU: 50m, \
        sidecar.istio.io/proxyMemoryLimit: 1Gi, traffic.sidecar.istio.io/excludeInboundPorts: '22', \
        traffic.sidecar.istio.io/includeOutboundIPRanges: 10.96.0.0/12, prometheus.io/port: '9090', \
        sidecar.istio.io/userVolume: '{\"logs\": {\"emptyDir\": {}}}', \
        sidecar.istio.io/userVolumeMount: '{\"logs\": {\"mountPath\": /logs}}', \
        proxy.istio.io/config: '{concurrency: 1, proxyMetadata: {ISTIO_META_TEXT: \"$(POD_NAME)\", OTHER: x}}'}";
    check("annotated", &of(&annotations.replace("\": /logs", "\": \"/logs\""), &mesh()));
    let gateway =
        pod_template("annotations: {inject.istio.io/templates: gateway}", "containers: [{name: istio-proxy}]");
    let by_cni = Template { init: InitContainer::Cni, form: SidecarForm::Container, ..mesh() };
    check("gateway", &injected(&gateway, &ProxyConfig::default(), &by_cni).expect("a gateway"));
}

#[test]
fn labels_annotations_and_networks_say_who_is_in_the_mesh() {
    let check = |metadata: &str, spec: &str, expected: bool| {
        let injection = injected(&pod_template(metadata, spec), &ProxyConfig::default(), &mesh());
        assert_eq!(injection.is_some(), expected, "{metadata} {spec}");
    };
    check("", WEB, true);
    check("annotations: {sidecar.istio.io/inject: 'false'}", WEB, false);
    check("", &format!("{WEB}, hostNetwork: true"), false);
}

#[test]
fn the_form_is_by_annotation_or_by_what_programs_need() {
    let check = |config: &str, annotations: &str, form: SidecarForm, is_native: bool| {
        let config = ProxyConfig::of_metadata(&serde_json::from_str(config).expect("JSON"));
        let template = pod_template(&format!("annotations: {{{annotations}}}"), WEB);
        let injection = injected(&template, &config, &Template { form, ..mesh() }).expect("it is in the mesh");
        let proxy = sidecar(&injection);
        assert_eq!(proxy.restart_policy.is_some(), is_native, "{config:?} {annotations}");
        assert_eq!(named(&injection.init_containers, "istio-proxy").is_some(), is_native);
    };
    check("{}", "", SidecarForm::Native, true);
    check("{}", "", SidecarForm::Container, false);
    check("{}", "sidecar.istio.io/nativeSidecar: 'true'", SidecarForm::Container, true);
    check("{}", "sidecar.istio.io/nativeSidecar: 'false'", SidecarForm::Native, false);
    let holds = "{\"holdApplicationUntilProxyStarts\": true}";
    check(holds, "", SidecarForm::Container, true);
    check(holds, "sidecar.istio.io/nativeSidecar: 'false'", SidecarForm::Native, false);
}

#[test]
fn proxies_that_are_called_at_their_end_accept_until_others_know() {
    let check = |config: &str, form: SidecarForm, expected: Option<&str>| {
        let config = ProxyConfig::of_metadata(&serde_json::from_str(config).expect("JSON"));
        let injection = injected(&pod_template("", WEB), &config, &Template { form, ..mesh() }).expect("a sidecar");
        let words = &sidecar(&injection).args;
        let flag = words.iter().position(|word| word == "--accept-after-stop-s");
        assert_eq!(flag.and_then(|flag| words.get(flag + 1)).map(String::as_str), expected, "{config:?} {form:?}");
    };
    check("{}", SidecarForm::Native, None);
    check("{}", SidecarForm::Container, Some("5"));
    check("{\"terminationDrainDuration\": \"2s\"}", SidecarForm::Container, Some("1"));
    check("{\"terminationDrainDuration\": \"25s\"}", SidecarForm::Container, Some("5"));
    check("{\"terminationDrainDuration\": \"60s\"}", SidecarForm::Container, Some("5"));
}

#[test]
fn rules_are_those_of_annotations() {
    let check = |annotations: &str, mesh: &Template, expected: Option<&str>| {
        let injection = of(&format!("annotations: {{{annotations}}}"), mesh);
        let name = if mesh.init == InitContainer::Cni { VALIDATION } else { "istio-init" };
        let arguments = named(&injection.init_containers, name).map(|init| init.args.clone());
        assert_eq!(arguments.as_ref().map(|words| words.join(" ")).as_deref(), expected, "{annotations}");
        if let Some(words) = arguments {
            let words = words.iter().skip(1).map(String::as_str).filter(|word| !VALIDATION_FLAGS.contains(word));
            assert!(Capture::from_arguments(words, &[]).is_ok(), "{annotations}");
        }
    };
    let all = "istio-iptables -p 15001 -z 15006 -u 1337 -m REDIRECT -i * -x  -b * -d 15090,15021,15020 --redirect-dns";
    check("", &mesh(), Some(all));
    check("traffic.sidecar.istio.io/excludeInboundPorts: '22'", &mesh(), Some(&all.replace("15020", "15020,22")));
    let (ranges, ports) = ("10.0.0.0/8", "80,81");
    check(
        &format!("traffic.sidecar.istio.io/includeInboundPorts: '{ports}'"),
        &mesh(),
        Some(&all.replace("-b *", "-b 80,81")),
    );
    check(
        &format!("traffic.sidecar.istio.io/includeOutboundIPRanges: {ranges}"),
        &mesh(),
        Some(&all.replace("-i *", "-i 10.0.0.0/8")),
    );
    check(
        &format!("traffic.sidecar.istio.io/excludeOutboundIPRanges: {ranges}"),
        &mesh(),
        Some(&all.replace("-x ", "-x 10.0.0.0/8")),
    );
    let further = |flag: &str| all.replace(" --redirect", &format!(" {flag} --redirect"));
    check(&format!("traffic.sidecar.istio.io/includeOutboundPorts: '{ports}'"), &mesh(), Some(&further("-q 80,81")));
    check(&format!("traffic.sidecar.istio.io/excludeOutboundPorts: '{ports}'"), &mesh(), Some(&further("-o 80,81")));
    check("traffic.sidecar.istio.io/excludeInterfaces: eth1", &mesh(), Some(&further("-c eth1")));
    check("status.sidecar.istio.io/port: '0'", &mesh(), Some(&all.replace(",15020", "")));
    check("status.sidecar.istio.io/port: '7'", &mesh(), Some(&all.replace("15020", "7")));
    let virtual_machines = "traffic.sidecar.istio.io/kubevirtInterfaces: 'vnet0,vnet1'";
    check(virtual_machines, &mesh(), Some(&all.replace(" --redirect", " -k vnet0,vnet1 --redirect")));
    let without_dns = "proxy.istio.io/config: '{proxyMetadata: {ISTIO_META_DNS_CAPTURE: \"false\"}}'";
    check(without_dns, &mesh(), Some(all.trim_end_matches(" --redirect-dns")));
    check("sidecar.istio.io/interceptionMode: NONE", &mesh(), None);
    let by_cni = Template { init: InitContainer::Cni, ..mesh() };
    check("", &by_cni, Some(&all.replace("iptables ", "iptables --run-validation --skip-rule-apply ")));
    check("sidecar.istio.io/interceptionMode: NONE", &by_cni, None);
}

/// Kubernetes expands references to variables in arguments, and not in texts of users.
#[test]
fn the_agent_reads_the_arguments_after_their_expansion() {
    let config = "annotations: {proxy.istio.io/config: '{proxyMetadata: {ISTIO_META_TEXT: \"a$(POD_NAME)$$\"}}', \
                  sidecar.istio.io/agentLogLevel: debug, sidecar.istio.io/componentLogLevel: 'misc:error'}";
    let injection = of(config, &mesh());
    let proxy = sidecar(&injection);
    assert!(proxy.args.iter().any(|word| word.contains("misc:error")), "{:?}", proxy.args);
    assert!(proxy.args.iter().any(|word| word.contains("debug")), "{:?}", proxy.args);
    let known: BTreeMap<&str, &str> = proxy.env.iter().filter_map(value).collect();
    let arguments: Vec<String> = proxy.args.iter().map(|word| expanded(word, &known)).collect();
    let options = read(&arguments);
    assert_eq!(options.pod().expect("a Pod"), "web-1");
    assert_eq!(options.identity().expect("an identity").to_string(), "spiffe://cluster.local/ns/shop/sa/web");
    assert_eq!(options.node_metadata()["TEXT"], "a$(POD_NAME)$$");
    assert_eq!(options.mark(), None);
    assert_eq!(options.token.to_str(), Some("/var/run/secrets/tokens/istio-token"));
    assert_eq!(options.all_labels()["service.istio.io/canonical-name"], "web");
}

/// A variable's value in a Pod `web-1`.
fn value(variable: &Variable) -> Option<(&str, &str)> {
    let field = match &*variable.name {
        "POD_NAME" => "web-1",
        "POD_NAMESPACE" => "shop",
        "SERVICE_ACCOUNT" => "web",
        "INSTANCE_IP" => "10.0.0.1",
        _ => variable.value.as_deref()?,
    };
    Some((&variable.name, field))
}

/// As Kubernetes expands a text: `$(NAME)`, and `$$` as a dollar.
fn expanded(text: &str, known: &BTreeMap<&str, &str>) -> String {
    let mut parts = text.split("$$").map(|part| {
        known.iter().fold(part.to_owned(), |part, (name, value)| part.replace(&format!("$({name})"), value))
    });
    let first = parts.next().unwrap_or_default();
    parts.fold(first, |all, part| all + "$" + &part)
}

#[test]
fn the_program_s_metrics_are_merged_unless_it_says_otherwise() {
    let check = |annotations: &str, merges_metrics: bool, page: Option<&str>, program: Option<&str>| {
        let injection = of(&format!("annotations: {{{annotations}}}"), &Template { merges_metrics, ..mesh() });
        let port = injection.annotations.get("prometheus.io/port").map(String::as_str);
        let is_program = |variable: &&Variable| variable.name == "ISTIO_PROMETHEUS_ANNOTATIONS";
        let variable = sidecar(&injection).env.iter().find(is_program).and_then(|variable| variable.value.as_deref());
        assert_eq!((port, variable), (page, program), "{annotations}");
    };
    check("", true, Some("15020"), None);
    check("", false, None, None);
    check("prometheus.io/port: '9090'", true, Some("15020"), Some("{\"port\":\"9090\"}"));
    check("prometheus.io/port: '9090', prometheus.istio.io/merge-metrics: 'false'", true, None, None);
    check(
        "prometheus.io/port: '9090', prometheus.istio.io/merge-metrics: 'true'",
        false,
        Some("15020"),
        Some("{\"port\":\"9090\"}"),
    );
    check("prometheus.io/scrape: 'false'", true, None, Some("{\"scrape\":\"false\"}"));
    check("status.sidecar.istio.io/port: '0'", true, None, None);
}

#[test]
fn canonical_names_are_labels_or_the_workload() {
    let check = |labels: &[(&str, &str)], name: &str, revision: &str| {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        assert_eq!((canonical_name(&labels, "owner").as_str(), canonical_revision(&labels).as_str()), (name, revision));
    };
    check(&[], "owner", "latest");
    check(&[("app", "web"), ("version", "v2")], "web", "v2");
    check(&[("app", "web"), ("app.kubernetes.io/name", "shop"), ("app.kubernetes.io/version", "3")], "shop", "3");
    check(&[("app", "web"), ("service.istio.io/canonical-name", "x")], "x", "latest");
    let long = format!("{}-tail", "a".repeat(62));
    check(&[("app", &long)], &"a".repeat(62), "latest");
}
