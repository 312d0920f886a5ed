//! Findings about the Secrets that servers of Gateways and Ingresses name (Istio's analyzer of `credentialName`, IST0101).
//!
//! A Secret belongs in the namespace of the gateway proxies, which is not always that of the Gateway.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_api::{Kind, Object, ObjectKey, Resource};
use evenkeel_base::{Diagnostic, Spanned};

use super::run::Run;
use super::tracking::Cx;
use super::{gateway_api, ingresses};
use crate::gateway::{BackendCertificate, SecretUse};
use crate::{Credential, Gateway, ROOTS_SUFFIX};

pub(super) fn object_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    run.read(|cx, found| {
        let Some(object) = cx.object(key) else { return false };
        for (at, gateway) in gateways_of(cx, key, object).into_iter().enumerate() {
            let namespaces = match &gateway.proxy_namespace {
                Some(namespace) => BTreeSet::from([namespace]),
                None if gateway.selector.is_empty() => BTreeSet::new(),
                None => cx.namespaces_of_selected(&gateway.selector),
            };
            // All listeners of a Gateway have the same, and those of its ListenerSets.
            let certificate = gateway.backend_certificate.as_ref().filter(|_| at == 0 && key.kind != Kind::ListenerSet);
            if let Some(BackendCertificate::Secret(name)) = certificate {
                found.extend(check(cx, object, gateway, &namespaces, SecretUse::Certificate(name)));
            }
            for tls in gateway.servers.iter().filter_map(|server| server.tls.as_ref()) {
                for used in tls.secrets() {
                    found.extend(check(cx, object, gateway, &namespaces, used));
                }
            }
        }
        true
    })
}

/// The model's gateways of an object.
fn gateways_of<'t>(cx: &Cx<'t>, key: &ObjectKey, object: &Object) -> Vec<&'t Arc<Gateway>> {
    match &object.resource {
        Resource::Ingress(_) => {
            cx.gateway(&cx.mesh().root_namespace, &ingresses::gateway_name(object)).into_iter().collect()
        }
        Resource::KubernetesGateway(written) => {
            let names = gateway_api::names_of_gateways(&key.name, written);
            names.iter().filter_map(|name| cx.gateway(&key.namespace, name)).collect()
        }
        Resource::ListenerSet(written) => {
            let names = gateway_api::names_of_set(&key.name, written);
            names.iter().filter_map(|name| cx.gateway(&key.namespace, name)).collect()
        }
        _ => cx.gateway(&key.namespace, &key.name).into_iter().collect(),
    }
}

/// Returns why a Secret cannot be used by the proxies of these namespaces; no namespaces means that no proxy is known.
fn check(
    cx: &Cx<'_>,
    object: &Object,
    gateway: &Gateway,
    namespaces: &BTreeSet<&Arc<str>>,
    used: SecretUse<'_>,
) -> Option<Diagnostic> {
    let (SecretUse::Certificate(name) | SecretUse::Roots(name)) = used;
    let (wanted, plain) = match name.split_once('/') {
        Some((namespace, plain)) => (Some(namespace), plain),
        None => (None, &*name.value),
    };
    let is_granted = gateway.granted_secrets.contains(&**name);
    if let Some((namespace, other)) =
        wanted.filter(|_| !is_granted).zip(namespaces.iter().find(|known| Some(&****known) != wanted))
    {
        let message = format!("Secret {namespace}/{plain} is never sent to gateway proxies in namespace {other}");
        let help = format!("put it into namespace {other}, and write its name alone");
        return Some(finding("missing-secret", object, name, message, help));
    }
    let known: Vec<&Arc<Credential>> = match used {
        SecretUse::Certificate(_) => cx.credentials(plain).collect(),
        SecretUse::Roots(_) => cx.credentials(&format!("{plain}{ROOTS_SUFFIX}")).chain(cx.credentials(plain)).collect(),
    };
    // If no proxy is known, any namespace is accepted.
    let in_reach = |credential: &&&Arc<Credential>| {
        let here = wanted.is_none_or(|wanted| *credential.namespace == *wanted);
        here && (is_granted || namespaces.is_empty() || namespaces.contains(&credential.namespace))
    };
    let Some(credential) = known.iter().find(in_reach) else {
        return Some(missing(object, name, plain, namespaces, &known));
    };
    let credential = match used {
        SecretUse::Certificate(_) => Some(*credential),
        SecretUse::Roots(_) => cx.roots_credential(&credential.namespace, plain),
    }?;
    let reason = match used {
        SecretUse::Certificate(_) => credential.certificate.as_ref().err(),
        SecretUse::Roots(_) => credential.roots.as_ref().err(),
    }?;
    let message = format!("Secret {}/{} cannot be used: {reason}", credential.namespace, credential.name);
    let what = match used {
        SecretUse::Certificate(_) => "it needs a PEM certificate chain `tls.crt` and its key `tls.key`",
        SecretUse::Roots(_) => {
            "client certificates are verified with its `ca.crt`, or with that of the Secret `NAME-cacert`"
        }
    };
    let found = finding("bad-credential", object, name, message, what.to_owned());
    Some(found.with_related(credential.origin.clone(), "the Secret"))
}

fn missing(
    object: &Object,
    name: &Spanned<Arc<str>>,
    plain: &str,
    namespaces: &BTreeSet<&Arc<str>>,
    known: &[&Arc<Credential>],
) -> Diagnostic {
    let place = match namespaces.iter().next() {
        Some(namespace) => format!(" in namespace {namespace}, where the gateway proxies run"),
        None => String::new(),
    };
    let message = format!("there is no Secret `{plain}`{place}: handshakes that need it fail");
    let help = match (known.first(), namespaces.iter().next()) {
        (Some(other), Some(namespace)) => {
            format!("there is one in namespace {}; copy it to {namespace}", other.namespace)
        }
        (_, Some(namespace)) => {
            format!("kubectl create secret tls {plain} -n {namespace} --cert=FILE --key=FILE --dry-run=client -o yaml")
        }
        _ => format!("add a Secret `{plain}` with `tls.crt` and `tls.key` to the namespace of the gateway proxies"),
    };
    finding("missing-secret", object, name, message, help)
}

fn finding(code: &'static str, object: &Object, name: &Spanned<Arc<str>>, message: String, help: String) -> Diagnostic {
    Diagnostic::warning(code, name.span.clone(), message).with_help(help).about(object.reference())
}
