//! The way out of the mesh: to the machine, and to what the machine reaches.
//!
//! The mesh's network has no cable to the machine's: nothing is set up there that could be left behind, and nothing is needed that an
//! unprivileged user may not do. What leaves goes through user space:
//!
//! ```text
//! replica: sidecar ──► bridge ──► egress (in the mesh's network)         keeper (in the machine's network)
//!                       nft redirect │  "connect me with 192.0.2.7:443"      │
//!                                    │ ────────────────────────────────────► │ connect(2)
//!                                    │ ◄──────────────── the socket itself ─ │
//!                                    └─ carries bytes between the two
//! ```
//!
//! A socket stays in the network it was made in, so the one that [`broker`] hands over works inside, and no byte passes the keeper.
//! [`gateway`] takes the connections and carries them, [`dns`] is the cluster's name server, and [`services`] what both know of the
//! mesh's own services, for programs without a sidecar. [`rules`] lays addresses and rules.

pub mod broker;
pub(crate) mod broker_client;
mod channel;
mod dns;
mod gateway;
mod hosts;
pub mod rules;
mod services;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use broker_client::BrokerClient;
use services::Services;

/// The name of the keeper's descriptor when it is handed over (`LISTEN_FDNAMES`), and of the program.
pub const NAME: &str = "egress";
/// The descriptor it is handed over as.
const KEEPER: RawFd = 3;

/// Why the way out is not served.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// A socket of it.
    #[error("cannot listen on {0}: {1}")]
    Listen(std::net::SocketAddr, #[source] io::Error),
    /// Something more basic.
    #[error("cannot serve egress: {0}")]
    Io(#[from] io::Error),
}

/// Runs `evenkeel egress` in the mesh's own network, until it is killed. `open`: the keeper's descriptor was handed over.
pub fn run(open: bool) -> Result<(), EgressError> {
    // SAFETY: the supervisor hands this descriptor over for nothing else, and nothing here has used it before.
    let keeper = open.then(|| unsafe { OwnedFd::from_raw_fd(KEEPER) });
    raise_descriptors();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let broker_client = keeper.map(BrokerClient::new).transpose()?.map(Arc::new);
        let services = Arc::new(Services::default());
        let dns = dns::Dns::bind(services.clone(), broker_client.clone()).await?;
        let gateway = gateway::Gateway::bind(services, broker_client)?;
        tokio::join!(dns.serve(), gateway.serve());
        Ok(())
    })
}

/// As many open files as the system lets this process have: each connection takes two here, and one in the keeper while it is made.
pub(crate) fn raise_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls only touch the structure they are given, which lives through them; a failure leaves the limit as it was.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}
