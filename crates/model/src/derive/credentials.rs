//! Credentials of Secrets, with Istio's names of keys (`pilot/pkg/credentials/kube`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use evenkeel_api::kubernetes::Secret;
use evenkeel_api::{ObjectKey, Resource};
use evenkeel_tls::{Identity, TrustBundle};

use super::reuse_if_equal;
use super::run::Run;
use super::step::Results;
use super::tracking::{Cx, Fact, Tracker};
use crate::credential::{Credential, KeyPair, Roots};
use crate::{ROOTS_SUFFIX, Snapshot};

/// Names under which a Secret may have its parts: of generic Secrets and of `kubernetes.io/tls`.
struct Names {
    certificate: &'static str,
    key: &'static str,
    roots: &'static str,
    revocation_lists: &'static str,
}

/// In the order in which Istio searches them.
static NAMES: [Names; 2] = [
    Names { certificate: "cert", key: "key", roots: "cacert", revocation_lists: "crl" },
    Names { certificate: "tls.crt", key: "tls.key", roots: "ca.crt", revocation_lists: "ca.crl" },
];

/// Maximum number of key names in a message.
const MAX_LISTED: usize = 5;

/// Credentials by name and namespace.
#[derive(Debug, Default)]
pub(super) struct Table {
    credentials: BTreeMap<(Arc<str>, Arc<str>), Arc<Credential>>,
    changed: BTreeSet<(Arc<str>, Arc<str>)>,
}

pub(super) fn object_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let credential = run.read(|cx, _| credential(cx, key));
    let keep = credential.is_some();
    run.tables.credentials.set(key, credential, run.tracker);
    keep
}

impl Results for Table {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        let mut changed = false;
        for (name, namespace) in std::mem::take(&mut self.changed) {
            let credential = self.credentials.get(&(name.clone(), namespace.clone())).cloned();
            changed |= next.credentials.set(&(namespace, name), credential);
        }
        changed
    }
}

/// Returns the credential of a Secret. Whether it is usable for a purpose matters only to objects that name it.
fn credential(cx: &Cx<'_>, id: &ObjectKey) -> Option<Credential> {
    let object = cx.object(id)?;
    let Resource::Secret(secret) = &object.resource else { return None };
    Some(Credential {
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        certificate: certificate(secret).map_err(Into::into),
        roots: roots(secret).map_err(Into::into),
        origin: object.origin.clone(),
    })
}

fn certificate(secret: &Secret) -> Result<KeyPair, String> {
    let pair = |names: &'static Names| Some((names, value(secret, names.certificate)?, value(secret, names.key)?));
    let Some((names, chain, key)) = NAMES.iter().find_map(pair) else {
        let empty = NAMES.iter().find(|names| has(secret, names.certificate) && has(secret, names.key));
        return Err(match empty {
            Some(names) => format!("`{}` or `{}` is empty", names.certificate, names.key),
            None => format!("it has neither `tls.crt` and `tls.key` nor `cert` and `key`, but {}", listed(secret)),
        });
    };
    match Identity::parse(chain, key) {
        Ok(_) => Ok(KeyPair { chain: chain.into(), key: key.into() }),
        Err(error) => {
            let text = error.to_string();
            Err(text.replace("certificate_chain", names.certificate).replace("private_key", names.key))
        }
    }
}

fn roots(secret: &Secret) -> Result<Roots, String> {
    let found = NAMES.iter().find_map(|names| Some((names, value(secret, names.roots)?)));
    let Some((names, certificates)) = found else {
        return Err(format!("it has neither `ca.crt` nor `cacert`, but {}", listed(secret)));
    };
    let bundle = TrustBundle::from_pem(certificates).map_err(|error| format!("{} {error}", names.roots))?;
    let lists = value(secret, names.revocation_lists);
    if let Some(lists) = lists {
        let error = |error| format!("{}: {error}", names.revocation_lists);
        bundle.with_revocation_lists(lists).map_err(error)?;
    }
    Ok(Roots { certificates: certificates.into(), revocation_lists: lists.map(Into::into) })
}

/// The value of a key, unless it is empty. `stringData` takes precedence over `data`.
fn value<'s>(secret: &'s Secret, name: &str) -> Option<&'s [u8]> {
    let text = secret.string_data.get(name).map(|text| text.0.as_bytes());
    text.or_else(|| secret.data.get(name).map(|bytes| bytes.0.as_slice())).filter(|value| !value.is_empty())
}

fn has(secret: &Secret, name: &str) -> bool {
    secret.string_data.contains_key(name) || secret.data.contains_key(name)
}

/// The names of a Secret's keys, for a message; never a value.
fn listed(secret: &Secret) -> String {
    let names: BTreeSet<&String> = secret.data.keys().chain(secret.string_data.keys()).collect();
    let some: Vec<String> = names.iter().take(MAX_LISTED).map(|name| format!("`{name}`")).collect();
    match names.len() {
        0 => "nothing at all".to_owned(),
        1..=MAX_LISTED => some.join(", "),
        all => format!("{} and {} more", some.join(", "), all - MAX_LISTED),
    }
}

impl Table {
    fn set(&mut self, id: &ObjectKey, new: Option<Credential>, tracker: &mut Tracker) {
        let key = (id.name.clone(), id.namespace.clone());
        let old = self.credentials.remove(&key);
        let new = new.map(|new| reuse_if_equal(old.as_ref(), new));
        if old.as_ref().map(Arc::as_ptr) != new.as_ref().map(Arc::as_ptr) {
            tracker.changed(Fact::Credential(&id.name));
            self.changed.insert(key.clone());
        }
        self.credentials.extend(new.map(|new| (key, new)));
    }
}

impl<'t> Cx<'t> {
    /// The credentials of this name in all namespaces, by namespace.
    pub(super) fn credentials(&self, name: &str) -> impl Iterator<Item = &'t Arc<Credential>> + use<'t> {
        let credentials = &self.read(Fact::Credential(name)).credentials.credentials;
        let name: Arc<str> = name.into();
        let from = (name.clone(), Arc::from(""));
        let range = credentials.range((Bound::Included(from), Bound::Unbounded));
        range.take_while(move |((other, _), _)| *other == name).map(|(_, credential)| credential)
    }

    /// The credential with the roots for peers that belong to a name, in a namespace: that of `NAME-cacert`, or else of
    /// the name itself.
    pub(super) fn roots_credential(&self, namespace: &str, name: &str) -> Option<&'t Arc<Credential>> {
        let own = self.credentials(&format!("{name}{ROOTS_SUFFIX}")).find(|of| *of.namespace == *namespace);
        own.or_else(|| self.credentials(name).find(|of| *of.namespace == *namespace))
    }
}
