//! A module with files of its own is a folder with `mod.rs`, everywhere.

use std::path::{Path, PathBuf};

use evenkeel_testkit::workspace;

/// The files `X.rs` beside folders `X` with source files.
fn beside_their_folders(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path()).collect();
    for path in entries.iter().filter(|path| path.is_dir()) {
        let has_sources = std::fs::read_dir(path)
            .expect("a folder")
            .flatten()
            .any(|entry| entry.path().extension().is_some_and(|extension| extension == "rs"));
        let file = path.with_extension("rs");
        if has_sources && file.is_file() {
            found.push(file);
        }
        beside_their_folders(path, found);
    }
}

#[test]
fn modules_with_files_are_folders() {
    let mut found = Vec::new();
    for member in std::fs::read_dir(workspace::root().join("crates")).expect("the crates").flatten() {
        beside_their_folders(&member.path(), &mut found);
    }
    assert!(found.is_empty(), "move to mod.rs in the folder: {found:#?}");
}

#[test]
fn a_file_beside_its_folder_is_found() {
    let place = tempfile::tempdir().expect("a folder");
    let write = |name: &str| {
        let path = place.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("our own folder");
        std::fs::write(path, "").expect("our own folder");
    };
    ["a.rs", "a/b.rs", "c/mod.rs", "c/d.rs", "golden.rs", "golden/data.json"].into_iter().for_each(write);
    let mut found = Vec::new();
    beside_their_folders(place.path(), &mut found);
    assert_eq!(found, [place.path().join("a.rs")]);
}
