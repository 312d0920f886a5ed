//! The examples of this project have no findings worth a warning.

use std::path::Path;
use std::sync::Arc;

use evenkeel_analyze::analyze;
use evenkeel_base::Severity;
use evenkeel_model::MeshConfig;

#[test]
fn the_examples_are_as_istio_wants_them() {
    for example in ["capitals", "bookinfo"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(example);
        let mut files: Vec<(Arc<str>, Arc<str>)> = Vec::new();
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let is_yaml = path.extension().is_some_and(|extension| extension == "yaml");
            if is_yaml && path.file_name().is_some_and(|name| name != "evenkeel.yaml") {
                let text = std::fs::read_to_string(&path).expect("text");
                files.push((path.to_string_lossy().into(), text.into()));
            }
        }
        files.sort();
        let (objects, read) = evenkeel_api::load(&files);
        let found = analyze(&objects, &MeshConfig::default(), read, &[]);
        let worse: Vec<String> = found
            .iter()
            .filter(|finding| finding.diagnostic.severity > Severity::Info)
            .map(|finding| finding.diagnostic.to_string())
            .collect();
        assert!(worse.is_empty(), "{example}: {worse:#?}");
    }
}
