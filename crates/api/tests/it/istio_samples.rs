//! Istio's own samples: each is read without an error, and what has no effect is named.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use evenkeel_base::Severity;
use evenkeel_testkit::{golden, workspace};

#[test]
fn istios_samples_are_read_and_what_has_no_effect_is_named() {
    // Beside this checkout, as for the tests that run them.
    let folder = workspace::root().join("../shared/reference/istio-samples");
    let mut files = Vec::new();
    collect(&folder, &mut files);
    files.sort();
    assert!(files.len() > 90, "{} files in {}", files.len(), folder.display());
    let mut report = String::new();
    for path in files {
        let name = path.strip_prefix(&folder).expect("a file below").display().to_string();
        let text = std::fs::read_to_string(&path).expect("a text");
        let (objects, found) = evenkeel_api::load(&[(name.as_str().into(), text.into())]);
        assert!(!found.has_errors(), "{name}: {found}");
        let mut codes: BTreeMap<&str, usize> = BTreeMap::new();
        found
            .iter()
            .filter(|it| it.severity == Severity::Warning)
            .for_each(|it| *codes.entry(it.code).or_default() += 1);
        write!(report, "{name}: {} objects", objects.len()).expect("a string");
        codes.iter().for_each(|(code, count)| write!(report, ", {count} {code}").expect("a string"));
        report.push('\n');
    }
    golden::check(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/istio-samples.txt"), &report);
}

/// The YAML files below a folder.
fn collect(folder: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.extension().is_some_and(|extension| extension == "yaml") {
            _ if path.is_dir() => collect(&path, files),
            true => files.push(path),
            false => {}
        }
    }
}
