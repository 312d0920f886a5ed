//! `evenkeel bug-report` of a running mesh.

use std::path::Path;
use std::process::Command;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal};

use super::user::User;
use super::{MACHINE, PATIENCE, state, wait_ready};

const SECRET: &str = "\
apiVersion: v1
kind: Secret
metadata: {name: login, namespace: default}
stringData: {word: swordfish}
";

/// The entries of an archive, each with its text.
fn unpacked(archive: &Path, folder: &Path) -> Vec<(String, String)> {
    let done = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(folder).status().expect("tar");
    assert!(done.success());
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).expect("a folder").flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(folder).expect("below it").display().to_string();
                let text = std::fs::read(entry.path()).expect("a file");
                found.push((name, String::from_utf8_lossy(&text).into_owned()));
            }
        }
    }
    found
}

#[test]
fn a_report_has_everything_but_secrets() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let objects =
        super::deployment("clock", 1, "echo got Bearer swordfish-swordfish; exec python3 -m http.server 8000");
    std::fs::write(folder.path().join("objects.yaml"), objects).expect("it can be written");
    std::fs::write(folder.path().join("secret.yaml"), SECRET).expect("it can be written");
    let mut up = Process::spawn(user.evenkeel(&["up"]).arg(folder.path()).arg("--state").arg(user.state.path()));
    wait_ready(&mut up, 1);
    let place = tempfile::tempdir().expect("a folder");
    let archive = place.path().join("report.tar.gz");
    let report = |archive: &Path| {
        let mut command = user.evenkeel(&["bug-report", "--state"]);
        let output = command.arg(user.state.path()).arg("-o").arg(archive).output().expect("it runs");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{text}");
        text
    };
    // Another user runs the command, and has to be able to write there.
    std::fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("our own folder");
    let printed = report(&archive);
    assert!(printed.contains("report.tar.gz: ") && !printed.contains("are missing"), "{printed}");
    let found = unpacked(&archive, place.path());
    let has = |wanted: &str| {
        found.iter().any(|(name, text)| name.starts_with("report/") && name.contains(wanted) && !text.is_empty())
    };
    for wanted in [
        "version.txt",
        "machine/kernel.txt",
        "objects/000-",
        "objects/findings.txt",
        "control-plane/syncz.json",
        "control-plane/metrics.txt",
        "config_dump.json",
        "stats.txt",
        "logs/control-plane.log",
        ".app.log",
    ] {
        assert!(has(wanted), "no {wanted} in {:?}", found.iter().map(|(name, _)| name).collect::<Vec<_>>());
    }
    for (name, text) in &found {
        assert!(!text.contains("swordfish"), "{name}: {text}");
        assert!(!text.contains("PRIVATE KEY"), "{name}");
    }
    let log = found.iter().find(|(name, _)| name.ends_with(".app.log")).expect("a log");
    assert!(log.1.contains("got Bearer [redacted]"), "{}", log.1);
    let secret = found.iter().find(|(name, _)| name.contains("secret.yaml")).expect("the file");
    assert!(secret.1.contains("metadata: {name: login, namespace: default}\n#\n"), "{}", secret.1);

    // Of a mesh that has ended, its logs remain.
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
    let later = place.path().join("later.tar.gz");
    let printed = report(&later);
    assert!(printed.contains("parts are missing"), "{printed}");
    let found = unpacked(&later, place.path());
    let missing = found.iter().find(|(name, _)| name == "later/missing.txt").expect("the list");
    assert!(missing.1.contains("no mesh runs with the state directory"), "{}", missing.1);
    assert!(found.iter().any(|(name, _)| name.starts_with("later/logs/")));
}
