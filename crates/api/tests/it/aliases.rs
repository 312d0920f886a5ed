//! Older names of fields mean the same as the newer ones, and are not called unknown or ignored.

use evenkeel_api::Resource;

/// The content of a document's only object, without findings.
#[track_caller]
fn read(text: &str) -> Resource {
    let (mut objects, found) = evenkeel_api::load(&[("a.yaml".into(), text.into())]);
    assert!(found.iter().all(|finding| finding.code != "unsupported-field" && finding.code != "no-effect"), "{found}");
    objects.pop().unwrap_or_else(|| panic!("{found}")).resource
}

/// The service account of a Pod, or of the Pods of a template.
fn account(resource: &Resource) -> &str {
    match resource {
        Resource::Pod(pod) => pod.spec.service_account(),
        Resource::Deployment(workload) => workload.spec.template.spec.service_account(),
        Resource::StatefulSet(workload) => workload.spec.template.spec.service_account(),
        Resource::DaemonSet(workload) => workload.spec.template.spec.service_account(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pods_service_account_has_two_names() {
    let check = |fields: &str, expected: &str| {
        let pod = format!("{{{fields}containers: [{{name: c}}]}}");
        let head = |version: &str, kind: &str| format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n");
        assert_eq!(account(&read(&format!("{}spec: {pod}\n", head("v1", "Pod")))), expected, "{fields}");
        for kind in ["Deployment", "StatefulSet", "DaemonSet"] {
            let template = format!("{{metadata: {{labels: {{app: a}}}}, spec: {pod}}}");
            let spec = format!("spec: {{selector: {{matchLabels: {{app: a}}}}, template: {template}}}\n");
            assert_eq!(account(&read(&format!("{}{spec}", head("apps/v1", kind)))), expected, "{kind} {fields}");
        }
    };
    check("", "default");
    check("serviceAccount: kiosk, ", "kiosk");
    check("serviceAccountName: branch, ", "branch");
    // As Kubernetes, which lets the newer name win.
    check("serviceAccount: kiosk, serviceAccountName: branch, ", "branch");
    check("serviceAccount: kiosk, serviceAccountName: '', ", "kiosk");
    check("serviceAccount: '', ", "default");
}

#[test]
fn a_key_sets_address_has_two_names() {
    let rule = |fields: &str| {
        let head = "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: a}\n";
        format!("{head}spec: {{jwtRules: [{{issuer: i, {fields}}}]}}\n")
    };
    let check = |fields: &str, expected: Option<&str>| {
        let Resource::RequestAuthentication(read) = read(&rule(fields)) else { panic!("{fields}") };
        let rules = &read.spec.as_ref().expect("a specification").jwt_rules;
        assert_eq!(rules[0].key_set_uri().map(|uri| uri.value.as_str()), expected, "{fields}");
    };
    check("audiences: [a]", None);
    check("jwksUri: 'https://a.test/keys'", Some("https://a.test/keys"));
    check("jwks_uri: 'https://a.test/keys'", Some("https://a.test/keys"));
    let refused = |fields: &str, code: &str| {
        let (_, found) = evenkeel_api::load(&[("a.yaml".into(), rule(fields).as_str().into())]);
        assert!(found.has_errors() && found.iter().any(|finding| finding.code == code), "{fields}: {found}");
    };
    refused("jwks_uri: nowhere", "bad-value");
    refused("jwks_uri: 'https://a.test/b', jwksUri: 'https://a.test/keys'", "conflict");
    refused("jwks_uri: 'https://a.test/b', jwks: '{}'", "conflict");
}
