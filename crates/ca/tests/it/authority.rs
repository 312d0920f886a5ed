use std::fs;
use std::os::unix::fs::PermissionsExt;

use evenkeel_ca::{Authority, AuthorityError, KeyFileError};

use crate::{DAY, now};

#[test]
fn a_root_is_made_once_and_found_again() {
    let state = tempfile::tempdir().unwrap();
    let first = Authority::open(state.path(), "cluster.local", now()).unwrap();
    let mode = fs::metadata(state.path().join("ca-key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let again = Authority::open(state.path(), "cluster.local", now() + DAY).unwrap();
    assert_eq!(first.trust_bundle_pem(), again.trust_bundle_pem());
    let lifetime = first.not_after().duration_since(now()).unwrap();
    assert_eq!(lifetime.as_secs().div_ceil(86_400), 3650);
    // Nothing else is left behind.
    let mut files: Vec<_> = fs::read_dir(state.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["ca-cert.pem", "ca-key.pem"]);
}

#[test]
fn a_crash_between_key_and_certificate_heals() {
    let state = tempfile::tempdir().unwrap();
    Authority::open(state.path(), "cluster.local", now()).unwrap();
    let key = fs::read(state.path().join("ca-key.pem")).unwrap();
    fs::remove_file(state.path().join("ca-cert.pem")).unwrap();
    fs::write(state.path().join("ca-key.new"), "half a k").unwrap();
    Authority::open(state.path(), "cluster.local", now()).unwrap();
    assert_eq!(fs::read(state.path().join("ca-key.pem")).unwrap(), key);
}

#[test]
fn what_cannot_be_opened_is_named() {
    let check = |damage: fn(&std::path::Path), expected: &str| {
        let state = tempfile::tempdir().unwrap();
        Authority::open(state.path(), "cluster.local", now()).unwrap();
        damage(state.path());
        let error = Authority::open(state.path(), "cluster.local", now()).err().expect("an error").to_string();
        assert!(error.contains(expected), "expected {expected}\nfound    {error}");
    };
    check(
        |state| fs::remove_file(state.join("ca-key.pem")).unwrap(),
        "ca-key.pem is missing, but its certificate is there",
    );
    check(|state| fs::write(state.join("ca-cert.pem"), "x").unwrap(), "ca-cert.pem: certificate_chain holds no");
    check(|state| fs::write(state.join("ca-key.pem"), "x").unwrap(), "ca-cert.pem: private_key holds no");
    check(
        |state| {
            fs::remove_file(state.join("ca-cert.pem")).unwrap();
            fs::create_dir(state.join("ca-cert.pem")).unwrap();
        },
        "ca-cert.pem: ",
    );
    check(
        |state| {
            let other = tempfile::tempdir().unwrap();
            Authority::open(other.path(), "cluster.local", now()).unwrap();
            fs::copy(other.path().join("ca-key.pem"), state.join("ca-key.pem")).unwrap();
        },
        "private_key does not belong to the first certificate",
    );
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let state = tempfile::tempdir().unwrap();
    Authority::open(state.path(), "cluster.local", now()).unwrap();
    let key = state.path().join("ca-key.pem");
    for mode in [0o640, 0o604, 0o660, 0o610] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let error = Authority::open(state.path(), "cluster.local", now()).err().expect("an error");
        assert!(matches!(&error, AuthorityError::KeyFile(KeyFileError::Mode { mode: found, .. }) if *found == mode));
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
    Authority::open(state.path(), "cluster.local", now()).unwrap();
}

#[test]
fn an_expired_root_is_refused() {
    let state = tempfile::tempdir().unwrap();
    Authority::open(state.path(), "cluster.local", now() - 3651 * DAY).unwrap();
    let error = Authority::open(state.path(), "cluster.local", now()).err().expect("an error").to_string();
    assert!(error.contains("ca-cert.pem: the certificate of O=cluster.local expired on"), "{error}");
}
