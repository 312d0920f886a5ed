//! A real collector of OpenTelemetry, with receivers of OTLP and of Zipkin's spans and an exporter to a file.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::workspace;

/// Returns the path of the program. It is rebuilt if its source is newer.
///
/// # Panics
/// When it cannot be built.
pub fn otel_collector() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = workspace::target_dir().join("tools/bin/otel-collector");
        let written = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
        if written(&path) < written(&workspace::root().join("scripts/otel-collector/main.go")) {
            workspace::install("otel-collector");
        }
        path
    })
    .clone()
}
