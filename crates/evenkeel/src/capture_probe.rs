//! Whether the connections of the network that the calling thread is in are captured: the rules are there, and a connection arrives at
//! the sidecar's port.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use evenkeel_api::istio::InterceptionMode;
use evenkeel_capture::{Capture, Family, iptables, nftables};
use evenkeel_cni::upkeep::Probe;
use evenkeel_local::tools::Loader;

/// Addresses of documentation (RFC 5737, RFC 3849), which nobody has.
const UNUSED_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const UNUSED_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// How long a connection within one machine may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The kernel's number of the state of a listener (`net/tcp_states.h`).
const LISTEN: &str = "0A";
/// The scope of global addresses in `if_inet6`.
const GLOBAL: &str = "00";

/// Whether the network has an IPv6 address by which others reach it. Connections by it pass rules of IPv4 by.
pub fn has_ipv6() -> bool {
    let text = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    text.lines().any(|line| line.split_whitespace().nth(3) == Some(GLOBAL))
}

/// Which chains of the rules are loaded.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The chains that are not.
    pub missing: Vec<String>,
    /// How many there should be.
    expected: usize,
}

impl Loaded {
    /// Whether nothing of this program is there.
    fn is_nothing(&self) -> bool {
        self.missing.len() == self.expected
    }
}

/// Lists the rules of the network.
pub fn loaded(capture: &Capture) -> anyhow::Result<Loaded> {
    let loader = Loader::find()?;
    let mut loaded = Loaded::default();
    for ruleset in capture.rulesets() {
        let is_v6 = ruleset.family == Family::V6;
        let listed = loader.listed(&nftables::list_arguments(ruleset.family), is_v6)?;
        let names = match loader {
            Loader::Nftables { .. } => nftables::missing(&ruleset, &listed),
            Loader::Iptables { .. } => iptables::missing(&ruleset, &listed),
        };
        let family = if is_v6 { "IPv6" } else { "IPv4" };
        loaded.expected += ruleset.chains.iter().filter(|chain| !chain.rules.is_empty()).count();
        loaded.missing.extend(names.into_iter().map(|name| format!("{name} ({family})")));
    }
    Ok(loaded)
}

/// When rules are listed, which needs a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// Never: another program may have loaded them, into tables of its own.
    Never,
    /// If no connection has been captured.
    IfNeeded,
    /// In any case.
    Always,
}

/// Makes a connection, if `connects`, and lists the rules. The connection is to the sidecar's own port, which the sidecar
/// closes without a call of its own and without a line in its log (`virtualOutbound-blackhole`).
pub fn probe(capture: &Capture, connects: bool, listing: Listing) -> Probe {
    if capture.mode == InterceptionMode::None {
        return Probe::Captured;
    }
    let connected = if connects { connection(capture) } else { None };
    let is_needed = listing == Listing::IfNeeded && connected != Some(Probe::Captured);
    if listing == Listing::Always || is_needed {
        match loaded(capture) {
            Err(error) => return Probe::Unknown(format!("{error:#}")),
            // The plugin of another mesh has loaded its own, as for Pods that Istio has injected.
            Ok(loaded) if loaded.is_nothing() && connected == Some(Probe::Captured) => {}
            Ok(Loaded { missing, .. }) if !missing.is_empty() => {
                return Probe::Missing(format!("chains of the capture rules are missing: {}", missing.join(", ")));
            }
            Ok(_) => {}
        }
    }
    connected.unwrap_or(Probe::Captured)
}

/// What has become of a connection; `None`: none is captured by which it could be seen.
fn connection(capture: &Capture) -> Option<Probe> {
    let port = capture.ports.outbound;
    let address = address(capture, Family::V4)?;
    (!capture.rules.except_outbound_ports.contains(&port)).then(|| connect((address, port).into(), port))
}

fn connect(target: SocketAddr, port: u16) -> Probe {
    match TcpStream::connect_timeout(&target, TIMEOUT) {
        Ok(stream) => match stream.local_addr().and_then(|local| has_arrived(port, local.port())) {
            Ok(true) => Probe::Captured,
            Ok(false) if is_closed(&stream) => {
                Probe::Unknown("the connection was reset before it was found".to_owned())
            }
            Ok(false) => Probe::Bypassed(format!("a connection to {target} was not redirected to port {port}")),
            Err(error) => Probe::Unknown(error.to_string()),
        },
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => match is_listening(port) {
            Ok(false) => Probe::Refused(format!("nothing listens on port {port}")),
            Ok(true) => Probe::Bypassed(format!("a connection to {target} was refused elsewhere than on port {port}")),
            Err(error) => Probe::Unknown(error.to_string()),
        },
        // Nobody has the address, so a connection that goes out gets no answer.
        Err(error) if is_timeout(&error) => {
            Probe::Bypassed(format!("a connection to {target} has left the Pod, and was not redirected to port {port}"))
        }
        Err(error) => Probe::Unknown(format!("no connection could be made: {error}")),
    }
}

/// Whether the other side has closed the connection, so that its socket may be gone.
fn is_closed(stream: &TcpStream) -> bool {
    let waits = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
    stream.set_nonblocking(true).is_err() || !stream.peek(&mut [0]).is_err_and(waits)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock | io::ErrorKind::HostUnreachable)
}

/// An address that nobody has, to which connections are captured; `None`: none is known.
pub fn address(capture: &Capture, family: Family) -> Option<IpAddr> {
    let rules = &capture.rules;
    let is_excluded = |address: &IpAddr| rules.except_outbound_ranges.iter().any(|range| range.contains(address));
    let unused: IpAddr = if family == Family::V4 { UNUSED_V4.into() } else { UNUSED_V6.into() };
    let candidates: Vec<IpAddr> = match &rules.outbound_ranges {
        None => vec![unused],
        Some(ranges) => ranges.iter().map(|range| range.addr()).filter(|address| family.has(*address)).collect(),
    };
    candidates.into_iter().find(|address| !is_excluded(address))
}

/// Whether a connection from a port has come to another port of this network. It may be closed on that side already.
fn has_arrived(port: u16, from: u16) -> io::Result<bool> {
    Ok(sockets()?.iter().any(|socket| socket.local == port && socket.remote == from && socket.state != LISTEN))
}

/// Whether something listens on a port.
fn is_listening(port: u16) -> io::Result<bool> {
    Ok(sockets()?.iter().any(|socket| socket.local == port && socket.state == LISTEN))
}

/// A socket of TCP.
struct Socket {
    local: u16,
    remote: u16,
    state: String,
}

fn sockets() -> io::Result<Vec<Socket>> {
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    let mut all = Vec::new();
    for table in tables {
        match fs::read_to_string(table) {
            Ok(text) => all.extend(text.lines().skip(1).filter_map(socket)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// A line of `/proc/net/tcp`: number, local and remote `ADDRESS:PORT`, state, in hexadecimal.
fn socket(line: &str) -> Option<Socket> {
    let mut words = line.split_whitespace().skip(1);
    let mut port = || u16::from_str_radix(words.next()?.rsplit_once(':')?.1, 16).ok();
    let (local, remote) = (port()?, port()?);
    Some(Socket { local, remote, state: words.next()?.to_owned() })
}
