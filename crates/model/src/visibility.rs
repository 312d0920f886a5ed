//! `exportTo`: which namespaces see an object.

use std::collections::BTreeSet;
use std::sync::Arc;

/// A client in some namespace, which sees a part of the mesh.
pub trait Viewer {
    /// Whether this is its namespace.
    fn is_in(&self, namespace: &Arc<str>) -> bool;

    /// Whether it prefers the services of its own namespace. Gateways do not.
    fn takes_own_first(&self) -> bool {
        true
    }
}

/// A client in the namespace of this name.
impl Viewer for str {
    fn is_in(&self, namespace: &Arc<str>) -> bool {
        **namespace == *self
    }
}

/// Which namespaces see an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Visibility {
    /// All namespaces (`*`, and the default).
    #[default]
    Public,
    /// No namespace (`~`).
    None,
    /// These; `.` is already replaced by the object's own.
    Namespaces(BTreeSet<Arc<str>>),
}

impl Visibility {
    /// Reads the entries of an `exportTo` list of an object in `namespace`. No entries = public.
    pub fn from_export_to<'a>(entries: impl IntoIterator<Item = &'a str>, namespace: &str) -> Self {
        let mut namespaces = BTreeSet::new();
        let mut any = false;
        for entry in entries {
            any = true;
            match entry {
                "*" => return Self::Public,
                "~" => {}
                "." => {
                    namespaces.insert(namespace.into());
                }
                other => {
                    namespaces.insert(other.into());
                }
            }
        }
        match (any, namespaces.is_empty()) {
            (false, _) => Self::Public,
            (true, true) => Self::None,
            (true, false) => Self::Namespaces(namespaces),
        }
    }

    /// Whether the viewer sees the object. The viewer's namespace is queried only if it matters.
    pub fn seen_by(&self, viewer: &(impl Viewer + ?Sized)) -> bool {
        match self {
            Self::Public => true,
            Self::None => false,
            Self::Namespaces(namespaces) => namespaces.iter().any(|namespace| viewer.is_in(namespace)),
        }
    }

    /// Whether some namespace sees both.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, _) | (_, Self::None) => false,
            (Self::Public, _) | (_, Self::Public) => true,
            (Self::Namespaces(a), Self::Namespaces(b)) => !a.is_disjoint(b),
        }
    }

    /// How near an object of `namespace` is to a viewer that sees it.
    pub fn nearness(&self, namespace: &Arc<str>, viewer: &(impl Viewer + ?Sized)) -> Nearness {
        match self {
            Self::Public | Self::None => Nearness::Public,
            Self::Namespaces(_) if viewer.is_in(namespace) => Nearness::Own,
            Self::Namespaces(_) => Nearness::Named,
        }
    }

    /// Whether only the object's own namespace sees it.
    pub fn is_private(&self, namespace: &str) -> bool {
        match self {
            Self::Public => false,
            Self::None => true,
            Self::Namespaces(namespaces) => namespaces.iter().all(|seen| **seen == *namespace),
        }
    }
}

/// The order in which objects for one host count for a client that sees several: what is meant for few takes precedence,
/// so that a client's own namespace can override what others export (Istio's `VirtualServicesForGateway`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nearness {
    /// Of the client's namespace, and not for all.
    Own,
    /// Of another namespace, which names the client's.
    Named,
    /// For all namespaces.
    Public,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_export_to() {
        let check = |entries: &[&str], client: &str, expected: bool| {
            let visibility = Visibility::from_export_to(entries.iter().copied(), "own");
            assert_eq!(visibility.seen_by(client), expected, "{entries:?} from {client}");
        };
        check(&[], "other", true);
        check(&["*"], "other", true);
        check(&["."], "other", false);
        check(&["."], "own", true);
        check(&["~"], "own", false);
        check(&["other", "."], "other", true);
        check(&["other"], "own", false);
    }
}
