//! Where things are in the checkout and its build directory.

use std::path::{Path, PathBuf};

/// The checkout's root: the folder with `Cargo.lock`.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/testkit has two ancestors").to_path_buf()
}

/// The build directory, shared by all crates: `$CARGO_TARGET_DIR` or `target`.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
