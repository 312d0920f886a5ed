//! Ports of Gateways on this machine: listening sockets on the host's loopback, opened before the process leaves the
//! host's network.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::str::FromStr;
use std::sync::Mutex;

use evenkeel_base::Span;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, SockaddrStorage, bind, listen, shutdown, socket,
};

/// Descriptors for children are kept above the numbers at which sockets are handed over, so that no handover overwrites
/// them.
const LOWEST_DESCRIPTOR: RawFd = 64;

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The port of the host cannot be used.
    #[error(
        "cannot listen on 127.0.0.1:{host} for the Gateway's port {gateway} ({span}): {reason}; choose another port: \
         --gateway-port {gateway}={suggestion}"
    )]
    Taken {
        /// On 127.0.0.1.
        host: u16,
        /// The port number of the Gateway.
        gateway: u16,
        /// Where it is written.
        span: Span,
        /// The reason.
        reason: String,
        /// A port that may be free.
        suggestion: u16,
    },
}

/// `--gateway-port [GATEWAY=]HOST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortChoice {
    /// The port of the Gateway's server; `None`: the first port of the first Gateway.
    pub gateway: Option<u16>,
    /// The port on 127.0.0.1.
    pub host: u16,
}

impl FromStr for PortChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = |text: &str| {
            text.parse::<u16>()
                .map_err(|_| format!("{text:?} is not a port; expected HOST_PORT or GATEWAY_PORT=HOST_PORT"))
        };
        Ok(match text.split_once('=') {
            Some((gateway, host)) => Self { gateway: Some(port(gateway)?), host: port(host)? },
            None => Self { gateway: None, host: port(text)? },
        })
    }
}

/// A port of a Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayPort {
    /// Namespace and name of the gateway.
    pub owner: (String, String),
    /// `servers[].port.number`.
    pub number: u16,
    /// The port that the proxy listens on: the `targetPort` of a Service in front of the gateway, or else the same number.
    pub listener: u16,
    /// Its protocol, as written.
    pub protocol: String,
    /// A host name that its server serves; `None` if it serves any.
    pub host: Option<String>,
    /// A path that a route serves.
    pub path: String,
    /// The file with its server's certificate; `None` if it has no certificate file.
    pub certificate: Option<String>,
    /// Whether clients must present a certificate, too.
    pub is_mutual: bool,
    /// Where it is written.
    pub span: Span,
}

impl GatewayPort {
    /// The port on 127.0.0.1 unless another one is chosen: an unprivileged one in place of ports below 1024 (80 → 8080, 443 →
    /// 8443), which only root may use on the machine. Within the mesh the port stays what it is.
    pub fn unprivileged(&self) -> u16 {
        if self.number < 1024 { self.number + 8000 } else { self.number }
    }

    /// The port on 127.0.0.1: the chosen one, or else the default; if another port of a Gateway has that, the next one that is
    /// free, 1000 higher each. `first`: it is the first port of all Gateways.
    pub(crate) fn on_host(&self, first: bool, choices: &[PortChoice], others: &BTreeSet<u16>) -> u16 {
        let chosen = |choice: &&PortChoice| choice.gateway == Some(self.number) || (first && choice.gateway.is_none());
        let wanted = choices.iter().find(chosen).map_or(self.unprivileged(), |choice| choice.host);
        let higher = std::iter::successors(Some(wanted), |port| port.checked_add(1000));
        // The kernel chooses port 0.
        higher.take_while(|port| *port >= wanted).find(|port| *port == 0 || !others.contains(port)).unwrap_or(0)
    }

    /// What tells this port from others: its gateway, number, and where the gateway listens.
    pub(crate) fn key(&self) -> PortKey {
        PortKey { owner: self.owner.clone(), number: self.number, listener: self.listener, is_udp: self.is_udp() }
    }

    /// Whether it is a port of UDP.
    pub(crate) fn is_udp(&self) -> bool {
        self.protocol == UDP
    }

    /// The error that this port cannot be used.
    pub(crate) fn taken(&self, host: u16, error: &io::Error) -> PortError {
        PortError::Taken {
            host,
            gateway: self.number,
            span: self.span.clone(),
            reason: match error.kind() {
                io::ErrorKind::AddrInUse => "another program uses it".to_owned(),
                _ => error.to_string(),
            },
            suggestion: if host < 64_535 { host + 1000 } else { 18_080 },
        }
    }
}

/// The protocol of ports of UDP, as written.
pub(crate) const UDP: &str = "UDP";

/// What tells ports apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PortKey {
    owner: (String, String),
    number: u16,
    listener: u16,
    is_udp: bool,
}

/// An open port on the host.
#[derive(Debug)]
pub struct HostPort {
    /// The address on the host.
    pub address: SocketAddr,
    /// The scheme of the URL: `http` or `https`; `tcp` or `udp` for ports that are not for browsers.
    pub scheme: &'static str,
    /// The Gateway's port.
    pub gateway: GatewayPort,
    socket: OwnedFd,
}

impl HostPort {
    /// Makes a host port from its listening socket.
    pub(crate) fn of(port: &GatewayPort, listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let scheme = scheme(&port.protocol);
        let socket = lift(listener.into())?;
        Ok(Self { address, scheme, gateway: port.clone(), socket })
    }

    /// Makes a host port from its socket for datagrams.
    pub(crate) fn of_datagrams(port: &GatewayPort, socket: &UdpSocket) -> io::Result<Self> {
        let (address, scheme) = (socket.local_addr()?, scheme(&port.protocol));
        Ok(Self { address, scheme, gateway: port.clone(), socket: lift(socket.try_clone()?.into())? })
    }

    /// Refuses connections from now on, even if another process has the socket, too.
    pub(crate) fn close(&self) {
        // This does not fail on a listening socket.
        let _ = shutdown(self.descriptor(), Shutdown::Both);
    }

    /// Accepts connections again after [`HostPort::close`], unless another program has taken the port meanwhile.
    pub(crate) fn reopen(&self) -> io::Result<()> {
        // A port chosen by the kernel was released by closing; a port that was chosen explicitly still belongs to the
        // socket (EINVAL).
        match bind(self.descriptor(), &SockaddrStorage::from(self.address)) {
            Ok(()) | Err(Errno::EINVAL) => Ok(listen(&self.socket, Backlog::MAXCONN)?),
            Err(error) => Err(error.into()),
        }
    }

    /// A duplicate of its socket.
    pub(crate) fn listener(&self) -> io::Result<TcpListener> {
        Ok(self.socket.try_clone()?.into())
    }

    /// The socket's descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The URL for a browser, or a shell command if the server needs a host name or has a certificate that browsers do
    /// not know.
    pub fn usage(&self) -> String {
        match self.scheme {
            "https" => {}
            "tcp" => return format!("{} (TCP)", self.address),
            "udp" => return format!("{} (UDP)", self.address),
            scheme => return self.plain_usage(scheme),
        }
        let (ip, port) = (self.address.ip(), self.address.port());
        let (host, resolve) = match &self.gateway.host {
            Some(host) => (host.clone(), format!(" --resolve {host}:{port}:{ip}")),
            None => (ip.to_string(), String::new()),
        };
        // A certificate cannot be checked against an address, and nothing is known here about certificates of the mesh.
        let (trust, note) = match (&self.gateway.certificate, &self.gateway.host) {
            (Some(file), Some(_)) => (format!("--cacert {}", quoted(file)), ""),
            _ => ("-k".to_owned(), "  # -k: its certificate is not checked"),
        };
        let own = if self.gateway.is_mutual { " --cert YOURS.pem --key YOURS.key" } else { "" };
        let path = &self.gateway.path;
        format!("curl {trust}{own}{resolve} {}{note}", quoted(&format!("https://{host}:{port}{path}")))
    }

    fn plain_usage(&self, scheme: &str) -> String {
        let url = format!("{scheme}://{}{}", self.address, self.gateway.path);
        match &self.gateway.host {
            None => url,
            Some(host) => format!("{url}  # curl -H {} {}", quoted(&format!("Host: {host}")), quoted(&url)),
        }
    }
}

/// The URL scheme for a server's protocol. With `TLS`, connections of any protocol pass through, most of them HTTPS.
fn scheme(protocol: &str) -> &'static str {
    let is_one_of = |names: &[&str]| names.iter().any(|name| protocol.eq_ignore_ascii_case(name));
    match () {
        () if is_one_of(&["HTTPS", "TLS"]) => "https",
        () if is_one_of(&["TCP", "MONGO", "MYSQL", "REDIS"]) => "tcp",
        () if is_one_of(&[UDP]) => "udp",
        () => "http",
    }
}

/// Quotes a word for a shell.
fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%=,".contains(&byte);
    if text.bytes().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// Unconnected TCP sockets of the host's network. A socket stays in the network it was made in, so after leaving the
/// host's network a check can use them to call the gateway as a user would.
#[derive(Debug, Default)]
pub struct HostSockets(Mutex<Vec<std::net::TcpStream>>);

impl HostSockets {
    /// Makes `count` sockets.
    pub fn make(count: usize) -> io::Result<Self> {
        let make = |_| {
            let kind = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let socket = socket(AddressFamily::Inet, SockType::Stream, kind, None)?;
            Ok(std::net::TcpStream::from(socket))
        };
        let sockets: io::Result<Vec<_>> = (0..count).map(make).collect();
        Ok(Self(Mutex::new(sockets?)))
    }

    /// Connects the next socket.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<tokio::net::TcpStream> {
        let next = self.0.lock().ok().and_then(|mut sockets| sockets.pop());
        let socket = next.ok_or_else(|| io::Error::other("this run has used up its sockets of the host's network"))?;
        tokio::net::TcpSocket::from_std_stream(socket).connect(address).await
    }
}

/// Opens one socket per Gateway port of TCP, on the chosen host port or else on the one the proxy would listen on itself.
pub fn open(gateways: &[GatewayPort], choices: &[PortChoice]) -> Result<Vec<HostPort>, PortError> {
    let mut taken = BTreeSet::new();
    let open = |(index, port): (usize, &GatewayPort)| {
        let host = port.on_host(index == 0, choices, &taken);
        taken.insert(host);
        open_one(port, host)
    };
    gateways.iter().filter(|port| !port.is_udp()).enumerate().map(open).collect()
}

fn open_one(port: &GatewayPort, host: u16) -> Result<HostPort, PortError> {
    let opened = TcpListener::bind((Ipv4Addr::LOCALHOST, host)).and_then(|listener| HostPort::of(port, listener));
    opened.map_err(|error| port.taken(host, &error))
}

/// Duplicates a descriptor above [`LOWEST_DESCRIPTOR`].
pub(crate) fn lift(low: OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(&low, LOWEST_DESCRIPTOR)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(number: u16) -> GatewayPort {
        let (protocol, span) = ("HTTP".to_owned(), Span::at("gateway.yaml", 9, 7));
        let owner = ("istio-system".to_owned(), "istio-ingressgateway".to_owned());
        GatewayPort {
            owner,
            number,
            listener: number,
            protocol,
            host: None,
            path: "/".to_owned(),
            certificate: None,
            is_mutual: false,
            span,
        }
    }

    fn gateway_of(protocol: &str, number: u16) -> GatewayPort {
        GatewayPort { protocol: protocol.to_owned(), ..gateway(number) }
    }

    #[test]
    fn choices_parse_or_say_what_was_expected() {
        let check = |text: &str, gateway, host| assert_eq!(text.parse(), Ok(PortChoice { gateway, host }));
        check("9090", None, 9090);
        check("443=9443", Some(443), 9443);
        let refused = "http".parse::<PortChoice>().err().unwrap_or_default();
        assert!(refused.contains("GATEWAY_PORT=HOST_PORT"), "{refused}");
    }

    #[test]
    fn each_gateway_port_gets_a_socket() -> Result<(), PortError> {
        let free = [PortChoice { gateway: None, host: 0 }, PortChoice { gateway: Some(443), host: 0 }];
        let open = open(&[gateway(80), gateway(443)], &free)?;
        assert_eq!(open.iter().map(|port| port.gateway.number).collect::<Vec<_>>(), [80, 443]);
        assert!(open.iter().all(|port| port.descriptor() >= LOWEST_DESCRIPTOR && port.address.ip().is_loopback()));
        Ok(())
    }

    #[test]
    fn only_the_machines_side_moves_ports_up() {
        let check = |number: u16, choices: &[PortChoice], others: &[u16], expected: u16| {
            let host = gateway(number).on_host(false, choices, &others.iter().copied().collect());
            assert_eq!(host, expected, "{number} {others:?}");
        };
        check(80, &[], &[], 8080);
        check(443, &[], &[], 8443);
        check(1024, &[], &[], 1024);
        check(9090, &[], &[], 9090);
        let chosen = [PortChoice { gateway: Some(443), host: 9443 }];
        check(443, &chosen, &[], 9443);
        check(443, &chosen, &[9443], 10443);
        // 80 has moved there, or another gateway has the same port.
        check(8080, &[], &[8080], 9080);
        check(8080, &[], &[8080, 9080], 10080);
        check(65000, &[], &[65000], 0);
        check(80, &[PortChoice { gateway: Some(80), host: 0 }], &[0], 0);
        assert_eq!(GatewayPort { listener: 8443, ..gateway(443) }.on_host(false, &[], &BTreeSet::new()), 8443);
    }

    #[test]
    fn a_port_that_is_closed_refuses_and_may_be_opened_again() -> Result<(), Box<dyn std::error::Error>> {
        let open = open(&[gateway(80)], &[PortChoice { gateway: None, host: 0 }])?;
        let elsewhere = open[0].listener()?;
        let connects = || std::net::TcpStream::connect(open[0].address).is_ok();
        assert!(connects());
        open[0].close();
        assert!(!connects());
        open[0].reopen()?;
        assert!(connects());
        elsewhere.set_nonblocking(false)?;
        elsewhere.accept()?;
        Ok(())
    }

    #[test]
    fn a_server_with_a_name_is_asked_for_by_it() -> Result<(), PortError> {
        let check = |protocol: &str, host: Option<&str>, certificate: Option<&str>, expected: &str| {
            let (host, certificate) = (host.map(str::to_owned), certificate.map(str::to_owned));
            let port = GatewayPort { protocol: protocol.to_owned(), host, certificate, ..gateway(443) };
            let mut open = open(&[port], &[PortChoice { gateway: None, host: 0 }])?;
            let port = open.remove(0);
            assert_eq!(port.usage().replace(&port.address.port().to_string(), "PORT"), expected);
            Ok::<_, PortError>(())
        };
        let by_host = "http://127.0.0.1:PORT/  # curl -H 'Host: a.test' http://127.0.0.1:PORT/";
        check("HTTP", Some("a.test"), None, by_host)?;
        check("GRPC", None, None, "http://127.0.0.1:PORT/")?;
        check("TCP", None, None, "127.0.0.1:PORT (TCP)")?;
        assert!(gateway_of("UDP", 53).is_udp() && open(&[gateway_of("UDP", 53)], &[])?.is_empty());
        let unchecked = "# -k: its certificate is not checked";
        check("HTTPS", None, Some("/a.pem"), &format!("curl -k https://127.0.0.1:PORT/  {unchecked}"))?;
        let named = "--resolve a.test:PORT:127.0.0.1 https://a.test:PORT/";
        check("HTTPS", Some("a.test"), Some("/a.pem"), &format!("curl --cacert /a.pem {named}"))?;
        check("HTTPS", Some("a.test"), Some("/a b.pem"), &format!("curl --cacert '/a b.pem' {named}"))?;
        check("HTTPS", Some("a.test"), None, &format!("curl -k {named}  {unchecked}"))?;
        check("tls", Some("a.test"), None, &format!("curl -k {named}  {unchecked}"))?;
        Ok(())
    }

    #[test]
    fn a_taken_port_is_named_with_its_gateway_and_the_flag() -> Result<(), Box<dyn std::error::Error>> {
        let taken = TcpListener::bind("127.0.0.1:0")?;
        let host = taken.local_addr()?.port();
        let refused = open(&[gateway(8080)], &[PortChoice { gateway: Some(8080), host }]);
        let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
        for part in
            [&format!("127.0.0.1:{host}"), "another program uses it", "gateway.yaml:9:7", "--gateway-port 8080="]
        {
            assert!(said.contains(part), "{said:?} lacks {part:?}");
        }
        Ok(())
    }
}
