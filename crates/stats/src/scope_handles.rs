//! The writers that one worker keeps of scopes that the configuration names.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::rc::Rc;

/// One worker's writers `W` of scopes that the configuration names, by the keys it has for them. They are kept until the scope's piece
/// of configuration is removed. For names that come from traffic there is [`SeriesHandles`](crate::SeriesHandles).
pub struct ScopeHandles<K, W> {
    known: RefCell<HashMap<K, Rc<W>>>,
}

impl<K, W> fmt::Debug for ScopeHandles<K, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScopeHandles({})", self.len())
    }
}

impl<K, W> Default for ScopeHandles<K, W> {
    fn default() -> Self {
        Self { known: RefCell::default() }
    }
}

impl<K, W> ScopeHandles<K, W> {
    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.known.borrow().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Hash + Eq, W> ScopeHandles<K, W> {
    /// Returns the writers of a key. `configured` creates them unless they are known; `None`: the configuration no longer has the scope.
    /// Then the writers are those of `detached` and are not kept, because no removal would come to release them.
    pub fn get<Q>(&self, key: &Q, configured: impl FnOnce() -> Option<W>, detached: impl FnOnce() -> W) -> Rc<W>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        if let Some(known) = self.known.borrow().get(key) {
            return Rc::clone(known);
        }
        let Some(writers) = configured().map(Rc::new) else { return Rc::new(detached()) };
        self.known.borrow_mut().insert(key.to_owned(), Rc::clone(&writers));
        writers
    }

    /// Releases the writers of a key.
    pub fn remove<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.known.borrow_mut().remove(key);
    }
}
