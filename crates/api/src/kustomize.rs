//! Kustomize's files: what a kustomization changes is not applied here, and its patches are no objects.

use std::sync::Arc;

use evenkeel_base::Diagnostic;
use evenkeel_base::yaml::{self, Node};

use crate::foreign::SKIPPED;
use crate::refused;

/// The names of kustomizations.
pub const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];
/// The API group of kustomizations and components.
const GROUP: &str = "kustomize.config.k8s.io/";
/// Fields that change objects or make some.
const CHANGING: [&str; 22] = [
    "namespace",
    "namePrefix",
    "nameSuffix",
    "commonLabels",
    "labels",
    "commonAnnotations",
    "images",
    "replicas",
    "patches",
    "patchesStrategicMerge",
    "patchesJson6902",
    "replacements",
    "vars",
    "configMapGenerator",
    "secretGenerator",
    "generators",
    "transformers",
    "components",
    "helmCharts",
    "helmChartInflationGenerator",
    "inventory",
    "bases",
];
/// Lists whose entries have a file in `path`.
const WITH_PATHS: [&str; 3] = ["patches", "patchesJson6902", "replacements"];
/// Lists whose entries are files, or texts of several lines.
const OF_FILES: [&str; 6] =
    ["patchesStrategicMerge", "transformers", "generators", "validators", "configurations", "crds"];
/// Maximum number of files of one kustomization that are left out.
const MAX_PATCH_FILES: usize = 1_000;

/// The files of a kustomization that are no objects, relative to its directory: patches, which are parts of objects, and
/// configurations of Kustomize itself. Files outside the directory cannot be named, as for Kustomize.
pub fn patch_files(path: &Arc<str>, text: &str) -> Vec<String> {
    let (documents, _) = yaml::parse(path, text);
    let mut files = Vec::new();
    for document in &documents {
        let list = |name: &str| document.get(name).and_then(Node::as_sequence).unwrap_or_default();
        let with_paths = WITH_PATHS.iter().flat_map(|name| list(name)).filter_map(|entry| entry.get("path"));
        let named = with_paths.chain(OF_FILES.iter().flat_map(|name| list(name))).filter_map(Node::as_str);
        files.extend(named.filter_map(below));
    }
    files.truncate(MAX_PATCH_FILES);
    files
}

/// A path to something below the directory, without `.`; `None` for other paths, and for a patch that is written in place.
fn below(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').filter(|part| *part != ".").collect();
    let is_plain = !path.contains('\n') && !path.starts_with('/') && !parts.is_empty();
    (is_plain && parts.iter().all(|part| !part.is_empty() && *part != "..")).then(|| parts.join("/"))
}

/// Whether a text may have a security object, or a part of one.
pub fn may_guard(path: &Arc<str>, text: &str) -> bool {
    let parsed = yaml::parse_all(path, text);
    !parsed.broken.is_empty() || parsed.documents.iter().any(refused::guards)
}

/// Whether a document is a kustomization, or a component of some.
pub(crate) fn is_kustomization(document: &Node) -> bool {
    let version = document.get("apiVersion").and_then(Node::as_str);
    match (version, document.get("kind")) {
        (Some(version), _) => version.starts_with(GROUP),
        // Kustomize needs neither.
        (None, kind) => {
            let name = document.span.file.rsplit('/').next().unwrap_or_default();
            kind.is_none() && KUSTOMIZATIONS.contains(&name)
        }
    }
}

/// What a kustomization says that has no effect.
pub(crate) fn finding(document: &Node) -> Diagnostic {
    let fields = document.as_mapping().into_iter().flat_map(|fields| fields.iter());
    let changing: Vec<_> = fields.filter(|field| CHANGING.contains(&&*field.key)).collect();
    let Some(first) = changing.first() else {
        let message = "the kustomization is skipped: the files below its directory are read in any case";
        let finding = Diagnostic::info(SKIPPED, document.span.clone(), message);
        return finding.with_help("to run what it lists elsewhere, render it (`kustomize build DIR > FILE`)");
    };
    let names: Vec<String> = changing.iter().map(|field| format!("`{}`", field.key)).collect();
    let message = format!(
        "the kustomization is not applied: files are read as they are, without its {}, and files of patches are skipped",
        names.join(", ")
    );
    let help = "render it (`kustomize build DIR > FILE`), and name its sources in `.evenkeelignore`";
    Diagnostic::warning("kustomize", first.value.span.clone(), message).with_help(help)
}
