//! A row of the table: what a client sends on one connection, and what came back, as text that can be compared.

use std::fmt::Write;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use evenkeel_testkit::http::Ending;
use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Connection, Response};

use super::http2::Ask;
use super::proxy::Scene;

/// How long "nothing more comes" is watched.
const QUIET: Duration = Duration::from_millis(60);
/// How long a close may take.
const CLOSING: Duration = Duration::from_secs(3);

/// The listeners of the bootstrap file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// Plain HTTP, Envoy's defaults.
    Http,
    /// Plain HTTP with an edge's options.
    Edge,
    /// HTTP behind two RBAC filters.
    Rbac,
    /// HTTP behind a buffer of 10 bytes.
    Buffer,
    /// TLS, chosen by server name.
    Tls,
    /// TCP to the echo server.
    Tcp,
    /// TCP to a port nothing listens on.
    TcpRefused,
    /// TCP that RBAC denies to loopback.
    TcpRbac,
    /// HTTP or not, by the first bytes.
    Sniff,
}

/// One thing the client does.
#[derive(Debug, Clone)]
pub enum Step {
    /// Sends bytes.
    Send(String),
    /// Reads a response.
    Response,
    /// Reads the response to a `HEAD`.
    HeadResponse,
    /// Reads so many bytes, after an upgrade or without HTTP.
    Bytes(usize),
    /// Ends its sending.
    Finish,
    /// Sees that the connection stays open and quiet.
    Open,
    /// Sees that the proxy closes.
    Closed,
    /// Asks over HTTP/2, on a connection of its own.
    Http2(Ask),
}

/// How the connection begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// Without TLS.
    Plain,
    /// With TLS to this server name, offering `http/1.1`.
    Tls(&'static str),
    /// As above, with the client certificate of `spiffe://cluster.local/ns/default/sa/NAME`.
    MutualTls(&'static str, &'static str),
}

/// One row.
#[derive(Debug, Clone)]
pub struct Case {
    /// Unique name.
    pub name: &'static str,
    /// Where it goes.
    pub port: Port,
    /// How.
    pub opening: Opening,
    /// What the client does.
    pub steps: Vec<Step>,
    /// Text that the outcome has to contain, so that two proxies that fail alike do not pass.
    pub expect: &'static str,
    /// A deliberate difference.
    pub known: Option<Known>,
}

/// Where Evenkeel means to answer otherwise than Envoy.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Why.
    pub reason: &'static str,
    /// Text that Evenkeel's outcome has to contain.
    pub evenkeel: &'static str,
}

impl Case {
    /// A row on a plain connection.
    pub fn new(name: &'static str, port: Port, expect: &'static str, steps: Vec<Step>) -> Self {
        Self { name, port, opening: Opening::Plain, steps, expect, known: None }
    }

    /// A row of one request and its response, after which the connection is looked at.
    pub fn request(name: &'static str, port: Port, expect: &'static str, request: &str) -> Self {
        Self::new(name, port, expect, vec![Step::Send(request.to_owned()), Step::Response])
    }

    /// A row whose request has no body and only the given extra header lines.
    pub fn get(name: &'static str, host: &str, target: &str, extra: &str, expect: &'static str) -> Self {
        Self::request(name, Port::Http, expect, &format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n"))
    }

    /// The row with another way to begin.
    pub fn opened(mut self, opening: Opening) -> Self {
        self.opening = opening;
        self
    }

    /// The row with a further step.
    pub fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// The row with other text that Envoy's outcome has to contain.
    pub fn envoy(mut self, expect: &'static str) -> Self {
        self.expect = expect;
        self
    }

    /// The row with a deliberate difference.
    pub fn differs(mut self, reason: &'static str, evenkeel: &'static str) -> Self {
        self.known = Some(Known { reason, evenkeel });
        self
    }

    /// Does what the row says and tells what happened.
    pub fn run(&self, scene: &Scene) -> String {
        let mut story = String::new();
        if let Err(error) = self.play(scene, &mut story) {
            let _ = writeln!(story, "error: {}", describe(&error));
        }
        story
    }

    fn play(&self, scene: &Scene, story: &mut String) -> io::Result<()> {
        if let [Step::Http2(ask)] = self.steps.as_slice() {
            return ask.play(scene, self.port, story);
        }
        let mut connection = self.open(scene)?;
        for step in &self.steps {
            match step {
                Step::Send(text) => connection.send(text)?,
                Step::Response => render(&connection.response()?, scene, story),
                Step::HeadResponse => render(&connection.head_response()?, scene, story),
                Step::Bytes(count) => {
                    let bytes = connection.read_exact(*count)?;
                    let _ = match bytes.len() {
                        0..=64 => writeln!(story, "bytes: {:?}", String::from_utf8_lossy(&bytes)),
                        _ => writeln!(story, "{}", summary(&bytes)),
                    };
                }
                Step::Http2(_) => return Err(io::Error::other("a row over HTTP/2 is one exchange")),
                Step::Finish => connection.finish_sending()?,
                Step::Open => {
                    let _ = writeln!(story, "then: {:?}", connection.ending(QUIET)?);
                }
                Step::Closed => {
                    let _ = writeln!(story, "then: {}", ending(connection.ending(CLOSING)?));
                }
            }
        }
        Ok(())
    }

    fn open(&self, scene: &Scene) -> io::Result<Connection> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, scene.port(self.port)));
        let (server_name, identity) = match self.opening {
            Opening::Plain => return Connection::open(address),
            Opening::Tls(name) => (name, None),
            Opening::MutualTls(name, account) => (name, Some(scene.identity(account))),
        };
        let client = TlsClient { server_name, root_pem: scene.root_pem(), identity, alpn: &["http/1.1"] };
        client.open(address)
    }
}

/// Whether a close came in order or as a reset depends on what had arrived by then: both are an end.
fn ending(ending: Ending) -> &'static str {
    match ending {
        Ending::Closed | Ending::Reset => "closed",
        Ending::Open => "open",
        Ending::Bytes => "more bytes",
    }
}

/// Two TLS stacks word their alerts differently: that there was an end or an alert is what counts.
fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "closed".to_owned()
        }
        io::ErrorKind::InvalidData if error.to_string().contains("alert") => "TLS alert".to_owned(),
        _ => error.to_string(),
    }
}

fn render(response: &Response, scene: &Scene, story: &mut String) {
    let _ = writeln!(story, "{} {} {}", response.version, response.status, response.reason);
    let mut headers: Vec<_> =
        response.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_str())).collect();
    headers.sort();
    for (name, value) in headers {
        let _ = writeln!(story, "{}", without_chance(&format!("{name}: {value}"), scene));
    }
    let _ = writeln!(story, "(stays open: {})", response.keeps_open());
    if response.body.len() > 16 << 10 {
        let _ = writeln!(story, "{}", summary(&response.body));
        return;
    }
    for line in response.text().lines() {
        let _ = writeln!(story, "| {}", without_chance(line, scene));
    }
}

pub fn summary(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    format!("({} bytes, checksum {sum:x})", bytes.len())
}

/// Replaces what differs from one run, or one machine, to the next.
pub fn without_chance(line: &str, scene: &Scene) -> String {
    let name = line.split(':').next().unwrap_or_default();
    match name.trim_start_matches("| ") {
        "date" | "x-request-id" | "x-envoy-upstream-service-time" => format!("{name}: …"),
        // Envoy names a client on loopback by the machine's own address.
        "x-forwarded-for" => line.replace(&scene.own_address, "127.0.0.1"),
        _ => line.to_owned(),
    }
}
