//! Stand-ins for refused security objects. A stand-in closes what the object would have protected, so that a mistake
//! opens nothing.
//!
//! The document is read in its widest sense: unreadable parts of a selector or of a rule select and match more, never
//! less. Only the namespace is guessed from typing mistakes, because the only wider scope is the whole mesh.

mod authorization;
mod connections;
mod parts;
mod sidecar;
mod text;
mod unsupported;

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_base::suggest::closest;
use evenkeel_base::yaml::{Mapping, Node, Value};

use self::parts::{SECURITY, made, name_at, near, selector, text_of};
use crate::istio::RequestAuthentication;
use crate::resource::is_known;
use crate::{Kind, Object, Refusal, Resource};

pub(crate) use self::connections::mesh_config;
pub(crate) use self::text::of_text;
pub(crate) use self::unsupported::{stand_in_key, unsupported};

/// The API group of Sidecars.
const NETWORKING: &str = "networking.istio.io";
/// The kinds that guard workloads.
const GUARDS: [Kind; 4] =
    [Kind::AuthorizationPolicy, Kind::PeerAuthentication, Kind::RequestAuthentication, Kind::Sidecar];

/// The stand-ins for a refused document; none if it is not a security object.
pub(crate) fn stand_ins(document: &Node, refusal: &Arc<Refusal>) -> Vec<Object> {
    match &document.value {
        // A List in a List, or objects without the `---` between them.
        Value::Sequence(items) => items.iter().flat_map(|item| stand_ins(item, refusal)).collect(),
        Value::Scalar(scalar) => of_text(&scalar.text, &document.span, refusal),
        Value::Mapping(mapping) if mapping.get("kind").and_then(Node::as_str) == Some("List") => {
            mapping.get("items").map(|items| stand_ins(items, refusal)).unwrap_or_default()
        }
        Value::Mapping(mapping) => kind_of(mapping)
            .and_then(|kind| resource(kind, mapping))
            .map(|resource| object(mapping, &document.span, resource, refusal))
            .into_iter()
            .collect(),
    }
}

/// Whether a document may be a security object.
pub(crate) fn may_guard(document: &Node) -> bool {
    document.as_mapping().is_none_or(|document| kind_of(document).is_some())
}

/// Whether a document gets a stand-in if it is refused.
pub(crate) fn guards(document: &Node) -> bool {
    let refusal = Refusal { place: document.span.clone(), message: String::new(), unsupported: None };
    may_guard(document) && !stand_ins(document, &Arc::new(refusal)).is_empty()
}

/// The stand-ins for all that could be in an unreadable file or directory: they close the whole mesh.
pub(crate) fn everything(path: &Arc<str>, refusal: Refusal) -> Vec<Object> {
    let name: Arc<str> = path.rsplit('/').next().unwrap_or_default().into();
    let refusal = Arc::new(refusal);
    let closed = [
        Resource::AuthorizationPolicy(Arc::new(authorization::everything(BTreeMap::new()))),
        Resource::Sidecar(Arc::new(sidecar::registry_only())),
    ];
    let object = |resource| made(name.clone(), "".into(), Span::whole_file(path.clone()), resource, refusal.clone());
    closed.into_iter().map(object).collect()
}

/// The kind that is probably meant, if it is a security kind.
fn kind_of(document: &Mapping) -> Option<Kind> {
    let text = |name| near(document, name).and_then(Node::as_str);
    let group = text("apiVersion").map(|version| version.split('/').next().unwrap_or_default());
    // Other groups have kinds of these names, too.
    let is_ours = group.is_none_or(|group| {
        !group.contains('.') || group.ends_with("istio.io") || closest(group, [SECURITY]).is_some()
    });
    match text("kind") {
        Some(kind) if kind == Kind::BackendTlsPolicy.as_str() => Some(Kind::BackendTlsPolicy),
        _ if !is_ours => None,
        Some("ConfigMap") => Some(Kind::ConfigMap),
        Some("DestinationRule") => Some(Kind::DestinationRule),
        Some(kind) => {
            let guard = |name: &str| GUARDS.into_iter().find(|guard| guard.as_str() == name);
            let meant = || closest(kind, GUARDS.map(Kind::as_str)).and_then(guard);
            let of_security = || group.is_some_and(|group| closest(group, [SECURITY]).is_some());
            match guard(kind) {
                Some(guard) => Some(guard),
                None if is_known(kind) => None,
                None => meant()
                    .or_else(|| of_security().then_some(Kind::AuthorizationPolicy))
                    .or_else(|| looks_like_a_sidecar(document).then_some(Kind::Sidecar)),
            }
        }
        None => {
            let named = |kind: &Kind| document.iter().any(|entry| entry.value.as_str() == Some(kind.as_str()));
            let of_security = group.is_some_and(|group| closest(group, [SECURITY]).is_some());
            let by_name = GUARDS.into_iter().find(named);
            by_name
                .or_else(|| of_security.then_some(Kind::AuthorizationPolicy))
                .or_else(|| looks_like_a_sidecar(document).then_some(Kind::Sidecar))
        }
    }
}

/// Whether a document has a field that no other kind of Sidecar's group has.
fn looks_like_a_sidecar(document: &Mapping) -> bool {
    let version = near(document, "apiVersion").and_then(Node::as_str);
    let group = version.map(|version| version.split('/').next().unwrap_or_default());
    let spec = near(document, "spec").and_then(Node::as_mapping);
    group.is_some_and(|group| closest(group, [NETWORKING]).is_some())
        && spec.is_some_and(|spec| near(spec, "outboundTrafficPolicy").is_some())
}

fn resource(kind: Kind, document: &Mapping) -> Option<Resource> {
    match kind {
        Kind::AuthorizationPolicy => {
            authorization::policy(document).map(|policy| Resource::AuthorizationPolicy(Arc::new(policy)))
        }
        Kind::PeerAuthentication => {
            Some(Resource::PeerAuthentication(Arc::new(connections::strict(selector(document)))))
        }
        Kind::RequestAuthentication => {
            let any = RequestAuthentication::of_anything(selector(document));
            Some(Resource::RequestAuthentication(Arc::new(any)))
        }
        Kind::ConfigMap => connections::settings(document).map(|map| Resource::ConfigMap(Arc::new(map))),
        Kind::DestinationRule => {
            connections::destination_rule(document).map(|rule| Resource::DestinationRule(Arc::new(rule)))
        }
        Kind::BackendTlsPolicy => {
            connections::backend_tls_policy(document).map(|policy| Resource::BackendTlsPolicy(Arc::new(policy)))
        }
        Kind::Sidecar => sidecar::sidecar(document).map(|sidecar| Resource::Sidecar(Arc::new(sidecar))),
        _ => None,
    }
}

fn object(document: &Mapping, span: &Span, resource: Resource, refusal: &Arc<Refusal>) -> Object {
    let metadata = near(document, "metadata").and_then(Node::as_mapping);
    let named = |name| metadata.and_then(|metadata| near(metadata, name)).and_then(text_of);
    let namespace = named("namespace").or_else(|| near(document, "namespace").and_then(text_of));
    let name = named("name").map_or_else(|| name_at(span), Into::into);
    made(name, namespace.unwrap_or("default").into(), span.clone(), resource, refusal.clone())
}

#[cfg(test)]
mod tests;
