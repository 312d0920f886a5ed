use super::*;

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
    let store = Store::from(&folder.path().join("state"));
    // As if there had been an address before, so that there is something to write.
    let mut stored = StoredBook { store: store.clone(), failed: false, addresses: 1, due: None, written: None };
    let (book, start) = (AddressBook::default(), Instant::now());
    stored.note(&book, start);
    assert_eq!((stored.failed, stored.due), (true, Some(start + ADDRESS_BOOK_RETRY)), "there is no such directory");
    let due = start + ADDRESS_BOOK_RETRY;
    stored.note(&book, due);
    assert_eq!((stored.failed, stored.due), (true, Some(due + ADDRESS_BOOK_RETRY)));

    fs::create_dir(folder.path().join("state")).expect("a directory");
    let due = due + ADDRESS_BOOK_RETRY;
    stored.note(&book, due - MILLISECOND);
    assert_eq!(store.get(ADDRESS_BOOK).expect("no error"), None, "not before it is time");
    stored.note(&book, due);
    assert_eq!((stored.failed, stored.due), (false, None));
    assert_eq!(read_book(&store).expect("a book"), book);
}

/// A route and its service that were written and removed while other files were read: only the route has been read.
#[tokio::test]
async fn a_route_goes_with_a_service_that_nobody_has_read() {
    let folder = tempfile::tempdir().expect("a directory");
    let [config, state] = ["config", "state"].map(|name| folder.path().join(name));
    [&config, &state].into_iter().for_each(|path| fs::create_dir(path).expect("a directory"));
    let file = |name: &str| config.join(name);
    let write = |name: &str| {
        let object =
            format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{{port: 80}}]}}\n");
        fs::write(folder.path().join("new"), object).expect("a file");
        fs::rename(folder.path().join("new"), file(&format!("{name}.yaml"))).expect("a renamed file");
    };
    let remove = |name: &str| fs::remove_file(file(name)).expect("the file");
    let mut configuration =
        Configuration::open(vec![config.clone()], &state, MeshConfig::default()).expect("directories that are there");
    configuration.first();
    let mut watch = Watch::new(std::slice::from_ref(&config)).expect("a watch");
    let mut check = async |changed: &str, read: &[&str], waiting: &[&str]| {
        let mut notices = Changed::default();
        notices.add(Notice { paths: vec![file(changed)], state: FileState::Complete });
        let (_, left) = configuration.refresh(&notices, Trigger::Config, &mut watch).await;
        let names: Vec<String> = configuration.files.objects().iter().map(|object| object.name.to_string()).collect();
        let left: Vec<PathBuf> = left.into_iter().flat_map(|notice| notice.paths).collect();
        assert_eq!(
            (names, left),
            (read.iter().map(|&name| name.into()).collect(), waiting.iter().map(|w| file(w)).collect())
        );
    };
    write("other");
    write("route");
    check("route.yaml", &["other", "route"], &[]).await;
    write("service");
    remove("route.yaml");
    remove("service.yaml");
    check("service.yaml", &["other"], &[]).await;
    // Any other removal waits, as the file may be about to come back.
    write("more");
    remove("other.yaml");
    check("more.yaml", &["more", "other"], &["other.yaml"]).await;
}
