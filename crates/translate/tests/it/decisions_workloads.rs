//! WorkloadEntries with health checks, workloads with a WorkloadGroup's entry, and the uses of assigned addresses.

use evenkeel_translate::{ClientKind, ProxyView};

use crate::decisions::{PLAIN_HTTP, PLAIN_TCP};
use crate::decisions_services::{Mesh, outbound};
use crate::recorded::compared;
use crate::scenario::translate;

fn object(kind: &str, name: &str, metadata: &str, rest: &str) -> String {
    format!(
        "---\napiVersion: networking.istio.io/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: shop{metadata}}}\n{rest}\n"
    )
}

fn client(annotations: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: client-0, namespace: shop{annotations}}}\n\
         spec: {{containers: [{{name: main}}]}}\nstatus: {{podIP: 10.244.0.1, phase: Running}}\n"
    )
}

/// Which of two workloads take requests: the one whose entry has these annotations and this status, and another one.
#[track_caller]
fn check_health(annotations: &str, status: &str, expected: bool) {
    let spec = |address: &str| format!("spec: {{address: {address}, labels: {{app: vm}}}}");
    let text = client("")
        + &object(
            "ServiceEntry",
            "vm",
            "",
            "spec: {hosts: [vm.example.com], addresses: [10.97.0.1], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], \
             workloadSelector: {labels: {app: vm}}}",
        )
        + &object("WorkloadEntry", "a", annotations, &format!("{}\n{status}", spec("10.5.0.1")))
        + &object("WorkloadEntry", "b", "", &spec("10.5.0.2"));
    let mesh = Mesh::read(&text);
    let config = mesh.sidecar("client-0.shop");
    let decided = outbound(&config, &PLAIN_HTTP, "10.97.0.1:80", "GET vm.example.com /");
    assert_eq!(decided, "outbound|80||vm.example.com vm.example.com/");
    assert_eq!(mesh.ready("vm.example.com", 80).contains(&"10.5.0.1".to_owned()), expected, "{annotations} {status}");
    assert!(mesh.ready("vm.example.com", 80).contains(&"10.5.0.2".to_owned()));
}

#[test]
fn the_health_of_an_entry_counts_if_its_annotation_says_so() {
    let checked = ", annotations: {proxy.istio.io/health-checks-enabled: 'true'}";
    let is = |status: &str| {
        format!("status: {{conditions: [{{type: Ready, status: 'True'}}, {{type: Healthy, status: '{status}'}}]}}")
    };
    check_health("", "", true);
    check_health("", &is("False"), true);
    // Nothing is known of a workload that has just registered.
    check_health(checked, "", false);
    check_health(checked, &is("True"), true);
    check_health(checked, &is("False"), false);
    check_health(checked, &is("Unknown"), false);
    check_health(", annotations: {proxy.istio.io/health-checks-enabled: 'false'}", &is("False"), true);
}

#[test]
fn allotted_addresses_take_part_only_where_dns_is_captured() {
    let entry = object(
        "ServiceEntry",
        "db",
        "",
        "spec: {hosts: [db.example.com], ports: [{number: 5432, name: tcp, protocol: TCP}], resolution: STATIC, endpoints: [{address: 192.0.2.1}]}",
    );
    let config_map = |text: &str| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata: {{mesh: '{text}'}}\n"
        )
    };
    let check = |annotation: &str, more: &str, captures_dns: bool, expected: bool| {
        let annotations = match annotation {
            "" => String::new(),
            text => format!(", annotations: {{proxy.istio.io/config: '{{proxyMetadata: {{{text}}}}}'}}"),
        };
        let mesh = Mesh::read(&(client(&annotations) + &entry + more));
        let view = ProxyView { captures_dns, ..mesh.view("sidecar client-0.shop") };
        let config = mesh.proxy(&view);
        let own = config.listeners.keys().any(|name| name.starts_with("240.") && name.ends_with("_5432"));
        assert_eq!(own, expected, "{annotation} {more} {captures_dns}");
        if !own {
            // Without an address of its own it has the port at all addresses.
            let decided = outbound(&config, &PLAIN_TCP, "192.0.2.1:5432", "");
            assert_eq!(decided, "outbound|5432||db.example.com");
        }
    };
    check("", "", true, true);
    check("", "", false, false);
    check("ISTIO_META_DNS_CAPTURE: \"false\"", "", true, false);
    check("ISTIO_META_DNS_AUTO_ALLOCATE: \"false\"", "", true, false);
    check("ISTIO_META_DNS_AUTO_ALLOCATE: \"true\"", "", true, true);
    // What an agent does not do, no setting makes it do.
    check("ISTIO_META_DNS_CAPTURE: \"true\"", "", false, false);
    let off = config_map("defaultConfig: {proxyMetadata: {ISTIO_META_DNS_CAPTURE: \"false\"}}");
    check("", &off, true, false);
    check("ISTIO_META_DNS_CAPTURE: \"true\"", &off, true, true);
}

#[test]
fn an_envoy_balances_exactly_where_its_metadata_says_so() {
    let entry = object(
        "ServiceEntry",
        "web",
        "",
        "spec: {hosts: [web.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 192.0.2.1}]}",
    );
    let check = |metadata: &str, client_kind: ClientKind, expected: &[&str]| {
        let annotations = format!(", annotations: {{proxy.istio.io/config: '{{proxyMetadata: {{{metadata}}}}}'}}");
        let mesh = Mesh::read(&(client(&annotations) + &entry));
        let view = ProxyView { client_kind, ..mesh.view("sidecar client-0.shop") };
        let resources = compared(&translate(&view, &mesh.snapshot));
        let listeners = resources["LDS"].as_array().expect("listeners").iter();
        let exact = listeners.filter(|listener| listener["connection_balance_config"]["exact_balance"].is_object());
        let mut names: Vec<&str> = exact.filter_map(|listener| listener["name"].as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, expected, "{metadata} {client_kind:?}");
    };
    let inbound = "ISTIO_META_INBOUND_LISTENER_EXACT_BALANCE: \"true\"";
    let outbound = "ISTIO_META_OUTBOUND_LISTENER_EXACT_BALANCE: \"true\"";
    check(inbound, ClientKind::Envoy, &["virtualInbound"]);
    // As in Istio, not the listener that hands connections over.
    check(outbound, ClientKind::Envoy, &["0.0.0.0_80"]);
    check(&format!("{inbound}, {outbound}"), ClientKind::Envoy, &["0.0.0.0_80", "virtualInbound"]);
    check("ISTIO_META_INBOUND_LISTENER_EXACT_BALANCE: \"false\"", ClientKind::Envoy, &[]);
    check(&format!("{inbound}, {outbound}"), ClientKind::EvenkeelFull, &[]);
}
