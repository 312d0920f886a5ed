use std::fs;

use evenkeel_model::AddressBook;

use super::book::RETRY as ADDRESS_BOOK_RETRY;
use super::*;
use crate::source::directories::Directories;

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn a_history_that_cannot_be_written_goes_on_when_it_can() {
    let folder = tempfile::tempdir().expect("a directory");
    let [config, state] = ["config", "state"].map(|name| folder.path().join(name));
    fs::create_dir(&config).expect("a directory");
    fs::create_dir(&state).expect("a directory");
    // A file is in the place of the directory.
    let history = state.join("history");
    fs::write(&history, "").expect("a file");
    let before = Instant::now();
    let files = Directories::watch(vec![config]).expect("a directory");
    let mut configuration =
        Configuration::open(vec![Box::new(files)], &state, MeshConfig::default()).expect("no address book");
    let world = configuration.first();
    let due = configuration.history_due.expect("it is tried again");
    assert!(due >= before + HISTORY_RETRY);
    configuration.resume_history(world.generation, due);
    let next = configuration.history_due.expect("it is tried again once more");
    assert_eq!(next, due + HISTORY_RETRY);

    fs::remove_file(&history).expect("the file");
    configuration.resume_history(world.generation, next - MILLISECOND);
    assert!(!history.exists(), "not before it is time");
    configuration.resume_history(world.generation, next);
    assert_eq!(configuration.history_due, None);
    let segments = || fs::read_dir(&history).expect("the history").count();
    assert_eq!(segments(), 1);
    configuration.resume_history(world.generation, next + HISTORY_RETRY);
    assert_eq!(segments(), 1, "once");
}

#[test]
fn an_address_book_that_cannot_be_written_is_tried_again() {
    let folder = tempfile::tempdir().expect("a directory");
    let store = Store::from(&folder.path().join("state"));
    // As if there had been an address before, so that there is something to write.
    let mut stored = StoredBook::new(store.clone(), 1);
    let (book, start) = (AddressBook::default(), Instant::now());
    stored.note(&book, start);
    stored.wait(start);
    assert_eq!((stored.failed, stored.due), (true, Some(start + ADDRESS_BOOK_RETRY)), "there is no such directory");
    let due = start + ADDRESS_BOOK_RETRY;
    stored.note(&book, due);
    stored.wait(due);
    assert_eq!((stored.failed, stored.due), (true, Some(due + ADDRESS_BOOK_RETRY)));

    fs::create_dir(folder.path().join("state")).expect("a directory");
    let due = due + ADDRESS_BOOK_RETRY;
    stored.note(&book, due - MILLISECOND);
    assert_eq!(store.get(ADDRESS_BOOK).expect("no error"), None, "not before it is time");
    stored.note(&book, due);
    stored.wait(due);
    assert_eq!((stored.failed, stored.due), (false, None));
    assert_eq!(read_book(&store).expect("a book"), book);
}

/// A store that answers after a while delays no change, and what came meanwhile is written later.
#[test]
fn an_address_book_is_written_beside_the_changes() {
    let folder = tempfile::tempdir().expect("a directory");
    let store = Store::from(folder.path());
    // Another control plane holds the lease.
    let lease = store.lease("addresses").expect("a lease");
    let mut stored = StoredBook::new(store.clone(), 1);
    let (book, start) = (AddressBook::default(), Instant::now());
    stored.note(&book, start);
    assert!(stored.due.is_some_and(|due| due > start && due < start + ADDRESS_BOOK_RETRY), "{:?}", stored.due);
    assert_eq!(store.get(ADDRESS_BOOK).expect("no error"), None);
    drop(lease);
    stored.finish(&book, start);
    assert_eq!((stored.failed, stored.due), (false, None));
    assert_eq!(read_book(&store).expect("a book"), book);
}
