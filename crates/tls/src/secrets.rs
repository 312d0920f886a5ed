//! The certificate store: named secrets that SDS delivers and replaces while connections run.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;

use crate::config::{CertificateSource, TrustSource};
use crate::error::{ConfigError, HandshakeError};
use crate::files::{FileChange, Files};
use crate::identity::{Identity, IdentityError};
use crate::trust::{TrustBundle, TrustError};

/// A secret that is delivered over SDS.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SdsSecret {
    /// The secret's name, such as `default` or `ROOTCA`.
    pub name: String,
    /// The server that delivers it.
    pub server: SdsServer,
}

/// The server that delivers a secret (`sds_config`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SdsServer {
    /// The aggregated stream.
    Ads,
    /// A stream of its own over a static cluster, such as `sds-grpc`.
    Cluster(String),
}

impl fmt::Display for SdsSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// What a secret must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SecretKind {
    /// `tls_certificate`.
    Certificate,
    /// `validation_context`.
    Trust,
}

/// A shared place for a secret: read at every handshake, written when SDS delivers the secret. All clones share one
/// value.
pub struct Slot<T> {
    inner: Arc<SlotInner<T>>,
}

pub(crate) struct SlotInner<T> {
    value: ArcSwapOption<T>,
    /// The secret that fills the slot; `None` for one with a fixed value.
    secret: Option<SdsSecret>,
}

impl<T> Slot<T> {
    /// A slot with a fixed value.
    pub fn fixed(value: T) -> Self {
        Self { inner: Arc::new(SlotInner { value: ArcSwapOption::from_pointee(value), secret: None }) }
    }

    fn awaiting(secret: SdsSecret) -> Self {
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
        match self.inner.value.load().is_none() {
            true => self.inner.secret.as_ref(),
            false => None,
        }
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

/// All secrets a process knows by name. Clones share one store.
///
/// Contexts get slots from it, and the SDS client fills them. A slot that nobody holds any more is dropped, so the list
/// of [wanted](Self::wanted) secrets follows the configuration.
#[derive(Clone)]
pub struct SecretStore {
    inner: Arc<StoreInner>,
}

struct StoreInner {
    slots: Mutex<Slots>,
    files: Mutex<Files>,
    /// Changes when a new slot is created and when a value arrives.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Slots {
    identities: HashMap<SdsSecret, Weak<SlotInner<Identity>>>,
    bundles: HashMap<SdsSecret, Weak<SlotInner<TrustBundle>>>,
}

impl Default for SecretStore {
    fn default() -> Self {
        Self::new()
    }
}

impl SecretStore {
    /// An empty store.
    pub fn new() -> Self {
        let (changed, _) = watch::channel(0);
        Self { inner: Arc::new(StoreInner { slots: Mutex::default(), files: Mutex::default(), changed }) }
    }

    /// The slot of a certificate: filled at once when its source is static, later when it is SDS.
    /// [`look_at_files`](Self::look_at_files) reads files again.
    pub fn identity(&self, source: &CertificateSource) -> Result<Slot<Identity>, ConfigError> {
        match source {
            CertificateSource::Static { chain, key } => self.files().identity(chain, key),
            CertificateSource::Sds(secret) => Ok(self.slot(secret, |slots| &mut slots.identities)),
        }
    }

    /// The slot of a trust bundle: filled at once when its source is static, later when it is SDS.
    pub fn trust(&self, source: &TrustSource) -> Result<Slot<TrustBundle>, ConfigError> {
        match source {
            TrustSource::Static(roots) => self.files().trust(roots),
            TrustSource::Sds(secret) => Ok(self.slot(secret, |slots| &mut slots.bundles)),
        }
    }

    /// Takes a `tls_certificate` that SDS delivered. On an error the last good one stays.
    pub fn set_identity(&self, secret: &SdsSecret, chain: &[u8], key: &[u8]) -> Result<(), IdentityError> {
        let identity = Identity::from_pem(chain, key, SystemTime::now())?;
        self.fill(secret, identity, |slots| &mut slots.identities);
        Ok(())
    }

    /// Takes a `validation_context` that SDS delivered: roots, and revocation lists if it has some. On an error the last
    /// good one stays.
    pub fn set_trust(&self, secret: &SdsSecret, roots: &[u8], lists: Option<&[u8]>) -> Result<(), TrustError> {
        let bundle = TrustBundle::from_pem(roots)?;
        let bundle = match lists {
            None => bundle,
            Some(lists) => bundle.with_revocation_lists(lists)?,
        };
        self.fill(secret, bundle, |slots| &mut slots.bundles);
        Ok(())
    }

    /// Reads certificates and roots again whose files have changed. It may block on the disk.
    pub fn look_at_files(&self, now: SystemTime) -> Vec<FileChange> {
        let news = self.files().look(now);
        if news.iter().any(|news| matches!(news, FileChange::Replaced { .. })) {
            self.tick();
        }
        news
    }

    /// The secrets that contexts hold slots of, in order: what the SDS client has to subscribe to.
    pub fn wanted(&self) -> Vec<(SdsSecret, SecretKind)> {
        let mut slots = self.lock();
        slots.identities.retain(|_, slot| slot.strong_count() > 0);
        slots.bundles.retain(|_, slot| slot.strong_count() > 0);
        let identities = slots.identities.keys().map(|secret| (secret.clone(), SecretKind::Certificate));
        let bundles = slots.bundles.keys().map(|secret| (secret.clone(), SecretKind::Trust));
        let mut wanted: Vec<_> = identities.chain(bundles).collect();
        wanted.sort();
        wanted
    }

    /// Changes whenever a new secret becomes wanted or a value arrives.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changed.subscribe()
    }

    fn slot<T>(&self, secret: &SdsSecret, table: Table<T>) -> Slot<T> {
        let mut slots = self.lock();
        let table = table(&mut slots);
        if let Some(inner) = table.get(secret).and_then(Weak::upgrade) {
            return Slot { inner };
        }
        let slot = Slot::awaiting(secret.clone());
        table.insert(secret.clone(), Arc::downgrade(&slot.inner));
        drop(slots);
        self.tick();
        slot
    }

    fn fill<T>(&self, secret: &SdsSecret, value: T, table: Table<T>) {
        let slot = table(&mut self.lock()).get(secret).and_then(Weak::upgrade);
        if let Some(inner) = slot {
            Slot { inner }.store(value);
            self.tick();
        }
    }

    fn tick(&self) {
        self.inner.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn files(&self) -> std::sync::MutexGuard<'_, Files> {
        self.inner.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Slots> {
        // A panic cannot leave the tables inconsistent, because each change is one insertion.
        self.inner.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SecretStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretStore").field("wanted", &self.wanted()).finish()
    }
}

type Table<T> = fn(&mut Slots) -> &mut HashMap<SdsSecret, Weak<SlotInner<T>>>;
