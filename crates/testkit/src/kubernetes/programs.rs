//! The programs that `scripts/setup.sh kubernetes` obtains.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::workspace;

/// Custom resource definitions of others, as they publish them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CustomResources {
    /// Istio's kinds.
    Istio,
    /// The standard channel of the Gateway API.
    GatewayApi,
}

/// The folder with the programs.
#[derive(Debug)]
pub(super) struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// The programs, obtained when one is missing.
    ///
    /// # Panics
    /// When one cannot be obtained: a test that needs it fails, it is never skipped.
    pub(super) fn obtained() -> &'static Self {
        static PROGRAMS: OnceLock<Programs> = OnceLock::new();
        PROGRAMS.get_or_init(|| {
            let programs = Self { folder: workspace::target_dir().join("tools/kubernetes") };
            let needed = [
                programs.etcd(),
                programs.kubectl(),
                programs.helm(),
                programs.kube_apiserver(),
                programs.custom_resources(CustomResources::Istio),
                programs.custom_resources(CustomResources::GatewayApi),
            ];
            if !needed.iter().all(|path| path.exists()) {
                workspace::install("kubernetes");
            }
            for path in needed {
                assert!(path.exists(), "scripts/setup.sh kubernetes succeeded, but {} does not exist", path.display());
            }
            programs
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn etcd(&self) -> PathBuf {
        self.folder.join("etcd")
    }

    pub(super) fn kubectl(&self) -> PathBuf {
        self.folder.join("kubectl")
    }

    pub(super) fn helm(&self) -> PathBuf {
        self.folder.join("helm")
    }

    pub(super) fn kube_apiserver(&self) -> PathBuf {
        self.folder.join("kube-apiserver")
    }

    pub(super) fn custom_resources(&self, resources: CustomResources) -> PathBuf {
        self.folder.join(match resources {
            CustomResources::Istio => "crds/istio.yaml",
            CustomResources::GatewayApi => "crds/gateway-api.yaml",
        })
    }
}
