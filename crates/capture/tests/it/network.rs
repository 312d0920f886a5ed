//! Two networks of the test's own: a Pod's, and what is outside of it. Every listener says its name to whoever connects.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_capture::{Capture, Family, PROXY_MARK, PROXY_USER, ProxyIdentity, iptables, nftables};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpTransparent;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The mark of connections with the client's address.
const CLIENT_MARK: u32 = 1337;

/// A program that loads rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loader {
    Nftables,
    Iptables,
}

/// Who makes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    Outside,
    Application,
    Proxy,
    /// The proxy, with the address for calls to its application.
    ProxyToApplication,
    /// The proxy, with the address of a client outside (TPROXY).
    ProxyAsClient,
}

/// A place to connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The Pod's own address.
    Pod,
    Loopback,
    /// A server outside.
    Server,
    /// A server in an excluded range.
    Excluded,
    /// A server that the workload always reaches itself.
    Direct,
    NameServer,
}

/// Its address.
pub fn address(place: Place, family: Family) -> IpAddr {
    let [v4, v6] = match place {
        Place::Pod => ["10.0.0.1", "fd00::1"],
        Place::Loopback => ["127.0.0.1", "::1"],
        Place::Server => ["10.0.0.2", "fd00::2"],
        Place::Excluded => ["10.1.0.5", "fd01::5"],
        Place::Direct => ["10.2.0.3", "fd02::3"],
        Place::NameServer => ["10.96.0.10", "fd96::a"],
    };
    if family == Family::V4 { v4 } else { v6 }.parse().expect("an address")
}

/// A Pod with captured traffic, and what is outside.
pub struct Networks {
    pod: File,
    outside: File,
    identity: ProxyIdentity,
}

impl Networks {
    /// Makes them, and leaves the calling thread in the Pod's.
    pub fn new(capture: &Capture, loader: Loader) -> Self {
        let current = || File::open("/proc/thread-self/ns/net").expect("the network of this thread");
        unshare(CloneFlags::CLONE_NEWNET).expect("a network");
        let outside = current();
        let mut script = "link set lo up\n".to_owned();
        for family in [Family::V4, Family::V6] {
            for place in [Place::Excluded, Place::Direct, Place::NameServer] {
                script += &format!("addr add {} dev lo\n", address(place, family));
            }
        }
        run("ip", &["-batch", "-"], &script);
        unshare(CloneFlags::CLONE_NEWNET).expect("a network");
        let pod = current();
        let networks = Self { pod, outside, identity: capture.proxy.clone() };
        networks.connect();
        load(capture, loader);
        networks.listen();
        networks
    }

    fn connect(&self) {
        use std::os::fd::AsRawFd;
        let peer = format!("/proc/{}/fd/{}", std::process::id(), self.outside.as_raw_fd());
        let ends = |place| [Family::V4, Family::V6].map(|family| address(place, family));
        let add = |[v4, v6]: [IpAddr; 2]| {
            format!("addr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\nlink set eth0 up\n")
        };
        let [v4, v6] = ends(Place::Server);
        let link = format!("link set lo up\nlink add eth0 type veth peer name eth0 netns {peer}\n");
        let routes = format!("route add default via {v4}\nroute add default via {v6}\n");
        self.enter(Party::Outside);
        let outside = add(ends(Place::Server));
        self.enter(Party::Application);
        run("ip", &["-batch", "-"], &(link + &add(ends(Place::Pod))));
        self.enter(Party::Outside);
        run("ip", &["-batch", "-"], &outside);
        self.enter(Party::Application);
        run("ip", &["-batch", "-"], &routes);
    }

    /// Moves this thread to where a party is, and makes its further sockets those of the party.
    fn enter(&self, party: Party) {
        let network = if party == Party::Outside { &self.outside } else { &self.pod };
        setns(network, CloneFlags::CLONE_NEWNET).expect("the network is there");
        let is_user = self.is_proxy(party) && self.identity != ProxyIdentity::Mark;
        let id = if is_user { PROXY_USER } else { 0 };
        setfsgid(Gid::from_raw(id));
        setfsuid(Uid::from_raw(id));
    }

    fn is_proxy(&self, party: Party) -> bool {
        !matches!(party, Party::Outside | Party::Application)
    }

    /// A socket of a party, in its network.
    fn socket(&self, party: Party, family: Family, kind: Type) -> io::Result<Socket> {
        self.enter(party);
        let domain = if family == Family::V4 { Domain::IPV4 } else { Domain::IPV6 };
        let protocol = if kind == Type::STREAM { Protocol::TCP } else { Protocol::UDP };
        let socket = Socket::new(domain, kind, Some(protocol))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        if self.is_proxy(party) && self.identity == ProxyIdentity::Mark {
            socket.set_mark(PROXY_MARK)?;
        }
        Ok(socket)
    }

    fn listen(&self) {
        let proxy = [("outbound", 15001), ("inbound", 15006), ("agent", 15020), ("dns", 15053)];
        let all = proxy.map(|(name, port)| (Party::Proxy, name, port)).into_iter();
        let all = all.chain([8080, 9000].map(|port| (Party::Application, "application", port)));
        let all = all.chain([53, 80, 443, 3306].map(|port| (Party::Outside, "server", port)));
        for (party, name, port) in all {
            for family in [Family::V4, Family::V6] {
                let any: IpAddr = if family == Family::V4 { "0.0.0.0" } else { "::" }.parse().expect("an address");
                let to = SocketAddr::new(any, port);
                let listener = self.socket(party, family, Type::STREAM).expect("a socket");
                if name == "inbound" {
                    transparent(&listener);
                }
                bind(&listener, to);
                listener.listen(16).expect("it listens");
                std::thread::spawn(move || serve(&listener, name));
            }
        }
        self.listen_to_queries();
        self.enter(Party::Application);
    }

    /// Answers come from the address that was asked, as those of an agent and of a name server.
    fn listen_to_queries(&self) {
        let servers = [Place::NameServer, Place::Server].map(|place| (Party::Outside, "server", place, 53));
        for (party, name, place, port) in servers.into_iter().chain([(Party::Proxy, "dns", Place::Loopback, 15053)]) {
            for family in [Family::V4, Family::V6] {
                let socket = self.socket(party, family, Type::DGRAM).expect("a socket");
                bind(&socket, SocketAddr::new(address(place, family), port));
                std::thread::spawn(move || answer(&socket, name));
            }
        }
    }

    /// The name of what answers a connection over TCP.
    pub fn call(&self, party: Party, to: SocketAddr) -> String {
        let called = self.connected(party, to).and_then(|mut socket| {
            let mut name = String::new();
            socket.read_to_string(&mut name)?;
            Ok(name)
        });
        called.unwrap_or_else(|error| error.to_string())
    }

    fn connected(&self, party: Party, to: SocketAddr) -> io::Result<Socket> {
        let family = if to.is_ipv4() { Family::V4 } else { Family::V6 };
        let socket = self.socket(party, family, Type::STREAM)?;
        let source = match party {
            Party::ProxyToApplication => Some(family.inbound_source()),
            Party::ProxyAsClient => Some(address(Place::Server, family)),
            Party::Outside | Party::Application | Party::Proxy => None,
        };
        if party == Party::ProxyAsClient {
            transparent(&socket);
            socket.set_mark(CLIENT_MARK)?;
        }
        source.map_or(Ok(()), |source| socket.bind(&SocketAddr::new(source, 0).into()))?;
        socket.connect_timeout(&to.into(), TIMEOUT)?;
        Ok(socket)
    }

    /// The name of what answers a datagram.
    pub fn query(&self, party: Party, to: SocketAddr) -> String {
        let family = if to.is_ipv4() { Family::V4 } else { Family::V6 };
        let answered = self.socket(party, family, Type::DGRAM).and_then(|mut socket| {
            // Connected, so that an answer from another address does not count.
            socket.connect(&to.into())?;
            socket.send(b"?")?;
            let mut name = [0; 64];
            let length = socket.read(&mut name)?;
            Ok(String::from_utf8_lossy(&name[..length]).into_owned())
        });
        answered.unwrap_or_else(|error| error.to_string())
    }
}

/// Lets a socket use addresses that are not this network's.
fn transparent(socket: &Socket) {
    // The option of IPv4 is for sockets of both families.
    setsockopt(socket, IpTransparent, &true).expect("TPROXY");
}

fn bind(socket: &Socket, to: SocketAddr) {
    if to.is_ipv6() {
        socket.set_only_v6(true).expect("a socket of IPv6");
    }
    socket.bind(&SockAddr::from(to)).unwrap_or_else(|error| panic!("{to}: {error}"));
}

fn serve(listener: &Socket, name: &str) {
    while let Ok((mut socket, _)) = listener.accept() {
        // A client that has given up is its own affair.
        let _ = socket.write_all(name.as_bytes());
    }
}

fn answer(socket: &Socket, name: &str) {
    let mut buffer = [std::mem::MaybeUninit::uninit(); 64];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((_, from)) => drop(socket.send_to(name.as_bytes(), &from)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Loads the rules into the network of this thread.
fn load(capture: &Capture, loader: Loader) {
    for ruleset in capture.rulesets() {
        let is_v4 = ruleset.family == Family::V4;
        let family: &[&str] = if is_v4 { &[] } else { &["-6"] };
        run("ip", &[family, &["-batch", "-"]].concat(), &capture.routes(ruleset.family));
        match loader {
            Loader::Nftables => run("nft", &["-f", "-"], &nftables::render(&ruleset)),
            Loader::Iptables => {
                let program = if is_v4 { "iptables-nft-restore" } else { "ip6tables-nft-restore" };
                run(program, &["--noflush"], &iptables::render(&ruleset));
            }
        }
    }
}

fn run(program: &str, arguments: &[&str], script: &str) {
    let child = Command::new(program).args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child
        .unwrap_or_else(|error| panic!("{program}: {error}; install it: apt-get install iproute2 nftables iptables"));
    child.stdin.take().expect("its input").write_all(script.as_bytes()).expect("it reads its script");
    let output = child.wait_with_output().expect("it ends");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {message}\n{script}");
}
