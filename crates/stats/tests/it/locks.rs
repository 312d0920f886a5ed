//! Checks that nothing in the crate makes a worker wait.

use std::fs;
use std::path::Path;

#[test]
fn there_is_no_lock_in_this_crate() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = 0;
    for entry in fs::read_dir(sources).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        for lock in ["Mutex", "RwLock", "Condvar", "LazyLock", "park("] {
            assert!(!text.contains(lock), "{lock} in {}", path.display());
        }
        files += 1;
    }
    assert!(files > 5);
}
