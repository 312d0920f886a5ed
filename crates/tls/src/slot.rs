//! A slot for one secret, which is refilled when the secret changes.

use std::fmt;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;

use crate::error::HandshakeError;
use crate::sds::SdsSecret;

/// A shared place for a secret: read at every handshake, written when SDS delivers the secret. All clones share one
/// value.
pub struct Slot<T> {
    inner: Arc<SlotInner<T>>,
}

impl<T> Slot<T> {
    /// A slot with a fixed value.
    pub fn fixed(value: T) -> Self {
        Self { inner: Arc::new(SlotInner { value: ArcSwapOption::from_pointee(value), secret: None }) }
    }

    pub(crate) fn awaiting(secret: SdsSecret) -> Self {
        Self { inner: Arc::new(SlotInner { value: ArcSwapOption::empty(), secret: Some(secret) }) }
    }

    /// The current value; `None` until SDS has delivered it.
    pub fn load(&self) -> Option<Arc<T>> {
        self.inner.value.load_full()
    }

    /// The current value; the error names the secret that has not arrived.
    pub(crate) fn require(&self) -> Result<Arc<T>, HandshakeError> {
        match (self.load(), &self.inner.secret) {
            (Some(value), _) => Ok(value),
            (None, Some(secret)) => Err(HandshakeError::SecretMissing(secret.clone())),
            (None, None) => unreachable!("a slot without a secret is made with its value, and nothing empties slots"),
        }
    }

    /// The secret that has not arrived, if the slot is empty.
    pub fn missing(&self) -> Option<&SdsSecret> {
        if self.inner.value.load().is_none() { self.inner.secret.as_ref() } else { None }
    }

    pub(crate) fn of(inner: Arc<SlotInner<T>>) -> Self {
        Self { inner }
    }

    pub(crate) fn downgrade(&self) -> Weak<SlotInner<T>> {
        Arc::downgrade(&self.inner)
    }

    pub(crate) fn store(&self, value: T) {
        self.inner.value.store(Some(Arc::new(value)));
    }
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filled = self.inner.value.load().is_some();
        f.debug_struct("Slot").field("secret", &self.inner.secret).field("filled", &filled).finish()
    }
}

pub(crate) struct SlotInner<T> {
    value: ArcSwapOption<T>,
    /// The secret that fills the slot; `None` for one with a fixed value.
    secret: Option<SdsSecret>,
}
