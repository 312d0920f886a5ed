//! gRPC programs that are xDS clients themselves (docs/grpc.md).

use evenkeel_api::{Object, Resource};
use evenkeel_base::{Diagnostic, Diagnostics, Spanned};
use evenkeel_model::Snapshot;

use super::workloads::template;

/// The annotation that names the templates of Istio's injection.
const TEMPLATES: &str = "inject.istio.io/templates";
/// Templates of programs without a proxy.
const GRPC_TEMPLATES: [&str; 2] = ["grpc-agent", "grpc-simple"];
/// The variables by which a program finds its bootstrap (gRFC A27).
const BOOTSTRAP: [&str; 2] = ["GRPC_XDS_BOOTSTRAP", "GRPC_XDS_BOOTSTRAP_CONFIG"];

/// RequestAuthentications of programs that cannot verify tokens: gRPC has no such filter.
pub fn tokens(objects: &[&Object], snapshot: &Snapshot, found: &mut Diagnostics) {
    let root = &snapshot.mesh.root_namespace;
    for program in objects {
        let Some(reason) = reason(program) else { continue };
        let labels = match (&program.resource, template(program)) {
            (_, Some(template)) => template.labels(),
            _ => program.labels.clone(),
        };
        for authentication in snapshot.request_authentications.iter() {
            let is_near = [root, &program.namespace].contains(&&authentication.namespace);
            let selection = &authentication.selection;
            if !is_near || !selection.includes(&authentication.namespace, &program.namespace, &labels) {
                continue;
            }
            let (namespace, name) = (&authentication.namespace, &authentication.name);
            let message = format!(
                "RequestAuthentication {namespace}/{name} is for {program}, a gRPC program without a proxy, which cannot verify tokens: it refuses calls that carry something where the rules look for tokens"
            );
            let finding = Diagnostic::warning("grpc-without-tokens", authentication.origin.clone(), message)
                .with_help(
                    "give the program a sidecar, or let `selector` leave it out and verify tokens in the program",
                )
                .with_related(reason.clone(), "this makes it an xDS client itself");
            let is_it = |object: &&&Object| {
                matches!(object.resource, Resource::RequestAuthentication(_))
                    && (&object.namespace, &object.name) == (namespace, name)
            };
            found.push(match objects.iter().find(is_it) {
                Some(written) => finding.about(written.reference()),
                None => finding,
            });
        }
    }
}

/// Returns where a workload is declared as such a program.
fn reason(object: &Object) -> Option<evenkeel_base::Span> {
    let (spec, annotation) = match (&object.resource, template(object)) {
        (_, Some(template)) => {
            let annotations = template.metadata.as_ref().map(|metadata| &metadata.annotations);
            (&template.spec, annotations.and_then(|annotations| annotations.get(TEMPLATES)))
        }
        // Other Pods are those of a template.
        (Resource::Pod(pod), None) if object.owners.is_empty() => (&pod.spec, object.annotations.get(TEMPLATES)),
        _ => return None,
    };
    let names = |text: &Spanned<String>| text.split(',').any(|name| GRPC_TEMPLATES.contains(&name.trim()));
    if let Some(annotation) = annotation.filter(|annotation| names(annotation)) {
        return Some(annotation.span.clone());
    }
    // Beside a sidecar, which verifies tokens, such a program is a client only.
    let has_sidecar = annotation.is_some_and(|annotation| annotation.split(',').any(|name| name.trim() == "sidecar"));
    let mut variables = spec.containers.iter().flat_map(|container| &container.env);
    let is_client = variables.any(|variable| BOOTSTRAP.contains(&variable.name.as_str()));
    (is_client && !has_sidecar && !is_injected(object)).then(|| object.origin.clone())
}

/// Whether the workload has a sidecar.
fn is_injected(object: &Object) -> bool {
    const INJECT: &str = "sidecar.istio.io/inject";
    let labels = template(object).map_or_else(|| object.labels.clone(), |template| template.labels());
    let annotations = match template(object) {
        Some(template) => template.metadata.as_ref().map(|metadata| &metadata.annotations),
        None => Some(&object.annotations),
    };
    let annotated = annotations.and_then(|all| all.get(INJECT)).map(|value| value.value.as_str());
    labels.get(INJECT).map(String::as_str).or(annotated) != Some("false")
}
