//! Which Secrets the objects of a mesh name: what has to be read where RBAC does not let all Secrets be read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_api::{Kind, ObjectKey};
use evenkeel_model::ROOTS_SUFFIX;
use serde_json::Value;
use tokio::sync::Notify;

/// Prefixes of Istio's names of credentials.
const PREFIXES: [&str; 2] = ["kubernetes-gateway://", "kubernetes://"];

/// The Secrets by namespace.
pub(crate) type Needed = BTreeMap<String, BTreeSet<String>>;

/// The Secrets that objects name.
#[derive(Debug, Default)]
pub(crate) struct SecretNames {
    by_object: Mutex<BTreeMap<ObjectKey, Needed>>,
    /// Wakes who reads them.
    pub(crate) changed: Notify,
}

impl SecretNames {
    /// Takes over what an object names.
    pub(crate) fn note(&self, key: &ObjectKey, json: &Value) {
        if !is_naming(key.kind) {
            return;
        }
        let mut needed = Needed::new();
        collect(json, &key.namespace, &mut needed);
        if needed.is_empty() {
            return self.forget(key);
        }
        if self.lock().insert(key.clone(), needed.clone()) != Some(needed) {
            self.changed.notify_one();
        }
    }

    /// Forgets an object.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        if is_naming(key.kind) && self.lock().remove(key).is_some() {
            self.changed.notify_one();
        }
    }

    /// All Secrets that are named.
    pub(crate) fn needed(&self) -> Needed {
        let mut all = Needed::new();
        for (namespace, names) in self.lock().values().flatten() {
            all.entry(namespace.clone()).or_default().extend(names.iter().cloned());
        }
        all
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Needed>> {
        self.by_object.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether objects of a kind name Secrets.
fn is_naming(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Gateway
            | Kind::KubernetesGateway
            | Kind::ListenerSet
            | Kind::DestinationRule
            | Kind::Ingress
            | Kind::BackendTlsPolicy
    )
}

/// Adds the Secrets that a part of an object names. `namespace`: that of the object.
fn collect(json: &Value, namespace: &str, needed: &mut Needed) {
    match json {
        Value::Array(list) => list.iter().for_each(|one| collect(one, namespace, needed)),
        Value::Object(fields) => {
            for (field, value) in fields {
                match (field.as_str(), value) {
                    ("credentialName" | "caCertCredentialName" | "secretName", Value::String(name)) => {
                        add_credential(name, namespace, needed);
                    }
                    ("credentialNames", Value::Array(names)) => {
                        let names = names.iter().filter_map(Value::as_str);
                        names.for_each(|name| add_credential(name, namespace, needed));
                    }
                    ("certificateRefs" | "caCertificateRefs", Value::Array(references)) => {
                        references.iter().for_each(|reference| add_reference(reference, namespace, needed));
                    }
                    ("clientCertificateRef", reference) => add_reference(reference, namespace, needed),
                    _ => collect(value, namespace, needed),
                }
            }
        }
        _ => {}
    }
}

/// Adds a name in Istio's form, and that of the Secret with its roots.
fn add_credential(text: &str, namespace: &str, needed: &mut Needed) {
    let plain = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(text);
    let (namespace, name) = plain.split_once('/').unwrap_or((namespace, plain));
    // `builtin://`, `file://`
    if name.is_empty() || name.contains(':') || namespace.contains(':') {
        return;
    }
    let names = needed.entry(namespace.to_owned()).or_default();
    names.insert(name.to_owned());
    if !name.ends_with(ROOTS_SUFFIX) {
        names.insert(format!("{name}{ROOTS_SUFFIX}"));
    }
}

/// Adds a reference of the Gateway API, if it is one to a Secret.
fn add_reference(reference: &Value, namespace: &str, needed: &mut Needed) {
    let text = |field: &str| reference[field].as_str();
    let is_secret = text("kind").is_none_or(|kind| kind == "Secret") && text("group").is_none_or(str::is_empty);
    if let Some(name) = text("name").filter(|_| is_secret) {
        let namespace = text("namespace").unwrap_or(namespace).to_owned();
        needed.entry(namespace).or_default().insert(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_name_secrets_in_the_ways_of_istio_and_of_the_gateway_api() {
        let check = |json: Value, expected: &[&str]| {
            let mut needed = Needed::new();
            collect(&json, "shop", &mut needed);
            let found = needed
                .iter()
                .flat_map(|(namespace, names)| names.iter().map(move |name| format!("{namespace}/{name}")));
            assert_eq!(found.collect::<Vec<_>>(), expected, "{json}");
        };
        let server = |tls: Value| json!({"spec": {"servers": [{"port": {"number": 443}, "tls": tls}]}});
        check(server(json!({"credentialName": "a"})), &["shop/a", "shop/a-cacert"]);
        check(server(json!({"credentialName": "a-cacert"})), &["shop/a-cacert"]);
        check(server(json!({"credentialName": "kubernetes-gateway://infra/a"})), &["infra/a", "infra/a-cacert"]);
        check(server(json!({"credentialName": "builtin://"})), &[]);
        check(
            server(json!({"credentialNames": ["a", "b", 7]})),
            &["shop/a", "shop/a-cacert", "shop/b", "shop/b-cacert"],
        );
        check(json!({"spec": {"trafficPolicy": {"tls": {"credentialName": "c"}}}}), &["shop/c", "shop/c-cacert"]);
        check(json!({"spec": {"tls": [{"hosts": ["x"], "secretName": "i"}]}}), &["shop/i", "shop/i-cacert"]);
        let listener = |references: Value| json!({"spec": {"listeners": [{"tls": {"certificateRefs": references}}]}});
        check(
            listener(json!([{"name": "a"}, {"kind": "Secret", "group": "", "name": "b", "namespace": "infra"}])),
            &["infra/b", "shop/a"],
        );
        check(listener(json!([{"kind": "ConfigMap", "name": "a"}, {"name": 7}, 7])), &[]);
        check(json!({"spec": {"tls": {"backend": {"clientCertificateRef": {"name": "c"}}}}}), &["shop/c"]);
        check(json!({}), &[]);
    }
}
