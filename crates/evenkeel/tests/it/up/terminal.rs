//! The terminal of a command that `exec` runs in a container.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_testkit::{Process, Signal, eventually};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::unistd::ttyname;

use super::user::{User, is_root, open_to_all};
use super::{MACHINE, PATIENCE, deployment, state, wait_ready};

/// What a command can do with the terminal that it gets. It types into it by TIOCSTI, where the kernel allows that.
const LOOK: &str = r#"
import fcntl, os, sys, termios
names = {os.ttyname(fd) if os.isatty(fd) else 'none' for fd in range(3)}
others = []
for name in os.listdir('/proc/self/fd'):
    try:
        others.append(os.ttyname(int(name)))
    except OSError:
        pass
print('terminals', *sorted(names | set(others)))
print('own session', os.getsid(0) == os.getpid())
print('size', *os.get_terminal_size(1 if os.isatty(1) else 2))
print('controlling', os.fstat(os.open('/dev/tty', os.O_RDWR)).st_rdev == os.stat('/dev/tty').st_rdev, os.tcgetpgrp(2) == os.getpgrp())
try:
    for byte in b'typed\n':
        fcntl.ioctl(0, termios.TIOCSTI, bytes([byte]))
except OSError:
    pass
print('secret', os.environ.get('SECRET'), os.environ['TERM'])
print('end', flush=True)
"#;

/// A terminal with a caller's shell, as it were.
struct Terminal {
    main: File,
    slave: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn open() -> Self {
        let size = Winsize { ws_row: 33, ws_col: 99, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None).expect("a pseudo-terminal");
        let (main, shown) = (File::from(master), Arc::<Mutex<Vec<u8>>>::default());
        let (mut read, seen) = (main.try_clone().expect("a descriptor"), shown.clone());
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            // It ends with the terminal.
            while let Ok(count @ 1..) = read.read(&mut chunk) {
                seen.lock().unwrap_or_else(PoisonError::into_inner).extend(&chunk[..count]);
            }
        });
        Self { main, slave, shown }
    }

    /// Runs it in a session with this terminal; these of its streams are the terminal.
    fn run(&self, command: &Command, streams: [bool; 3]) -> Child {
        let stream = || self.slave.try_clone().expect("a descriptor");
        let [input, output, errors] = streams;
        // For `setsid` standard input is the terminal; the command's is descriptor 3.
        let inner = "exec setsid --ctty --wait sh -c 'exec \"$@\" <&3 3<&-' sh \"$@\" 3";
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{inner}{}", if input { "<&0" } else { "</dev/null" }), "sh"]);
        shell.arg(command.get_program()).args(command.get_args()).current_dir("/");
        shell.env("SECRET", "of the caller").env("TERM", "xterm-kept");
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(stream());
        shell.stdout(if output { stream().into() } else { std::process::Stdio::null() });
        shell.stderr(if errors { stream().into() } else { std::process::Stdio::null() });
        shell.spawn().expect("it runs")
    }

    fn name(&self) -> String {
        ttyname(&self.slave).expect("it is one").display().to_string()
    }

    /// Waits until this is shown, and returns all that is.
    fn shows(&self, what: &str) -> String {
        eventually(what, || {
            let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
            let text = String::from_utf8_lossy(&shown).replace("\r\n", "\n");
            text.contains(what).then_some(text)
        })
    }
}

#[test]
fn of_a_command_is_its_own_and_nothing_of_it_reaches_the_callers() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let unprivileged = Some(User::unprivileged()).filter(User::may_isolate);
    for user in is_root().then(User::present).into_iter().chain(unprivileged) {
        let folder = state();
        open_to_all(folder.path());
        let run = "exec python3 -m http.server --bind 0.0.0.0 8000";
        fs::write(folder.path().join("mesh.yaml"), deployment("web", 1, run)).expect("our own folder");
        let mut command = user.evenkeel(&["up"]);
        command.arg(folder.path()).arg("--state").arg(user.state.path());
        let mut up = Process::spawn(&mut command);
        wait_ready(&mut up, 1);
        let state = user.state.path().display().to_string();
        let inside = |words: &[&str]| user.evenkeel(&[&["exec", "web", "--state", &state, "--"], words].concat());

        for streams in [[true; 3], [false, true, true]] {
            let terminal = Terminal::open();
            let mut exec = terminal.run(&inside(&["python3", "-c", LOOK]), streams);
            let said = terminal.shows("end\n");
            assert!(exec.wait().expect("it ends").success(), "{said}");
            let mut lines = said.lines().filter(|line| !line.starts_with("typed"));
            let names = lines.next().unwrap_or_default().replace(" none", "");
            assert!(names.starts_with("terminals /dev/pts/") && !names.ends_with(&terminal.name()), "{said}");
            assert_eq!(names.split(' ').count(), 2, "{said}");
            let rest: Vec<&str> = lines.collect();
            let expected = ["own session True", "size 99 33", "controlling True True", "secret None xterm-kept", "end"];
            assert_eq!(rest, expected, "{said}");
            // Nothing waits to be read by the caller's shell.
            assert_eq!(waiting_input(&terminal.slave), 0, "{said}");
        }

        // What is typed arrives, and so does an interrupt.
        let mut terminal = Terminal::open();
        let mut exec = terminal
            .run(&inside(&["sh", "-c", "stty -echo; echo ready; read line; echo got $line; sleep 60"]), [true; 3]);
        terminal.shows("ready");
        terminal.main.write_all(b"a line\r").expect("the terminal is open");
        terminal.shows("got a line");
        terminal.main.write_all(b"\x03").expect("the terminal is open");
        assert_eq!(eventually("its end", || exec.try_wait().expect("our child")).code(), Some(130));

        // Without a terminal a signal is passed on, and the command still has no way to the caller's.
        let terminal = Terminal::open();
        let no_terminal = "import os\ntry:\n  os.open('/dev/tty', os.O_RDWR)\nexcept OSError:\n  os._exit(7)";
        let mut exec = terminal.run(&inside(&["python3", "-c", no_terminal]), [false; 3]);
        assert_eq!(exec.wait().expect("it ends").code(), Some(7));
        up.signal(Signal::SIGINT);
        assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
    }
}

/// The bytes that a terminal holds for its readers.
fn waiting_input(terminal: &OwnedFd) -> u64 {
    rustix::io::ioctl_fionread(terminal).expect("a terminal")
}
