//! Each folder `golden/NAME` of YAML files gives `golden/NAME.txt`: the findings, then the snapshot in short.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_model::{AddressBook, MeshConfig, Snapshot};

use crate::golden::shown::{findings, in_short};

mod shown;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

#[test]
fn snapshots_are_as_expected() {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("the folder of golden files")
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    assert!(names.len() > 4, "{names:?}");
    for name in names {
        let (snapshot, diagnostics) = build(&folder().join(&name));
        assert!(diagnostics.iter().all(|finding| finding.object.is_some()), "{name}: each is about an object");
        let shown = format!("{}---\n{}", findings(&diagnostics), in_short(&snapshot));
        evenkeel_testkit::golden::check(folder().join(format!("{name}.txt")), &shown);
    }
}

/// The snapshot of a folder's files, in the order of their names.
fn build(folder: &Path) -> (Snapshot, evenkeel_base::Diagnostics) {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    let file = |path: PathBuf| -> (Arc<str>, Arc<str>) {
        let name = path.file_name().and_then(|n| n.to_str()).expect("a name in UTF-8").into();
        (name, std::fs::read_to_string(&path).expect("a readable file").into())
    };
    let files: Vec<_> = paths.into_iter().map(file).collect();
    let (objects, found) = evenkeel_api::load(&files);
    assert_eq!(found.to_string(), "", "golden files of the model are fine by themselves");
    evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default())
}
