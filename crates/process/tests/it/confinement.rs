//! A process confines itself and then tries what must be forbidden, and what must still be allowed.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_process::confinement::{Writes, confine};
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::getppid;

/// Names the directory to write to; its presence has the test below be the process that is confined.
const DIRECTORY: &str = "EVENKEEL_TEST_CONFINED";

#[test]
fn a_confined_process_serves_and_does_nothing_else() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", "confinement::inside", "--ignored", "--nocapture", "--test-threads", "1"]);
    let output = command.env(DIRECTORY, folder.path()).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let mut said: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    // Kernels from 5.13 on have both; where one is missing, its line says so.
    let held = said.remove(0);
    assert!(held.contains("seccomp=on"), "{held}");
    let mut expected = EXPECTED.to_vec();
    if held.contains("landlock=off") {
        expected.retain(|line| !line.starts_with("write elsewhere"));
        said.retain(|line| !line.starts_with("write elsewhere"));
    }
    assert_eq!(said, expected);
}

const EXPECTED: [&str; 12] = [
    "run a program: refused",
    "another's memory: EPERM",
    "mount: EPERM",
    "a namespace: EPERM",
    "another root: EPERM",
    "write elsewhere: refused",
    "write where it may: done",
    "read elsewhere: done",
    "a connection: done",
    "a thread: done",
    "memory: done",
    "another event loop: done",
];

fn came(name: &str, result: Result<(), impl Into<io::Error>>) {
    let word = match result.map_err(Into::into) {
        Ok(()) => "done".to_owned(),
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EPERM) => "EPERM".to_owned(),
            _ => format!("{error}"),
        },
    };
    _ = writeln!(io::stdout(), "- {name}: {word}");
}

fn refused(name: &str, result: io::Result<()>) {
    let word = match result {
        Ok(()) => "done",
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => "refused",
        Err(_) => "failed otherwise",
    };
    _ = writeln!(io::stdout(), "- {name}: {word}");
}

#[test]
#[ignore = "the test above runs it, in a process of its own"]
fn inside() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let places = [directory.as_path()];
    let held = confine(Writes::Below(&places)).expect("it is switched on");
    println!("\n- {held}");
    refused("run a program", Command::new("true").status().map(drop));
    let (mut byte, there) = ([0_u8], [RemoteIoVec { base: 4096, len: 1 }]);
    came("another's memory", process_vm_readv(getppid(), &mut [io::IoSliceMut::new(&mut byte)], &there).map(drop));
    let nowhere: Option<&Path> = None;
    let flags = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
    came("mount", nix::mount::mount(nowhere, "/", nowhere, flags, nowhere));
    came("a namespace", nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER));
    came("another root", nix::unistd::chroot("/"));
    refused("write elsewhere", fs::write(elsewhere.path().join("file"), "x"));
    let file = directory.join("file");
    let renamed = fs::write(&file, "x").and_then(|()| fs::rename(&file, directory.join("other")));
    refused("write where it may", renamed);
    refused("read elsewhere", fs::read("/proc/self/status").map(drop));
    refused("a connection", connection());
    refused("a thread", std::thread::Builder::new().spawn(|| {}).map(|thread| drop(thread.join())));
    let memory = vec![1_u8; 64 << 20];
    refused("memory", memory.last().map(drop).ok_or(io::ErrorKind::OutOfMemory.into()));
    let event_loop = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    refused("another event loop", event_loop.map(|event_loop| event_loop.block_on(tokio::task::yield_now())));
}

fn connection() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    client.write_all(b"x")?;
    listener.accept()?.0.read_exact(&mut [0])
}
