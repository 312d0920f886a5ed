//! Egress from the mesh: to the machine, and to hosts that the machine can reach.
//!
//! The mesh's network has no link to the machine's network. So nothing is set up there that could be left behind, and
//! no privileges are needed. Egress traffic goes through user space:
//!
//! ```text
//! replica: sidecar ──► bridge ──► egress (in the mesh's network)         keeper (in the machine's network)
//!                       nft redirect │  "connect me with 192.0.2.7:443"      │
//!                                    │ ────────────────────────────────────► │ connect(2)
//!                                    │ ◄──────────────── the socket itself ─ │
//!                                    └─ carries bytes between the two
//! ```
//!
//! A socket stays in the network it was made in, so a socket from the [`broker`] works inside, and no byte passes the
//! keeper. [`gateway`] accepts connections and forwards them, [`dns`] is the cluster's name server, [`services`] has
//! the mesh's own services for programs without a sidecar, and [`rules`] installs addresses and rules.

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
use evenkeel_process::resources::raise_open_files;
use hosts::MachineNames;
use services::Services;

/// The number of the keeper's descriptor.
const KEEPER: RawFd = 3;

/// Why egress cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// A socket could not be opened.
    #[error("cannot listen on {0}: {1}")]
    Listen(std::net::SocketAddr, #[source] io::Error),
    /// Another I/O error.
    #[error("cannot serve egress: {0}")]
    Io(#[from] io::Error),
}

/// Runs `evenkeel egress` in the mesh's own network until it is killed. `open` says whether the keeper's descriptor was
/// passed.
pub fn run(open: bool) -> Result<(), EgressError> {
    // SAFETY: the supervisor passes this descriptor for nothing else, and nothing here has used it before.
    let keeper = open.then(|| unsafe { OwnedFd::from_raw_fd(KEEPER) });
    // Each connection takes two descriptors. If the limit cannot be raised, fewer connections are possible.
    let _ = raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let broker_client = keeper.map(BrokerClient::new).transpose()?.map(Arc::new);
        let (services, names) = (Arc::new(Services::default()), MachineNames::new(open));
        let dns = dns::Dns::bind(services.clone(), broker_client.clone(), names.clone()).await?;
        let gateway = gateway::Gateway::bind(services, broker_client, names)?;
        tokio::join!(dns.serve(), gateway.serve());
        Ok(())
    })
}
