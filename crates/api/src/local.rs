//! `evenkeel.yaml`: the commands that one machine runs for workloads whose manifests only name images.
//!
//! It is not a Kubernetes object and never given to `kubectl`; the manifests beside it stay unchanged.

use std::collections::BTreeMap;
use std::path::Path;

use evenkeel_base::{Diagnostic, Diagnostics, Spanned, yaml};
use std::sync::Arc;

use crate::decode::{Context, Decode};

/// The name of the file, in whichever directory.
pub const LOCAL_FILE: &str = "evenkeel.yaml";

object! {
    /// `evenkeel.yaml`.
    pub struct LocalFile {
        /// By the name of a Deployment, StatefulSet or DaemonSet, or by NAMESPACE/NAME.
        workloads: BTreeMap<String, Spanned<LocalWorkload>> = "workloads",
    }
}

object! {
    /// How a replica is run on this machine.
    pub struct LocalWorkload {
        /// The command, for `/bin/sh -c`.
        command: Spanned<String> = "command",
        /// The working directory, relative to the directory of the file; that directory if not given.
        working_directory: Option<Spanned<String>> = "workingDirectory",
        /// The build step, for `/bin/sh -c`; it runs in the working directory before anything is started.
        build: Option<Spanned<String>> = "build",
        /// Environment variables, which override those of the container.
        env: BTreeMap<String, String> = "env",
    }
}

/// Whether a path is that of such a file.
pub fn is_local_file(path: &str) -> bool {
    Path::new(path).file_name().is_some_and(|name| name == LOCAL_FILE)
}

/// Reads such a file. A file with an error is not used.
pub fn read_local(path: &Arc<str>, text: &str) -> (Option<LocalFile>, Diagnostics) {
    let (documents, mut diagnostics) = yaml::parse(path, text);
    if let [_, second, ..] = documents.as_slice() {
        let finding = Diagnostic::error("yaml-syntax", second.span.clone(), "only one YAML document is expected");
        diagnostics.push(finding.with_help("remove the `---` and write all workloads under one `workloads`"));
    }
    let mut cx = Context::new("Evenkeel");
    let file = documents.first().and_then(|document| LocalFile::decode(document, &mut cx));
    diagnostics.extend(cx.into_diagnostics());
    let usable = file.filter(|_| !diagnostics.has_errors());
    (usable, diagnostics)
}
