//! Temporary directories: each replica has its own, whoever has started the mesh, also if the mesh lies in the machine's.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually};

use super::user::{NOBODY, User, is_root, open_to_all};
use super::{MACHINE, PATIENCE, deployment, entries, state, wait_ready};

const SERVE: &str = "exec python3 -m http.server --bind 0.0.0.0 8000";

/// What a program does before it serves: writes under fixed names, then reads a file of the mesh.
const WRITE: &str = "echo $HOSTNAME > /tmp/evenkeel-x; echo $HOSTNAME > /var/tmp/evenkeel-x; cat beside.txt; ";

/// What a command prints in a replica.
fn inside(user: &User, workload: &[&str], script: &str) -> String {
    let state = user.state.path().display().to_string();
    let arguments = [&["exec"], workload, &["--state", &state, "--", "sh", "-c", script]].concat();
    let output = user.evenkeel(&arguments).output().expect("exec runs");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Whoever may start a mesh here, and whether root does so for somebody else.
fn starts() -> Vec<(User, bool)> {
    let mut starts: Vec<(User, bool)> = Vec::new();
    if is_root() {
        starts.extend([false, true].map(|through_sudo| (User::present(), through_sudo)));
    }
    starts.extend(Some(User::unprivileged()).filter(User::may_isolate).map(|user| (user, false)));
    starts
}

/// Two replicas; one with volumes over its temporary directory and in it; and one that runs a program of a directory in PATH.
fn manifest() -> String {
    let plain = "spec: {containers: [{name: main, ports: [{containerPort: 8000}]}]}\n";
    let volumes = "spec:\n      volumes: [{name: scratch, emptyDir: {}}, {name: texts, configMap: {name: texts}}, {name: deep, emptyDir: {}}]\n      \
         containers: [{name: main, securityContext: {readOnlyRootFilesystem: true}, ports: [{containerPort: 8000}], volumeMounts: [\
         {name: texts, mountPath: /tmp/conf/a.txt, subPath: a}, {name: scratch, mountPath: /tmp}, {name: deep, mountPath: /tmp/deep/er}]}]\n";
    let volume = deployment("volume", 1, &format!("{WRITE}greet; {SERVE}")).replace(plain, volumes);
    let texts = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: texts}\ndata: {a: one}\n";
    [deployment("pair", 2, &format!("{WRITE}{SERVE}")), volume, texts.to_owned()].join("---\n")
}

fn give(path: &Path) {
    chown(path, Some(NOBODY), Some(NOBODY)).expect("root may give a file away");
}

/// Starts the mesh, which lies below /tmp, as the state directory and a directory of the PATH do.
fn start(user: &User, through_sudo: bool, folder: &Path, tools: &Path) -> Process {
    fs::write(folder.join("mesh.yaml"), manifest()).expect("our own folder");
    fs::write(folder.join("beside.txt"), "of the mesh\n").expect("our own folder");
    fs::create_dir(tools.join("bin")).expect("our own folder");
    fs::write(tools.join("bin/greet"), format!("#!/bin/sh\ncat {}/text\n", tools.display())).expect("our own folder");
    fs::write(tools.join("text"), "of the tools\n").expect("our own folder");
    for path in [folder, tools, &tools.join("bin"), &tools.join("bin/greet")] {
        open_to_all(path);
    }
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder).arg("--state").arg(user.state.path()).args(["--env", "TMPDIR"]);
    command.env("TMPDIR", "/tmp/of/user");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = if is_root() { "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".to_owned() } else { path };
    command.env("PATH", format!("{}/bin:{path}", tools.display()));
    if through_sudo {
        [folder.to_path_buf(), folder.join("mesh.yaml"), folder.join("beside.txt")].iter().for_each(|path| give(path));
        command.env("SUDO_UID", NOBODY.to_string()).env("SUDO_GID", NOBODY.to_string());
    }
    let mut up = Process::spawn(&mut command);
    wait_ready(&mut up, 3);
    up
}

/// The names of the replicas of a workload.
fn replicas(state: &Path, workload: &str) -> Vec<String> {
    let names = entries(&state.join("logs")).into_iter();
    names
        .filter_map(|name| Some(name.strip_suffix(".app.log")?.to_owned()))
        .filter(|name| name.starts_with(workload))
        .collect()
}

fn log(state: &Path, replica: &str) -> String {
    fs::read_to_string(state.join("logs").join(format!("{replica}.app.log"))).unwrap_or_default()
}

#[test]
fn each_replica_has_temporary_directories_of_its_own() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    for (user, through_sudo) in starts() {
        let (folder, tools, other) = (state(), state(), state());
        fs::write(other.path().join("secret"), "of the machine").expect("our own folder");
        open_to_all(other.path());
        let mut up = start(&user, through_sudo, folder.path(), tools.path());
        let state = user.state.path();
        let pair = replicas(state, "pair");
        assert_eq!(pair.len(), 2, "{pair:?}");
        for replica in &pair {
            let seen = inside(&user, &[replica], "cat /tmp/evenkeel-x /var/tmp/evenkeel-x");
            assert_eq!(seen, format!("{replica}\n{replica}\n"), "through sudo: {through_sudo}");
            assert!(log(state, replica).contains("of the mesh"), "{}", log(state, replica));
            let look = "stat -c '%a %A' /tmp /var/tmp $TMPDIR; df --output=size -m /tmp | tail -1 | tr -d ' '; greet";
            let expected = "1777 drwxrwxrwt\n".repeat(3) + "512\nof the tools\n";
            assert_eq!(inside(&user, &[replica], look), expected);
            // Of the machine's directory only what is needed.
            let hidden = format!("ls {} 2>&1 | grep -c 'No such'; ls /tmp", other.path().display());
            let seen = inside(&user, &[replica], &hidden);
            let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).expect("a name");
            let mut expected =
                vec!["evenkeel-x".to_owned(), name(folder.path()), name(state), name(tools.path()), "of".to_owned()];
            expected.sort();
            let mut lines: Vec<&str> = seen.lines().collect();
            assert_eq!(lines.remove(0), "1", "{seen}");
            lines.sort_unstable();
            assert_eq!(lines, expected);
        }
        // The sidecar's is another one.
        let beside =
            inside(&user, &[&pair[0], "-c", "istio-proxy"], "ls /tmp/evenkeel-x; touch /tmp/mine && echo written");
        assert!(beside.contains("No such file") && beside.starts_with("written\n"), "{beside}");
        volumes_take_its_place(&user);
        for path in ["/tmp/evenkeel-x", "/var/tmp/evenkeel-x", "/tmp/of", "/tmp/mine", "/tmp/conf"] {
            assert!(fs::symlink_metadata(path).is_err(), "{path} is on the machine");
        }
        up.signal(Signal::SIGINT);
        assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
        assert_eq!(entries(state), super::KEPT, "nothing is left");
    }
}

fn volumes_take_its_place(user: &User) {
    let volume = replicas(user.state.path(), "volume").remove(0);
    assert!(log(user.state.path(), &volume).contains("of the mesh\nof the tools\n"));
    let look = "cat /tmp/evenkeel-x $EVENKEEL_VOLUME_SCRATCH/evenkeel-x; cat /tmp/conf/a.txt; echo; cat beside.txt; \
                touch /tmp/deep/er/file && ls $EVENKEEL_VOLUME_DEEP; touch /tmp/conf/a.txt && echo written";
    let seen = inside(user, &[&volume], look);
    let (files, refused) = seen.split_once("touch").unwrap_or_default();
    assert_eq!(files, format!("{volume}\n{volume}\none\nof the mesh\nfile\n"), "{seen}");
    assert!(!refused.contains("written"), "{seen}");
}

/// Some programs refuse to run as a user without a name, such as `initdb`, and in a directory that others may enter.
#[test]
fn a_database_knows_its_user_and_owns_its_files() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    for (user, through_sudo) in starts() {
        let folder = state();
        let make = "import getpass, os, pwd, socket\n\
             me = pwd.getpwuid(os.geteuid())\n\
             assert pwd.getpwnam(me.pw_name).pw_uid == os.geteuid() == os.getuid(), me\n\
             base = os.environ['PGDATA']\n\
             os.mkdir(base, 0o700)\n\
             found = os.stat(base)\n\
             assert found.st_uid == os.geteuid() and found.st_mode & 0o777 == 0o700, found\n\
             sock = socket.socket(socket.AF_UNIX)\n\
             sock.bind('/tmp/.s.PGSQL.5432')\n\
             print('made by', me.pw_name, flush=True)\n";
        fs::write(folder.path().join("initdb.py"), make).expect("our own folder");
        let run = format!("PGDATA=$EVENKEEL_DATA_DIR/$HOSTNAME python3 initdb.py && {SERVE}");
        let database = deployment("database", 2, &run).replace(
            "spec: {containers",
            "spec: {securityContext: {runAsUser: 999, runAsGroup: 999, fsGroup: 999}, containers",
        );
        fs::write(folder.path().join("mesh.yaml"), database).expect("our own folder");
        open_to_all(folder.path());
        if through_sudo {
            [folder.path().to_path_buf(), folder.path().join("mesh.yaml")].iter().for_each(|path| give(path));
        }
        let mut command = user.evenkeel(&["up"]);
        command.arg(folder.path()).arg("--state").arg(user.state.path());
        if through_sudo {
            command.env("SUDO_UID", NOBODY.to_string()).env("SUDO_GID", NOBODY.to_string());
            command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        }
        let mut up = Process::spawn(&mut command);
        // Both, though they make a socket of the same name.
        wait_ready(&mut up, 2);
        for replica in replicas(user.state.path(), "database") {
            let said = eventually("its user", || {
                Some(log(user.state.path(), &replica).split_once("made by ")?.1.lines().next()?.to_owned())
            });
            assert_eq!(inside(&user, &[&replica], "whoami"), format!("{said}\n"));
        }
        up.signal(Signal::SIGINT);
        assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
    }
}
