//! Delegates: VirtualServices without hosts, whose HTTP routes take the place of a route of another VirtualService, the
//! root. As Istio's `mergeVirtualServicesIfNeeded` (pilot/pkg/model/virtualservice.go).

use std::sync::Arc;

use evenkeel_api::{Kind, Object, ObjectKey, Resource, istio};
use evenkeel_base::{Diagnostic, Diagnostics, Spanned};

use super::http_fields::text;
use super::routes::{Reader, RootRoute};
use crate::{HeaderMatch, HttpMatch, HttpRoute, StringMatch, Visibility};

/// The VirtualService that a route delegates to.
pub(super) fn delegate_key(delegate: &istio::Delegate, root: &Object) -> ObjectKey {
    let namespace = delegate.namespace.as_ref().map_or_else(|| root.namespace.clone(), |given| given.0.clone());
    ObjectKey { kind: Kind::VirtualService, namespace, name: delegate.name.0.clone() }
}

impl Reader<'_, '_> {
    /// The routes that take the place of `route`: those of its delegate, each within the conditions of `route`.
    pub(super) fn delegated(
        &mut self,
        route: &Spanned<istio::HttpRoute>,
        delegate: &Spanned<istio::Delegate>,
    ) -> Vec<HttpRoute> {
        let Some(object) = self.delegate(delegate) else { return Vec::new() };
        let Resource::VirtualService(written) = &object.resource else { return Vec::new() };
        let root = RootRoute {
            written: route,
            matches: route.matches.iter().map(|m| self.http_match(m)).collect(),
            mirror: route.mirror.as_ref().map(|mirror| self.destination(mirror)),
            mirrors: self.listed_mirrors(&route.mirrors),
        };
        // The delegate's own step reports what is wrong with its routes.
        let mut unreported = Diagnostics::new();
        let mut reader = Reader {
            cx: self.cx,
            object: &object,
            gateways: self.gateways,
            root: Some(&root),
            diagnostics: &mut unreported,
        };
        let mut merged = Vec::new();
        for own in &written.spec.http {
            let Some(made) = reader.http_route(own) else { continue };
            match within(&root, made) {
                Some(made) => merged.push(made),
                None => {
                    let message = format!(
                        "{}: no request can match both this route and the one of {object} that it delegates to; the \
                         route of {object} is left out here",
                        self.object
                    );
                    let help = "let each `match` of the delegate be narrower than a `match` of the route";
                    self.diagnostics.push(
                        Diagnostic::warning("delegate-conflict", delegate.span.clone(), message)
                            .about(self.object.reference())
                            .with_help(help)
                            .with_related(own.span.clone(), "this route is left out"),
                    );
                }
            }
        }
        merged
    }

    /// The VirtualService that a route delegates to, if it may.
    fn delegate(&mut self, delegate: &Spanned<istio::Delegate>) -> Option<Arc<Object>> {
        let key = delegate_key(delegate, self.object);
        let named = format!("VirtualService {}/{}", key.namespace, key.name);
        let (root, span) = (self.object, &delegate.name.span);
        let Some(object) = self.cx.object(&key) else {
            let message = format!("{root}: there is no {named}; the route that delegates to it is ignored");
            self.warn("missing-delegate", span, message, "add it, without `hosts`, or correct the name".to_owned());
            return None;
        };
        let Resource::VirtualService(written) = &object.resource else { return None };
        if !written.spec.hosts.is_empty() {
            let message = format!("{root}: {named} has `hosts`; the route that delegates to it is ignored");
            self.warn(
                "missing-delegate",
                span,
                message,
                "only a VirtualService without `hosts` is a delegate".to_owned(),
            );
            return None;
        }
        let exported = Visibility::from_export_to(written.spec.export_to.iter().map(|e| e.as_str()), &object.namespace);
        if !exported.seen_by(&*root.namespace) {
            let message =
                format!("{root}: {named} is not exported to this namespace; the route that delegates to it is ignored");
            self.warn("missing-delegate", span, message, "add this namespace to its `exportTo`".to_owned());
            return None;
        }
        Some(object.clone())
    }
}

/// A delegate's route within a root route; `None` if they conflict.
fn within(root: &RootRoute<'_>, mut own: HttpRoute) -> Option<HttpRoute> {
    own.matches = match (root.matches.as_slice(), own.matches.as_slice()) {
        ([], _) => own.matches,
        (_, []) => root.matches.clone(),
        (roots, leaves) => combined(roots, leaves)?,
    };
    own.name = joined(&text(&root.written.name), &own.name);
    Some(own)
}

/// Each condition of the delegate within each of the root's that it is a subset of; `None` if it is one of none
/// (Istio's `mergeHTTPMatchRequests`).
fn combined(roots: &[HttpMatch], leaves: &[HttpMatch]) -> Option<Vec<HttpMatch>> {
    let mut all = Vec::new();
    for leaf in leaves {
        let before = all.len();
        all.extend(roots.iter().filter(|root| !conflict(root, leaf)).map(|root| narrowed(root, leaf)));
        if all.len() == before {
            return None;
        }
    }
    Some(all)
}

/// A delegate's condition, with what only the root's says.
fn narrowed(root: &HttpMatch, leaf: &HttpMatch) -> HttpMatch {
    let mut source_labels = root.source_labels.clone();
    source_labels.extend(leaf.source_labels.clone());
    HttpMatch {
        name: joined(&root.name, &leaf.name),
        uri: leaf.uri.clone().or_else(|| root.uri.clone()),
        by_parts: leaf.by_parts,
        ignore_uri_case: leaf.ignore_uri_case,
        scheme: leaf.scheme.clone().or_else(|| root.scheme.clone()),
        method: leaf.method.clone().or_else(|| root.method.clone()),
        authority: leaf.authority.clone().or_else(|| root.authority.clone()),
        headers: overridden(&root.headers, &leaf.headers),
        without_headers: overridden(&root.without_headers, &leaf.without_headers),
        query_params: overridden(&root.query_params, &leaf.query_params),
        port: leaf.port.or(root.port),
        source_labels,
        source_namespace: leaf.source_namespace.clone().or_else(|| root.source_namespace.clone()),
        gateways: if leaf.gateways.is_empty() { root.gateways.clone() } else { leaf.gateways.clone() },
        stat_prefix: if leaf.stat_prefix.is_empty() { root.stat_prefix.clone() } else { leaf.stat_prefix.clone() },
        origin: leaf.origin.clone(),
    }
}

/// Istio's names of merged routes and conditions.
fn joined(root: &Arc<str>, own: &Arc<str>) -> Arc<str> {
    match (&**root, &**own) {
        (_, "") => root.clone(),
        ("", _) => own.clone(),
        (root, own) => format!("{root}-{own}").into(),
    }
}

fn overridden(root: &[HeaderMatch], leaf: &[HeaderMatch]) -> Vec<HeaderMatch> {
    let named = |name: &Arc<str>| leaf.iter().any(|own| own.name == *name);
    let mut all: Vec<_> = root.iter().filter(|inherited| !named(&inherited.name)).chain(leaf).cloned().collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Whether a delegate's condition is no subset of the root's (Istio's `hasConflict`).
fn conflict(root: &HttpMatch, leaf: &HttpMatch) -> bool {
    let texts = [
        (&root.uri, &leaf.uri),
        (&root.scheme, &leaf.scheme),
        (&root.method, &leaf.method),
        (&root.authority, &leaf.authority),
    ];
    let by_name = |root: &[HeaderMatch], leaf: &[HeaderMatch]| {
        leaf.iter().any(|own| {
            let inherited = root.iter().find(|inherited| inherited.name == own.name);
            inherited.is_some_and(|inherited| !is_subset(&inherited.value, &own.value))
        })
    };
    let differ = |(root, leaf): (&Option<StringMatch>, &Option<StringMatch>)| match (root, leaf) {
        (Some(root), Some(leaf)) => !is_subset(root, leaf),
        _ => false,
    };
    texts.into_iter().any(differ)
        || by_name(&root.headers, &leaf.headers)
        || by_name(&root.without_headers, &leaf.without_headers)
        || by_name(&root.query_params, &leaf.query_params)
        || root.ignore_uri_case != leaf.ignore_uri_case
        || root.port.zip(leaf.port).is_some_and(|(root, leaf)| root != leaf)
        || root.source_namespace.as_ref().zip(leaf.source_namespace.as_ref()).is_some_and(|(root, leaf)| root != leaf)
        || leaf.source_labels.iter().any(|(name, value)| root.source_labels.get(name).is_some_and(|r| r != value))
        || (!root.gateways.is_empty() && leaf.gateways.iter().any(|gateway| !root.gateways.contains(gateway)))
}

/// Whether what passes the delegate's test passes the root's (Istio's `stringMatchConflict`). Regular expressions and
/// tests on presence are not compared.
fn is_subset(root: &StringMatch, leaf: &StringMatch) -> bool {
    match (root, leaf) {
        (StringMatch::Exact(root), StringMatch::Exact(leaf)) => root == leaf,
        (StringMatch::Prefix(root), StringMatch::Prefix(leaf) | StringMatch::Exact(leaf)) => leaf.starts_with(&**root),
        _ => false,
    }
}
