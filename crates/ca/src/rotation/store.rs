//! Stores the authorities and the state of their rotation in the state directory.
//!
//! ```text
//! STATE/ca-cert.pem, ca-key.pem   the first authority that the control plane created
//! STATE/trust-bundle.pem          the trusted roots, for programs that deploy them to workloads
//! STATE/ca/state.json             the state of the rotation
//! STATE/ca/signers/ID/            every other authority, in Istio's layout
//! STATE/ca/ledger/                the ledgers of issued certificates
//! STATE/ca/rotate-KIND.request    a requested rotation
//! STATE/ca/without.request        workloads that the rotation should not wait for, one a line
//! ```

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_base::files::{Readers, UntrustedError, private_directory, write_atomically};
use evenkeel_tls::{TrustBundle, TrustError};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::signing::Signing;
use super::state::{Kind, Origin, Signer, State};
use crate::authority::{Authority, SignError};
use crate::files::{AuthorityError, CA_CERT_FILE, CA_KEY_FILE};
use crate::key_file::{self, KeyFileError};
use crate::plugged::{self, CERT_CHAIN_FILE, PluggedFiles, ROOT_CERT_FILE};

const STATE_FILE: &str = "state.json";
const SIGNERS: &str = "signers";
/// File name of the trusted roots in the state directory.
pub const BUNDLE_FILE: &str = "trust-bundle.pem";
/// Maximum size of a state that is read, in bytes.
const MAX_STATE_BYTES: u64 = 1024 * 1024;
const WITHOUT_FILE: &str = "without.request";
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
    Key(#[from] KeyFileError),
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

/// The files in the state directory.
#[derive(Debug, Clone)]
pub struct Store {
    state: PathBuf,
    folder: PathBuf,
    trust_domain: String,
    /// A file of roots that are trusted in addition to those of the authorities.
    further_roots: Option<PathBuf>,
}

impl Store {
    /// Opens the store in a state directory. If it is empty, the first authority is the operator's, or else that of the state
    /// directory, which is created if there is none. The caller holds the lease.
    pub fn open(
        state: &Path,
        plugged: Option<&PluggedFiles>,
        trust_domain: &str,
        now: SystemTime,
    ) -> Result<(Self, State), StoreError> {
        let this = Self::at(state, trust_domain);
        private_directory(&this.folder)?;
        if let Some(known) = this.load()? {
            return Ok((this, known));
        }
        let signer = match plugged {
            Some(files) => this.add(files, Origin::PluggedIn, None, now)?,
            None => signer(&Authority::open(state, trust_domain, now)?, Origin::First, None),
        };
        let first = State::steady(signer, unix(now));
        this.save(&first)?;
        Ok((this, first))
    }

    /// Returns the store of a state directory, which may not exist yet.
    pub fn at(state: &Path, trust_domain: &str) -> Self {
        let (folder, trust_domain) = (state.join("ca"), trust_domain.to_owned());
        Self { state: state.to_owned(), folder, trust_domain, further_roots: None }
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

    /// Returns the directory of the ledgers.
    pub fn ledgers(&self) -> PathBuf {
        self.folder.join("ledger")
    }

    /// Forgets which workloads have certificates. Only for whoever has ended all of them, and every control plane of this
    /// directory: a rotation does not wait for the forgotten ones.
    pub fn forget_holders(&self) -> io::Result<()> {
        match fs::remove_dir_all(self.ledgers()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the current state; `None` if there is none yet.
    pub fn load(&self) -> Result<Option<State>, StoreError> {
        let path = self.folder.join(STATE_FILE);
        let text = match fs::metadata(&path) {
            Ok(found) if found.len() > MAX_STATE_BYTES => {
                let source = io::Error::new(io::ErrorKind::InvalidData, "more than 1 MiB");
                return Err(StoreError::Io { path, source });
            }
            _ => fs::read(&path),
        };
        match text {
            Ok(text) => match serde_json::from_slice(&text) {
                Ok(state) => Ok(Some(state)),
                Err(source) => Err(StoreError::State { path, source }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::Io { path, source }),
        }
    }

    /// Makes a state the current one. The authorities that it names are in the store. The caller holds the lease.
    pub fn save(&self, state: &State) -> Result<(), StoreError> {
        let path = self.folder.join(STATE_FILE);
        let text =
            serde_json::to_vec_pretty(state).map_err(|source| StoreError::State { path: path.clone(), source })?;
        write_atomically(&path, &text, Readers::Owner).map_err(|source| StoreError::Io { path, source })?;
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
        let path = self.state.join(BUNDLE_FILE);
        let roots = self.roots(state)?;
        if fs::read_to_string(&path).is_ok_and(|there| there == roots) {
            return Ok(());
        }
        write_atomically(&path, roots.as_bytes(), Readers::All).map_err(|source| StoreError::Io { path, source })
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
            Origin::First => Authority::open(&self.state, &self.trust_domain, now)?,
            _ => Authority::plugged_in(&self.signer_folder(&signer.id), now)?,
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
                let path = self.state.join(CA_CERT_FILE);
                let certificate = fs::read_to_string(&path).map_err(|source| StoreError::Io { path, source })?;
                Ok(PluggedFiles::made(certificate.clone(), String::new(), certificate, String::new()))
            }
            _ => Ok(PluggedFiles::read(&self.signer_folder(&signer.id))?),
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
                    Some(id) if *id == FIRST => Authority::open(&self.state, &self.trust_domain, now)?,
                    Some(id) => Authority::plugged_in(&self.signer_folder(id), now)?,
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
        let folder = self.signer_folder(authority.id());
        private_directory(&folder)?;
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            write_atomically(&path, text.as_bytes(), Readers::Owner).map_err(|source| StoreError::Io { path, source })
        };
        key_file::write(&folder.join(CA_KEY_FILE), &files.key)?;
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
        let path = self.signer_folder(&state.active.id).join(plugged::CRL_FILE);
        let text = files.revocation_lists.as_deref().unwrap_or_default();
        write_atomically(&path, text.as_bytes(), Readers::Owner).map_err(|source| StoreError::Io { path, source })?;
        Ok(true)
    }

    /// Deletes the keys and certificates that the state no longer names. The caller holds the lease.
    pub fn clean(&self, state: &State) -> io::Result<()> {
        let parents = state.trusted().filter_map(|signer| signer.parent.as_deref());
        let kept: Vec<&str> = state.trusted().map(|signer| signer.id.as_str()).chain(parents).collect();
        for entry in fs::read_dir(self.folder.join(SIGNERS)).into_iter().flatten() {
            let entry = entry?;
            if !kept.iter().any(|id| entry.file_name() == *id) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        let first = state.trusted().any(|signer| signer.origin == Origin::First) || kept.contains(&FIRST);
        if !first {
            for name in [CA_KEY_FILE, CA_CERT_FILE] {
                match fs::remove_file(self.state.join(name)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Requests a rotation from the control planes of this state directory.
    pub fn request(&self, kind: Kind) -> io::Result<()> {
        fs::File::create(self.request_file(kind)).map(drop)
    }

    /// Returns the requested rotation.
    pub fn requested(&self) -> Option<Kind> {
        [Kind::Root, Kind::Intermediate].into_iter().find(|kind| self.request_file(*kind).exists())
    }

    /// Removes the request, which has been fulfilled or refused.
    pub fn answered(&self, kind: Kind) -> io::Result<()> {
        fs::remove_file(self.request_file(kind))
    }

    /// Requests that the rotation, or the one that is requested next, does not wait for these workloads.
    pub fn request_without(&self, names: &[String]) -> io::Result<()> {
        write_atomically(&self.folder.join(WITHOUT_FILE), names.join("\n").as_bytes(), Readers::Owner)
    }

    /// Returns the workloads that the rotation should not wait for.
    pub fn without_requested(&self) -> io::Result<Vec<String>> {
        let file = match fs::File::open(self.folder.join(WITHOUT_FILE)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        file.take(MAX_WITHOUT_BYTES).read_to_string(&mut text)?;
        Ok(text.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    /// Removes that request.
    pub fn without_answered(&self) -> io::Result<()> {
        match fs::remove_file(self.folder.join(WITHOUT_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn request_file(&self, kind: Kind) -> PathBuf {
        let name = match kind {
            Kind::Root => "root",
            Kind::Intermediate => "intermediate",
        };
        self.folder.join(format!("rotate-{name}.request"))
    }

    fn signer_folder(&self, id: &str) -> PathBuf {
        self.folder.join(SIGNERS).join(id)
    }
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
