//! A proxy's credentials: its token and the root certificate, as files in its folder.
//!
//! A token is valid for an hour, for one Pod and for one run of `up`: it is renewed long before it expires, the control
//! plane refuses it once the Pod is gone, and its key is made at the start of each run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use evenkeel_base::files::{Readers, write_atomically, write_atomically_for};
use evenkeel_ca::files::CA_CERT_FILE;
use evenkeel_ca::rotation::{AuthorityStore, BUNDLE_FILE};
use evenkeel_ca::tokens::{GROUP_PREFIX, TOKEN_KEY_FILE};
use evenkeel_ca::{TokenError, TokenKey, Workload};
use evenkeel_control::source::files::{Links, read_regular};
use evenkeel_store::Store;

use crate::confine::Account;
use crate::pods::Pod;

/// Lifetime of a token; Kubernetes gives no projected token less than ten minutes, nor `istio-token` more than twelve hours.
const LIFETIME: Duration = Duration::from_secs(3600);
/// Age at which a token is replaced.
const RENEW_AFTER: Duration = Duration::from_secs(1800);

/// A proxy's files that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The token.
    #[error("cannot make a workload's token: {0}")]
    Token(#[from] TokenError),
    /// A file could not be read or written.
    #[error("cannot write {}: {source}", .path.display())]
    Io {
        /// The workloads.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// Makes tokens, with a key of this run.
pub struct Tokens {
    key: TokenKey,
    /// The store of the control plane.
    store: Store,
}

/// A proxy's own files.
#[derive(Debug, Clone)]
pub struct Credentials {
    folder: PathBuf,
    owner: Option<Account>,
    workload: Workload,
}

impl Tokens {
    /// Makes the key in the control plane's directory; tokens made with the previous key are no longer valid. The workloads of
    /// earlier runs have ended, so a rotation does not wait for them until their certificates expire.
    pub fn begin(control: &Path) -> Result<Self, CredentialError> {
        let store = Store::from(control);
        let removed = store.remove(TOKEN_KEY_FILE);
        removed.map_err(|source| CredentialError::Io { path: store.place(TOKEN_KEY_FILE), source })?;
        let forgotten = AuthorityStore::at(&store, "").forget_holders();
        forgotten.map_err(|source| CredentialError::Io { path: control.to_owned(), source })?;
        Ok(Self { key: TokenKey::open(&store)?, store })
    }

    /// Writes both files for the first time.
    pub fn give(&self, credentials: &Credentials, now: SystemTime) -> Result<(), CredentialError> {
        self.write_token(credentials, now)?;
        self.follow_root(credentials)
    }

    /// Replaces old files. Call it about every second, because the clock may jump.
    pub fn renew(&self, credentials: &Credentials, now: SystemTime) -> Result<(), CredentialError> {
        let found = fs::symlink_metadata(credentials.token()).ok().filter(fs::Metadata::is_file);
        if found.and_then(|file| file.modified().ok()).is_none_or(|written| is_due(written, now)) {
            self.write_token(credentials, now)?;
        }
        self.follow_root(credentials)
    }

    fn write_token(&self, credentials: &Credentials, now: SystemTime) -> Result<(), CredentialError> {
        let token = self.key.mint(&credentials.workload, LIFETIME, now)?;
        credentials.write(&credentials.token(), &token)
    }

    fn follow_root(&self, credentials: &Credentials) -> Result<(), CredentialError> {
        let failed = |source| CredentialError::Io { path: self.store.place(BUNDLE_FILE), source };
        let text = |key: &str| self.store.text(key).map_err(failed);
        // The first root is there before the control plane has published what is trusted.
        let root = match text(BUNDLE_FILE)? {
            Some(roots) => roots,
            None => text(CA_CERT_FILE)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?,
        };
        let path = credentials.root();
        // The proxy owns the folder, and may have put anything there.
        let known = read_regular(&path, Links::Refused, u64::try_from(root.len()).unwrap_or(u64::MAX));
        if known.is_ok_and(|known| known == root.as_bytes()) { Ok(()) } else { credentials.write(&path, &root) }
    }
}

impl Credentials {
    /// The credentials of a Pod's proxy, which runs as `owner` and owns the folder.
    pub fn new(folder: PathBuf, pod: &Pod, owner: Option<Account>) -> Self {
        let workload = Workload {
            namespace: pod.namespace.clone(),
            service_account: pod.service_account.clone(),
            pod: match &pod.proxy.membership {
                Some(membership) => format!("{GROUP_PREFIX}{}", membership.group),
                None => pod.name.clone(),
            },
        };
        Self { folder, owner, workload }
    }

    /// The file of the token.
    pub fn token(&self) -> PathBuf {
        self.folder.join("token")
    }

    /// The file of the root certificate.
    pub fn root(&self) -> PathBuf {
        self.folder.join("root-cert.pem")
    }

    /// Writes a file as a whole or not at all. The proxy can change the folder, so no link in it is followed and no
    /// existing file in it is written to.
    fn write(&self, path: &Path, content: &str) -> Result<(), CredentialError> {
        let written = match self.owner {
            Some(owner) => write_atomically_for((owner.uid, owner.gid), path, content.as_bytes(), Readers::Owner),
            None => write_atomically(path, content.as_bytes(), Readers::Owner),
        };
        written.map_err(|source| CredentialError::Io { path: path.to_path_buf(), source })
    }
}

/// Whether a file of this age must be replaced; also if it is from the future, after the clock has jumped.
fn is_due(written: SystemTime, now: SystemTime) -> bool {
    now.duration_since(written).map_or(true, |age| age >= RENEW_AFTER)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn files() -> Result<(tempfile::TempDir, Tokens, Credentials), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join(CA_CERT_FILE), "a root")?;
        let tokens = Tokens::begin(folder.path())?;
        let own = folder.path().join("web-1");
        fs::create_dir(&own)?;
        let workload = Workload { namespace: "shop".into(), service_account: "web".into(), pod: "web-1".into() };
        Ok((folder, tokens, Credentials { folder: own, owner: None, workload }))
    }

    #[test]
    fn a_token_is_replaced_at_half_its_life_and_a_root_when_it_changes() -> Result<(), Box<dyn std::error::Error>> {
        let (folder, tokens, credentials) = files()?;
        let now = SystemTime::now();
        tokens.give(&credentials, now)?;
        let first = fs::read_to_string(credentials.token())?;
        assert_eq!(tokens.key.verify(&first, now)?, credentials.workload);
        assert!(tokens.key.verify(&first, now + LIFETIME + Duration::from_secs(60)).is_err());
        let written = fs::metadata(credentials.token())?.modified()?;
        for (age, renewed) in
            [(Duration::ZERO, false), (RENEW_AFTER - Duration::from_secs(1), false), (RENEW_AFTER, true)]
        {
            tokens.renew(&credentials, written + age)?;
            assert_eq!(fs::read_to_string(credentials.token())? != first, renewed, "{age:?}");
        }
        assert!(is_due(now + Duration::from_secs(60), now), "the clock went back");
        fs::write(folder.path().join(CA_CERT_FILE), "another root")?;
        tokens.renew(&credentials, written)?;
        assert_eq!(fs::read_to_string(credentials.root())?, "another root");
        Ok(())
    }

    #[test]
    fn tokens_of_an_earlier_run_are_worth_nothing() -> Result<(), Box<dyn std::error::Error>> {
        let (folder, tokens, credentials) = files()?;
        let now = SystemTime::now();
        let old = tokens.key.mint(&credentials.workload, LIFETIME, now)?;
        assert!(Tokens::begin(folder.path())?.key.verify(&old, now).is_err());
        Ok(())
    }

    #[test]
    fn what_a_proxy_puts_in_the_way_is_not_followed() -> Result<(), Box<dyn std::error::Error>> {
        let (folder, tokens, credentials) = files()?;
        let victim = folder.path().join("passwd");
        fs::write(&victim, "root")?;
        for name in ["token", "token.new", "root-cert.pem", "root-cert.pem.new"] {
            std::os::unix::fs::symlink(&victim, credentials.folder.join(name))?;
        }
        tokens.give(&credentials, SystemTime::now())?;
        assert_eq!(fs::read_to_string(&victim)?, "root");
        assert!(!fs::symlink_metadata(credentials.token())?.is_symlink());
        Ok(())
    }

    #[test]
    fn what_a_proxy_puts_in_the_place_of_its_root_is_not_read() -> Result<(), Box<dyn std::error::Error>> {
        type Put = fn(&Path) -> io::Result<()>;
        let (folder, tokens, credentials) = files()?;
        let root = credentials.root();
        tokens.give(&credentials, SystemTime::now())?;
        fs::write(folder.path().join("right"), "a root")?;
        let kinds: [(&str, Put); 5] = [
            ("endless", |root| symlink("/dev/zero", root)),
            ("a terminal", |root| symlink("/dev/tty", root)),
            ("a pipe without a writer", |root| Ok(mkfifo(root, Mode::S_IRWXU)?)),
            ("a socket", |root| UnixListener::bind(root).map(drop)),
            ("a link to the right text", |root| symlink("../right", root)),
        ];
        for (kind, put) in kinds {
            fs::remove_file(&root)?;
            put(&root)?;
            tokens.renew(&credentials, SystemTime::now())?;
            assert!(fs::symlink_metadata(&root)?.is_file(), "{kind}");
            assert_eq!(fs::read_to_string(&root)?, "a root", "{kind}");
        }
        Ok(())
    }
}
