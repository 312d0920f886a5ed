//! The admin port of a proxy, called by a program of another user, by a web page, and from other machines.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use evenkeel_testkit::{Connection, Process, eventually};

/// Debian's user without rights.
const NOBODY: u32 = 65534;

/// The verbs that change something.
const CHANGES: [&str; 7] = [
    "/quitquitquit",
    "/drain_listeners",
    "/healthcheck/fail",
    "/healthcheck/ok",
    "/logging?level=debug",
    "/reopen_logs",
    "/drain_listeners?inboundonly",
];

fn start(more: &[&str]) -> (Process, SocketAddr, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let address = folder.path().join("admin");
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["proxy", "--concurrency", "1", "--config-yaml", BOOTSTRAP, "--admin-address-path"]).arg(&address);
    let mut process = Process::spawn(command.args(more));
    process.wait_for_line("LIVE");
    let admin = eventually("the admin address", || std::fs::read_to_string(&address).ok()?.parse().ok());
    (process, admin, folder)
}

const BOOTSTRAP: &str = "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}";

/// A POST by another user, who closes at once or waits for the answer; what that user has seen of the answer.
fn post_as_nobody(admin: SocketAddr, path: &str, waits: bool) -> String {
    let read = if waits { "cat <&3" } else { "exec 3>&-" };
    let script = format!(
        "exec 3<>/dev/tcp/{}/{}; printf 'POST {path} HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n' >&3; {read}",
        admin.ip(),
        admin.port()
    );
    let output = Command::new("bash").args(["-c", &script]).uid(NOBODY).output().expect("bash runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The status that a request is answered with.
fn status(admin: SocketAddr, request: &str) -> u16 {
    let mut connection = Connection::open(admin).expect("it accepts");
    connection.send(request).expect("it reads");
    connection.response().expect("an answer").status
}

fn is_live(admin: SocketAddr) -> bool {
    let ready = Connection::open(admin).and_then(|mut connection| connection.get("localhost", "/ready", ""));
    ready.is_ok_and(|response| response.text() == "LIVE\n")
}

#[test]
fn a_program_of_another_user_changes_nothing() {
    if !nix::unistd::geteuid().is_root() {
        // Only root can become another user; CI runs as root.
        return;
    }
    let (mut process, admin, _folder) = start(&[]);
    for path in CHANGES {
        let answer = post_as_nobody(admin, path, true);
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("user 65534"), "{path}: {answer}");
        // A socket that is closed has no user any more: the kernel's table shows root's id for it.
        post_as_nobody(admin, path, false);
        assert!(is_live(admin) && process.exited().is_none(), "{path}: {}", process.output());
    }
    // To look is allowed.
    let script = format!(
        "exec 3<>/dev/tcp/{}/{}; printf 'GET /ready HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3; cat <&3",
        admin.ip(),
        admin.port()
    );
    let looked = Command::new("bash").args(["-c", &script]).uid(NOBODY).output().expect("bash runs");
    assert!(String::from_utf8_lossy(&looked.stdout).contains("LIVE"), "{looked:?}");
    process.wait_for_line("admin: a change refused");
    // The proxy's own user may.
    let own = "POST /logging?level=debug HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(status(admin, own), 200);
    drop(process);
    let (_process, admin, _folder) = start(&["--admin-changes-from", "anyone"]);
    assert!(post_as_nobody(admin, "/reopen_logs", true).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_web_page_reads_and_changes_nothing() {
    let (mut process, admin, _folder) = start(&[]);
    let rows = [
        // DNS rebinding: a name of the page's own that resolves to loopback.
        "GET /config_dump HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET /requests HTTP/1.1\r\nHost: evil.example:9901\r\n\r\n",
        "POST /quitquitquit HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n",
        // A form of another page.
        "POST /quitquitquit HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\nContent-Length: 0\r\n\r\n",
        "POST /drain_listeners HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: null\r\nContent-Length: 0\r\n\r\n",
    ];
    for row in rows {
        assert_eq!(status(admin, row), 403, "{row}");
    }
    // An image or a link of another page.
    for path in CHANGES {
        assert_eq!(status(admin, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")), 405, "{path}");
    }
    assert!(is_live(admin) && process.exited().is_none(), "{}", process.output());
}
