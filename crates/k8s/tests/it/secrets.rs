//! Secrets as far as RBAC allows to read them: all, those of namespaces, or those with names that objects have.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_k8s::source::Watching;
use evenkeel_model::Source as _;
use evenkeel_testkit::kubernetes::ApiServer;

use crate::mesh::{PATIENCE, start};

const READER: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: secrets-reader}
rules:
- apiGroups: ['', discovery.k8s.io, networking.k8s.io, apiextensions.k8s.io]
  resources: [services, endpointslices, pods, namespaces, serviceaccounts, configmaps, nodes, ingresses, ingressclasses, customresourcedefinitions]
  verbs: [get, list, watch]
";

fn secret(namespace: &str, name: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: {namespace}}}\nstringData: {{a: b}}\n"
    )
}

/// An Ingress that names a Secret.
fn ingress(namespace: &str, secret: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {secret}, namespace: {namespace}}}\n\
         spec: {{tls: [{{hosts: [a.example], secretName: {secret}}}], defaultBackend: {{service: {{name: a, port: {{number: 80}}}}}}}}\n"
    )
}

/// A Role about Secrets for the account, in a namespace.
fn role(namespace: &str, names: &str, account: &str) -> String {
    format!(
        "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: secrets, namespace: {namespace}}}\n\
         rules: [{{apiGroups: [''], resources: [secrets], verbs: [get, list, watch]{names}}}]\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: secrets, namespace: {namespace}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: secrets}}\n\
         subjects: [{{kind: ServiceAccount, name: default, namespace: {account}}}]\n"
    )
}

fn cluster_binding(role: &str, account: &str) -> String {
    format!(
        "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: {role}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {role}}}\n\
         subjects: [{{kind: ServiceAccount, name: default, namespace: {account}}}]\n"
    )
}

fn held(watching: &Watching) -> BTreeSet<String> {
    let objects = watching.objects().into_iter().map(|object| object.json.value());
    let name = |json: &serde_json::Value| {
        let metadata = &json["metadata"];
        format!(
            "{}/{}",
            metadata["namespace"].as_str().unwrap_or_default(),
            metadata["name"].as_str().unwrap_or_default()
        )
    };
    objects.filter(|json| json["kind"] == "Secret").map(|json| name(&json)).collect()
}

async fn until(what: &str, watching: &Watching, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, waiting).await;
    assert!(in_time.is_ok(), "never: {what}; {:?}; {:?}", held(watching), watching.progress().borrow());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn secrets_are_read_as_far_as_rbac_allows() {
    let server = ApiServer::start();
    let [account, all, named, closed] = ["account", "all", "named", "closed"].map(|name| server.namespace(name));
    for namespace in [&all, &named, &closed] {
        server.apply(&[secret(namespace, "cert"), secret(namespace, "other"), ingress(namespace, "cert")].concat());
    }
    let by_name = ", resourceNames: [cert, later]";
    server.apply(&[READER, &cluster_binding("secrets-reader", &account)].concat());
    server.apply(&[role(&all, "", &account), role(&named, by_name, &account)].concat());
    let (watching, source) = start(&server.kubeconfig_of(&account, "default")).await;
    let is = |expected: &[String]| held(&watching) == expected.iter().cloned().collect();
    let [of_all, more_of_all, of_named] = [format!("{all}/cert"), format!("{all}/other"), format!("{named}/cert")];
    let allowed = [of_all.clone(), more_of_all.clone(), of_named.clone()];
    until("what is allowed", &watching, || is(&allowed)).await;

    // What cannot be read is a finding, with the name that an object has.
    let findings = || {
        source
            .findings()
            .iter()
            .filter(|finding| finding.code == "forbidden-by-rbac")
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let is_found = |wanted: &str| findings().iter().any(|finding| finding.contains(wanted));
    until("the finding", &watching, || is_found(&format!("Secret {closed} (metadata.name=cert)"))).await;
    assert!(!is_found(&format!("Secret {named} (metadata.name=cert)")), "{:?}", findings());
    assert!(!is_found(&format!("Secret {all}")), "{:?}", findings());

    // While nobody answers, what was forbidden stays so: else the narrower watches would end, and with them the Secrets.
    server.kill();
    until("an outage", &watching, || watching.progress().borrow().outage.is_some()).await;
    for _ in 0..30 {
        assert!(is(&allowed), "{:?}", held(&watching));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.restart();
    let mut progress = watching.progress();
    let is_over = progress.wait_for(|progress| progress.outage.is_none());
    let is_over = tokio::time::timeout(Duration::from_secs(180), is_over).await.is_ok();
    assert!(is_over && is(&allowed), "{:?}", held(&watching));

    // Changes are followed, also of which Secrets are named.
    server.apply(&[secret(&named, "later"), ingress(&named, "later")].concat());
    let later = format!("{named}/later");
    until("the later Secret", &watching, || held(&watching).contains(&later)).await;
    server.kubectl(&["delete", "secret", "later", "-n", &named]);
    server.kubectl(&["delete", "secret", "other", "-n", &all]);
    until("the deleted ones", &watching, || is(&[of_all.clone(), of_named.clone()])).await;
    server.kubectl(&["delete", "ingress", "cert", "-n", &named]);
    until("the one that nobody names", &watching, || is(std::slice::from_ref(&of_all))).await;

    // A wider right takes over, and nothing is lost or left over.
    server.apply(&READER.replace("secrets-reader", "secrets-all").replace("[services,", "[secrets, services,"));
    server.apply(&cluster_binding("secrets-all", &account));
    let everything: Vec<String> = [&named, &closed]
        .iter()
        .flat_map(|namespace| ["cert", "other"].map(|name| format!("{namespace}/{name}")))
        .chain([of_all.clone()])
        .collect();
    until("everything", &watching, || is(&everything)).await;
    until("no finding", &watching, || findings().is_empty()).await;
    server.kubectl(&["delete", "secret", "cert", "-n", &all]);
    until("the last deletion", &watching, || !held(&watching).contains(&of_all)).await;
}
