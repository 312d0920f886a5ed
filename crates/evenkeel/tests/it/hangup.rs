//! SIGHUP: an operator's is nothing to a process that follows its configuration anyway; a closed terminal ends it in order.

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_testkit::{Connection, Process};

/// Long enough for a loaded machine; nothing waits for it when all goes well.
const PATIENCE: Duration = Duration::from_secs(20);

const BOOTSTRAP: &str = "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}\n";

/// The two ends of a terminal. Neither is inherited by what other tests start meanwhile.
fn terminal() -> (File, File) {
    let ours = File::options().read(true).write(true).open("/dev/ptmx").expect("a terminal");
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: both only act on a descriptor that is open.
    let theirs = unsafe {
        assert_eq!(libc::unlockpt(ours.as_raw_fd()), 0);
        libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTPEER, flags)
    };
    assert!(theirs >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the call succeeded: it is open, and nobody else's.
    (ours, unsafe { File::from_raw_fd(theirs) })
}

fn evenkeel(folder: &Path, command: &str) -> Command {
    let mut all = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    all.arg(command);
    match command {
        "proxy" => {
            std::fs::write(folder.join("bootstrap.yaml"), BOOTSTRAP).expect("a writable folder");
            all.args(["--concurrency", "1", "-c"]).arg(folder.join("bootstrap.yaml"));
            all.arg("--admin-address-path").arg(folder.join("admin"));
        }
        _ => {
            std::fs::create_dir_all(folder.join("config")).expect("a writable folder");
            all.arg("--config").arg(folder.join("config")).arg("--state").arg(folder.join("state"));
            for address in ["--grpc-address", "--secure-grpc-address", "--http-address"] {
                all.args([address, "127.0.0.1:0"]);
            }
        }
    }
    all
}

/// Waits until it serves.
fn await_start(process: &mut Process, folder: &Path, command: &str) {
    if command == "control-plane" {
        process.wait_for_line("control plane ready");
        return;
    }
    process.wait_for("a proxy that is live", |_| {
        let admin = std::fs::read_to_string(folder.join("admin")).ok()?.parse().ok()?;
        let answer = Connection::open(admin).ok()?.get("admin", "/ready", "").ok()?;
        answer.text().contains("LIVE").then_some(())
    });
    std::fs::remove_file(folder.join("admin")).expect("it was read");
}

#[test]
fn it_is_for_the_terminal_and_nothing_else() {
    for command in ["control-plane", "proxy"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut served = Process::spawn(&mut evenkeel(folder.path(), command));
        await_start(&mut served, folder.path(), command);
        served.signal(libc::SIGHUP);
        served.wait_for_line("SIGHUP: there is nothing to do");
        served.signal(libc::SIGTERM);
        assert_eq!(served.wait_for_exit(PATIENCE).code(), Some(0), "{}", served.output());

        let (ours, theirs) = terminal();
        let input = Stdio::from(theirs);
        let mut interactive = Process::spawn_with_input(&mut evenkeel(folder.path(), command), input);
        await_start(&mut interactive, folder.path(), command);
        interactive.signal(libc::SIGHUP);
        interactive.wait_for_line("SIGHUP: there is nothing to do");
        drop(ours);
        interactive.signal(libc::SIGHUP);
        assert_eq!(interactive.wait_for_exit(PATIENCE).code(), Some(0), "{}", interactive.output());
    }
}
