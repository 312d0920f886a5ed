//! What a revision reads: the objects for it and for everybody, the settings of its own, and the namespaces that these select.

use evenkeel_k8s::source::Scope;
use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};

use crate::mesh::{Mesh, hosts, ready, service, start_in};

/// A VirtualService for a revision; its host has its name.
fn route(namespace: &str, name: &str, revision: Option<&str>) -> String {
    let labels = revision.map(|revision| format!(", labels: {{istio.io/rev: {revision}}}")).unwrap_or_default();
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: {namespace}{labels}}}\n\
         spec: {{hosts: [{name}.com], http: [{{route: [{{destination: {{host: a}}}}]}}]}}\n---\n"
    )
}

/// What makes a tag of a revision, as `istioctl tag set` does.
fn tag(name: &str, revision: &str) -> String {
    format!(
        "apiVersion: admissionregistration.k8s.io/v1\nkind: MutatingWebhookConfiguration\n\
         metadata: {{name: istio-revision-tag-{name}, labels: {{istio.io/tag: {name}, istio.io/rev: {revision}}}}}\nwebhooks: []\n---\n"
    )
}

fn settings(name: &str, mesh: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: istio-system}}\ndata: {{mesh: '{mesh}'}}\n---\n"
    )
}

async fn start(server: &ApiServer, revision: &str) -> Mesh {
    let shared_settings = Some("istio-user".to_owned());
    let scope = Scope { revision: revision.to_owned(), shared_settings, ..Scope::all("istio-system") };
    let (watching, source) = start_in(&server.kubeconfig(), &scope).await;
    Mesh::of(watching, source)
}

/// The hosts of all VirtualServices.
fn routes(mesh: &Mesh) -> Vec<String> {
    let hosts = mesh.snapshot.route_sets.iter().flat_map(|set| set.hosts.iter().map(|host| host.value.to_string()));
    let mut hosts: Vec<String> = hosts.collect();
    hosts.sort();
    hosts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_revision_reads_what_is_for_it() {
    let server = ApiServer::start();
    server.install(CustomResources::Istio);
    server.kubectl(&["create", "namespace", "istio-system"]);
    let shop = server.namespace("shop");
    let objects = [
        service(&shop, "a", 80),
        route(&shop, "all", None),
        route(&shop, "default", Some("default")),
        route(&shop, "canary", Some("canary")),
        route(&shop, "stable", Some("stable")),
        settings("istio", "{accessLogFile: /a, rootNamespace: istio-system}"),
        settings("istio-canary", "{accessLogFile: /canary}"),
        settings("istio-user", "{accessLogFile: /user, accessLogFormat: x}"),
    ];
    server.apply(&objects.concat());
    let mut default = start(&server, "default").await;
    let mut canary = start(&server, "canary").await;
    assert_eq!(routes(&default), ["all.com", "default.com"]);
    assert_eq!(routes(&canary), ["all.com", "canary.com"]);
    assert_eq!(routes(&start(&server, "").await).len(), 4, "without a revision everything is read");
    // The revision's settings take precedence over those of all revisions.
    let log =
        |mesh: &Mesh| [&mesh.snapshot.mesh.access_log_file, &mesh.snapshot.mesh.access_log_format].map(Clone::clone);
    assert_eq!(log(&default), [Some("/a".into()), Some("x".into())]);
    assert_eq!(log(&canary), [Some("/canary".into()), Some("x".into())]);

    // A tag comes, moves and goes.
    server.apply(&tag("stable", "default"));
    default.until("the objects of the tag", |snapshot| snapshot.route_sets.len() == 3).await;
    server.apply(&tag("stable", "canary"));
    canary.until("the objects of the tag", |snapshot| snapshot.route_sets.len() == 3).await;
    default.until("no objects of the tag", |snapshot| snapshot.route_sets.len() == 2).await;
    server.kubectl(&["delete", "mutatingwebhookconfiguration", "istio-revision-tag-stable"]);
    canary.until("no objects of the tag", |snapshot| snapshot.route_sets.len() == 2).await;
    // A Service of the root namespace is a tag as well; `default` is only a name.
    server.apply(
        "apiVersion: v1\nkind: Service\nmetadata: {name: istiod-revision-tag-default, namespace: istio-system, \
         labels: {istio.io/tag: default, istio.io/rev: canary}}\nspec: {ports: [{port: 15012}]}\n",
    );
    canary.until("the objects of the tag", |snapshot| snapshot.route_sets.len() == 3).await;
    assert_eq!(routes(&canary), ["all.com", "canary.com", "default.com"]);

    // An object moves from one revision to the other, and to everybody.
    server.kubectl(&["label", "virtualservice", "default", "-n", &shop, "--overwrite", "istio.io/rev=stable"]);
    canary.until("one less", |snapshot| snapshot.route_sets.len() == 2).await;
    default.until("one less", |snapshot| snapshot.route_sets.len() == 1).await;
    server.kubectl(&["label", "virtualservice", "default", "-n", &shop, "istio.io/rev-"]);
    canary.until("for everybody", |snapshot| snapshot.route_sets.len() == 3).await;
    default.until("for everybody", |snapshot| snapshot.route_sets.len() == 2).await;
    server.kubectl(&["delete", "virtualservice", "canary", "-n", &shop]);
    canary.until("deleted", |snapshot| snapshot.route_sets.len() == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn objects_of_the_gateway_api_are_for_revisions_too() {
    let server = ApiServer::start();
    server.install(CustomResources::Istio);
    server.install(CustomResources::GatewayApi);
    server.kubectl(&["create", "namespace", "istio-system"]);
    let shop = server.namespace("shop");
    let of_revision = |name: &str, labels: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}, namespace: {shop}{labels}}}\n\
             spec: {{parentRefs: [{{group: '', kind: Service, name: {name}}}], rules: [{{backendRefs: [{{name: a, port: 80}}]}}]}}\n---\n"
        )
    };
    let canary = ", labels: {istio.io/rev: canary}";
    let objects =
        [service(&shop, "a", 80), service(&shop, "b", 80), of_revision("a", canary), of_revision("b", "")].concat();
    server.apply(&objects);
    let mut default = start(&server, "default").await;
    let hosts =
        |names: &[&str]| names.iter().map(|name| format!("{name}.{shop}.svc.cluster.local")).collect::<Vec<_>>();
    assert_eq!(routes(&start(&server, "canary").await), hosts(&["a", "b"]));
    assert_eq!(routes(&default), hosts(&["b"]));
    server.kubectl(&["label", "httproute", "a", "-n", &shop, "istio.io/rev-"]);
    default.until("for everybody", |snapshot| snapshot.route_sets.len() == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn namespaces_are_selected_by_labels_that_change() {
    let server = ApiServer::start();
    server.install(CustomResources::Istio);
    server.kubectl(&["create", "namespace", "istio-system"]);
    let [mine, other] = ["mine", "other"].map(|name| server.namespace(name));
    server.kubectl(&["label", "namespace", &mine, "mesh=yes"]);
    let selectors = settings("istio", "{discoverySelectors: [{matchLabels: {mesh: \"yes\"}}]}");
    server.apply(&[selectors, service(&mine, "a", 80), service(&other, "b", 80), route(&other, "b", None)].concat());
    let mut mesh = Mesh::start(&server.kubeconfig()).await;
    let [a, b] = [format!("a.{mine}.svc.cluster.local"), format!("b.{other}.svc.cluster.local")];
    assert!(ready(&mesh.snapshot, &a).is_some() && ready(&mesh.snapshot, &b).is_none(), "{:?}", hosts(&mesh.snapshot));
    assert!(routes(&mesh).is_empty());
    server.kubectl(&["label", "namespace", &other, "mesh=yes"]);
    mesh.until("both", |snapshot| ready(snapshot, &b).is_some() && snapshot.route_sets.len() == 1).await;
    server.kubectl(&["label", "namespace", &mine, "mesh-"]);
    mesh.until("the other", |snapshot| ready(snapshot, &a).is_none()).await;
    server.apply(&settings("istio", "{}"));
    mesh.until("all", |snapshot| ready(snapshot, &a).is_some()).await;
}
