//! A list that two snapshots share while nothing in it changes.

use std::ops::Deref;
use std::sync::Arc;

/// An immutable list of shared values. Cloning it copies one pointer.
#[derive(Debug)]
pub struct List<T>(Arc<[Arc<T>]>);

impl<T> List<T> {
    /// Whether both are the very same list, so that nothing in it needs a look.
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
