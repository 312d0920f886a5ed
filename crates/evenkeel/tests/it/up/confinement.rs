//! What a program can do to the mesh and to the machine, tried by such a program.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually};

use super::user::{NOBODY, User, is_root};
use super::{MACHINE, PATIENCE, deployment, state, wait_ready};

/// What came of each attempt.
const CAME: &str = "\
files of the mesh: none
the key of the authority: ENOENT
the key of tokens: ENOENT
another container by exec: ENOENT
another's variables: none
other processes: []
a signal to process 1: EPERM
tracing process 1: EPERM
a mount: EPERM
taking the cover off: refused
another host name: EPERM
the proxy's mark: EPERM
a setting of the kernel: refused
capabilities: none
no new privileges: 1
a port below 1024: done
a file of its own: done
a file in its directory: done
its standard output by name: done
";

/// A way to start the mesh, and whom programs then run as.
struct Start {
    user: User,
    environment: Vec<(&'static str, String)>,
    /// Whom the directory is given to.
    owner: Option<u32>,
    program: fn(u32) -> bool,
}

fn starts() -> Vec<Start> {
    let mut starts = Vec::new();
    if is_root() {
        let (user, own) = (User::present(), |uid| uid >= 50_000 && uid != NOBODY);
        starts.push(Start { user, environment: Vec::new(), owner: None, program: own });
        let environment = vec![
            ("SUDO_UID", NOBODY.to_string()),
            ("SUDO_GID", NOBODY.to_string()),
            ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin".to_owned()),
        ];
        starts.push(Start { user: User::present(), environment, owner: Some(NOBODY), program: |uid| uid == NOBODY });
    }
    let user = User::unprivileged();
    if user.may_isolate() {
        // The only one that its namespace has.
        let owner = is_root().then_some(NOBODY);
        starts.push(Start { user, environment: Vec::new(), owner, program: |uid| uid == 0 });
    }
    starts
}

/// A directory with the attacker and a victim, which everybody may enter who may enter the one it is in.
fn example(folder: &Path, state: &Path) {
    let attack = |more: &str| format!("python3 attack.py {}{more}", state.display());
    let serve = "exec python3 -m http.server --bind 0.0.0.0 8000";
    let run = format!("echo start; {}; echo end; {serve}", attack(" alone"));
    let victim = format!("SECRET=victims-secret {serve}");
    let manifest = format!("{}---\n{}", deployment("attacker", 1, &run), deployment("victim", 1, &victim));
    fs::write(folder.join("mesh.yaml"), manifest).expect("it can be written");
    fs::write(folder.join("attack.py"), include_str!("attack.py")).expect("it can be written");
}

#[test]
fn a_program_reaches_nothing_but_its_own_however_the_mesh_was_started() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    for Start { user, environment, owner, program } in starts() {
        let folder = state();
        let state = user.state.path();
        example(folder.path(), state);
        if let Some(owner) = owner {
            for path in ["", "mesh.yaml", "attack.py"].map(|name| folder.path().join(name)) {
                chown(path, Some(owner), Some(owner)).expect("root may give a file away");
            }
        }
        let mut command: Command = user.evenkeel(&["up"]);
        command.arg(folder.path()).arg("--state").arg(state).envs(environment);
        let mut up = Process::spawn(&mut command);
        wait_ready(&mut up, 2);
        servers_are_confined(i32::try_from(up.pid()).expect("a process id"));
        let said = eventually("the end of the attempts", || tried(state));
        let (came, uid) = said.rsplit_once("user ").expect("whom it ran as");
        // Process 1 is of the same user then, and the kernel spares it.
        let expected =
            if uid.trim() == "0" { CAME.replace("1: EPERM\ntracing", "1: harmless\ntracing") } else { CAME.to_owned() };
        assert_eq!(came, expected, "as {uid}");
        assert!(program(uid.trim().parse().expect("a number")), "as {uid}");
        // What `exec` runs there may do no more.
        let exec = ["exec", "attacker", "--state", &state.display().to_string(), "--", "python3", "attack.py"];
        let inside = user.evenkeel(&exec).arg(state).output().expect("exec runs");
        let inside = String::from_utf8_lossy(&inside.stdout).into_owned();
        let expected = expected.replace("processes: []", "processes: left out").replace("name: done", "name: left out");
        assert_eq!(inside, format!("{expected}user {}\n", uid.trim()));
        up.signal(Signal::SIGINT);
        assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
    }
}

/// The servers that `up` has started: the kernel filters their system calls, and nothing that they execute gains rights.
fn servers_are_confined(up: i32) {
    let below = descendants(up);
    for server in ["egress", "control-plane"] {
        let pid = below.iter().find(|pid| argument(**pid).as_deref() == Some(server));
        let pid = pid.unwrap_or_else(|| panic!("{server} runs"));
        for (name, value) in [("Seccomp", "2"), ("NoNewPrivs", "1")] {
            assert_eq!(status(*pid, name).as_deref(), Some(value), "{server}: {name}");
        }
    }
}

/// The first argument of a process.
fn argument(pid: i32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?.split('\0').nth(1).map(str::to_owned)
}

/// A line of `/proc/PID/status`.
fn status(pid: i32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t")).map(str::to_owned)
}

/// All processes below one.
fn descendants(of: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc is there").flatten();
    let all: Vec<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let parent = |pid: i32| status(pid, "PPid")?.parse::<i32>().ok();
    let is_below = |pid: &i32| std::iter::successors(Some(*pid), |pid| parent(*pid)).skip(1).any(|pid| pid == of);
    all.into_iter().filter(is_below).collect()
}

/// What the attacker has said, when it is through.
fn tried(state: &Path) -> Option<String> {
    let logs = fs::read_dir(state.join("logs")).ok()?.flatten();
    let mut logs = logs.filter(|entry| entry.file_name().to_string_lossy().starts_with("attacker-"));
    let log = logs.find(|entry| entry.file_name().to_string_lossy().ends_with(".app.log"))?;
    let text = fs::read_to_string(log.path()).ok()?;
    let said = text.split_once("start\n")?.1.split_once("end\n")?.0;
    Some(said.to_owned())
}
