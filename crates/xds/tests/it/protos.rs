//! The types and descriptors of messages are what `scripts/schema` made of the `.proto` files and of the list of Envoy's messages. No
//! build needs a compiler of Protocol Buffers: the program wrote the sum of every file that it read and wrote.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use evenkeel_testkit::workspace;
use twox_hash::XxHash64;

#[test]
fn what_is_generated_was_made_of_these_files() {
    let root = workspace::root();
    let (api, own) = (root.join("crates/envoy-api"), root.join("crates/xds"));
    let mut files = vec![api.join("protos/roots.txt"), api.join("protos/envoy.bin"), own.join("protos/own.bin")];
    files.extend([&api, &own].into_iter().flat_map(|package| entries(&package.join("src/generated"))));
    for package in entries(&own.join("protos")).into_iter().filter(|path| path.is_dir()) {
        files.extend(entries(&package).into_iter().filter(|file| file.extension().is_some_and(|it| it == "proto")));
    }
    let sum = |file: &PathBuf| {
        let bytes = std::fs::read(file).expect("a file that can be read");
        format!("{:016x} {}", XxHash64::oneshot(0, &bytes), file.strip_prefix(&root).expect("inside").display())
    };
    let sums = std::fs::read_to_string(root.join("scripts/schema/sums")).expect("sums");
    let kept: BTreeSet<String> = sums.lines().map(str::to_owned).collect();
    let found: BTreeSet<String> = files.iter().map(sum).collect();
    assert_eq!(kept, found, "run: cargo run --manifest-path scripts/schema/Cargo.toml");
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}
