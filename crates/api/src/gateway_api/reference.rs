//! References to other objects: parents, backends, Secrets.

use std::sync::Arc;

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;

use super::limits::SectionName;
use super::{GROUP, limits};
use crate::decode::{Context, Label, Port};

object! {
    /// What a route attaches to: a Gateway, or a Service or ServiceEntry for calls in the mesh.
    pub struct ParentRef {
        /// Its group; the Gateway API's if not given.
        group: Option<String> = "group",
        /// Its kind; `Gateway` if not given.
        kind: Option<String> = "kind",
        /// Its name.
        name: Spanned<String> = "name",
        /// Its namespace; the route's own if not given.
        namespace: Option<Label> = "namespace",
        /// Its listener or port by name; all if not given.
        section_name: Option<Spanned<SectionName>> = "sectionName",
        /// Only listeners with this port, or calls of this port.
        port: Option<Spanned<Port>> = "port",
    }
    check: check_parent;
}

choices! {
    /// Which routes attach to a Gateway that they do not name (GEP-3793).
    pub enum DefaultScope {
        /// All that want to.
        All = "All",
        /// None.
        None = "None",
    }
}

impl ParentRef {
    /// The parent of a route that attaches to a Gateway without naming it.
    pub fn of_default_gateway(namespace: &Arc<str>, name: &str, scope: &Spanned<DefaultScope>) -> Self {
        Self {
            group: None,
            kind: None,
            name: Spanned::new(name.to_owned(), scope.span.clone()),
            namespace: Some(Label(namespace.clone())),
            section_name: None,
            port: None,
        }
    }

    /// Its group.
    pub fn group(&self) -> &str {
        self.group.as_deref().unwrap_or(GROUP)
    }

    /// Its kind.
    pub fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or("Gateway")
    }

    /// Its namespace, for a route of namespace `own`.
    pub fn namespace(&self, own: &Arc<str>) -> Arc<str> {
        self.namespace.as_ref().map_or_else(|| own.clone(), |namespace| namespace.0.clone())
    }
}

fn check_parent(parent: &ParentRef, _: &Node, cx: &mut Context) {
    check_name(&parent.name, cx);
}

/// A name must not be empty.
fn check_name(name: &Spanned<String>, cx: &mut Context) {
    if name.is_empty() {
        cx.at_field("name", |cx| cx.error("bad-name", &name.span, "the name is empty", "name an object"));
    }
}

/// The most parents of a route.
const MAX_PARENTS: usize = 32;

/// Checks the parents of a route: if two name the same object, each names another section of it.
pub(super) fn check_parents(parents: &[Spanned<ParentRef>], node: &Node, cx: &mut Context) {
    limits::at_most(MAX_PARENTS, parents.len(), "parentRefs", &node.span, cx);
    let key = |parent: &ParentRef| {
        let namespace = parent.namespace.as_ref().map(|namespace| namespace.0.clone());
        (parent.group().to_owned(), parent.kind().to_owned(), namespace, parent.name.value.clone())
    };
    for (at, parent) in parents.iter().enumerate() {
        let port = |parent: &ParentRef| parent.port.as_ref().map(|port| port.value);
        let section = |parent: &ParentRef| parent.section_name.as_ref().map(|name| name.value.clone());
        let same = parents.iter().take(at).find(|other| key(other) == key(parent));
        let Some(other) = same else { continue };
        let is_ambiguous = section(parent).is_none() != section(other).is_none();
        if is_ambiguous || (section(parent), port(parent)) == (section(other), port(other)) {
            let message = "this parent is named twice";
            let help = "give each entry a `sectionName` of its own";
            cx.at_field("parentRefs", |cx| cx.at_index(at, |cx| cx.error("conflict", &parent.span, message, help)));
        }
    }
}

/// A backend as it is referred to.
#[derive(Debug, Clone, Copy)]
pub struct BackendTarget<'a> {
    /// Its group; empty: Kubernetes' core.
    pub group: &'a str,
    /// Its kind.
    pub kind: &'a str,
    /// Its name.
    pub name: &'a Spanned<String>,
    /// Its namespace; none given = the route's own.
    pub namespace: Option<&'a Label>,
    /// Its port.
    pub port: Option<u16>,
}

impl BackendTarget<'_> {
    /// A Service needs a port.
    pub(super) fn check(&self, cx: &mut Context) {
        check_name(self.name, cx);
        if self.group.is_empty() && self.kind == "Service" && self.port.is_none() {
            let message = "a reference to a Service needs a `port`";
            cx.error("missing-field", &self.name.span, message, "add `port: 80`");
        }
    }
}

object! {
    /// The backend that gets copies of requests.
    pub struct MirrorBackendRef {
        /// Its group; Kubernetes' core if not given.
        group: Option<String> = "group",
        /// Its kind; `Service` if not given.
        kind: Option<String> = "kind",
        /// Its name.
        name: Spanned<String> = "name",
        /// Its namespace; the route's own if not given.
        namespace: Option<Label> = "namespace",
        /// Its port.
        port: Option<Port> = "port",
    }
    check: check_mirror_backend;
}

impl MirrorBackendRef {
    /// The backend.
    pub fn target(&self) -> BackendTarget<'_> {
        BackendTarget {
            group: self.group.as_deref().unwrap_or_default(),
            kind: self.kind.as_deref().unwrap_or("Service"),
            name: &self.name,
            namespace: self.namespace.as_ref(),
            port: self.port.map(|port| port.0),
        }
    }
}

fn check_mirror_backend(backend: &MirrorBackendRef, _: &Node, cx: &mut Context) {
    backend.target().check(cx);
}

object! {
    /// An object of the same namespace.
    pub struct LocalReference {
        /// Its group; empty: Kubernetes' core.
        group: String = "group",
        /// Its kind.
        kind: String = "kind",
        /// Its name.
        name: Spanned<String> = "name",
    }
}

object! {
    /// A Secret with a certificate.
    pub struct SecretRef {
        /// Its group; Kubernetes' core if not given.
        group: Option<String> = "group",
        /// Its kind; `Secret` if not given.
        kind: Option<String> = "kind",
        /// Its name.
        name: Spanned<String> = "name",
        /// Its namespace; that of the object that names it if not given.
        namespace: Option<Label> = "namespace",
    }
    check: check_secret;
}

fn check_secret(secret: &SecretRef, _: &Node, cx: &mut Context) {
    check_name(&secret.name, cx);
}
