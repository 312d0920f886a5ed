//! Keeps the authorities and the state of their rotation in the store, under these keys.
//!
//! ```text
//! ca-cert.pem, ca-key.pem   the first authority that the control plane created
//! trust-bundle.pem          the trusted roots, for programs that deploy them to workloads
//! ca/state.json             the state of the rotation
//! ca/signers/ID/            every other authority, in Istio's layout
//! ca/ledger/                the ledgers of issued certificates
//! ca/rotate-KIND.request    a requested rotation
//! ca/without.request        workloads that the rotation should not wait for, one a line
//! ```

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_base::files::UntrustedError;
use evenkeel_store::{Readers, SecretError, Store};
use evenkeel_tls::{TrustBundle, TrustError};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::ledger;
use super::signing::Signing;
use super::state::{Kind, Origin, Signer, State};
use crate::authority::{Authority, SignError};
use crate::files::{AuthorityError, CA_CERT_FILE, CA_KEY_FILE};
use crate::plugged::{self, CERT_CHAIN_FILE, PluggedFiles, ROOT_CERT_FILE};

const FOLDER: &str = "ca";
const STATE: &str = "ca/state.json";
const SIGNERS: &str = "ca/signers";
/// File name of the trusted roots in the state directory.
pub const BUNDLE_FILE: &str = "trust-bundle.pem";
/// Maximum size of a state that is read, in bytes.
const MAX_STATE_BYTES: u64 = 1024 * 1024;
const WITHOUT: &str = "ca/without.request";
/// Maximum size of the names of workloads that a rotation should not wait for, in bytes.
pub const MAX_WITHOUT_BYTES: u64 = 64 * 1024;

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An authority.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A new authority.
    #[error("a new certificate authority cannot be made: {0}")]
    Sign(#[from] SignError),
    /// A key file.
    #[error(transparent)]
    Key(#[from] SecretError),
    /// The directory.
    #[error(transparent)]
    Untrusted(#[from] UntrustedError),
    /// A file.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file does not contain a state.
    #[error("{path}: not the state of a certificate authority: {source}; restore the file from a backup")]
    State {
        /// The file.
        path: PathBuf,
        /// The error.
        source: serde_json::Error,
    },
    /// The requested rotation is not possible.
    #[error("{0}")]
    Request(&'static str),
    /// The file of additional roots is unusable.
    #[error("{path} {reason}")]
    FurtherRoots {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: TrustError,
    },
}

/// A root of the file of additional ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FurtherRoot {
    /// SHA-256 of its certificate.
    pub id: String,
    /// Beginning of its validity, in seconds since 1970.
    pub begin: u64,
    /// End of its validity.
    pub end: u64,
}

/// The result of checking the operator's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reloaded {
    /// They are the authority in use, or that of the current rotation.
    Same,
    /// A rotation to them has begun.
    Begun(Box<State>),
    /// They are another authority, but a rotation is in progress; they are checked again after it.
    Later,
}

/// The authorities in the store.
#[derive(Debug, Clone)]
pub struct AuthorityStore {
    store: Store,
    trust_domain: String,
    /// A file of roots that are trusted in addition to those of the authorities.
    further_roots: Option<PathBuf>,
}

impl AuthorityStore {
    /// Opens the authorities of a store. If there are none, the first one is the operator's, or else a new one. The caller
    /// holds the lease.
    pub fn open(
        state: impl Into<Store>,
        plugged: Option<&PluggedFiles>,
        trust_domain: &str,
        now: SystemTime,
    ) -> Result<(Self, State), StoreError> {
        let this = Self::at(state, trust_domain);
        this.store.trusted(FOLDER)?;
        if let Some(known) = this.load()? {
            return Ok((this, known));
        }
        let signer = match plugged {
            Some(files) => this.add(files, Origin::PluggedIn, None, now)?,
            None => signer(&Authority::open(&this.store, trust_domain, now)?, Origin::First, None),
        };
        let first = State::steady(signer, unix(now));
        this.save(&first)?;
        Ok((this, first))
    }

    /// Returns the authorities of a store, in which there may be none yet.
    pub fn at(state: impl Into<Store>, trust_domain: &str) -> Self {
        Self { store: state.into(), trust_domain: trust_domain.to_owned(), further_roots: None }
    }

    /// Also trusts the roots in this file, which is read whenever roots are.
    ///
    /// # Errors
    /// When the file has no usable root.
    pub fn trusting(self, file: PathBuf, state: &State) -> Result<Self, StoreError> {
        let this = Self { further_roots: Some(file), ..self };
        this.publish(state)?;
        Ok(this)
    }

    /// Returns the roots of the file of additional ones.
    pub fn further_roots(&self) -> Result<Option<String>, StoreError> {
        let Some(path) = &self.further_roots else { return Ok(None) };
        let failed = |source| StoreError::Io { path: path.clone(), source };
        let size = fs::metadata(path).map_err(failed)?.len();
        if size > MAX_STATE_BYTES {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidData, "more than 1 MiB")));
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        match TrustBundle::from_pem(text.as_bytes()) {
            Ok(_) => Ok(Some(text)),
            Err(reason) => Err(StoreError::FurtherRoots { path: path.clone(), reason }),
        }
    }

    /// Returns the store, which also has the ledgers.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Forgets which workloads have certificates. Only for whoever has ended all of them, and every control plane of this
    /// directory: a rotation does not wait for the forgotten ones.
    pub fn forget_holders(&self) -> io::Result<()> {
        self.store.remove_folder(ledger::FOLDER)
    }

    /// Returns the current state; `None` if there is none yet.
    pub fn load(&self) -> Result<Option<State>, StoreError> {
        let path = || self.store.place(STATE);
        let text = self.store.get_within(STATE, MAX_STATE_BYTES);
        let Some(text) = text.map_err(|source| StoreError::Io { path: path(), source })? else { return Ok(None) };
        serde_json::from_slice(&text).map(Some).map_err(|source| StoreError::State { path: path(), source })
    }

    /// Makes a state the current one. The authorities that it names are in the store. The caller holds the lease.
    pub fn save(&self, state: &State) -> Result<(), StoreError> {
        let text = serde_json::to_vec_pretty(state)
            .map_err(|source| StoreError::State { path: self.store.place(STATE), source })?;
        self.put(STATE, &text, Readers::Owner)?;
        self.publish(state)
    }

    /// Returns the roots of that file with their validity; empty if it cannot be read, which is reported elsewhere.
    pub fn further_authorities(&self) -> Vec<FurtherRoot> {
        let text = self.further_roots().ok().flatten().unwrap_or_default();
        let roots = plugged::parse(&text).into_iter();
        let root = |root: CertificateDer<'static>| {
            let (begin, end) = validity(&root)?;
            Some(FurtherRoot { id: plugged::fingerprint(&plugged::to_pem(&root))?, begin, end })
        };
        roots.filter_map(root).collect()
    }

    /// Writes the trusted roots for programs that deploy them to workloads.
    pub fn publish(&self, state: &State) -> Result<(), StoreError> {
        let roots = self.roots(state)?;
        match self.store.get(BUNDLE_FILE) {
            Ok(Some(there)) if there == roots.as_bytes() => Ok(()),
            _ => self.put(BUNDLE_FILE, roots.as_bytes(), Readers::All),
        }
    }

    /// Returns the authorities and roots in use for a state.
    pub fn signing(&self, state: State, now: SystemTime) -> Result<Signing, StoreError> {
        let roots = self.roots(&state)?;
        let active = std::sync::Arc::new(self.authority(&state.active, now)?);
        let server = match state.server_signer() {
            same if same.id == state.active.id => active.clone(),
            other => std::sync::Arc::new(self.authority(other, now)?),
        };
        let lists = self.revocation_lists(&state)?;
        Ok(Signing::new(state, active, server, roots, lists))
    }

    /// Opens an authority of the store.
    pub fn authority(&self, signer: &Signer, now: SystemTime) -> Result<Authority, StoreError> {
        Ok(match signer.origin {
            Origin::First => Authority::open(&self.store, &self.trust_domain, now)?,
            _ => self.added(&signer.id, now)?,
        })
    }

    /// Returns the roots of all trusted authorities and the additional ones, without duplicates, as the files are now.
    pub fn roots(&self, state: &State) -> Result<String, StoreError> {
        let mut texts = Vec::new();
        for signer in state.trusted() {
            texts.push(self.files(signer)?.roots);
        }
        texts.extend(self.further_roots()?);
        let mut roots: Vec<_> = Vec::new();
        for root in texts.iter().flat_map(|text| plugged::parse(text)) {
            if !roots.contains(&root) {
                roots.push(root);
            }
        }
        Ok(roots.iter().map(plugged::to_pem).collect())
    }

    /// Returns the revocation lists of all trusted authorities; `None` unless all have some, because a peer rejects
    /// certificates that no list covers.
    fn revocation_lists(&self, state: &State) -> Result<Option<String>, StoreError> {
        let mut all = String::new();
        for signer in state.trusted() {
            match self.files(signer)?.revocation_lists {
                Some(lists) => all = format!("{all}{}\n", lists.trim_end()),
                None => return Ok(None),
            }
        }
        Ok(Some(all))
    }

    fn files(&self, signer: &Signer) -> Result<PluggedFiles, StoreError> {
        match signer.origin {
            Origin::First => {
                let missing = || io::Error::from(io::ErrorKind::NotFound);
                let text = self.store.text(CA_CERT_FILE).and_then(|text| text.ok_or_else(missing));
                let certificate =
                    text.map_err(|source| StoreError::Io { path: self.store.place(CA_CERT_FILE), source })?;
                Ok(PluggedFiles::made(certificate.clone(), String::new(), certificate, String::new()))
            }
            _ => Ok(PluggedFiles::stored(&self.store, &signer_folder(&signer.id))?),
        }
    }

    /// Creates the authority that a rotation changes to, and the state in which it begins. The caller holds the lease.
    pub fn rotate(&self, state: &State, kind: Kind, now: SystemTime) -> Result<State, StoreError> {
        if state.active.origin == Origin::PluggedIn && kind == Kind::Intermediate {
            return Err(StoreError::Request(
                "the certificate authority is plugged in: replace its files, and the control plane changes to it",
            ));
        }
        self.keeps_revocations(state, false)?;
        let next = match kind {
            Kind::Root => self.add(&Authority::new_root(&self.trust_domain, now)?, Origin::Own, None, now)?,
            Kind::Intermediate => {
                let parent = match &state.active.parent {
                    Some(id) if *id == FIRST => Authority::open(&self.store, &self.trust_domain, now)?,
                    Some(id) => self.added(id, now)?,
                    None => self.authority(&state.active, now)?,
                };
                let parent_id = match (&state.active.parent, state.active.origin) {
                    (Some(id), _) => id.clone(),
                    (None, Origin::First) => FIRST.to_owned(),
                    (None, _) => state.active.id.clone(),
                };
                let files = parent.new_intermediate(&self.trust_domain, now)?;
                self.add(&files, Origin::Own, Some(parent_id), now)?
            }
        };
        self.begin(state, kind, next, now)
    }

    /// Checks whether the operator's files are another authority than the one in use, and begins a rotation to it. The caller
    /// holds the lease.
    pub fn reload(&self, state: &State, files: &PluggedFiles, now: SystemTime) -> Result<Reloaded, StoreError> {
        let authority = Authority::from_files(files, now)?;
        let known =
            |signer: &Signer| signer.id == authority.id() && self.files(signer).is_ok_and(|of| is_same(&of, files));
        if known(&state.active) || state.next.as_ref().is_some_and(known) {
            return Ok(Reloaded::Same);
        }
        if state.phase != super::Phase::Steady {
            return Ok(Reloaded::Later);
        }
        self.keeps_revocations(state, files.revocation_lists.is_some())?;
        let trusted = plugged::parse(&self.files(&state.active)?.roots);
        let is_trusted = plugged::parse(authority.trust_bundle_pem()).iter().all(|root| trusted.contains(root));
        let stays_trusted = trusted.iter().all(|root| plugged::parse(authority.trust_bundle_pem()).contains(root));
        let kind = if is_trusted && stays_trusted { Kind::Intermediate } else { Kind::Root };
        let next = self.add(files, Origin::PluggedIn, None, now)?;
        Ok(Reloaded::Begun(Box::new(self.begin(state, kind, next, now)?)))
    }

    /// Checks that revocations of the old authority stay effective while both are trusted, which requires that both have
    /// lists.
    fn keeps_revocations(&self, state: &State, has_lists: bool) -> Result<(), StoreError> {
        match self.files(&state.active)?.revocation_lists {
            Some(_) if !has_lists => Err(StoreError::Request(
                "the authority in use has revocation lists and the next one has none: what is revoked would be accepted again; \
                 add ca-crl.pem to the new files, or remove the one in use",
            )),
            _ => Ok(()),
        }
    }

    fn begin(&self, state: &State, kind: Kind, next: Signer, now: SystemTime) -> Result<State, StoreError> {
        let busy = StoreError::Request("a rotation is going on; the next one can begin after it");
        let begun = state.begin(kind, next, unix(now)).ok_or(busy)?;
        self.save(&begun)?;
        Ok(begun)
    }

    /// Adds an authority to the store; it is not used before a state names it.
    fn add(
        &self,
        files: &PluggedFiles,
        origin: Origin,
        parent: Option<String>,
        now: SystemTime,
    ) -> Result<Signer, StoreError> {
        let authority = Authority::from_files(files, now)?;
        let folder = signer_folder(authority.id());
        self.store.trusted(&folder)?;
        let write = |name: &str, text: &str| self.put(&format!("{folder}/{name}"), text.as_bytes(), Readers::Owner);
        write(CA_KEY_FILE, &files.key)?;
        write(CA_CERT_FILE, &files.certificate)?;
        write(ROOT_CERT_FILE, &files.roots)?;
        write(CERT_CHAIN_FILE, &files.chain)?;
        write(plugged::CRL_FILE, files.revocation_lists.as_deref().unwrap_or_default())?;
        Ok(signer(&authority, origin, parent))
    }

    /// Applies new revocation lists of the same authority. Returns whether they differ.
    pub fn replace_revocation_lists(
        &self,
        state: &State,
        files: &PluggedFiles,
        now: SystemTime,
    ) -> Result<bool, StoreError> {
        if state.active.origin != Origin::PluggedIn || files.id().as_deref() != Some(&state.active.id) {
            return Ok(false);
        }
        if self.files(&state.active)?.revocation_lists == files.revocation_lists {
            return Ok(false);
        }
        // Incomplete lists are an error, and those in use stay.
        Authority::from_files(files, now)?;
        let key = format!("{}/{}", signer_folder(&state.active.id), plugged::CRL_FILE);
        let text = files.revocation_lists.as_deref().unwrap_or_default();
        self.put(&key, text.as_bytes(), Readers::Owner)?;
        Ok(true)
    }

    /// Deletes the keys and certificates that the state no longer names. The caller holds the lease.
    pub fn clean(&self, state: &State) -> io::Result<()> {
        let parents = state.trusted().filter_map(|signer| signer.parent.as_deref());
        let kept: Vec<&str> = state.trusted().map(|signer| signer.id.as_str()).chain(parents).collect();
        for id in self.store.list(SIGNERS)?.iter().filter(|id| !kept.contains(&id.as_str())) {
            self.store.remove_folder(&signer_folder(id))?;
        }
        let first = state.trusted().any(|signer| signer.origin == Origin::First) || kept.contains(&FIRST);
        if !first {
            self.store.remove(CA_KEY_FILE)?;
            self.store.remove(CA_CERT_FILE)?;
        }
        Ok(())
    }

    /// Requests a rotation from the control planes of this state directory.
    pub fn request(&self, kind: Kind) -> io::Result<()> {
        self.check_exists()?;
        self.store.put(request_key(kind), b"", Readers::Owner)
    }

    /// Returns the requested rotation.
    pub fn requested(&self) -> Option<Kind> {
        [Kind::Root, Kind::Intermediate]
            .into_iter()
            .find(|kind| matches!(self.store.version(request_key(*kind)), Ok(Some(_))))
    }

    /// Removes the request, which has been fulfilled or refused.
    pub fn answered(&self, kind: Kind) -> io::Result<()> {
        self.store.remove(request_key(kind)).map(drop)
    }

    /// Requests that the rotation, or the one that is requested next, does not wait for these workloads.
    pub fn request_without(&self, names: &[String]) -> io::Result<()> {
        self.check_exists()?;
        self.store.put(WITHOUT, names.join("\n").as_bytes(), Readers::Owner)
    }

    /// Returns the workloads that the rotation should not wait for.
    pub fn without_requested(&self) -> io::Result<Vec<String>> {
        let text = self.store.get_within(WITHOUT, MAX_WITHOUT_BYTES)?.unwrap_or_default();
        let text = String::from_utf8(text).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "no UTF-8 text"))?;
        Ok(text.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    /// Removes that request.
    pub fn without_answered(&self) -> io::Result<()> {
        self.store.remove(WITHOUT).map(drop)
    }

    /// Opens an authority that was added.
    fn added(&self, id: &str, now: SystemTime) -> Result<Authority, AuthorityError> {
        Authority::from_files(&PluggedFiles::stored(&self.store, &signer_folder(id))?, now)
    }

    /// Checks that the store is that of a control plane: a request in another one would have no effect.
    fn check_exists(&self) -> io::Result<()> {
        match self.store.version(FOLDER)? {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn put(&self, key: &str, value: &[u8], readers: Readers) -> Result<(), StoreError> {
        self.store.put(key, value, readers).map_err(|source| StoreError::Io { path: self.store.place(key), source })
    }
}

fn request_key(kind: Kind) -> &'static str {
    match kind {
        Kind::Root => "ca/rotate-root.request",
        Kind::Intermediate => "ca/rotate-intermediate.request",
    }
}

fn signer_folder(id: &str) -> String {
    format!("{SIGNERS}/{id}")
}

/// Used in [`Signer::parent`] for the authority in the state directory itself.
const FIRST: &str = "first";

/// Whether two sets of files are the same authority with the same roots.
fn is_same(one: &PluggedFiles, other: &PluggedFiles) -> bool {
    let parsed =
        |files: &PluggedFiles| [&files.certificate, &files.roots, &files.chain].map(|text| plugged::parse(text));
    parsed(one) == parsed(other)
}

fn signer(authority: &Authority, origin: Origin, parent: Option<String>) -> Signer {
    let validities = plugged::parse(authority.trust_bundle_pem()).into_iter().filter_map(|root| validity(&root));
    let own = (unix(authority.not_before()), unix(authority.not_after()));
    let root = validities.min_by_key(|(_, end)| *end).unwrap_or(own);
    Signer {
        id: authority.id().to_owned(),
        key_id: authority.key_id().to_owned(),
        origin,
        parent,
        not_before: own.0,
        not_after: own.1,
        root_not_before: root.0,
        root_not_after: root.1,
    }
}

fn validity(der: &[u8]) -> Option<(u64, u64)> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
    let validity = certificate.validity();
    Some((seconds(validity.not_before.timestamp()), seconds(validity.not_after.timestamp())))
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}
