//! How what arrives at a port of this machine reaches a gateway: at one of its replicas, from inside its network.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::client::connect;
use crate::namespace::Namespace;
use crate::replica::Replicas;

/// How long a connection waits for the gateway to listen: the gateway learns of a Gateway a moment after the port has been
/// opened.
const LISTENER_WAIT: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const LISTENER_RETRY: Duration = Duration::from_millis(20);

/// How a connection or datagram reaches a gateway.
pub(crate) struct Reach {
    pub(crate) replicas: watch::Receiver<Replicas>,
    pub(crate) owner: (String, String),
    pub(crate) listener: u16,
    /// Its replicas take turns.
    pub(crate) turn: usize,
}

impl Reach {
    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, self.listener));
        let end = Instant::now() + LISTENER_WAIT;
        loop {
            let made = match self.replica() {
                Some(gateway) => connect(Some(&gateway), to).await,
                None => Err(io::ErrorKind::ConnectionRefused.into()),
            };
            match made {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < end => {
                    tokio::time::sleep(LISTENER_RETRY).await;
                }
                made => return made,
            }
        }
    }

    /// The replica for a new client of datagrams.
    pub(crate) fn next_replica(&mut self) -> Option<Arc<Namespace>> {
        self.turn = self.turn.wrapping_add(1);
        self.replica()
    }

    /// Whether a replica still runs.
    pub(crate) fn leads_to(&self, replica: &Arc<Namespace>) -> bool {
        self.replicas.borrow().values().any(|of| Arc::ptr_eq(&of.namespace, replica))
    }

    fn replica(&self) -> Option<Arc<Namespace>> {
        let replicas = self.replicas.borrow();
        let of_it = replicas.values().filter(|replica| {
            let pod = &replica.pod;
            (&pod.namespace, &pod.workload) == (&self.owner.0, &self.owner.1)
        });
        let all: Vec<_> = of_it.collect();
        let chosen = self.turn.checked_rem(all.len()).and_then(|index| all.get(index))?;
        Some(chosen.namespace.clone())
    }
}
