//! The names under which a change may be subscribed.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdSet;

use crate::{Difference, ResourceType};

/// A name of a resource that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) kind: ResourceType,
    pub(super) name: Arc<str>,
    /// The prefix of names that are this one with a port, for types with such aliases.
    with_port: Option<Box<str>>,
    /// The hash of the name.
    pub(super) hash: u64,
}

impl Key {
    pub(super) fn new(kind: ResourceType, name: &Arc<str>) -> Self {
        let with_port = kind.has_aliases().then(|| format!("{name}:").into());
        Self { kind, name: name.clone(), with_port, hash: hash(name) }
    }

    /// Whether it matches any name.
    pub(super) fn is_any(&self) -> bool {
        self.with_port.is_some() && self.name.contains('*')
    }

    /// The subscribed names that this one may match: itself, itself with a port, or anything if it is a wildcard.
    pub(super) fn asked<'a>(&self, names: &'a OrdSet<Arc<str>>) -> impl Iterator<Item = &'a Arc<str>> + use<'a, '_> {
        let any = self.is_any();
        let ported = self.with_port.as_deref().filter(|_| !any && !names.is_empty()).into_iter().flat_map(|from| {
            let after = names.range::<_, str>((Bound::Included(from), Bound::Unbounded));
            after.take_while(move |name| name.starts_with(from))
        });
        let itself = names.get(&*self.name).filter(|_| !any);
        itself.into_iter().chain(ported).chain(any.then(|| names.iter()).into_iter().flatten())
    }
}

pub(super) fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// The names under which a difference may be seen.
pub(super) fn keys(difference: Difference<'_>) -> impl Iterator<Item = Key> {
    let aliases = [difference.old, difference.new].into_iter().flatten().flat_map(|resource| resource.aliases());
    std::iter::once(difference.name).chain(aliases).map(move |name| Key::new(difference.kind, name))
}

/// The subscribed names that differences may affect.
pub(super) fn affected<'a, 'b>(
    names: &'a OrdSet<Arc<str>>,
    differences: impl Iterator<Item = Difference<'b>>,
) -> BTreeSet<&'a Arc<str>> {
    let mut affected = BTreeSet::new();
    for key in differences.flat_map(keys) {
        affected.extend(key.asked(names));
    }
    affected
}
