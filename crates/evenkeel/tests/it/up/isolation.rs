//! The permissions of the mesh's own components, and that a component of a replica is replaced when it ends.

use std::fs::{self, File};
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use evenkeel_testkit::wait::within;
use evenkeel_testkit::{Process, Signal, eventually};

use super::processes::Running;
use super::user::{User, is_root};
use super::{MACHINE, PATIENCE, deployment, entries, state, wait_ready};

const SERVE: &str = "exec python3 -m http.server --bind 0.0.0.0 8000";

/// A mesh of these Deployments, all of which are ready.
struct Mesh {
    user: User,
    up: Process,
    _folder: tempfile::TempDir,
}

impl Mesh {
    fn start(user: User, deployments: &[String], ready: usize) -> Self {
        let folder = state();
        fs::write(folder.path().join("mesh.yaml"), deployments.join("---\n")).expect("our own folder");
        super::user::open_to_all(folder.path());
        let mut command = user.evenkeel(&["up"]);
        command.arg(folder.path()).arg("--state").arg(user.state.path());
        let mut up = Process::spawn(&mut command);
        wait_ready(&mut up, ready);
        Self { user, up, _folder: folder }
    }

    fn processes(&self) -> Vec<Running> {
        Running::all_of(self.user.state.path())
    }

    /// The one process of which this is true.
    fn process(&self, what: &str, is: impl Fn(&Running) -> bool) -> Running {
        eventually(what, || self.processes().into_iter().find(|process| is(process)))
    }

    fn stop(mut self) {
        self.up.signal(Signal::SIGINT);
        assert!(self.up.wait_for_exit(PATIENCE).success(), "{}", self.up.output());
    }
}

fn users() -> Vec<User> {
    let unprivileged = Some(User::unprivileged()).filter(User::may_isolate);
    is_root().then(User::present).into_iter().chain(unprivileged).collect()
}

/// A line of `/proc/PID/status`.
fn status(process: &Running, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid)).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).to_owned()
}

#[test]
fn the_control_plane_and_the_way_out_have_no_more_rights_than_they_need() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    for (index, user) in users().into_iter().enumerate() {
        let own_users = is_root() && index == 0;
        let mesh = Mesh::start(user, &[deployment("web", 1, SERVE)], 1);
        let control = mesh.process("the control plane", Running::is_control_plane);
        let egress = control.sibling("egress");
        // `CAP_DAC_READ_SEARCH` to read the user's files, and `CAP_NET_BIND_SERVICE` to serve DNS.
        for (process, capabilities, sees) in
            [(&control, 1_u64 << 2, vec!["control", "runtime"]), (&egress, 1 << 10, vec![])]
        {
            // They hand none on: they run no programs.
            let none = 0;
            for (set, expected) in [
                ("CapEff", capabilities),
                ("CapPrm", capabilities),
                ("CapBnd", capabilities),
                ("CapInh", none),
                ("CapAmb", none),
            ] {
                assert_eq!(status(process, set), format!("{expected:016x}"), "{set} of {}", process.line());
            }
            assert_eq!(status(process, "NoNewPrivs"), "1", "{}", process.line());
            let inside = format!("/proc/{}/root{}", process.pid, mesh.user.state.path().display());
            assert_eq!(entries(inside.as_ref()), sees, "{}", process.line());
        }
        if own_users {
            let state = mesh.user.state.path().display().to_string();
            let write = "mkdir -p ~/.config && touch ~/.config/file && echo written";
            let home = mesh.user.evenkeel(&["exec", "web", "--state", &state, "--", "sh", "-c", write]).output();
            assert_eq!(String::from_utf8_lossy(&home.expect("exec runs").stdout), "written\n", "a home of its own");
        }
        let uid = status(&egress, "Uid");
        assert_eq!(uid != status(&control, "Uid"), own_users, "{uid}");
        mesh.stop();
    }
}

/// Variables that a Pod's program has, and those that tell it where things of `up` are.
const VARIABLES: [&str; 9] =
    ["EVENKEEL_DATA_DIR", "GREETING", "HOME", "HOSTNAME", "PASSED", "PATH", "POD_IP", "POD_NAME", "POD_NAMESPACE"];

#[test]
fn no_process_gets_the_variables_of_the_shell_that_started_the_mesh() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let folder = state();
    let web = deployment("web", 1, &format!("env; {SERVE}"));
    let web = web.replace("name: main,", "name: main, env: [{name: GREETING, value: hello}],");
    fs::write(folder.path().join("mesh.yaml"), web).expect("our own folder");
    super::user::open_to_all(folder.path());
    let user = User::present();
    let mut command = user.evenkeel(&["up", "--env", "PASSED"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    let secrets =
        [("AWS_SECRET_ACCESS_KEY", "of-the-shell"), ("http_proxy", "http://of-the-shell:1"), ("PASSED", "on")];
    let mut up = Process::spawn(command.envs(secrets));
    wait_ready(&mut up, 1);
    let mesh = Mesh { user, up, _folder: folder };
    let log = entries(&mesh.user.state.path().join("logs")).into_iter().find(|name| name.ends_with(".app.log"));
    let log = mesh.user.state.path().join("logs").join(log.expect("the program's"));
    let said = fs::read_to_string(log).expect("it has a log");
    let mut names: Vec<&str> = said.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    names.retain(|name| !["PWD", "SHLVL", "_", "OLDPWD", "XDG_CACHE_HOME"].contains(name));
    names.sort_unstable();
    assert_eq!(names, VARIABLES, "{said}");
    // The keeper and the supervisor are of the operator's own.
    let inside: Vec<Running> =
        mesh.processes().into_iter().filter(|process| !process.line().contains(" up ")).collect();
    assert!(inside.len() >= 3, "{inside:?}");
    for process in inside {
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&environment).contains("of-the-shell"), "{}", process.line());
    }
    let exec = ["exec", "web", "--state", &mesh.user.state.path().display().to_string(), "--", "env"];
    let inside = mesh.user.evenkeel(&exec).env("AWS_SECRET_ACCESS_KEY", "of-the-shell").output().expect("exec runs");
    let said = String::from_utf8_lossy(&inside.stdout);
    assert!(said.contains("GREETING=hello") && !said.contains("of-the-shell"), "{said}");
    mesh.stop();
}

/// Of each agent it sees: what came of looking at its variables and memory, and of tracing it.
const LOOK: &str = r#"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in sorted(int(name) for name in os.listdir('/proc') if name.isdigit()):
    try:
        words = open(f'/proc/{pid}/cmdline', 'rb').read().split(b'\0')
    except OSError:
        continue
    if len(words) < 2 or words[1] != b'agent':
        continue
    came = []
    for name in ['environ', 'mem', 'maps']:
        try:
            with open(f'/proc/{pid}/{name}', 'rb') as file:
                came.append('opened' if name == 'mem' else f'{len(file.read())} bytes')
        except OSError as error:
            came.append(errno.errorcode[error.errno])
    traced = libc.ptrace(16, pid, None, None)
    came.append('traced' if traced == 0 else errno.errorcode[ctypes.get_errno()])
    print(' '.join(came), flush=True)
"#;

#[test]
fn nobody_looks_into_an_agents_memory() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    for user in users() {
        let mesh = Mesh::start(user, &[deployment("one", 1, SERVE), deployment("other", 1, SERVE)], 2);
        let state = mesh.user.state.path().display().to_string();
        let look = |container: &str| {
            let exec = ["exec", "one", "-c", container, "--state", &state, "--", "python3", "-c", LOOK];
            let looked = mesh.user.evenkeel(&exec).output().expect("exec runs");
            assert!(looked.status.success(), "{looked:?}");
            String::from_utf8_lossy(&looked.stdout).into_owned()
        };
        // A program sees none; who runs in a sidecar's container sees all, its own and the other's.
        assert_eq!(look("app"), "");
        assert_eq!(look("istio-proxy"), "EACCES EACCES EACCES EPERM\n".repeat(2));
        mesh.stop();
    }
}

#[test]
fn a_replica_whose_process_namespace_has_ended_gets_another() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    for user in users() {
        let mut mesh = Mesh::start(user, &[deployment("web", 1, SERVE)], 1);
        for round in 1..=2 {
            let program = mesh.process("the program", |process| process.is_program_of("web"));
            program.first_of_its_namespace().kill();
            mesh.up
                .wait_for("ready again", |up| (up.output().matches("ready      web-").count() > round).then_some(()));
            let state = mesh.user.state.path().display().to_string();
            let exec = ["exec", "web", "--state", &state, "--", "sh", "-c", "ls -d /proc/[0-9]* | wc -l"];
            let inside = mesh.user.evenkeel(&exec).output().expect("exec runs");
            // The first, the program, the shell and its two commands.
            let seen: u32 = String::from_utf8_lossy(&inside.stdout).trim().parse().expect("a number");
            assert!((3..=5).contains(&seen), "{seen}");
        }
        mesh.stop();
    }
}

#[test]
fn tokens_are_renewed_while_a_rollout_is_waited_for() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let slow = "[ -e $EVENKEEL_DATA_DIR/once ] && exec sleep 1000; touch $EVENKEEL_DATA_DIR/once; ";
    let deployments = [deployment("slow", 1, &format!("{slow}{SERVE}")), deployment("web", 1, SERVE)];
    let mesh = Mesh::start(User::present(), &deployments, 2);
    let state = mesh.user.state.path();
    let name = entries(&state.join("pods")).into_iter().find(|name| name.starts_with("web-")).expect("a replica");
    let token = state.join("pods").join(name).join("token");
    let before = fs::read_to_string(&token).expect("a token");
    // Its successor is never ready.
    let mut restart = Process::spawn(mesh.user.evenkeel(&["restart", "slow", "--state"]).arg(state));
    eventually("the successor", || {
        (mesh.processes().iter().filter(|process| process.is_agent_of("slow")).count() == 2).then_some(())
    });
    let hours_ago = SystemTime::now() - Duration::from_secs(2 * 3600);
    File::options().write(true).open(&token).and_then(|file| file.set_modified(hours_ago)).expect("our own file");
    // Half of the time that the restart waits.
    within(Duration::from_secs(10), "another token", || {
        fs::read_to_string(&token).is_ok_and(|now| now != before).then_some(())
    });
    assert_eq!(restart.exited(), None, "it has not waited: {}", restart.output());
    mesh.stop();
}
