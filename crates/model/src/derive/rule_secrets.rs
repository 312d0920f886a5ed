//! Findings about the Secrets that DestinationRules name (Istio's analyzer of `credentialName`, IST0101).
//!
//! A Secret belongs in the namespace of the proxies that call: of the workloads that the rule selects, or else of the
//! gateways.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_api::istio::{ClientTlsMode, ClientTlsSettings, DestinationRuleSpec};
use evenkeel_api::{Object, ObjectKey, Resource};
use evenkeel_base::{Diagnostic, Spanned};

use super::run::Run;
use super::tracking::Cx;
use crate::{Credential, ROOTS_SUFFIX};

/// The scheme that a name may have.
const SCHEME: &str = "kubernetes://";

pub(super) fn object_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    run.read(|cx, found| {
        let Some(object) = cx.object(key) else { return false };
        let Resource::DestinationRule(rule) = &object.resource else { return false };
        let mut seen = BTreeSet::new();
        for (needs, name) in settings(&rule.spec) {
            // A name that several ports have is reported once.
            if seen.insert((name.as_str(), needs)) {
                found.extend(check(cx, object, &rule.spec, needs, name));
            }
        }
        true
    })
}

/// What a Secret is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Needs {
    /// The client's certificate and key.
    certificate: bool,
    /// The trusted roots.
    roots: bool,
}

/// All Secrets that TLS settings name.
fn settings(spec: &DestinationRuleSpec) -> impl Iterator<Item = (Needs, &Spanned<String>)> {
    let subsets = spec.subsets.iter().filter_map(|subset| subset.traffic_policy.as_ref());
    let policies = spec.traffic_policy.iter().chain(subsets);
    let all = policies.flat_map(|policy| {
        policy.tls.iter().chain(policy.port_level_settings.iter().filter_map(|port| port.tls.as_ref()))
    });
    let all = all.map(|tls| &tls.value);
    let originates = |tls: &&ClientTlsSettings| matches!(tls.mode, Some(ClientTlsMode::Simple | ClientTlsMode::Mutual));
    all.filter(originates).flat_map(|tls| {
        let certificate = tls.mode == Some(ClientTlsMode::Mutual);
        let of_both = Needs { certificate, roots: tls.ca_cert_credential_name.is_none() };
        let both = tls.credential_name.iter().map(move |name| (of_both, name));
        both.chain(tls.ca_cert_credential_name.iter().map(|name| (Needs { certificate: false, roots: true }, name)))
    })
}

fn check(
    cx: &Cx<'_>,
    object: &Object,
    spec: &DestinationRuleSpec,
    needs: Needs,
    name: &Spanned<String>,
) -> Option<Diagnostic> {
    let plain = name.strip_prefix(SCHEME).unwrap_or(name);
    let selects = spec.workload_selector.is_some();
    let namespaces: BTreeSet<&Arc<str>> = if selects {
        BTreeSet::from([&object.namespace])
    } else {
        let selectors = cx.gateways().map(|gateway| &gateway.selector).filter(|selector| !selector.is_empty());
        selectors.flat_map(|selector| cx.namespaces_of_selected(selector)).collect()
    };
    let (wanted, plain) = match plain.split_once('/') {
        Some((namespace, plain)) => (Some(namespace), plain),
        None => (None, plain),
    };
    let of_roots = format!("{plain}{ROOTS_SUFFIX}");
    let known: Vec<&Arc<Credential>> = cx.credentials(&of_roots).chain(cx.credentials(plain)).collect();
    let in_reach = |credential: &&&Arc<Credential>| {
        let is_wanted = wanted.is_none_or(|wanted| *credential.namespace == *wanted);
        // If no proxy is known, any namespace is accepted.
        is_wanted && (namespaces.is_empty() || namespaces.contains(&credential.namespace))
    };
    let Some(credential) = known.iter().find(in_reach) else {
        return Some(missing(object, name, plain, selects, &namespaces, &known));
    };
    let namespace = &credential.namespace;
    let roots = cx.roots_credential(namespace, plain);
    let own = || cx.credentials(plain).find(|credential| credential.namespace == *namespace);
    let unusable = |name: &str, reason: &dyn std::fmt::Display| {
        ("bad-credential", format!("Secret {namespace}/{name} cannot be used: {reason}"))
    };
    let of_roots =
        roots.filter(|_| needs.roots).and_then(|roots| Some(unusable(&roots.name, roots.roots.as_ref().err()?)));
    let of_certificate = || match own().map(|credential| &credential.certificate) {
        Some(Ok(_)) => None,
        Some(Err(reason)) => Some(unusable(plain, reason)),
        None => {
            Some(("missing-secret", format!("there is no Secret {namespace}/{plain} with the client's certificate")))
        }
    };
    let (code, reason) = of_roots.or_else(|| of_certificate().filter(|_| needs.certificate))?;
    let what = if needs.certificate {
        "MUTUAL needs the keys `tls.crt`, `tls.key` and `ca.crt`"
    } else {
        "the server's certificate is verified with its `ca.crt`, or with that of the Secret `NAME-cacert`"
    };
    let found = finding(code, object, name, format!("{reason}; calls that follow this rule fail"), what.to_owned());
    let origin = roots.map_or(&credential.origin, |roots| &roots.origin);
    Some(found.with_related(origin.clone(), "the Secret"))
}

fn missing(
    object: &Object,
    name: &Spanned<String>,
    plain: &str,
    selects: bool,
    namespaces: &BTreeSet<&Arc<str>>,
    known: &[&Arc<Credential>],
) -> Diagnostic {
    let whose = if selects { "the selected workloads" } else { "the gateway proxies" };
    let place = match namespaces.iter().next() {
        Some(namespace) => format!(" in namespace {namespace}, where {whose} run"),
        None => String::new(),
    };
    let message = format!("there is no Secret `{plain}`{place}: calls that follow this rule fail");
    let help = match (known.first(), namespaces.iter().next()) {
        (Some(other), Some(namespace)) => {
            format!("there is one in namespace {}; copy it to {namespace}", other.namespace)
        }
        _ => format!(
            "add a Secret `{plain}` with `ca.crt`, and for MUTUAL `tls.crt` and `tls.key`, to the namespace of {whose}"
        ),
    };
    finding("missing-secret", object, name, message, help)
}

fn finding(code: &'static str, object: &Object, name: &Spanned<String>, message: String, help: String) -> Diagnostic {
    Diagnostic::warning(code, name.span.clone(), message).with_help(help).about(object.reference())
}
