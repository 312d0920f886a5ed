//! Lists of a snapshot. Short lists are shared between snapshots if nothing in them changes; long ones share their unchanged
//! parts with the next snapshot.

use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

/// An immutable list of shared values. Cloning it copies one pointer.
#[derive(Debug)]
pub struct List<T>(Arc<[Arc<T>]>);

impl<T> List<T> {
    /// Whether both are the same allocation, and so equal.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Clone for List<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Arc::new([]))
    }
}

impl<T: PartialEq> PartialEq for List<T> {
    fn eq(&self, other: &Self) -> bool {
        self.same(other) || self.0 == other.0
    }
}

impl<T> Deref for List<T> {
    type Target = [Arc<T>];
    fn deref(&self) -> &[Arc<T>] {
        &self.0
    }
}

impl<'a, T> IntoIterator for &'a List<T> {
    type Item = &'a Arc<T>;
    type IntoIter = std::slice::Iter<'a, Arc<T>>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T> FromIterator<Arc<T>> for List<T> {
    fn from_iter<I: IntoIterator<Item = Arc<T>>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

/// Values in the order of their keys. The cost of a change does not depend on their number.
#[derive(Debug, PartialEq)]
pub struct Ordered<K, T>(OrdMap<K, Arc<T>>)
where
    K: Ord,
    T: PartialEq;

impl<K: Ord + Clone, T: PartialEq> Ordered<K, T> {
    /// Whether both are the same allocation, and so equal.
    pub fn same(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All values, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<T>> + Clone {
        self.0.iter().map(|(_, value)| value)
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&Arc<T>> {
        self.0.get(key)
    }

    /// The first.
    pub fn first(&self) -> Option<&Arc<T>> {
        self.0.get_min().map(|(_, value)| value)
    }

    /// Sets the value of a key (`None`: removes it); returns whether it has changed.
    pub(crate) fn set(&mut self, key: &K, value: Option<Arc<T>>) -> bool {
        let before = self.0.get(key);
        if before.map(Arc::as_ptr) == value.as_ref().map(Arc::as_ptr) {
            return false;
        }
        match value {
            Some(value) => {
                self.0.insert(key.clone(), value);
            }
            None => {
                self.0.remove(key);
            }
        }
        true
    }

    /// The values that differ between the two.
    pub(crate) fn differing<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> {
        self.0.diff(&other.0).flat_map(|item| {
            let (one, two) = match item {
                DiffItem::Add(_, value) | DiffItem::Remove(_, value) => (value, None),
                DiffItem::Update { old: (_, old), new: (_, new) } => (old, Some(new)),
            };
            std::iter::once(one).chain(two).map(AsRef::as_ref)
        })
    }
}

impl<K: Ord + Clone, T: PartialEq> Clone for Ordered<K, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Ord + Clone, T: PartialEq> Default for Ordered<K, T> {
    fn default() -> Self {
        Self(OrdMap::new())
    }
}

/// Short lists by key. The cost of a change does not depend on their number.
#[derive(Debug, PartialEq)]
pub struct Grouped<K, T>
where
    K: Ord,
    T: PartialEq,
{
    groups: OrdMap<K, List<T>>,
    len: usize,
}

impl<K: Ord + Clone, T: PartialEq> Grouped<K, T> {
    /// Whether both are the same allocation, and so equal.
    pub fn same(&self, other: &Self) -> bool {
        self.groups.ptr_eq(&other.groups)
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All values, list by list.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> + Clone {
        self.groups.iter().flat_map(|(_, list)| list)
    }

    /// The first value.
    pub fn first(&self) -> Option<&Arc<T>> {
        self.iter().next()
    }

    /// The list of a key.
    pub fn of<Q: Ord + ?Sized>(&self, key: &Q) -> &[Arc<T>]
    where
        K: Borrow<Q>,
    {
        self.groups.get(key).map_or(&[], |list| list)
    }

    /// Replaces the list of a key; returns whether it has changed.
    pub(crate) fn set(&mut self, key: &K, list: List<T>) -> bool {
        let before = self.of(key);
        let (had, has) = (before.len(), list.len());
        if had == has && before.iter().zip(&list).all(|(a, b)| Arc::ptr_eq(a, b)) {
            return false;
        }
        self.len = self.len - had + has;
        if list.is_empty() {
            self.groups.remove(key);
        } else {
            self.groups.insert(key.clone(), list);
        }
        true
    }

    /// The lists that are not the same in both.
    pub(crate) fn differing<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (List<T>, List<T>)> + use<'a, K, T> {
        self.groups.diff(&other.groups).map(|item| match item {
            DiffItem::Add(_, new) => (List::default(), new.clone()),
            DiffItem::Remove(_, old) => (old.clone(), List::default()),
            DiffItem::Update { old: (_, old), new: (_, new) } => (old.clone(), new.clone()),
        })
    }
}

impl<K: Ord + Clone, T: PartialEq> Clone for Grouped<K, T> {
    fn clone(&self) -> Self {
        Self { groups: self.groups.clone(), len: self.len }
    }
}

impl<K: Ord + Clone, T: PartialEq> Default for Grouped<K, T> {
    fn default() -> Self {
        Self { groups: OrdMap::new(), len: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_differs_in_what_was_set() {
        let list = |values: &[&'static str]| values.iter().map(|value| Arc::new(*value)).collect::<List<_>>();
        let mut old = Grouped::<u32, &str>::default();
        for key in 0..1_000 {
            assert!(old.set(&key, list(&["a", "b"])));
        }
        let mut new = old.clone();
        assert!(new.same(&old) && !new.set(&7, old.of(&7).iter().cloned().collect()), "the same values");
        assert!(new.set(&8, List::default()) && new.set(&9, list(&["c"])) && new.set(&2_000, list(&["d"])));
        assert_eq!((old.len(), new.len(), new.iter().count()), (2_000, 1_998, 1_998));
        assert!(!new.same(&old) && new.of(&8).is_empty());
        let differing: Vec<String> = old.differing(&new).map(|(old, new)| format!("{:?} {:?}", &*old, &*new)).collect();
        assert_eq!(differing, [r#"["a", "b"] []"#, r#"["a", "b"] ["c"]"#, r#"[] ["d"]"#]);
    }

    #[test]
    fn an_order_differs_in_what_is_elsewhere() {
        let mut old = Ordered::<u32, &str>::default();
        for key in 0..1_000 {
            old.set(&key, Some(Arc::new("a")));
        }
        let (mut new, moved) = (old.clone(), Arc::new("moved"));
        assert!(!new.set(&7, old.iter().nth(7).cloned()) && new.same(&old));
        assert!(new.set(&8, None) && new.set(&9, Some(Arc::new("b"))) && new.set(&2_000, Some(moved)));
        assert_eq!((old.len(), new.len(), new.first().map(|first| **first)), (1_000, 1_000, Some("a")));
        assert_eq!(old.differing(&new).copied().collect::<Vec<_>>(), ["a", "a", "b", "moved"]);
    }
}
