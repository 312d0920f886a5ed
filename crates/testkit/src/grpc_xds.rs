//! A proxyless gRPC client in Go (`google.golang.org/grpc/xds`), source in `scripts/grpc-xds-client`.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::workspace;

/// The program: `grpc-xds-client TARGET` calls `xds:///TARGET` for as long as it runs and prints who answered.
///
/// # Panics
/// When it is missing and cannot be built.
pub fn grpc_xds_client() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = workspace::target_dir().join("tools/bin/grpc-xds-client");
        if !path.exists() {
            workspace::install("grpc-xds-client");
        }
        path
    })
    .clone()
}
