//! Sources of objects, and references that identify one object among all sources.

use std::cmp::Ordering;
use std::fmt;
use std::sync::{Arc, LazyLock};

/// Decides which source wins when several have an object of the same name: the one with the lowest rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u8);

/// The rank of files. Other sources may have lower and higher ranks.
const RANK_OF_FILES: Rank = Rank(100);

/// A source of objects: its name and its rank. Cloning it copies one pointer. Ordered by rank.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SourceId(Arc<Named>);

#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Named {
    rank: Rank,
    name: Box<str>,
}

impl SourceId {
    /// Makes a source of this name. Make it once and clone it: comparing two clones compares two pointers.
    pub fn new(name: &str, rank: Rank) -> Self {
        Self(Arc::new(Named { rank, name: name.into() }))
    }

    /// The files of the configuration directories.
    pub fn files() -> Self {
        static FILES: LazyLock<SourceId> = LazyLock::new(|| SourceId::new("files", RANK_OF_FILES));
        FILES.clone()
    }

    /// Its name: `files`, `kubernetes`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its rank.
    pub fn rank(&self) -> Rank {
        self.0.rank
    }
}

impl PartialOrd for SourceId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SourceId {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (rank {})", self.name(), self.rank().0)
    }
}

/// One object of one source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// Its API group; empty for Kubernetes' core.
    pub group: &'static str,
    /// Its kind.
    pub kind: &'static str,
    /// Its namespace; empty for kinds without.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Where it comes from.
    pub source: SourceId,
}

/// `kubernetes/VirtualService.networking.istio.io/shop/reviews`: what messages show in place of file, line and column
/// for an object that was not read from a file.
impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.source, self.kind)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if !self.namespace.is_empty() {
            write!(f, "/{}", self.namespace)?;
        }
        write!(f, "/{}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_ordered_by_rank_then_name() {
        let of = |name: &str, rank: u8| SourceId::new(name, Rank(rank));
        let mut all = [of("b", 2), SourceId::files(), of("a", 2), of("z", 1), of("kubernetes", 200)];
        all.sort();
        assert_eq!(all.each_ref().map(SourceId::name), ["z", "a", "b", "files", "kubernetes"]);
        assert_eq!(of("files", RANK_OF_FILES.0), SourceId::files());
        assert_ne!(of("files", 1), SourceId::files());
    }

    #[test]
    fn objects_without_a_line_are_named() {
        let check = |group: &'static str, namespace: &str, expected: &str| {
            let (namespace, name) = (namespace.into(), "a".into());
            let source = SourceId::new("kubernetes", Rank(1));
            let object = ObjectRef { group, kind: "Gateway", namespace, name, source };
            assert_eq!(object.to_string(), expected);
        };
        check("networking.istio.io", "shop", "kubernetes/Gateway.networking.istio.io/shop/a");
        check("", "shop", "kubernetes/Gateway/shop/a");
        check("", "", "kubernetes/Gateway/a");
    }
}
