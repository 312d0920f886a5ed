//! The certificate store: named secrets that SDS delivers and replaces while connections run.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use tokio::sync::watch;

use crate::config::{CertificateSource, TrustSource};
use crate::error::ConfigError;
use crate::files::{FileChange, Files};
use crate::identity::{Identity, IdentityError};
use crate::sds::{SdsSecret, SecretKind};
use crate::slot::{Slot, SlotInner};
use crate::trust::{TrustBundle, TrustError};

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
            TrustSource::Domains(domains) => {
                TrustBundle::from_domains(texts(domains)).map(Slot::fixed).map_err(ConfigError::Domains)
            }
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
        self.set_bundle(secret, TrustBundle::from_pem(roots)?, lists)
    }

    /// Like [`Self::set_trust`], with roots for each trust domain.
    pub fn set_domains(
        &self,
        secret: &SdsSecret,
        domains: &[(String, Vec<u8>)],
        lists: Option<&[u8]>,
    ) -> Result<(), TrustError> {
        self.set_bundle(secret, TrustBundle::from_domains(texts(domains))?, lists)
    }

    fn set_bundle(&self, secret: &SdsSecret, bundle: TrustBundle, lists: Option<&[u8]>) -> Result<(), TrustError> {
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
            return Slot::of(inner);
        }
        let slot = Slot::awaiting(secret.clone());
        table.insert(secret.clone(), slot.downgrade());
        drop(slots);
        self.tick();
        slot
    }

    fn fill<T>(&self, secret: &SdsSecret, value: T, table: Table<T>) {
        let slot = table(&mut self.lock()).get(secret).and_then(Weak::upgrade);
        if let Some(inner) = slot {
            Slot::of(inner).store(value);
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

fn texts(domains: &[(String, Vec<u8>)]) -> impl Iterator<Item = (&str, &[u8])> {
    domains.iter().map(|(name, roots)| (name.as_str(), roots.as_slice()))
}

type Table<T> = fn(&mut Slots) -> &mut HashMap<SdsSecret, Weak<SlotInner<T>>>;
