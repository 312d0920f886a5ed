//! A proxyless gRPC program in Go (`google.golang.org/grpc/xds`); its source is in `scripts/grpc-xds-client`.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::workspace;

/// The program: `grpc-xds-client TARGET` calls `xds:///TARGET` for as long as it runs and prints who answered. What else it does
/// its source says. One that is older than its source is built anew.
///
/// # Panics
/// When it cannot be built.
pub fn grpc_xds_client() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = workspace::target_dir().join("tools/bin/grpc-xds-client");
        let written = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
        if written(&path) < written(&workspace::root().join("scripts/grpc-xds-client/main.go")) {
            workspace::install("grpc-xds-client");
        }
        path
    })
    .clone()
}
