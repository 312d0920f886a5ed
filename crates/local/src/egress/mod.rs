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
//! mesh's own services, for programs without a sidecar. [`ground`] lays addresses and rules.

pub mod broker;
mod channel;
mod dns;
mod gateway;
pub mod ground;
mod hosts;
pub(crate) mod outside;
mod services;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use evenkeel_process::resources::raise_open_files;
use outside::Outside;
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
    #[error("cannot serve the way out: {0}")]
    Io(#[from] io::Error),
}

/// Runs `evenkeel egress` in the mesh's own network, until it is killed. `open`: the keeper's descriptor was handed over.
pub fn run(open: bool) -> Result<(), EgressError> {
    // SAFETY: the supervisor hands this descriptor over for nothing else, and nothing here has used it before.
    let keeper = open.then(|| unsafe { OwnedFd::from_raw_fd(KEEPER) });
    // Each connection takes two. Where the limit stays as it is, fewer fit.
    let _ = raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let outside = keeper.map(Outside::new).transpose()?.map(Arc::new);
        let services = Arc::new(Services::default());
        let dns = dns::Dns::bind(services.clone(), outside.clone()).await?;
        let gateway = gateway::Gateway::bind(services, outside)?;
        tokio::join!(dns.serve(), gateway.serve());
        Ok(())
    })
}
