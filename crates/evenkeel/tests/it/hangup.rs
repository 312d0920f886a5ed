//! SIGHUP: ignored when an operator sends it, because the process follows its configuration anyway; a closed terminal ends
//! the process in order.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_testkit::{Connection, Process, Signal};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};

/// Long enough for a loaded machine; nothing waits for it when all goes well.
const PATIENCE: Duration = Duration::from_secs(20);

const BOOTSTRAP: &str = "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}\n";

/// The two ends of a terminal. Neither is inherited by what other tests start meanwhile.
fn terminal() -> (File, File) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags).expect("a terminal");
    unlockpt(&ours).expect("ours");
    let theirs = ioctl_tiocgptpeer(&ours, flags).expect("its other end");
    (ours.into(), theirs.into())
}

fn evenkeel(folder: &Path, command: &str) -> Command {
    let mut all = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    if command == "lab" {
        all = Command::new(env!("CARGO_BIN_EXE_evenkeel-lab"));
    } else {
        all.arg(command);
    }
    match command {
        "proxy" => {
            std::fs::write(folder.join("bootstrap.yaml"), BOOTSTRAP).expect("a writable folder");
            all.args(["--concurrency", "1", "-c"]).arg(folder.join("bootstrap.yaml"));
            all.arg("--admin-address-path").arg(folder.join("admin"));
        }
        "agent" => {
            // Nobody answers there: it waits for its certificate.
            all.args(["sidecar", "--no-capture", "--id", "web-0.shop", "--namespace", "shop", "--ip", "127.0.0.1"]);
            all.args(["--discovery-address", "127.0.0.1:1", "--token", "/nonexistent", "--root-cert", "/nonexistent"]);
            all.arg("--state").arg(folder);
        }
        "lab" => {
            all.args(["services", "--services", "5", "--proxies", "2", "--changes", "20", "--interval", "50ms"]);
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
    match command {
        "control-plane" => _ = process.wait_for_line("control plane ready"),
        "agent" => _ = process.wait_for_line("no certificate; trying again"),
        "lab" => process.wait_for("its control plane", |lab| children(lab.pid()).first().map(|_| ())),
        _ => {
            process.wait_for("a proxy that is live", |_| {
                let admin = std::fs::read_to_string(folder.join("admin")).ok()?.parse().ok()?;
                let answer = Connection::open(admin).ok()?.get("admin", "/ready", "").ok()?;
                answer.text().contains("LIVE").then_some(())
            });
            std::fs::remove_file(folder.join("admin")).expect("it was read");
        }
    }
}

/// Processes that its main thread has started and that have not ended.
fn children(process: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect()
}

#[test]
fn it_is_for_the_terminal_and_nothing_else() {
    for command in ["control-plane", "proxy", "agent"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut served = Process::spawn(&mut evenkeel(folder.path(), command));
        await_start(&mut served, folder.path(), command);
        served.signal(Signal::SIGHUP);
        served.wait_for_line("SIGHUP: nothing to reload");
        served.signal(Signal::SIGTERM);
        assert_eq!(served.wait_for_exit(PATIENCE).code(), Some(0), "{}", served.output());

        let (ours, theirs) = terminal();
        let input = Stdio::from(theirs);
        let mut interactive = Process::spawn_with_input(&mut evenkeel(folder.path(), command), input);
        await_start(&mut interactive, folder.path(), command);
        interactive.signal(Signal::SIGHUP);
        interactive.wait_for_line("SIGHUP: nothing to reload");
        drop(ours);
        interactive.signal(Signal::SIGHUP);
        assert_eq!(interactive.wait_for_exit(PATIENCE).code(), Some(0), "{}", interactive.output());
    }
}

#[test]
fn the_lab_goes_on_with_its_terminal_and_ends_without() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut background = Process::spawn(&mut evenkeel(folder.path(), "lab"));
    await_start(&mut background, folder.path(), "lab");
    background.signal(Signal::SIGHUP);
    assert_eq!(background.wait_for_exit(PATIENCE).code(), Some(0), "{}", background.output());

    let (ours, theirs) = terminal();
    let mut interactive = Process::spawn_with_input(&mut evenkeel(folder.path(), "lab"), Stdio::from(theirs));
    await_start(&mut interactive, folder.path(), "lab");
    let started = children(interactive.pid());
    drop(ours);
    interactive.signal(Signal::SIGHUP);
    assert_eq!(interactive.wait_for_exit(PATIENCE).code(), Some(1), "{}", interactive.output());
    let gone = |process: &u32| !Path::new(&format!("/proc/{process}")).exists();
    assert!(started.iter().all(gone), "{started:?}: {}", interactive.output());
}

#[test]
fn what_only_prints_ends_as_other_programs_do_when_nobody_reads() {
    use std::os::unix::process::ExitStatusExt as _;
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let output = command.arg("version").stdout(writer).output().expect("it runs");
    assert_eq!(
        (output.status.signal(), String::from_utf8_lossy(&output.stderr)),
        (Some(Signal::SIGPIPE as i32), "".into())
    );
}
