//! Stand-ins for security objects in a text that is not YAML.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_base::Span;

use super::parts::{SECURITY, made, name_at};
use super::{authorization, connections, sidecar, unsupported};
use crate::istio::{MeshConfig, RequestAuthentication};
use crate::{Kind, Object, Refusal, Resource};

/// If the text mentions a security kind, returns stand-ins that close all workloads of the namespaces it names, because
/// its selector is not known.
pub(crate) fn of_text(text: &str, span: &Span, refusal: &Arc<Refusal>) -> Vec<Object> {
    let lines = || text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let speaks_of = |word: &str| lines().any(|line| line.contains(word));
    let policy = Kind::AuthorizationPolicy.as_str();
    let authentication = Kind::PeerAuthentication.as_str();
    let tokens = Kind::RequestAuthentication.as_str();
    let mut found: Vec<(Arc<str>, Resource)> = Vec::new();
    if speaks_of(tokens) && !speaks_of(policy) && !speaks_of(authentication) {
        let any = RequestAuthentication::of_anything(Default::default());
        found.push((name_at(span), Resource::RequestAuthentication(Arc::new(any))));
    } else if speaks_of(authentication) && !speaks_of(policy) {
        let strict = connections::strict(Default::default());
        found.push((name_at(span), Resource::PeerAuthentication(Arc::new(strict))));
    } else if speaks_of(policy) || speaks_of(SECURITY) {
        let everything = authorization::everything(Default::default());
        found.push((name_at(span), Resource::AuthorizationPolicy(Arc::new(everything))));
    }
    let unsupported = unsupported::named_in(speaks_of).map(|unsupported| {
        let everything = authorization::everything(Default::default());
        let name = format!("{}/{}", unsupported.kind, name_at(span));
        let refusal = Refusal { unsupported: Some(unsupported), ..(**refusal).clone() };
        (name, Resource::AuthorizationPolicy(Arc::new(everything)), Arc::new(refusal))
    });
    if speaks_of(Kind::Sidecar.as_str()) {
        found.push((name_at(span), Resource::Sidecar(Arc::new(sidecar::registry_only()))));
    }
    let is_named = |name: &str| lines().any(|line| values_of(line, "name").any(|value| value == name));
    if speaks_of(Kind::ConfigMap.as_str()) && is_named(MeshConfig::CONFIG_MAP) {
        let settings = connections::unknown_settings(span);
        found.push((MeshConfig::CONFIG_MAP.into(), Resource::ConfigMap(Arc::new(settings))));
    }
    let mut namespaces: BTreeSet<&str> = lines().flat_map(|line| values_of(line, "namespace")).collect();
    if namespaces.is_empty() {
        namespaces.insert("default");
    }
    let object = |namespace: &str, (name, resource): &(Arc<str>, Resource)| {
        made(name.clone(), namespace.into(), span.clone(), resource.clone(), refusal.clone())
    };
    let of_unsupported = |namespace: &str| {
        let (name, resource, refusal) = unsupported.as_ref()?;
        Some(made(name.as_str().into(), namespace.into(), span.clone(), resource.clone(), refusal.clone()))
    };
    let of_namespace = |namespace: &&str| {
        found.iter().map(|found| object(namespace, found)).chain(of_unsupported(namespace)).collect::<Vec<_>>()
    };
    namespaces.iter().flat_map(of_namespace).collect()
}

/// The values after `key:` in a line of YAML or JSON.
fn values_of<'t>(line: &'t str, key: &str) -> impl Iterator<Item = &'t str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    line.match_indices(key).filter_map(move |(at, _)| {
        let is_whole = !line.get(..at)?.ends_with(|c: char| is_name(c) || c == '.' || c == '/');
        let rest = line.get(at + key.len()..)?.trim_start_matches(['"', '\'']).trim_start();
        let value = rest.strip_prefix(':')?.trim_start().trim_start_matches(['"', '\'']);
        let end = value.find(|c: char| !is_name(c)).unwrap_or(value.len());
        value.get(..end).filter(|value| is_whole && !value.is_empty())
    })
}
