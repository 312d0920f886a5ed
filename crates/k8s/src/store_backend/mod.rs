//! The state of control planes in a namespace of the cluster: values are Secrets or ConfigMaps, leases are Leases.
//!
//! Every read asks the API server: who holds a lease has to see what its last holder has written. Logs stay in a local
//! directory ([`LOCAL`]): they grow with each change and each certificate, and an object is written as a whole.

mod lease;
mod objects;
mod watch;
mod worker;

use std::fmt;
use std::io::{self, Cursor, ErrorKind, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use evenkeel_base::files::UntrustedError;
use evenkeel_store::{Backend, Begin, Changed, Directory, Lease, Log, Readers, SecretError, Version, Watch};
use kube::{Client, Config};

use objects::{Objects, Stored};
use worker::Worker;

/// Folders that are in the local directory of each control plane, not in the cluster: the history, and the ledger of the
/// certificates that this control plane has issued.
pub const LOCAL: [&str; 2] = ["history", "ca/ledger"];
/// Maximum size of a value, in bytes: that of a Secret or ConfigMap, less some for its other fields.
pub const MAX_VALUE_BYTES: usize = 1_000_000;

/// A store in a namespace of a cluster.
#[derive(Clone)]
pub struct KubernetesStore {
    worker: Arc<Worker>,
    objects: Objects,
    client: Client,
    namespace: Arc<str>,
    local: Directory,
}

impl fmt::Debug for KubernetesStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesStore").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl KubernetesStore {
    /// The store in this namespace, with logs in the directory `local`. It has a thread of its own, as its callers wait.
    pub fn new(config: Config, namespace: &str, local: &Path) -> io::Result<Self> {
        let worker = Worker::start()?;
        let client = worker.call(async move { Client::try_from(config).map_err(io::Error::other) })??;
        tracing::info!(
            namespace, local = %local.display(),
            "state is kept in the cluster; the history and the ledger of issued certificates stay in the local directory"
        );
        Ok(Self {
            worker: Arc::new(worker),
            objects: Objects::new(client.clone(), namespace),
            client,
            namespace: namespace.into(),
            local: Directory::new(local),
        })
    }

    fn find(&self, key: &str) -> io::Result<Option<Stored>> {
        let (objects, key) = (self.objects.clone(), checked(key)?.to_owned());
        self.worker.call(async move { objects.get(&key).await })?
    }
}

/// Whether a key, or all keys of a folder, are in the local directory.
fn is_local(key: &str) -> bool {
    LOCAL.iter().any(|folder| key.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Returns the key if it is one: the same as in a directory.
fn checked(key: &str) -> io::Result<&str> {
    let is_plain = Path::new(key).components().all(|part| matches!(part, Component::Normal(_)));
    if is_plain && !key.is_empty() {
        Ok(key)
    } else {
        Err(io::Error::new(ErrorKind::InvalidInput, format!("`{key}` is not a key")))
    }
}

impl Backend for KubernetesStore {
    fn reader(&self, key: &str) -> io::Result<Option<Box<dyn Read>>> {
        if is_local(key) {
            return self.local.reader(key);
        }
        Ok(self.find(key)?.map(|stored| Box::new(Cursor::new(stored.value)) as Box<dyn Read>))
    }

    fn secret(&self, key: &str) -> Result<Option<String>, SecretError> {
        if is_local(key) {
            return self.local.secret(key);
        }
        let failed = |source| SecretError::Io { path: self.place(key), source };
        let Some(stored) = self.find(key).map_err(failed)? else { return Ok(None) };
        if stored.readers == Readers::All {
            let reason = "a private key is in a ConfigMap, which is no secret; remove it and the key";
            return Err(failed(io::Error::new(ErrorKind::PermissionDenied, reason)));
        }
        let text = String::from_utf8(stored.value);
        text.map(Some).map_err(|_| failed(io::Error::new(ErrorKind::InvalidData, "no UTF-8 text")))
    }

    fn version(&self, key: &str) -> io::Result<Option<Version>> {
        if is_local(key) {
            return self.local.version(key);
        }
        let (objects, key) = (self.objects.clone(), checked(key)?.to_owned());
        self.worker.call(async move { objects.version(&key).await })?
    }

    fn put(&self, key: &str, value: &[u8], readers: Readers) -> io::Result<()> {
        if is_local(key) {
            return self.local.put(key, value, readers);
        }
        if value.len() > MAX_VALUE_BYTES {
            let text = format!("`{key}` has {} bytes; an object of Kubernetes holds {MAX_VALUE_BYTES}", value.len());
            return Err(io::Error::new(ErrorKind::FileTooLarge, text));
        }
        let (objects, key, value) = (self.objects.clone(), checked(key)?.to_owned(), value.to_vec());
        self.worker.call(async move { objects.put(&key, &value, readers).await })?
    }

    fn touch(&self, key: &str) -> io::Result<()> {
        if is_local(key) {
            return self.local.touch(key);
        }
        let (objects, key) = (self.objects.clone(), checked(key)?.to_owned());
        self.worker.call(async move { objects.touch(&key).await })?
    }

    fn remove(&self, key: &str) -> io::Result<bool> {
        if is_local(key) {
            return self.local.remove(key);
        }
        let (objects, key) = (self.objects.clone(), checked(key)?.to_owned());
        self.worker.call(async move { objects.remove(&key).await })?
    }

    fn remove_folder(&self, folder: &str) -> io::Result<()> {
        if LOCAL.iter().any(|local| is_local(folder) || local.starts_with(&format!("{folder}/"))) {
            self.local.remove_folder(folder)?;
        }
        let (objects, folder) = (self.objects.clone(), checked(folder)?.to_owned());
        self.worker.call(async move { objects.remove_folder(&folder).await })?
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        if is_local(folder) {
            return self.local.list(folder);
        }
        let (objects, folder) = (self.objects.clone(), checked(folder)?.to_owned());
        self.worker.call(async move { objects.list(&folder).await })?
    }

    fn watch(&self, folder: &str, changed: Box<dyn Fn(Changed<'_>) + Send + Sync>) -> io::Result<Watch> {
        if is_local(folder) {
            return self.local.watch(folder, changed);
        }
        watch::start(&self.worker, self.client.clone(), &self.namespace, checked(folder)?, changed)
    }

    fn lease(&self, name: &str) -> io::Result<Lease> {
        lease::take(&self.worker, self.client.clone(), &self.namespace, checked(name)?)
    }

    fn begin_log(&self, key: &str, first: &[u8], begin: Begin) -> io::Result<Box<dyn Log>> {
        if is_local(key) {
            return self.local.begin_log(key, first, begin);
        }
        let text =
            format!("the log `{key}` is neither in `{}` nor in `{}`: the cluster keeps no logs", LOCAL[0], LOCAL[1]);
        Err(io::Error::new(ErrorKind::Unsupported, text))
    }

    fn is_held(&self, key: &str) -> io::Result<bool> {
        if is_local(key) { self.local.is_held(key) } else { Ok(false) }
    }

    fn trusted(&self, folder: &str) -> Result<(), UntrustedError> {
        // Who may write objects is the cluster's business (RBAC). What is local is checked as usual.
        self.local.trusted(folder)
    }

    fn place(&self, key: &str) -> PathBuf {
        if is_local(key) {
            return self.local.place(key);
        }
        let name = if key.is_empty() { String::new() } else { objects::name(key) };
        Path::new("kubernetes").join(&*self.namespace).join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_local_is_a_matter_of_whole_names() {
        let check = |key: &str, expected: bool| assert_eq!(is_local(key), expected, "{key}");
        check("history", true);
        check("history/1.log", true);
        check("history2/1.log", false);
        check("ca/ledger/a.ledger", true);
        check("ca", false);
        check("ca/signers/a", false);
    }
}
