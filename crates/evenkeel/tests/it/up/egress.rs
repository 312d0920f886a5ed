//! What leaves a replica for an address that nobody in the mesh has.

use std::sync::PoisonError;

use evenkeel_testkit::Process;

use super::MACHINE;
use super::user::User;

/// First a connection as the sidecar makes them (its mark is 1337) to a service's address, then the application's from the same port.
const CALLS: &str = r"
import socket, sys
service = (socket.gethostbyname('files'), 8000)
def connect(mark):
    s = socket.socket()
    s.settimeout(10)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if mark: s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
    s.bind(('', 45678))
    s.connect(service)
    return s
try:
    connect(1337)
    sys.exit('nobody has this address, and yet it answers')
except OSError as error:
    print('sidecar:', error)
s = connect(0)
s.sendall(b'GET / HTTP/1.1\r\nhost: files:8000\r\n\r\n')
print('application:', s.recv(12).decode())
";

#[test]
fn is_refused_at_once_and_does_not_stand_in_the_applications_way() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), super::state());
    let run = "exec python3 -m http.server --bind 0.0.0.0 8000";
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: files}\nspec:\n  selector: {app: files}\n  ports: [{port: 8000, \
                   name: http}]\n";
    let manifest = format!("{}{service}", super::deployment("files", 1, run));
    std::fs::write(folder.path().join("files.yaml"), manifest).expect("it can be written");
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    let mut up = Process::spawn(&mut command);
    super::wait_ready(&mut up, 1);
    let state = user.state.path().display().to_string();
    let calls =
        user.evenkeel(&["exec", "files", "--state", &state, "--", "python3", "-c", CALLS]).output().expect("exec runs");
    let said = String::from_utf8_lossy(&calls.stdout);
    assert_eq!(
        said,
        "sidecar: [Errno 113] No route to host\napplication: HTTP/1.1 200\n",
        "{calls:?}\n{}",
        up.output()
    );
    up.signal(libc::SIGINT);
    assert!(up.wait_for_exit(super::PATIENCE).success(), "{}", up.output());
}
