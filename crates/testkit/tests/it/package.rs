//! `scripts/package.sh`, which `make package` runs on the optimized program.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use evenkeel_testkit::workspace;

/// A stand-in for the program: what is packed does not depend on what it is.
const PROGRAM: &str = "#!/bin/sh\necho \"$1 $2\"\n";

fn package(program: &Path, architecture: &str, folder: &Path) -> Output {
    let script = workspace::root().join("scripts/package.sh");
    Command::new(script).arg(program).arg(architecture).arg(folder).output().expect("bash starts")
}

fn listed(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_same_program_gives_the_same_packages() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("evenkeel");
    std::fs::write(&program, PROGRAM).expect("a program");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("executable");
    let version = env!("CARGO_PKG_VERSION");
    let names = [format!("evenkeel-{version}-linux-amd64.tar.gz"), format!("evenkeel_{version}_amd64.deb")];
    let [first, second] = ["first", "second"].map(|name| {
        let out = folder.path().join(name);
        let output = package(&program, "amd64", &out);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        out
    });
    for name in &names {
        let read = |folder: &Path| std::fs::read(folder.join(name)).expect("a package");
        assert_eq!(read(&first), read(&second), "{name}");
        listed(Command::new("sha256sum").arg("--check").arg(format!("{name}.sha256")).current_dir(&first));
    }
    let tarball = listed(Command::new("tar").arg("tvzf").arg(first.join(&names[0])));
    let package = listed(Command::new("dpkg-deb").arg("--contents").arg(first.join(&names[1])));
    for (listing, path) in [
        (&tarball, "/evenkeel\n"),
        (&tarball, "/examples/capitals/routing.yaml\n"),
        (&tarball, "/completions/evenkeel.bash\n"),
        (&package, "./usr/bin/evenkeel\n"),
        (&package, "./usr/share/bash-completion/completions/evenkeel\n"),
        (&package, "./usr/share/doc/evenkeel/copyright\n"),
    ] {
        assert!(listing.contains(path), "{path:?} is not in\n{listing}");
    }
    // Everybody may read all of it, and nobody but root may change it.
    for line in tarball.lines().chain(package.lines()) {
        assert!(["-rwxr-xr-x", "-rw-r--r--", "drwxr-xr-x"].iter().any(|mode| line.starts_with(mode)), "{line}");
        assert!(line.contains(" 0/0 ") || line.contains(" root/root "), "{line}");
    }
}

#[test]
fn mistakes_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("evenkeel");
    std::fs::write(&program, PROGRAM).expect("a program");
    for (program, architecture, expected) in [
        (program.as_path(), "riscv64", "unknown architecture 'riscv64'"),
        (Path::new("/nowhere"), "amd64", "make build builds it"),
    ] {
        let output = package(program, architecture, folder.path());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(expected), "{error}");
    }
}
