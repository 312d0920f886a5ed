//! The sockets of the DNS proxy.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::alias::Chain;
use super::answer::server_failure;
use super::{Forwarder, Names, Outcome, Unavailable, Upstream, answer};

/// Maximum size of a query over UDP, in bytes; longer datagrams are truncated and therefore refused.
const MAX_UDP_QUERY_BYTES: usize = 4096;
/// TCP clients at one time; further ones wait in the backlog.
const MAX_TCP_CLIENTS: usize = 64;
/// Lookups in progress at one time, in queries. It is above the limits on requests to the control plane and to
/// resolvers.
const MAX_LOOKUPS: u32 = 1024;
/// How long a TCP client may stay silent or refuse to read (RFC 7766 section 6.2.3).
const TCP_IDLE: Duration = Duration::from_secs(10);

/// How many free ports are tried when the port that UDP got is in use for TCP.
const FREE_PORT_ATTEMPTS: usize = 32;

/// Why the DNS proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be bound.
    #[error("cannot listen for DNS on {address}: {source}")]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// A bound DNS proxy.
#[derive(Debug)]
pub struct Server<U = Forwarder> {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    tcp_clients: Arc<Semaphore>,
    resolver: Resolver<U>,
}

/// Answers queries; cheap to clone.
#[derive(Debug, Clone)]
struct Resolver<U> {
    names: Names,
    upstream: U,
    lookups: Arc<Semaphore>,
}

impl<U: Upstream> Server<U> {
    /// Binds UDP and TCP on `address`; with port 0 both get the same free port.
    pub async fn bind(address: SocketAddr, names: Names, upstream: U) -> Result<Self, ServerError> {
        let mut attempts = if address.port() == 0 { FREE_PORT_ATTEMPTS } else { 1 };
        let (udp, tcp) = loop {
            attempts -= 1;
            match bind_both(address).await {
                Ok(sockets) => break sockets,
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && attempts > 0 => {}
                Err(source) => return Err(ServerError::Bind { address, source }),
            }
        };
        Ok(Self::adopt(udp, tcp, names, upstream))
    }

    /// A DNS proxy on sockets that are bound already.
    pub fn adopt(udp: UdpSocket, tcp: TcpListener, names: Names, upstream: U) -> Self {
        let lookups = Arc::new(Semaphore::new(MAX_LOOKUPS as usize));
        let tcp_clients = Arc::new(Semaphore::new(MAX_TCP_CLIENTS));
        Self { udp: Arc::new(udp), tcp, tcp_clients, resolver: Resolver { names, upstream, lookups } }
    }

    /// Duplicates of the descriptors for UDP and TCP.
    pub fn sockets(&self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        Ok((self.udp.as_fd().try_clone_to_owned()?, self.tcp.as_fd().try_clone_to_owned()?))
    }

    /// The bound address.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// Serves until the future is dropped. Queries read by then are still answered, as long as the runtime lasts.
    pub async fn run(self: Arc<Self>) {
        tokio::join!(self.serve_udp(), self.serve_tcp());
    }

    /// Waits for the lookups in progress.
    pub async fn finish(&self) {
        // The semaphore is never closed.
        let _ = self.resolver.lookups.acquire_many(MAX_LOOKUPS).await;
    }

    async fn serve_udp(&self) {
        let mut buffer = vec![0; MAX_UDP_QUERY_BYTES];
        loop {
            let (length, peer) = match self.udp.recv_from(&mut buffer).await {
                Ok(received) => received,
                Err(error) => {
                    // This may be an ICMP error for an earlier reply; the socket itself still works.
                    tracing::debug!(%error, "DNS receive failed");
                    tokio::task::yield_now().await;
                    continue;
                }
            };
            let Some(query) = buffer.get(..length) else { continue };
            match answer(query, &self.resolver.names.current(), true) {
                Outcome::Ignore => {}
                Outcome::Respond(response) => send(&self.udp, &response, peer).await,
                outcome @ (Outcome::Forward | Outcome::Ask(_) | Outcome::Follow(_)) => {
                    // Counted before the task starts, so that `finish` does not miss this lookup.
                    let Ok(lookup) = self.resolver.lookups.clone().try_acquire_owned() else { continue };
                    let (socket, query, resolver) = (self.udp.clone(), query.to_vec(), self.resolver.clone());
                    tokio::spawn(async move {
                        if let Some(response) = resolver.look_further(&query, outcome, true).await {
                            send(&socket, &response, peer).await;
                        }
                        drop(lookup);
                    });
                }
            }
        }
    }

    async fn serve_tcp(&self) {
        loop {
            let Ok(permit) = self.tcp_clients.clone().acquire_owned().await else { return };
            match self.tcp.accept().await {
                Ok((stream, peer)) => {
                    let resolver = self.resolver.clone();
                    tokio::spawn(async move {
                        if let Err(error) = serve_client(stream, resolver).await {
                            tracing::debug!(%peer, %error, "DNS client left");
                        }
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "DNS accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

async fn bind_both(address: SocketAddr) -> std::io::Result<(UdpSocket, TcpListener)> {
    let udp = UdpSocket::bind(address).await?;
    let tcp = TcpListener::bind(udp.local_addr()?).await?;
    Ok((udp, tcp))
}

impl<U: Upstream> Resolver<U> {
    /// Answers what the table cannot: asks the control plane for the name, and the upstream resolvers if the mesh does
    /// not have it. While the control plane is unreachable, a name in the cluster's domain gets SERVFAIL, because
    /// nobody can say that it does not exist.
    async fn look_further(&self, query: &[u8], outcome: Outcome, udp: bool) -> Option<Vec<u8>> {
        let mut chain = Chain::new(query);
        let (mut asked, mut outcome) = (query.to_vec(), outcome);
        loop {
            if let Outcome::Ask(name) = outcome {
                outcome = match self.names.learn(&name).await {
                    Ok(()) => answer(&asked, &self.names.current(), udp),
                    Err(Unavailable) if self.names.current().owns(&name) => return server_failure(query),
                    Err(Unavailable) => Outcome::Forward,
                };
            }
            match outcome {
                Outcome::Ignore => return None,
                Outcome::Respond(response) => return chain.respond(Some(response), udp),
                Outcome::Forward => return chain.respond(self.upstream.ask(&asked, udp).await, udp),
                Outcome::Ask(_) => return server_failure(query),
                Outcome::Follow(host) => {
                    let Some(next) = chain.follow(host) else { return chain.respond(None, udp) };
                    outcome = answer(&next, &self.names.current(), udp);
                    asked = next;
                }
            }
        }
    }
}

async fn send(socket: &UdpSocket, response: &[u8], peer: SocketAddr) {
    if let Err(error) = socket.send_to(response, peer).await {
        tracing::debug!(%peer, %error, "DNS reply not sent");
    }
}

async fn serve_client(mut stream: TcpStream, resolver: Resolver<impl Upstream>) -> std::io::Result<()> {
    loop {
        let Ok(read) = timeout(TCP_IDLE, read_message(&mut stream)).await else { return Ok(()) };
        let Some(query) = read? else { return Ok(()) };
        let Ok(_lookup) = resolver.lookups.acquire().await else { return Ok(()) };
        let response = match answer(&query, &resolver.names.current(), false) {
            Outcome::Ignore => return Ok(()),
            Outcome::Respond(response) => Some(response),
            outcome => resolver.look_further(&query, outcome, false).await,
        };
        let Some(response) = response else { return Ok(()) };
        let length = u16::try_from(response.len()).map_err(|_| std::io::ErrorKind::InvalidData)?;
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend_from_slice(&response);
        timeout(TCP_IDLE, stream.write_all(&framed)).await.map_err(|_| std::io::ErrorKind::TimedOut)??;
    }
}

/// One length-prefixed message (RFC 1035 section 4.2.2); `None` at a clean end.
async fn read_message(stream: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let length = match stream.read_u16().await {
        Ok(length) => usize::from(length),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use hickory_proto::op::{Message, Query, ResponseCode};
    use hickory_proto::rr::{Name, RecordType};

    use super::super::{AliasEntry, Authority, HostEntry, SearchDomain, Table};
    use super::*;

    fn authority(cluster_domain: &str) -> Authority {
        Authority::new(cluster_domain, ([10, 244, 0, 0].into(), 16))
    }

    fn query(name: &str) -> Vec<u8> {
        let mut message = Message::query();
        message.add_query(Query::query(Name::from_str(name).expect("a name"), RecordType::A));
        message.to_vec().expect("encodes")
    }

    async fn over_udp(server: SocketAddr, bytes: &[u8]) -> Message {
        let client = UdpSocket::bind("127.0.0.1:0").await.expect("bind");
        client.send_to(bytes, server).await.expect("send");
        let mut buffer = [0; 4096];
        let length = timeout(Duration::from_secs(5), client.recv(&mut buffer)).await.expect("in time").expect("recv");
        Message::from_vec(&buffer[..length]).expect("a message")
    }

    async fn over_tcp(server: SocketAddr, bytes: &[u8]) -> Message {
        let mut client = TcpStream::connect(server).await.expect("connect");
        client.write_u16(bytes.len() as u16).await.expect("write");
        client.write_all(bytes).await.expect("write");
        let reply = timeout(Duration::from_secs(5), read_message(&mut client)).await.expect("in time");
        Message::from_vec(&reply.expect("read").expect("a reply")).expect("a message")
    }

    fn names() -> Names {
        let names = Names::default();
        names.replace(Table::new(
            [HostEntry {
                host: "info.default.svc.cluster.local".into(),
                ips: vec!["10.96.0.7".parse().expect("v4")],
                short_name: "info".into(),
                namespace: "default".into(),
            }],
            &SearchDomain { namespace: "default".into(), cluster_domain: "cluster.local".into() },
        ));
        names
    }

    #[tokio::test]
    async fn a_taken_port_is_an_error_and_a_free_one_is_found() {
        let taken = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = taken.local_addr().expect("address");
        let refused = Server::bind(address, names(), Forwarder::new(Vec::new(), None)).await;
        let message = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message.starts_with(&format!("cannot listen for DNS on {address}: ")), "{message}");
        // Bind many free ports in a row: now and then the port that UDP gets is in use for TCP.
        let loopback: SocketAddr = "127.0.0.1:0".parse().expect("address");
        let mut servers = Vec::new();
        for _ in 0..200 {
            let server = Server::bind(loopback, names(), Forwarder::new(Vec::new(), None)).await;
            servers.push(server.expect("a free port is found"));
        }
    }

    #[tokio::test]
    async fn aliases_are_answered_with_a_cname_and_the_records_of_their_host() {
        let table = |hosts: &[(&str, &str)], aliases: &[(&str, &str)], domain: &str| {
            let hosts = hosts.iter().map(|(host, ip)| HostEntry {
                host: (*host).into(),
                ips: vec![ip.parse().expect("an address")],
                short_name: String::new(),
                namespace: String::new(),
            });
            let aliases = aliases.iter().map(|(name, target)| AliasEntry {
                host: format!("{name}.shop.svc.cluster.local"),
                target: (*target).into(),
                short_name: (*name).into(),
                namespace: "shop".into(),
            });
            Table::with_aliases(
                hosts,
                aliases,
                &SearchDomain { namespace: "shop".into(), cluster_domain: domain.into() },
            )
        };
        let names = |table| {
            let names = Names::default();
            names.replace(table);
            names
        };
        let loopback: SocketAddr = "127.0.0.1:0".parse().expect("address");
        let outside = table(&[("far.example.com", "192.0.2.1")], &[], "example.com");
        let outside = names(outside.with_authority(authority("example.com")));
        let upstream = Server::bind(loopback, outside, Forwarder::new(Vec::new(), None)).await.expect("upstream binds");
        let forwarder = Forwarder::new(vec![upstream.local_addr().expect("address")], None);
        let long: Vec<(String, String)> =
            (0..20).map(|i| (format!("long{i}"), format!("long{}.shop.svc.cluster.local", i + 1))).collect();
        let mut aliases = vec![
            ("far", "far.example.com"),
            ("older", "far.shop.svc.cluster.local"),
            ("gone", "gone.example.com"),
            ("db", "db.other"),
            ("lost", "none.shop.svc.cluster.local"),
            ("dead", "unknown.example.org"),
            ("ring", "ring.shop.svc.cluster.local"),
        ];
        aliases.extend(long.iter().map(|(name, target)| (name.as_str(), target.as_str())));
        let mesh = names(table(&[("db.other", "10.244.0.9")], &aliases, "cluster.local"));
        let server = Server::bind(loopback, mesh, forwarder).await.expect("server binds");
        let address = server.local_addr().expect("address");
        tokio::spawn(Arc::new(upstream).run());
        tokio::spawn(Arc::new(server).run());

        let check = async |name: &str, kind: RecordType, code: ResponseCode, expected: &str| {
            let mut message = Message::query();
            message.metadata.id = 7;
            message.add_query(Query::query(Name::from_str(name).expect("a name"), kind));
            let bytes = message.to_vec().expect("encodes");
            for message in [over_udp(address, &bytes).await, over_tcp(address, &bytes).await] {
                let answers: Vec<_> =
                    message.answers.iter().map(|record| format!("{} {}", record.name, record.data)).collect();
                let found = (message.metadata.id, message.metadata.response_code, answers.join(", "));
                assert_eq!(found, (7, code, expected.to_owned()), "{name} {kind}");
            }
        };
        let to_far = "far.example.com.";
        let (ok, v4) = (ResponseCode::NoError, RecordType::A);
        check("far.", v4, ok, &format!("far. {to_far}, {to_far} 192.0.2.1")).await;
        check("far.shop.", v4, ok, &format!("far.shop. {to_far}, {to_far} 192.0.2.1")).await;
        check("far.", RecordType::AAAA, ok, &format!("far. {to_far}")).await;
        check("far.", RecordType::CNAME, ok, &format!("far. {to_far}")).await;
        let near = "far.shop.svc.cluster.local.";
        check("older.", v4, ok, &format!("older. {near}, {near} {to_far}, {to_far} 192.0.2.1")).await;
        check("gone.", v4, ResponseCode::NXDomain, "gone. gone.example.com.").await;
        check("db.", v4, ok, "db. db.other., db.other. 10.244.0.9").await;
        // Their resolver has no answer; circles and long chains end.
        check("lost.", v4, ResponseCode::ServFail, "lost. none.shop.svc.cluster.local.").await;
        check("dead.", v4, ResponseCode::ServFail, "dead. unknown.example.org.").await;
        check("ring.", v4, ResponseCode::ServFail, "").await;
        check("long0.", v4, ResponseCode::ServFail, "").await;
    }

    #[tokio::test]
    async fn serves_and_forwards_over_both_transports() {
        // The "upstream resolver" is a second server that knows which names of the cluster do not exist.
        let upstream_names = Names::default();
        let table = Table::new(
            [HostEntry {
                host: "example.com".into(),
                ips: vec!["192.0.2.1".parse().expect("v4")],
                short_name: String::new(),
                namespace: String::new(),
            }],
            &SearchDomain { namespace: String::new(), cluster_domain: "cluster.local".into() },
        );
        upstream_names.replace(table.with_authority(authority("cluster.local")));
        let loopback: SocketAddr = "127.0.0.1:0".parse().expect("address");
        let upstream =
            Server::bind(loopback, upstream_names, Forwarder::new(Vec::new(), None)).await.expect("upstream binds");
        let upstream_address = upstream.local_addr().expect("address");
        let server =
            Server::bind(loopback, names(), Forwarder::new(vec![upstream_address], None)).await.expect("server binds");
        let address = server.local_addr().expect("address");
        tokio::spawn(Arc::new(upstream).run());
        tokio::spawn(Arc::new(server).run());

        for (name, code, expected) in [
            ("info.", ResponseCode::NoError, "10.96.0.7"),
            ("example.com.", ResponseCode::NoError, "192.0.2.1"),
            ("missing.default.svc.cluster.local.", ResponseCode::NXDomain, ""),
            ("unknown.example.org.", ResponseCode::ServFail, ""),
        ] {
            for message in [over_udp(address, &query(name)).await, over_tcp(address, &query(name)).await] {
                let answers: Vec<_> = message.answers.iter().map(|record| record.data.to_string()).collect();
                assert_eq!((message.metadata.response_code, answers.join(" ").as_str()), (code, expected), "{name}");
            }
        }
        // Garbage gets an error or silence, and the next query is served as before.
        let garbage = UdpSocket::bind("127.0.0.1:0").await.expect("bind");
        garbage.send_to(&[0xff; 700], address).await.expect("send");
        let mut half = TcpStream::connect(address).await.expect("connect");
        half.write_all(&[0xff, 0xff, 0x00]).await.expect("write");
        assert_eq!(over_udp(address, &query("info.")).await.answers.len(), 1);
        assert_eq!(over_tcp(address, &query("info.")).await.answers.len(), 1);
    }
}
