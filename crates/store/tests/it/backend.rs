//! What every backend does. The tests of each backend call these functions with two stores of the same storage, as two
//! processes have them.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use evenkeel_store::{Begin, Changed, Readers, Store};

/// Everything.
pub fn check_all(one: &Store, other: &Store) {
    values_are_put_listed_and_removed(one, other);
    limits_and_keys_are_checked(one);
    secrets_are_for_their_owner(one, other);
    one_holds_a_lease_at_a_time(one, other);
    logs_are_held_by_their_writer(one);
    every_change_of_any_process_is_noticed(one, other);
}

fn values_are_put_listed_and_removed(store: &Store, other: &Store) {
    assert_eq!(store.get("a.json").expect("no error"), None);
    assert_eq!(store.list("jwks").expect("no error"), Vec::<String>::new());
    store.put("a.json", b"1", Readers::All).expect("put");
    store.put("jwks/b.json", b"2", Readers::Owner).expect("put");
    store.put("jwks/a.json", b"3", Readers::Owner).expect("put");
    store.put("jwks/deeper/c.json", b"4", Readers::Owner).expect("put");
    assert_eq!(other.text("a.json").expect("a value").as_deref(), Some("1"));
    assert_eq!(other.text("jwks/deeper/c.json").expect("a value").as_deref(), Some("4"));
    let names = other.list("jwks").expect("names");
    assert_eq!(names.into_iter().filter(|name| name.ends_with(".json")).collect::<Vec<_>>(), ["a.json", "b.json"]);
    let before = store.version("jwks/a.json").expect("no error");
    assert!(before.is_some());
    store.touch("jwks/a.json").expect("touched");
    let touched = other.version("jwks/a.json").expect("no error");
    assert_ne!(touched, before);
    store.put("jwks/a.json", b"5", Readers::Owner).expect("put");
    assert_ne!(other.version("jwks/a.json").expect("no error"), touched);
    assert!(other.version("jwks").expect("no error").is_some() && other.version("none").expect("no error").is_none());
    // Its readers may change.
    store.put("a.json", b"6", Readers::Owner).expect("put");
    assert_eq!(other.text("a.json").expect("a value").as_deref(), Some("6"));
    assert!(store.remove("jwks/a.json").expect("removed") && !other.remove("jwks/a.json").expect("no error"));
    store.remove_folder("jwks").expect("removed");
    other.remove_folder("jwks").expect("no error");
    assert_eq!(store.version("jwks/b.json").expect("no error"), None);
    assert_eq!(store.get("jwks/deeper/c.json").expect("no error"), None);
    assert!(store.touch("jwks/b.json").is_err());
    assert!(store.remove("a.json").expect("removed"));
}

fn limits_and_keys_are_checked(store: &Store) {
    store.put("limits", b"12", Readers::All).expect("put");
    assert!(store.get_within("limits", 2).is_ok() && store.get_within("limits", 1).is_err());
    store.put("limits", &[0xff], Readers::All).expect("put");
    assert!(store.text("limits").is_err());
    assert_eq!(store.get("limits").expect("a value").as_deref(), Some(&[0xff][..]));
    for key in ["", "/etc/passwd", "../a", "a/../../b", "./.."] {
        assert!(store.get(key).is_err(), "{key}");
        assert!(store.put(key, b"", Readers::All).is_err(), "{key}");
        assert!(store.remove(key).is_err(), "{key}");
    }
    // Keys that differ are different values, however a backend names them.
    for key in ["n/a-b", "n/a.b", "n/a_b", "n/A_b", "n/a b", "n-a.b"] {
        store.put(key, key.as_bytes(), Readers::All).expect(key);
    }
    for key in ["n/a-b", "n/a.b", "n/a_b", "n/A_b", "n/a b", "n-a.b"] {
        assert_eq!(store.text(key).expect(key).as_deref(), Some(key));
    }
}

fn secrets_are_for_their_owner(store: &Store, other: &Store) {
    assert!(store.secret("secret").expect("no error").is_none());
    store.put("secret", b"key", Readers::Owner).expect("put");
    assert_eq!(other.secret("secret").expect("a key").as_deref(), Some("key"));
    store.put("secret", b"key", Readers::All).expect("put");
    other.secret("secret").expect_err("others can read it");
}

fn one_holds_a_lease_at_a_time(one: &Store, other: &Store) {
    let inside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for store in [one, other, one, other] {
            let inside = &inside;
            scope.spawn(move || {
                for _ in 0..3 {
                    let lease = store.lease("test").expect("a lease");
                    assert_eq!(inside.fetch_add(1, SeqCst), 0);
                    std::thread::yield_now();
                    inside.fetch_sub(1, SeqCst);
                    drop(lease);
                }
            });
        }
    });
    let _held = one.lease("test").expect("a lease");
    drop(other.lease("another").expect("leases are independent"));
}

fn logs_are_held_by_their_writer(store: &Store) {
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
    assert_eq!(store.list("history").expect("names"), ["1.log"]);
}

fn every_change_of_any_process_is_noticed(store: &Store, other: &Store) {
    let names = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = names.clone();
    let noting = move |changed: Changed<'_>| {
        seen.lock().expect("a lock").insert(format!("{changed:?}"));
    };
    let watch = store.watch("registered", Box::new(noting)).expect("a watch");
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
    // Of another folder nothing is reported.
    other.put("jwks/c", b"1", Readers::Owner).expect("put");
    other.put("registered/d", b"1", Readers::Owner).expect("put");
    expect("d");
    drop(watch);
    assert!(!names.lock().expect("a lock").iter().any(|name| name.contains("\"c\"") || name.contains(".new")));
}
