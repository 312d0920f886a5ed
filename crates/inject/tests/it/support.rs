//! A mesh and its Pods.

use std::collections::BTreeMap;

use evenkeel_api::Resource;
use evenkeel_api::istio::ProxyConfig;
use evenkeel_api::kubernetes::PodTemplate;
use evenkeel_inject::container::Resources;
use evenkeel_inject::{Defaults, InitContainer, Injection, Owner, Pod, SidecarForm, Template, inject};

/// The template of a Deployment `web` with these annotations and these fields of the specification.
pub fn pod_template(metadata: &str, spec: &str) -> PodTemplate {
    let text = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, namespace: shop}}\nspec:\n  selector: {{matchLabels: {{app: web}}}}\n  \
         template:\n    metadata: {{labels: {{app: web}}, {metadata}}}\n    spec: {{{spec}}}\n"
    );
    let (objects, found) = evenkeel_api::load(&[("app.yaml".into(), text.into())]);
    assert!(!found.has_errors(), "{found}");
    match objects.first().map(|object| &object.resource) {
        Some(Resource::Deployment(deployment)) => deployment.spec.template.clone(),
        _ => panic!("a Deployment"),
    }
}

pub fn mesh() -> Template {
    Template {
        image: "example.org/evenkeel:0.1.0".to_owned(),
        image_pull_policy: None,
        agents: Defaults {
            trust_domain: "cluster.local".to_owned(),
            discovery_address: "istiod.istio-system.svc:15012".to_owned(),
            log_level: "info".to_owned(),
            concurrency: None,
            drain: None,
            recent_requests: None,
            certificate_ttl: None,
            proxy_resolver: None,
        },
        cluster_domain: "cluster.local".to_owned(),
        cluster: "Kubernetes".to_owned(),
        mesh: "cluster.local".to_owned(),
        revision: "default".to_owned(),
        resources: Resources {
            requests: BTreeMap::from([("cpu".to_owned(), "100m".to_owned()), ("memory".to_owned(), "64Mi".to_owned())]),
            limits: BTreeMap::new(),
        },
        form: SidecarForm::Native,
        init: InitContainer::Rules,
        ipv6: false,
        merges_metrics: true,
    }
}

/// What the Pods of a template get.
pub fn injected(template: &PodTemplate, config: &ProxyConfig, mesh: &Template) -> Option<Injection> {
    inject(&Pod {
        metadata: template.metadata.as_ref().expect("the template has metadata"),
        spec: &template.spec,
        owner: Some(Owner { api_version: "apps/v1".to_owned(), kind: "Deployment".to_owned(), name: "web".to_owned() }),
        namespace_labels: &BTreeMap::new(),
        config,
        template: mesh,
    })
}
