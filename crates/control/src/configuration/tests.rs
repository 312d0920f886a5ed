use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn a_history_that_cannot_be_written_goes_on_when_it_can() {
    let folder = tempfile::tempdir().expect("a directory");
    let [config, state] = ["config", "state"].map(|name| folder.path().join(name));
    fs::create_dir(&config).expect("a directory");
    fs::create_dir(&state).expect("a directory");
    // What is in the way is no directory.
    let history = state.join("history");
    fs::write(&history, "").expect("a file");
    let before = Instant::now();
    let mut configuration =
        Configuration::open(vec![config], &state, MeshConfig::default()).expect("directories that are there");
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
    let path = folder.path().join("state").join(ADDRESS_BOOK_FILE);
    // As if an address had been there before: there is something to write.
    let mut stored = StoredBook { path: path.clone(), failed: false, addresses: 1, due: None, written: None };
    let (book, start) = (AddressBook::default(), Instant::now());
    stored.note(&book, start);
    assert_eq!((stored.failed, stored.due), (true, Some(start + ADDRESS_BOOK_RETRY)), "there is no such directory");
    let due = start + ADDRESS_BOOK_RETRY;
    stored.note(&book, due);
    assert_eq!((stored.failed, stored.due), (true, Some(due + ADDRESS_BOOK_RETRY)));

    fs::create_dir(folder.path().join("state")).expect("a directory");
    let due = due + ADDRESS_BOOK_RETRY;
    stored.note(&book, due - MILLISECOND);
    assert!(!path.exists(), "not before it is time");
    stored.note(&book, due);
    assert_eq!((stored.failed, stored.due), (false, None));
    assert_eq!(read_book(&path).expect("a book"), book);
}
