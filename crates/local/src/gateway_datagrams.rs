//! Ports of UDP of Gateways: datagrams to the machine's loopback are passed on to one of the gateway's replicas, from inside its
//! network, and the answers back. Each client has a socket of its own there, so that the gateway tells clients apart.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::gateway_reach::Reach;
use crate::namespace::Namespace;

/// Clients of one port at a time; datagrams of further ones are dropped.
const MAX_CLIENTS: usize = 8192;
/// How long a client may be silent, longer than the gateway's own default: the gateway decides when a session is idle.
const IDLE: Duration = Duration::from_secs(90);
/// How often silent clients are looked for.
const SWEEP: Duration = Duration::from_secs(5);
/// The longest datagram, in bytes.
const MAX_DATAGRAM: usize = 65_535;
/// Pause after a read that failed for lack of memory.
const RETRY: Duration = Duration::from_millis(50);

/// A client's way to the gateway.
struct Client {
    socket: Arc<UdpSocket>,
    replica: Arc<Namespace>,
    /// Milliseconds after the port was opened at which something was last passed on.
    last: Arc<AtomicU64>,
    answers: AbortHandle,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.answers.abort();
    }
}

/// Passes datagrams on until aborted.
pub(crate) async fn serve(socket: UdpSocket, mut reach: Reach) {
    let (socket, opened) = (Arc::new(socket), Instant::now());
    let mut clients: HashMap<SocketAddr, Client> = HashMap::new();
    let (mut buffer, mut sweep) = (vec![0; MAX_DATAGRAM], tokio::time::interval(SWEEP));
    loop {
        let (length, from) = tokio::select! {
            _ = sweep.tick() => {
                let oldest = millis(opened).saturating_sub(u64::try_from(IDLE.as_millis()).unwrap_or(u64::MAX));
                clients.retain(|_, client| client.last.load(Ordering::Relaxed) >= oldest);
                continue;
            }
            received = socket.recv_from(&mut buffer) => match received {
                Ok(received) => received,
                Err(_) => {
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            },
        };
        // A replica that has ended has taken its network along.
        if clients.get(&from).is_some_and(|client| !reach.leads_to(&client.replica)) {
            clients.remove(&from);
        }
        if !clients.contains_key(&from) && clients.len() < MAX_CLIENTS {
            let new = client(&mut reach, &socket, from, opened).await;
            clients.extend(new.ok().map(|client| (from, client)));
        }
        if let (Some(client), Some(datagram)) = (clients.get(&from), buffer.get(..length)) {
            client.last.store(millis(opened), Ordering::Relaxed);
            // An error tells of an earlier datagram, or that the gateway does not listen: as on any network, it is lost.
            let _ = client.socket.send(datagram).await;
        }
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

async fn client(reach: &mut Reach, back: &Arc<UdpSocket>, from: SocketAddr, opened: Instant) -> io::Result<Client> {
    let replica = reach.next_replica().ok_or(io::ErrorKind::NotConnected)?;
    let bound = replica.within(|| std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))??;
    bound.set_nonblocking(true)?;
    let socket = Arc::new(UdpSocket::from_std(bound)?);
    socket.connect((Ipv4Addr::LOCALHOST, reach.listener)).await?;
    let last = Arc::new(AtomicU64::new(millis(opened)));
    let (from_gateway, to_client, heard) = (Arc::clone(&socket), Arc::clone(back), Arc::clone(&last));
    let answers = tokio::spawn(async move {
        let mut buffer = vec![0; MAX_DATAGRAM];
        loop {
            match from_gateway.recv(&mut buffer).await {
                Ok(length) => {
                    heard.store(millis(opened), Ordering::Relaxed);
                    let _ = to_client.send_to(buffer.get(..length).unwrap_or_default(), from).await;
                }
                // The gateway does not listen yet, or no longer.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    });
    Ok(Client { socket, replica, last, answers: answers.abort_handle() })
}
