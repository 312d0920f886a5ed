//! Every operation, on a directory.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

use super::*;

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().expect("a directory");
    let store = Store::from(folder.path());
    (folder, store)
}

#[test]
fn values_are_put_listed_and_removed() {
    let (folder, store) = store();
    assert_eq!(store.get("a.json").expect("no error"), None);
    assert_eq!(store.list("jwks").expect("no error"), Vec::<String>::new());
    store.put("a.json", b"1", Readers::All).expect("put");
    store.put("jwks/b.json", b"2", Readers::Owner).expect("put");
    store.put("jwks/a.json", b"3", Readers::Owner).expect("put");
    assert_eq!(store.text("a.json").expect("a value").as_deref(), Some("1"));
    assert_eq!(store.list("jwks").expect("names"), ["a.json", "b.json"]);
    let mode = |name: &str| std::fs::metadata(folder.path().join(name)).expect("a file").permissions().mode() & 0o777;
    assert_eq!(["a.json", "jwks/a.json", "jwks"].map(mode), [0o644, 0o600, 0o700]);
    let before = store.version("jwks/a.json").expect("no error");
    assert!(before.is_some());
    store.touch("jwks/a.json").expect("touched");
    assert_ne!(store.version("jwks/a.json").expect("no error"), before);
    assert!(store.remove("jwks/a.json").expect("removed") && !store.remove("jwks/a.json").expect("no error"));
    store.remove_folder("jwks").expect("removed");
    store.remove_folder("jwks").expect("no error");
    assert_eq!(store.version("jwks/b.json").expect("no error"), None);
    assert_eq!(store.place("a/b"), folder.path().join("a/b"));
}

#[test]
fn limits_and_keys_are_checked() {
    let (folder, store) = store();
    store.put("a", b"12", Readers::All).expect("put");
    assert!(store.get_within("a", 2).is_ok() && store.get_within("a", 1).is_err());
    store.put("a", &[0xff], Readers::All).expect("put");
    assert!(store.text("a").is_err());
    for key in ["", "/etc/passwd", "../a", "a/../../b", "./.."] {
        assert!(store.get(key).is_err(), "{key}");
        assert!(store.put(key, b"", Readers::All).is_err(), "{key}");
        assert!(store.remove(key).is_err(), "{key}");
    }
    // Nothing creates the directory itself.
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
fn logs_are_held_by_their_writer() {
    let (folder, store) = store();
    let mut log = store.begin_log("history/1.log", b"a\n", Begin::New).expect("a log");
    log.append(b"b\n").expect("appended");
    assert!(store.is_held("history/1.log").expect("no error"));
    assert!(!store.is_held("history/2.log").expect("no error"));
    let again = store.begin_log("history/1.log", b"", Begin::New).expect_err("there is one");
    assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    let mut other = store.begin_log("history/1.log", b"c\n", Begin::Replace).expect("a log");
    drop(log);
    assert!(store.is_held("history/1.log").expect("no error"), "the new one");
    other.append(b"d\n").expect("appended");
    drop(other);
    assert!(!store.is_held("history/1.log").expect("no error"));
    assert_eq!(store.text("history/1.log").expect("a log").as_deref(), Some("c\nd\n"));
    assert_eq!(std::fs::read_dir(folder.path().join("history")).expect("the folder").count(), 1);
}

#[test]
fn every_change_of_any_process_is_noticed() {
    let (folder, store) = store();
    let names = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = names.clone();
    let noting = move |changed: Changed<'_>| {
        seen.lock().expect("a lock").insert(format!("{changed:?}"));
    };
    let watch = store.watch("registered", Box::new(noting)).expect("a watch");
    let other = Store::from(folder.path());
    let expect = |what: &str| {
        let is_seen = || names.lock().expect("a lock").contains(&format!("Name({what:?})")).then_some(());
        evenkeel_testkit::eventually(what, is_seen);
        names.lock().expect("a lock").clear();
    };
    other.put("registered/a", b"1", Readers::Owner).expect("put");
    expect("a");
    other.put("registered/b", b"1", Readers::Owner).expect("put");
    expect("b");
    other.remove("registered/a").expect("removed");
    expect("a");
    // Of another folder nothing is reported, and a touched value is the same.
    other.put("jwks/c", b"1", Readers::Owner).expect("put");
    other.touch("registered/b").expect("touched");
    other.put("registered/d", b"1", Readers::Owner).expect("put");
    expect("d");
    drop(watch);
    assert!(!names.lock().expect("a lock").iter().any(|name| name.contains("\"c\"") || name.contains(".new")));
}
