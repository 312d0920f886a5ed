//! The networks of a node's Pods: found by the Pods' addresses, and entered.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use nix::ifaddrs::getifaddrs;
use nix::sched::{CloneFlags, setns};

/// Maximum number of addresses that are read of one network: a program with NET_ADMIN can give its own any number.
const MAX_ADDRESSES: usize = 256;

/// The networks of a node by the addresses in them.
#[derive(Debug, Default)]
pub struct Networks {
    found: BTreeMap<IpAddr, Vec<Arc<OwnedFd>>>,
}

/// Why there is no network of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoNetwork {
    /// No network has one of its addresses.
    #[error("no network of this node has an address of the Pod")]
    Absent,
    /// A program with NET_ADMIN can give its own network the address of another Pod, so none is taken.
    #[error("several networks of this node have the Pod's address")]
    Ambiguous,
}

impl Networks {
    /// Reads the addresses in all networks whose files are in a folder, such as `/var/run/netns`. A network that ends meanwhile, or that
    /// is none, is left out.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let mut networks = Self::default();
        for entry in fs::read_dir(folder)?.flatten() {
            let Ok(file) = File::open(entry.path()) else { continue };
            let network = Arc::new(OwnedFd::from(file));
            let Ok(Ok(addresses)) = within(&*network, addresses) else { continue };
            for address in addresses {
                networks.found.entry(address).or_default().push(network.clone());
            }
        }
        Ok(networks)
    }

    /// The network with one of these addresses.
    pub fn with(&self, addresses: &[IpAddr]) -> Result<&OwnedFd, NoNetwork> {
        match addresses.iter().find_map(|address| self.found.get(address)).map(Vec::as_slice) {
            Some([network]) => Ok(network),
            Some(_) => Err(NoNetwork::Ambiguous),
            None => Err(NoNetwork::Absent),
        }
    }
}

/// Runs something on a thread of its own in a network.
pub fn within<T: Send>(network: &(impl AsFd + Sync), run: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let entered = scope.spawn(|| {
            setns(network.as_fd(), CloneFlags::CLONE_NEWNET)?;
            Ok(run())
        });
        entered.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the network has panicked")))
    })
}

/// The addresses by which others reach this network.
fn addresses() -> io::Result<BTreeSet<IpAddr>> {
    let all = getifaddrs()?.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|found| IpAddr::from(found.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|found| IpAddr::from(found.ip())))
    });
    Ok(all.filter(|address| !is_local(*address)).take(MAX_ADDRESSES).collect())
}

fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
    }
}
