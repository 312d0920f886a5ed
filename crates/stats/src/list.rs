//! Lock-free lists and an index: a value is published by one compare-and-swap, which is retried if another thread wins the
//! race.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use arc_swap::ArcSwapOption;

/// A list that grows at its head. Readers see the list as it was when they started.
pub(crate) struct List<T> {
    head: ArcSwapOption<Node<T>>,
}

struct Node<T> {
    value: T,
    next: Option<Arc<Self>>,
}

impl<T> Drop for Node<T> {
    /// Drops the nodes one by one: dropping a long list recursively would overflow the stack.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(node) = next {
            next = Arc::into_inner(node).and_then(|mut node| node.next.take());
        }
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { head: ArcSwapOption::empty() }
    }
}

impl<T: Clone> List<T> {
    /// Returns the first result of `wanted`, newest value first.
    pub(crate) fn find<R>(&self, mut wanted: impl FnMut(&T) -> Option<R>) -> Option<R> {
        let head = self.head.load();
        find_from(head.as_deref(), &mut wanted)
    }

    /// Calls `each` with all values, newest first.
    pub(crate) fn for_each(&self, mut each: impl FnMut(&T)) {
        self.find(|value| {
            each(value);
            None::<()>
        });
    }

    /// Adds a value.
    pub(crate) fn push(&self, value: T) {
        loop {
            let head = self.head.load_full();
            if self.replace(&head, Some(Arc::new(Node { value: value.clone(), next: head.clone() }))) {
                return;
            }
        }
    }

    /// Replaces `head` by `new`, unless another thread has replaced it.
    fn replace(&self, head: &Option<Arc<Node<T>>>, new: Option<Arc<Node<T>>>) -> bool {
        let address = |node: &Option<Arc<Node<T>>>| node.as_ref().map(Arc::as_ptr);
        address(&self.head.compare_and_swap(head, new)) == address(head)
    }

    /// Returns the first result of `wanted`; if there is none, adds a value and returns `Err` with it. `make` is called at
    /// most once.
    pub(crate) fn find_or_push<R>(
        &self,
        mut wanted: impl FnMut(&T) -> Option<R>,
        make: impl FnOnce() -> T,
    ) -> Result<R, ()> {
        let (mut make, mut made) = (Some(make), None);
        loop {
            let head = self.head.load_full();
            if let Some(found) = find_from(head.as_deref(), &mut wanted) {
                return Ok(found);
            }
            if let Some(make) = make.take() {
                made = Some(make());
            }
            let Some(value) = made.clone() else { return Err(()) };
            if self.replace(&head, Some(Arc::new(Node { value, next: head.clone() }))) {
                return Err(());
            }
        }
    }

    /// Removes values and returns how many. It copies those that stay, so it is for short lists.
    pub(crate) fn remove(&self, unwanted: impl Fn(&T) -> bool) -> usize {
        loop {
            let head = self.head.load_full();
            if find_from(head.as_deref(), &mut |value| unwanted(value).then_some(())).is_none() {
                return 0;
            }
            let (mut kept, mut removed) = (Vec::new(), 0);
            let mut next = head.as_deref();
            while let Some(node) = next {
                if unwanted(&node.value) {
                    removed += 1
                } else {
                    kept.push(node.value.clone())
                }
                next = node.next.as_deref();
            }
            let rest = kept.into_iter().rev().fold(None, |next, value| Some(Arc::new(Node { value, next })));
            if self.replace(&head, rest) {
                return removed;
            }
        }
    }
}

fn find_from<T, R>(mut next: Option<&Node<T>>, wanted: &mut impl FnMut(&T) -> Option<R>) -> Option<R> {
    while let Some(node) = next {
        if let Some(found) = wanted(&node.value) {
            return Some(found);
        }
        next = node.next.as_deref();
    }
    None
}

/// A hash table with a fixed number of buckets, so that values never have to be moved to a larger one.
pub(crate) struct Index<T> {
    hasher: RandomState,
    buckets: Box<[List<(u64, T)>]>,
}

impl<T: Clone> Index<T> {
    /// Creates an index for about this many values; with more, look-ups slowly become more expensive.
    pub(crate) fn for_about(values: usize) -> Self {
        let buckets = values.clamp(16, 65_536).next_power_of_two();
        Self { hasher: RandomState::new(), buckets: (0..buckets).map(|_| List::default()).collect() }
    }

    /// Returns the hash of a key.
    pub(crate) fn hash(&self, key: (&str, &str)) -> u64 {
        self.hasher.hash_one(key)
    }

    fn bucket(&self, hash: u64) -> &List<(u64, T)> {
        // The number of buckets is a power of two.
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }

    /// Returns the first result of `wanted` among values with that hash; if there is none, adds a value and returns `Err`
    /// with it.
    pub(crate) fn find_or_insert<R>(
        &self,
        hash: u64,
        wanted: impl Fn(&T) -> Option<R>,
        make: impl FnOnce() -> T,
    ) -> Result<R, ()> {
        let wanted = |(of, value): &(u64, T)| if *of == hash { wanted(value) } else { None };
        self.bucket(hash).find_or_push(wanted, || (hash, make()))
    }

    /// Returns the first result of `wanted` among values with that hash.
    pub(crate) fn find<R>(&self, hash: u64, wanted: impl Fn(&T) -> Option<R>) -> Option<R> {
        self.bucket(hash).find(|(of, value)| if *of == hash { wanted(value) } else { None })
    }

    /// Removes values with that hash and returns how many.
    pub(crate) fn remove(&self, hash: u64, unwanted: impl Fn(&T) -> bool) -> usize {
        self.bucket(hash).remove(|(of, value)| *of == hash && unwanted(value))
    }

    /// Calls `each` with all values, in no particular order.
    pub(crate) fn for_each(&self, mut each: impl FnMut(&T)) {
        self.buckets.iter().for_each(|bucket| bucket.for_each(|(_, value)| each(value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_threads_add_at_once_is_there_once() {
        let index = Index::<usize>::for_about(64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for value in 0..5_000 {
                        let hash = index.hash((&value.to_string(), ""));
                        let _ = index.find_or_insert(hash, |known| (*known == value).then_some(()), || value);
                    }
                });
            }
        });
        let mut values = Vec::new();
        index.for_each(|value| values.push(*value));
        values.sort_unstable();
        assert_eq!(values, (0..5_000).collect::<Vec<_>>());
    }

    #[test]
    fn removes_what_is_unwanted_and_keeps_the_order_of_the_rest() {
        let list = List::default();
        (0..6).for_each(|value| list.push(value));
        assert_eq!(list.remove(|value| value % 2 == 0), 3);
        let mut rest = Vec::new();
        list.for_each(|value| rest.push(*value));
        assert_eq!(rest, [5, 3, 1]);
        assert_eq!(list.remove(|value| *value == 7), 0);
    }

    #[test]
    fn a_long_list_is_dropped_without_recursion() {
        let list = List::default();
        (0..1_000_000).for_each(|value| list.push(value));
    }
}
