//! `evenkeel proxy` as a process: exit status, signals, inherited sockets.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use evenkeel_testkit::{Connection, Process, Signal, eventually};

const BOOTSTRAP: &str = r#"
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: web
    address: {socket_address: {address: 127.0.0.1, port_value: PORT}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          route_config:
            name: local
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: hello}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
"#;

/// Long enough for a loaded machine; nothing waits for it when all goes well.
const PATIENCE: Duration = Duration::from_secs(20);

fn write(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("bootstrap.yaml");
    std::fs::write(&path, text).expect("a writable folder");
    path
}

fn proxy(folder: &Path, port: u16) -> Command {
    proxy_of(folder, port, 1)
}

fn proxy_of(folder: &Path, port: u16, workers: usize) -> Command {
    let path = write(folder, &BOOTSTRAP.replace("PORT", &port.to_string()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["proxy", "--concurrency", &workers.to_string(), "-c"]).arg(path);
    command.arg("--admin-address-path").arg(folder.join("admin"));
    command
}

fn admin_of(folder: &Path) -> SocketAddr {
    eventually("the admin address", || std::fs::read_to_string(folder.join("admin")).ok()?.parse().ok())
}

fn admin_get(admin: SocketAddr, path: &str) -> String {
    Connection::open(admin).expect("it accepts").get("admin", path, "").expect("it answers").text()
}

fn listener_of(admin: SocketAddr) -> SocketAddr {
    eventually("the listener", || {
        let text = admin_get(admin, "/listeners");
        text.lines().find_map(|line| line.strip_prefix("web::")?.parse().ok())
    })
}

#[test]
fn requests_to_the_admin_port_are_logged() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [own, default] = ["own.log", "default.log"].map(|name| folder.path().join(name));
    let log = format!(
        "access_log_path: {}, access_log: [{{name: a, filter: {{header_filter: {{header: {{name: \":path\", string_match: {{prefix: /stats}}}}}}}}, \
         typed_config: {{\"@type\": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: {}, \
         format: \"%REQ(:METHOD)% %REQ(:PATH)% %REQ(:AUTHORITY)% %RESPONSE_CODE% %RESPONSE_CODE_DETAILS%\\n\"}}}}], address:",
        default.display(),
        own.display()
    );
    let text = BOOTSTRAP.replace("PORT", "0").replacen("address:", &log, 1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["proxy", "--concurrency", "1", "-c"]).arg(write(folder.path(), &text));
    let _proxy = Process::spawn(command.arg("--admin-address-path").arg(folder.path().join("admin")));
    let admin = admin_of(folder.path());
    admin_get(admin, "/stats?usedonly");
    admin_get(admin, "/nothing");
    let lines = |path: &Path, count: usize| {
        eventually("the lines", || {
            let text = std::fs::read_to_string(path).ok()?;
            (text.lines().count() >= count).then(|| text.lines().map(str::to_owned).collect::<Vec<_>>())
        })
    };
    let all = lines(&default, 2);
    assert!(all.iter().any(|line| line.contains("\"GET /nothing HTTP/1.1\" 404 - 0 ")), "{all:?}");
    assert_eq!(lines(&own, 1), ["GET /stats?usedonly admin 200 admin_filter_response"]);
}

fn validate(folder: &Path, text: &str) -> Output {
    let path = write(folder, text);
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["proxy", "--mode", "validate", "-c"]).arg(path).output().expect("the program runs")
}

#[test]
fn validating_says_ok_or_what_is_wrong() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let good = validate(folder.path(), &BOOTSTRAP.replace("PORT", "0"));
    let path = folder.path().join("bootstrap.yaml");
    assert!(good.status.success(), "{good:?}");
    assert_eq!(String::from_utf8_lossy(&good.stdout), format!("configuration '{}' OK\n", path.display()));

    let bad = validate(folder.path(), &BOOTSTRAP.replace("PORT", "0").replace("stat_prefix: web", "server_nam: x"));
    assert_eq!(bad.status.code(), Some(1));
    let error = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert!(error.contains(&format!("{}:12:11", path.display())), "{error}");
    assert!(error.contains("server_nam") && error.contains("did you mean `server_name`?"), "{error}");
}

#[test]
fn a_signal_ends_it_in_order_and_a_second_one_at_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut process = Process::spawn(&mut proxy(folder.path(), 0));
    let admin = admin_of(folder.path());
    let web = listener_of(admin);
    // A request that never ends keeps the drain from being over.
    let mut connection = Connection::open(web).expect("it accepts");
    connection.send("GET / HTTP/1.1\r\n").expect("it reads");
    eventually("the connection to be counted", || {
        admin_get(admin, "/stats?filter=server.total_connections").contains(": 1").then_some(())
    });
    process.signal(Signal::SIGTERM);
    process.wait_for_line("draining");
    assert_eq!(admin_get(admin, "/ready"), "DRAINING\n");
    assert!(process.exited().is_none(), "{}", process.output());
    process.signal(Signal::SIGTERM);
    assert_eq!(process.wait_for_exit(PATIENCE).code(), Some(0), "{}", process.output());

    std::fs::remove_file(folder.path().join("admin")).expect("it was written");
    let mut process = Process::spawn(&mut proxy(folder.path(), 0));
    listener_of(admin_of(folder.path()));
    process.signal(Signal::SIGINT);
    assert_eq!(process.wait_for_exit(PATIENCE).code(), Some(0), "{}", process.output());
}

/// What `evenkeel proxy-config workers` prints of a proxy with two workers and four connections, and the statistics behind it.
#[test]
fn workers_are_shown_with_how_uneven_they_are() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let _process = Process::spawn(&mut proxy_of(folder.path(), 0, 2));
    let admin = admin_of(folder.path());
    let web = listener_of(admin);
    let mut open: Vec<_> = (0..4).map(|_| Connection::open(web).expect("it accepts")).collect();
    for (turn, connection) in open.iter_mut().enumerate() {
        for _ in 0..=turn {
            assert_eq!(connection.get("a", "/", "").expect("an answer").text(), "hello");
        }
    }
    let print = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let output = command.args(["proxy-config", "workers", "--admin", &admin.to_string()]).args(more).output();
        let output = output.expect("the program runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    eventually("all requests to be counted", || {
        let json: serde_json::Value = serde_json::from_str(&print(&["-o", "json"])).expect("JSON");
        let served: u64 =
            json["workers"].as_array()?.iter().filter_map(|worker| worker["requests_total"].as_u64()).sum();
        (served == 10).then_some(())
    });
    let table = print(&[]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let columns = [
        "worker",
        "connections_active",
        "connections_total",
        "moved_in",
        "moved_out",
        "requests_total",
        "busy_s",
        "busy_%",
    ];
    assert_eq!((rows.len(), &rows[0][..]), (4, &columns[..]), "{table}");
    let cell = |row: usize, name: &str| {
        let column = columns.iter().position(|column| *column == name).expect("a column");
        rows[row][column].parse::<f64>().unwrap_or_else(|_| panic!("{name}: {table}"))
    };
    assert_eq!((rows[1][0], rows[2][0], rows[3][0]), ("0", "1", "max/mean"), "{table}");
    for name in ["connections_active", "requests_total"] {
        let of_both = [cell(1, name), cell(2, name)];
        let uneven = of_both[0].max(of_both[1]) * 2.0 / (of_both[0] + of_both[1]);
        assert!((cell(3, name) - uneven).abs() < 0.006, "{name}: {table}");
    }
    assert_eq!([cell(1, "connections_active"), cell(2, "connections_active")], [2.0, 2.0], "{table}");

    let of_both = |name: &str| -> Vec<u64> {
        let stats = admin_get(admin, "/stats");
        let value = |worker: usize| {
            let name = name.replace('#', &worker.to_string());
            let found = stats.lines().find_map(|line| line.strip_prefix(&name)?.strip_prefix(": ")?.parse().ok());
            found.unwrap_or_else(|| panic!("no {name} in {stats}"))
        };
        (0..2).map(value).collect()
    };
    // The address is the one that is configured.
    assert_eq!(of_both("listener.127.0.0.1_0.worker_#.downstream_cx_active"), [2, 2]);
    assert_eq!(of_both("listener.127.0.0.1_0.worker_#.downstream_cx_total"), [2, 2]);
    assert_eq!(of_both("workers.worker_#.downstream_rq_total").iter().sum::<u64>(), 10);
    assert_eq!(of_both("workers.worker_#.busy_permille").len(), 2);
    eventually("a look at what was used of the cores", || {
        of_both("workers.worker_#.busy_us_total").iter().all(|micros| *micros > 0).then_some(())
    });
}

#[test]
fn a_listening_socket_is_taken_over_from_the_parent() {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = socket.local_addr().expect("bound");
    // Somebody who connects before the proxy runs waits in the socket's queue instead of being refused.
    let early = TcpStream::connect(address).expect("the socket listens already");
    let _process = with_socket(socket, address.port(), &address.port().to_string());
    assert_eq!(greeted(early), "hello");
}

#[test]
fn a_listening_socket_of_another_network_serves_beside_the_listeners_own_address() {
    let own = evenkeel_testkit::free_port();
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let elsewhere = socket.local_addr().expect("bound");
    let _process = with_socket(socket, own, &format!("+{own}"));
    assert_eq!(greeted(TcpStream::connect(elsewhere).expect("it listens")), "hello");
    let own = eventually("the listener's own address", || TcpStream::connect(("127.0.0.1", own)).ok());
    assert_eq!(greeted(own), "hello");
}

/// The proxy with a listener at this port, and a listening socket of this name.
fn with_socket(socket: TcpListener, port: u16, name: &str) -> (Process, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = proxy(folder.path(), port);
    command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", name);
    let fd = socket.as_raw_fd();
    let hand_over = move || {
        // SAFETY: both calls are async-signal-safe and touch no memory. The flag is cleared for a socket that has the
        // number 3 already, of which dup2 makes no copy.
        let handed = unsafe { libc::dup2(fd, 3) == 3 && libc::fcntl(3, libc::F_SETFD, 0) == 0 };
        if handed { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: `hand_over` allocates nothing and takes no lock.
    unsafe { command.pre_exec(hand_over) };
    (Process::spawn(&mut command), folder)
}

/// The body that a connection gets.
fn greeted(mut stream: TcpStream) -> String {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .expect("it is open");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.rsplit("\r\n").next().unwrap_or_default().to_owned()
}
