//! The notifications that each process sends a service manager, on a socket like systemd's.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::{Process, Signal};

/// Long enough for a loaded machine; nothing waits for it when all goes well.
const PATIENCE: Duration = Duration::from_secs(20);

const BOOTSTRAP: &str = "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}\n";

/// Listens where `NOTIFY_SOCKET` leads.
struct Listening {
    socket: UnixDatagram,
    folder: tempfile::TempDir,
}

impl Listening {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("a free path");
        socket.set_read_timeout(Some(PATIENCE)).expect("a valid timeout");
        Self { socket, folder }
    }

    fn start(&self, arguments: impl FnOnce(&mut Command, &Path)) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        arguments(&mut command, self.folder.path());
        Process::spawn(command.env("NOTIFY_SOCKET", self.path()))
    }

    /// What `NOTIFY_SOCKET` is to say.
    fn path(&self) -> PathBuf {
        self.folder.path().join("notify")
    }

    /// The next thing said.
    #[track_caller]
    fn hears(&self, expected: &str, process: &Process) {
        self.hears_all([expected], process);
    }

    /// The next things said, by processes that do not wait for each other: in any order.
    #[track_caller]
    fn hears_all<const N: usize>(&self, mut expected: [&str; N], process: &Process) {
        let mut heard = expected.map(|_| {
            let mut buffer = [0; 256];
            let heard = self.socket.recv(&mut buffer);
            heard.map(|count| String::from_utf8_lossy(&buffer[..count]).into_owned()).unwrap_or_default()
        });
        heard.sort_unstable();
        expected.sort_unstable();
        assert_eq!(heard, expected, "{}", process.output());
    }

    /// Nothing more has been said.
    #[track_caller]
    fn hears_nothing(&self) {
        self.socket.set_nonblocking(true).expect("a socket");
        let mut buffer = [0; 256];
        let heard = self.socket.recv(&mut buffer).map(|count| String::from_utf8_lossy(&buffer[..count]).into_owned());
        assert!(heard.is_err(), "{heard:?}");
        self.socket.set_nonblocking(false).expect("a socket");
    }
}

fn ends(process: &mut Process) {
    process.signal(Signal::SIGTERM);
    assert_eq!(process.wait_for_exit(PATIENCE).code(), Some(0), "{}", process.output());
}

#[test]
fn of_a_control_plane_that_it_serves_and_ends() {
    let manager = Listening::new();
    let mut control = manager.start(|command, folder| {
        std::fs::create_dir(folder.join("config")).expect("a writable folder");
        command
            .arg("control-plane")
            .arg("--config")
            .arg(folder.join("config"))
            .arg("--state")
            .arg(folder.join("state"));
        for address in ["--grpc-address", "--secure-grpc-address", "--http-address"] {
            command.args([address, "127.0.0.1:0"]);
        }
    });
    manager.hears("READY=1", &control);
    ends(&mut control);
    manager.hears("STOPPING=1", &control);
    manager.hears_nothing();
}

#[test]
fn of_proxies_which_one_is_the_service() {
    let manager = Listening::new();
    let start = || {
        manager.start(|command, folder| {
            std::fs::write(folder.join("bootstrap.yaml"), BOOTSTRAP).expect("a writable folder");
            command.args(["proxy", "--concurrency", "1", "-c"]).arg(folder.join("bootstrap.yaml"));
            command.arg("--base-id").arg("7").arg("--socket-path").arg(folder.join("handover"));
        })
    };
    let mut first = start();
    manager.hears("READY=1", &first);
    let mut second = start();
    assert_eq!(first.wait_for_exit(PATIENCE).code(), Some(0), "{}", first.output());
    manager.hears_all(["READY=1", &format!("MAINPID={}", second.pid())], &second);
    ends(&mut second);
    manager.hears("STOPPING=1", &second);
    manager.hears_nothing();
}
