//! The setup of the comparison: backends, certificates, one bootstrap file, and the two proxies started from it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_testkit::server::echo_reply;
use evenkeel_testkit::{
    Backend, Connection, Identity, Process, Reply, Request, TcpEcho, TestCa, envoy, free_port, free_ports,
};

use super::exchange::Port;

const TEMPLATE: &str = include_str!("bootstrap.yaml");

/// Backends, certificates and the bootstrap file.
pub struct Scene {
    folder: tempfile::TempDir,
    root_pem: String,
    identities: [(&'static str, Identity); 3],
    /// The machine's own address, as seen from outside.
    pub own_address: String,
    admin: u16,
    listeners: [(Port, u16); 9],
    _backends: (Backend, Backend, TcpEcho),
}

/// Which program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// This project's.
    Evenkeel,
    /// Stock Envoy.
    Envoy,
}

impl Scene {
    /// Starts the backends and writes the bootstrap file.
    pub fn new() -> Self {
        let (a, b, echo) = (backend("a"), backend("b"), TcpEcho::start());
        let ca = TestCa::new();
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["web", "mutual"] {
            ca.for_dns(&[&format!("{name}.test")]).write(folder.path(), name);
        }
        ca.for_dns(&["*.pipe.test"]).write(folder.path(), "pipe");
        ca.for_spiffe(&spiffe("web")).write(folder.path(), "workload");
        std::fs::write(folder.path().join("root.pem"), ca.root_pem()).expect("a writable folder");
        std::fs::write(folder.path().join("other-root.pem"), TestCa::new().root_pem()).expect("a writable folder");
        let ports = [
            Port::Http,
            Port::Edge,
            Port::Rbac,
            Port::Buffer,
            Port::Tls,
            Port::Tcp,
            Port::TcpRefused,
            Port::TcpRbac,
            Port::Sniff,
        ];
        let numbers = free_ports::<9>();
        let listeners = std::array::from_fn(|index| (ports[index], numbers[index]));
        let hostile = ca.with_common_name(&spiffe("web"), "a\r\nevil: \"1\",b;c\\ \u{fc}\u{1}");
        let [web, other] = ["web", "other"].map(|account| (account, ca.for_spiffe(&spiffe(account))));
        let identities = [web, other, ("hostile", hostile)];
        let scene = Self {
            folder,
            root_pem: ca.root_pem(),
            identities,
            own_address: own_address(),
            admin: free_port(),
            listeners,
            _backends: (a, b, echo),
        };
        std::fs::write(scene.bootstrap(), scene.fill_in()).expect("a writable folder");
        scene
    }

    /// The port of a listener.
    pub fn port(&self, port: Port) -> u16 {
        self.listeners
            .iter()
            .find(|(which, _)| *which == port)
            .map(|(_, number)| *number)
            .expect("every port has a number")
    }

    /// The address of the plain HTTP listener.
    pub fn http(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port(Port::Http)).into()
    }

    /// Every port of the proxy, the admin interface's among them.
    pub fn every_port(&self) -> Vec<u16> {
        self.listeners.iter().map(|(_, number)| *number).chain([self.admin]).collect()
    }

    /// The certificate of a service account.
    pub fn identity(&self, account: &str) -> &Identity {
        self.identities
            .iter()
            .find(|(name, _)| *name == account)
            .map(|(_, identity)| identity)
            .expect("a known account")
    }

    /// The root that all servers' certificates are from.
    pub fn root_pem(&self) -> String {
        self.root_pem.clone()
    }

    /// Starts a proxy from the file and waits until it is ready.
    pub fn start(&self, program: Program) -> Process {
        let mut command = match program {
            Program::Evenkeel => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
                command.arg("proxy");
                command
            }
            Program::Envoy => {
                let mut command = Command::new(envoy());
                command.args(["--disable-hot-restart", "--file-flush-interval-msec", "20"]);
                command
            }
        };
        command.args(["--concurrency", "1", "-l", "warning", "-c"]).arg(self.bootstrap());
        let mut process = Process::spawn(&mut command);
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, self.admin));
        process.wait_for("a ready proxy", |_| {
            let response = Connection::open(admin).ok()?.get("admin", "/ready", "Connection: close\r\n").ok()?;
            (response.status == 200).then_some(())
        });
        for (_, port) in self.listeners {
            process.wait_for_port((Ipv4Addr::LOCALHOST, port).into());
        }
        process
    }

    /// The kinds of lines in the access log so far; [`Scene::forget_log`] begins it anew.
    pub fn log(&self) -> BTreeSet<String> {
        let text = std::fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default();
        // The last line may be under way.
        text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect()
    }

    /// Removes what the program before has written.
    pub fn forget_log(&self) {
        std::fs::remove_file(self.folder.path().join("access.log")).expect("a log was written");
    }

    fn bootstrap(&self) -> PathBuf {
        self.folder.path().join("bootstrap.yaml")
    }

    fn fill_in(&self) -> String {
        let (a, b, echo) = &self._backends;
        let mut text = TEMPLATE.replace("{{DIR}}", &self.folder.path().display().to_string());
        let mut fill = |name: &str, port: u16| text = text.replace(&format!("{{{{{name}}}}}"), &port.to_string());
        for (port, number) in self.listeners {
            fill(name_of(port), number);
        }
        fill("ADMIN", self.admin);
        fill("A", a.address().port());
        fill("B", b.address().port());
        fill("ECHO", echo.address().port());
        fill("REFUSED", free_port());
        assert!(!text.contains("{{"), "a word in braces is left over in the bootstrap file");
        text
    }
}

fn name_of(port: Port) -> &'static str {
    match port {
        Port::Http => "HTTP",
        Port::Edge => "EDGE",
        Port::Rbac => "RBAC",
        Port::Buffer => "BUFFER",
        Port::Tls => "TLS",
        Port::Tcp => "TCP",
        Port::TcpRefused => "TCP_REFUSED",
        Port::TcpRbac => "TCP_RBAC",
        Port::Sniff => "SNIFF",
    }
}

/// The source address of a packet that leaves the machine; loopback's when there is no way out. Nothing is sent.
pub fn own_address() -> String {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a UDP socket");
    let address = socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).and_then(|()| socket.local_addr());
    address.map_or_else(|_| Ipv4Addr::LOCALHOST.to_string(), |address| address.ip().to_string())
}

fn spiffe(account: &str) -> String {
    format!("spiffe://cluster.local/ns/default/sa/{account}")
}

/// Echoes what it received, and misbehaves on request.
fn backend(name: &'static str) -> Backend {
    let flaky = [const { AtomicUsize::new(0) }; 2];
    Backend::start(move |request| behave(name, request, &flaky))
}

fn behave(name: &str, request: &Request, flaky: &[AtomicUsize; 2]) -> Reply {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let path = request.target.split('?').next().unwrap_or_default();
    match path.trim_start_matches("/behave/") {
        "refuse-upgrade" => Reply::Fixed(400, vec![], b"no upgrade here".to_vec()),
        _ if request.header("upgrade").is_some() => Reply::Upgrade("websocket".to_owned()),
        "chunked" => Reply::Chunked(200, vec![], vec![b"one,".to_vec(), b"two,".to_vec(), vec![b'3'; 300]]),
        "empty" => Reply::Fixed(200, vec![], Vec::new()),
        "large" => Reply::Fixed(200, vec![], (0..1_000_000u32).map(|n| (n % 251) as u8).collect()),
        "close-delimited" => Reply::Raw(b"HTTP/1.1 200 OK\r\nx-framing: close\r\n\r\nuntil the end".to_vec()),
        "http-1.0" => Reply::Raw(b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nold".to_vec()),
        "connection-close" => {
            Reply::Raw(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 3\r\n\r\nbye".to_vec())
        }
        "204" => Reply::Fixed(204, vec![], Vec::new()),
        "304" => Reply::Fixed(304, vec![header("etag", "\"v1\"")], Vec::new()),
        "503" => Reply::Fixed(503, vec![], b"the backend's own 503".to_vec()),
        "slow" => Reply::After(Duration::from_millis(900), Box::new(Reply::text("slow"))),
        "close" => Reply::Close,
        "garbage" => Reply::Raw(b"this is not HTTP\r\n\r\n".to_vec()),
        "truncated" => Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc".to_vec()),
        "bad-chunk" => Reply::Raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n".to_vec()),
        "two-lengths" => Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd".to_vec()),
        "hop-by-hop" => Reply::Fixed(
            200,
            vec![
                header("Connection", "keep-alive, x-private"),
                header("Keep-Alive", "timeout=5"),
                header("Proxy-Connection", "keep-alive"),
                header("X-Private", "1"),
                header("Server", "backend/1.0"),
                header("Date", "Sat, 21 Nov 2026 00:00:00 GMT"),
            ],
            b"hop".to_vec(),
        ),
        "seen" => Reply::Fixed(
            200,
            vec![header("x-seen", "backend"), header("x-hidden", "secret"), header("x-code", "none")],
            b"seen".to_vec(),
        ),
        // Fails twice, answers the third time: what a policy with two retries can just reach.
        which @ ("flaky" | "flaky-too") => {
            match flaky[usize::from(which == "flaky-too")].fetch_add(1, Ordering::SeqCst) % 3 {
                0 | 1 => Reply::Fixed(503, vec![], b"try again".to_vec()),
                _ => Reply::text("third time lucky"),
            }
        }
        _ => echo_reply(name, request),
    }
}
