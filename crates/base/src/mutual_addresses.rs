//! Addresses whose proxies require mutual TLS of the mesh, in a form that is small for thousands of Pods.
//!
//! Addresses are grouped by network (the first three bytes of an IPv4 address, the first fifteen of an IPv6 address), one
//! line each: the network, and the last bytes as runs, with the ports that differ from the rest.
//!
//! ```text
//! 10.244.3.0 2-17 20 33!8500,8501 40=9000     33 requires it except on two ports, 40 only on one
//! ```

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The ports of an address on which mutual TLS is required.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum MutualPorts {
    /// All.
    #[default]
    All,
    /// All but these, in ascending order.
    Except(Vec<u16>),
    /// Only these, in ascending order.
    Only(Vec<u16>),
}

impl MutualPorts {
    /// Whether it is required on a port.
    pub fn contains(&self, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Except(ports) => !ports.contains(&port),
            Self::Only(ports) => ports.contains(&port),
        }
    }
}

/// Why a table cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MutualAddressesError {
    /// The name of a network.
    #[error("`{0}` is not the address of a network")]
    Network(String),
    /// A run of addresses.
    #[error("`{0}` is not a run of addresses such as `2-17` or `33!8500`")]
    Run(String),
}

/// The network of an address, and its last byte.
pub fn split(address: IpAddr) -> (IpAddr, u8) {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, last] = v4.octets();
            (Ipv4Addr::new(a, b, c, 0).into(), last)
        }
        IpAddr::V6(v6) => {
            let mut octets = v6.octets();
            let last = std::mem::take(&mut octets[15]);
            (Ipv6Addr::from(octets).into(), last)
        }
    }
}

/// The text of a network, from last bytes in ascending order.
pub fn write_network<'p>(addresses: impl IntoIterator<Item = (u8, &'p MutualPorts)>) -> String {
    let mut runs: Vec<(u8, u8, &MutualPorts)> = Vec::new();
    for (address, ports) in addresses {
        match runs.last_mut() {
            Some((_, last, same)) if last.checked_add(1) == Some(address) && *same == ports => *last = address,
            _ => runs.push((address, address, ports)),
        }
    }
    let mut text = String::new();
    for (first, last, ports) in runs {
        let gap = if text.is_empty() { "" } else { " " };
        // Writing to a string cannot fail.
        let _ = if first == last { write!(text, "{gap}{first}") } else { write!(text, "{gap}{first}-{last}") };
        let (sign, ports) = match ports {
            MutualPorts::All => continue,
            MutualPorts::Except(ports) => ('!', ports),
            MutualPorts::Only(ports) => ('=', ports),
        };
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        let _ = write!(text, "{sign}{}", ports.join(","));
    }
    text
}

/// A table of such addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MutualAddresses(HashMap<IpAddr, Vec<Run>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    first: u8,
    last: u8,
    ports: MutualPorts,
}

impl MutualAddresses {
    /// Reads a line for each network.
    pub fn read(lines: &str) -> Result<Self, MutualAddressesError> {
        let mut table = HashMap::new();
        for line in lines.lines() {
            let (network, text) = line.split_once(' ').unwrap_or((line, ""));
            let address = network.parse::<IpAddr>().ok().filter(|address| split(*address) == (*address, 0));
            let address = address.ok_or_else(|| MutualAddressesError::Network(network.to_owned()))?;
            let runs: Result<Vec<Run>, _> = text.split_whitespace().map(read_run).collect();
            table.insert(address, runs?);
        }
        Ok(Self(table))
    }

    /// Whether mutual TLS is required there.
    pub fn contains(&self, address: SocketAddr) -> bool {
        // Nearly all proxies of other control planes have no table.
        if self.0.is_empty() {
            return false;
        }
        let (network, last) = split(address.ip());
        let runs = self.0.get(&network).into_iter().flatten();
        let mut here = runs.filter(|run| (run.first..=run.last).contains(&last));
        here.any(|run| run.ports.contains(address.port()))
    }

    /// Whether it has no addresses.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn read_run(text: &str) -> Result<Run, MutualAddressesError> {
    let bad = || MutualAddressesError::Run(text.to_owned());
    let ports =
        |list: &str| list.split(',').map(|port| port.parse().map_err(|_| bad())).collect::<Result<Vec<u16>, _>>();
    let (addresses, ports) = match (text.split_once('!'), text.split_once('=')) {
        (Some((addresses, list)), None) => (addresses, MutualPorts::Except(ports(list)?)),
        (None, Some((addresses, list))) => (addresses, MutualPorts::Only(ports(list)?)),
        (None, None) => (text, MutualPorts::All),
        (Some(_), Some(_)) => return Err(bad()),
    };
    let (first, last) = addresses.split_once('-').unwrap_or((addresses, addresses));
    let (first, last) = (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
    if first > last {
        return Err(bad());
    }
    Ok(Run { first, last, ports })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let only = MutualPorts::Only(vec![9000]);
        let except = MutualPorts::Except(vec![8500, 8501]);
        let all = MutualPorts::All;
        let list = [(2, &all), (3, &all), (4, &all), (20, &all), (33, &except), (34, &only), (255, &all)];
        let text = write_network(list);
        assert_eq!(text, "2-4 20 33!8500,8501 34=9000 255");
        let table = MutualAddresses::read(&format!("10.244.3.0 {text}\nfd00:: 1")).unwrap();
        let check = |address: &str, expected: bool| {
            assert_eq!(table.contains(address.parse().unwrap()), expected, "{address}");
        };
        check("10.244.3.2:80", true);
        check("10.244.3.5:80", false);
        check("10.244.3.33:80", true);
        check("10.244.3.33:8501", false);
        check("10.244.3.34:9000", true);
        check("10.244.3.34:80", false);
        check("10.244.4.2:80", false);
        check("10.244.3.255:1", true);
        check("[fd00::1]:80", true);
        check("[fd00::2]:80", false);
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let check = |network: &str, text: &str, expected: &str| {
            let error = MutualAddresses::read(&format!("{network} {text}")).unwrap_err();
            assert!(error.to_string().contains(expected), "{network} {text}: {error}");
        };
        check("10.0.0.1", "2", "`10.0.0.1` is not the address of a network");
        check("x", "2", "`x` is not the address of a network");
        for text in ["x", "9-2", "256", "2!", "2!x", "2=70000", "2!1=2", "-"] {
            check("10.0.0.0", text, "is not a run of addresses");
        }
    }
}
