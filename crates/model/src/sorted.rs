//! A map as a sorted vector.

use std::borrow::Borrow;

/// A map in one allocation of exactly the needed size. There are thousands of maps with one entry each, for which a
/// B-tree would reserve room for eleven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.find(key).ok().and_then(|at| self.0.get(at)).map(|(_, value)| value)
    }

    /// The value of a key, which is created if there was none.
    pub fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let at = self.find(&key).unwrap_or_else(|at| {
            self.insert_at(at, key, V::default());
            at
        });
        &mut self.0[at].1
    }

    /// Inserts a value; returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => self.0.get_mut(at).map(|(_, old)| std::mem::replace(old, value)),
            Err(at) => {
                self.insert_at(at, key, value);
                None
            }
        }
    }

    /// Removes a key; returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        Some(self.0.remove(at).1)
    }

    /// All entries, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// All values, by key.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(at, _)| at.borrow().cmp(key))
    }

    fn insert_at(&mut self, at: usize, key: K, value: V) {
        if self.0.len() < 4 {
            self.0.reserve_exact(1);
        }
        self.0.insert(at, (key, value));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::SortedMap;

    #[test]
    fn does_as_a_b_tree_does() {
        let (mut map, mut tree) = (SortedMap::<u16, Vec<u32>>::default(), BTreeMap::<u16, Vec<u32>>::new());
        let mut state = 1_u32;
        for step in 0..2_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let key = u16::try_from(state >> 27).expect("five bits");
            match state >> 8 & 3 {
                0 => assert_eq!(map.remove(&key), tree.remove(&key)),
                1 => assert_eq!(map.insert(key, vec![step]), tree.insert(key, vec![step])),
                _ => {
                    map.get_or_default(key).push(step);
                    tree.entry(key).or_default().push(step);
                }
            }
            assert_eq!(map.get(&key), tree.get(&key));
            assert_eq!(map.is_empty(), tree.is_empty());
            assert!(map.iter().eq(tree.iter()) && map.values().eq(tree.values()));
        }
    }
}
