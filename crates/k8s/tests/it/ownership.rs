//! Which revision answers for an object.

use evenkeel_k8s::ownership::Ownership;
use evenkeel_testkit::kubernetes::ApiServer;
use kube::api::ObjectMeta;

use crate::fixture::admin;

const TAG: &str = "\
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: istio-revision-tag-default, labels: {istio.io/tag: default, istio.io/rev: canary}}
webhooks: []
";

fn object(namespace: &str, label: Option<&str>) -> ObjectMeta {
    let labels = label.map(|label| [("istio.io/rev".to_owned(), label.to_owned())].into());
    ObjectMeta { namespace: Some(namespace.to_owned()), labels, ..ObjectMeta::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_is_of_the_revision_that_its_label_its_namespace_or_the_default_tag_names() {
    let server = ApiServer::start();
    let [plain, labelled] = ["plain", "labelled"].map(|name| server.namespace(name));
    server.kubectl(&["label", "namespace", &labelled, "istio.io/rev=canary"]);
    let client = admin(&server).await;
    let check = async |revision: &str, namespace: &str, label: Option<&str>, expected: bool| {
        // A new one: answers about namespaces hold for some seconds.
        let ownership = Ownership::new(client.clone(), revision);
        for _ in 0..2 {
            let is_own = ownership.is_own(&object(namespace, label)).await.expect("the API server answers");
            assert_eq!(is_own, expected, "{revision}: {namespace} {label:?}");
        }
    };
    check("default", &plain, None, true).await;
    check("canary", &plain, None, false).await;
    check("default", &labelled, None, false).await;
    check("canary", &labelled, None, true).await;
    check("canary", &plain, Some("canary"), true).await;
    check("default", &plain, Some("canary"), false).await;
    check("default", &labelled, Some("default"), true).await;
    check("default", "", None, true).await;
    server.apply(TAG);
    check("canary", &plain, None, true).await;
    check("canary", &plain, Some("default"), true).await;
    check("canary", &plain, Some("other"), false).await;
}
