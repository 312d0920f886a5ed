//! What only a directory has: files, their modes, and full disks. `tests/it/backend.rs` has what all backends have.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().expect("a directory");
    let store = Store::from(folder.path());
    (folder, store)
}

#[test]
fn values_are_files_for_their_readers() {
    let (folder, store) = store();
    store.put("a.json", b"1", Readers::All).expect("put");
    store.put("jwks/a.json", b"3", Readers::Owner).expect("put");
    let mode = |name: &str| std::fs::metadata(folder.path().join(name)).expect("a file").permissions().mode() & 0o777;
    assert_eq!(["a.json", "jwks/a.json", "jwks"].map(mode), [0o644, 0o600, 0o700]);
    assert_eq!(store.place("a/b"), folder.path().join("a/b"));
}

#[test]
fn nothing_creates_the_directory_itself() {
    let folder = tempfile::tempdir().expect("a directory");
    let missing = Store::from(&folder.path().join("missing"));
    assert!(missing.put("a", b"", Readers::All).is_err() && missing.put("a/b", b"", Readers::All).is_err());
    assert!(missing.lease("a").is_err());
}

/// What a full disk refuses changes nothing, and the error says why.
#[test]
fn a_value_that_cannot_be_written_leaves_the_old_one() {
    let (folder, store) = store();
    store.put("jwks/a", b"old", Readers::Owner).expect("put");
    // A folder is in the place of the file beside it.
    std::fs::create_dir(folder.path().join("jwks/a.new")).expect("a directory");
    store.put("jwks/a", b"new", Readers::Owner).expect_err("it cannot be written");
    assert_eq!(store.text("jwks/a").expect("a value").as_deref(), Some("old"));
    assert_eq!(store.list("jwks").expect("names"), ["a"]);
}

#[test]
fn secrets_that_others_can_read_are_refused() {
    let (folder, store) = store();
    assert!(store.secret("key").expect("no error").is_none());
    store.put("key", b"secret", Readers::Owner).expect("put");
    assert_eq!(store.secret("key").expect("a key").as_deref(), Some("secret"));
    std::fs::set_permissions(folder.path().join("key"), PermissionsExt::from_mode(0o640)).expect("ours");
    let error = store.secret("key").expect_err("others can read it").to_string();
    assert!(error.contains("mode 0640") && error.contains("chmod 600"), "{error}");
}

#[test]
fn a_replaced_log_leaves_one_file() {
    let (folder, store) = store();
    let first = store.begin_log("history/1.log", b"a\n", Begin::New).expect("a log");
    let second = store.begin_log("history/1.log", b"c\n", Begin::Replace).expect("a log");
    drop((first, second));
    assert_eq!(std::fs::read_dir(folder.path().join("history")).expect("the folder").count(), 1);
}
