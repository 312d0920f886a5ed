//! gRPC programs that are xDS clients themselves (docs/grpc.md).

use evenkeel_api::istio::{
    ClientTlsMode, ClientTlsSettings, ConnectionPool, DestinationRuleSpec, HttpRoute, TrafficPolicy, VirtualServiceSpec,
};
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

/// Rules with parts that gRPC has no settings for (docs/grpc.md), in a mesh with such programs.
pub fn rules(objects: &[&Object], _: &Snapshot, found: &mut Diagnostics) {
    let Some((program, place)) = objects.iter().find_map(|object| Some((object, reason(object)?))) else { return };
    for object in objects {
        let parts = match &object.resource {
            Resource::DestinationRule(rule) => of_rule(&rule.spec),
            Resource::VirtualService(service) if is_for_mesh(&service.spec) => of_routes(&service.spec),
            _ => continue,
        };
        if parts.is_empty() {
            continue;
        }
        let names = parts.iter().map(|part| format!("`{part}`")).collect::<Vec<_>>().join(", ");
        let message = format!("{object}: gRPC programs without a proxy, such as {program}, pass over {names}");
        // Where TLS is asked for, they send plain text.
        let finding = if parts.contains(&"tls") {
            Diagnostic::warning(PASSED_OVER, object.origin.clone(), message)
        } else {
            Diagnostic::info(PASSED_OVER, object.origin.clone(), message)
        };
        let finding = finding.with_help("give programs that call this a sidecar, if they need it");
        found.push(finding.with_related(place.clone(), "this makes it an xDS client itself").about(object.reference()));
    }
}

/// The code of the finding about parts of rules that gRPC programs pass over.
const PASSED_OVER: &str = "grpc-passes-over";

fn is_for_mesh(spec: &VirtualServiceSpec) -> bool {
    spec.gateways.is_empty() || spec.gateways.iter().any(|gateway| gateway.as_str() == "mesh")
}

/// The fields of a DestinationRule that gRPC has no settings for.
fn of_rule(spec: &DestinationRuleSpec) -> Vec<&'static str> {
    let of_subsets = spec.subsets.iter().filter_map(|subset| subset.traffic_policy.as_ref());
    let policies: Vec<_> = spec.traffic_policy.iter().chain(of_subsets).collect();
    let ports = || policies.iter().flat_map(|policy| &policy.port_level_settings);
    let any = |of_policy: &dyn Fn(&TrafficPolicy) -> bool| policies.iter().any(|policy| of_policy(policy));
    let is_tls =
        |tls: &Spanned<ClientTlsSettings>| matches!(tls.mode, Some(ClientTlsMode::Simple | ClientTlsMode::Mutual));
    let limits = |pool: &ConnectionPool| {
        let of_requests = pool.http.as_ref().is_some_and(|http| {
            http.http1_max_pending_requests.is_some()
                || http.max_requests_per_connection.is_some()
                || http.max_retries.is_some()
                || http.idle_timeout.is_some()
        });
        pool.tcp.is_some() || of_requests
    };
    let pools = || policies.iter().filter_map(|policy| policy.connection_pool.as_ref());
    let found = [
        (
            "tls",
            any(&|policy| policy.tls.as_ref().is_some_and(is_tls))
                || ports().any(|port| port.tls.as_ref().is_some_and(is_tls)),
        ),
        (
            "outlierDetection",
            any(&|policy| policy.outlier_detection.is_some()) || ports().any(|port| port.outlier_detection.is_some()),
        ),
        ("connectionPool", pools().chain(ports().filter_map(|port| port.connection_pool.as_ref())).any(limits)),
        ("retryBudget", any(&|policy| policy.retry_budget.is_some())),
        ("proxyProtocol", any(&|policy| policy.proxy_protocol.is_some())),
        ("tunnel", any(&|policy| policy.tunnel.is_some())),
    ];
    found.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
}

/// The fields of a VirtualService's routes that gRPC has no settings for.
fn of_routes(spec: &VirtualServiceSpec) -> Vec<&'static str> {
    let any = |of_route: &dyn Fn(&HttpRoute) -> bool| spec.http.iter().any(|route| of_route(route));
    let changes_headers =
        |route: &HttpRoute| route.headers.is_some() || route.route.iter().any(|to| to.headers.is_some());
    let found = [
        ("rewrite", any(&|route| route.rewrite.is_some())),
        ("headers", any(&changes_headers)),
        ("mirror", any(&|route| route.mirror.is_some() || !route.mirrors.is_empty())),
        ("corsPolicy", any(&|route| route.cors_policy.is_some())),
        ("redirect", any(&|route| route.redirect.is_some())),
        ("directResponse", any(&|route| route.direct_response.is_some())),
        (
            "retries.perTryTimeout",
            any(&|route| route.retries.as_ref().is_some_and(|retries| retries.per_try_timeout.is_some())),
        ),
        ("match.queryParams", any(&|route| route.matches.iter().any(|found| !found.query_params.is_empty()))),
    ];
    found.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
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
