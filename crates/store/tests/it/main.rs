//! The store in a directory does what every backend does.

mod backend;

use evenkeel_store::Store;

#[test]
fn a_directory_is_a_backend() {
    let folder = tempfile::tempdir().expect("a directory");
    let [one, other] = [(); 2].map(|()| Store::from(folder.path()));
    backend::check_all(&one, &other);
}
