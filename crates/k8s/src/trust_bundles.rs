//! The roots of a signer of the cluster, from its ClusterTrustBundles: a file has them, which the control plane reads as that of
//! `--external-signer-roots`.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_base::files::{Readers, write_atomically};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Client, Error};

use crate::reason::reason;

/// How often the bundles are read.
const INTERVAL: Duration = Duration::from_secs(10);
/// Maximum size of all roots, in bytes.
const MAX_BYTES: usize = 1024 * 1024;
const GROUP: &str = "certificates.k8s.io";
const KIND: &str = "ClusterTrustBundle";
/// The versions that can be read, the preferred one first.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// Why there are no roots.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// The API server has no bundles.
    #[error(
        "the API server does not serve ClusterTrustBundles (certificates.k8s.io/v1 or v1beta1): name the roots of the signer by --external-signer-roots FILE"
    )]
    NotServed,
    /// There is no bundle of the signer.
    #[error(
        "no ClusterTrustBundle has the signer `{0}` (spec.signerName): create one with its roots, or name them by --external-signer-roots FILE"
    )]
    None(String),
    /// They are too large.
    #[error("the ClusterTrustBundles of a signer have more than {MAX_BYTES} bytes")]
    TooLarge,
    /// The API server has not answered, or refused.
    #[error("ClusterTrustBundles cannot be read: {0}")]
    Api(String),
    /// The file.
    #[error("{}: {source}", .path.display())]
    File {
        /// Where it is.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Keeps the roots of a signer in a file.
pub struct SignerRoots {
    client: Client,
    signer: String,
    path: PathBuf,
    written: String,
}

impl SignerRoots {
    /// The roots of this signer, in this file.
    pub fn new(client: Client, signer: &str, path: PathBuf) -> Self {
        Self { client, signer: signer.to_owned(), path, written: String::new() }
    }

    /// Reads the bundles, and writes the file if they have changed. When there are none, the file stays as it is.
    ///
    /// # Errors
    /// If there are none, or the file cannot be written.
    pub async fn refresh(&mut self) -> Result<(), RootsError> {
        let roots = self.read().await?;
        if roots != self.written {
            let failed = |source| RootsError::File { path: self.path.clone(), source };
            write_atomically(&self.path, roots.as_bytes(), Readers::Owner).map_err(failed)?;
            tracing::info!(signer = self.signer, path = %self.path.display(), "the roots of the signer are written");
            self.written = roots;
        }
        Ok(())
    }

    /// Writes the file for the first time. While the API server cannot be reached, a file of an earlier process does.
    ///
    /// # Errors
    /// As [`Self::refresh`].
    pub async fn begin(&mut self) -> Result<(), RootsError> {
        match self.refresh().await {
            Err(error @ RootsError::Api(_)) if self.path.exists() => {
                tracing::warn!(%error, "the roots of the signer are those of an earlier process");
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Follows the bundles. Never completes.
    pub async fn keep(mut self) {
        let mut had_failed = false;
        loop {
            tokio::time::sleep(INTERVAL).await;
            let outcome = self.refresh().await;
            if let (Err(error), false) = (&outcome, had_failed) {
                tracing::error!(%error, signer = self.signer, "the roots of the signer stay as they are");
            }
            had_failed = outcome.is_err();
        }
    }

    async fn read(&self) -> Result<String, RootsError> {
        for version in VERSIONS {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, version, KIND));
            let bundles: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            let selected = ListParams::default().fields(&format!("spec.signerName={}", self.signer));
            match bundles.list(&selected).await {
                Ok(list) => return self.joined(&list.items),
                Err(Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(RootsError::Api(reason(&error))),
            }
        }
        Err(RootsError::NotServed)
    }

    /// The roots of all bundles, each once.
    fn joined(&self, bundles: &[DynamicObject]) -> Result<String, RootsError> {
        let texts: BTreeSet<&str> =
            bundles.iter().filter_map(|bundle| bundle.data["spec"]["trustBundle"].as_str()).map(str::trim).collect();
        let roots: String = texts.iter().filter(|text| !text.is_empty()).map(|text| format!("{text}\n")).collect();
        match roots.len() {
            0 => Err(RootsError::None(self.signer.clone())),
            length if length > MAX_BYTES => Err(RootsError::TooLarge),
            _ => Ok(roots),
        }
    }
}
