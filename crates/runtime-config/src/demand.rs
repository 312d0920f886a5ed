//! Resources that a proxy requests from its control plane on demand, when they are first needed: they are not in the
//! configuration until then.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::ResourceType;

/// How long a request or connection is held for a resource, unless the configuration says otherwise (`OnDemandCds.timeout`).
pub const DEFAULT_HOLD: Duration = Duration::from_secs(5);

/// One resource that is needed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Demand {
    /// The virtual host for a host name in a route table: VHDS `TABLE/HOST`.
    VirtualHost {
        /// The route configuration.
        table: Arc<str>,
        /// The host, in lower case.
        host: Arc<str>,
    },
    /// The listener for an original destination: LDS.
    Listener(Arc<str>),
    /// A cluster named by a route or TCP proxy: CDS, with its endpoints.
    Cluster(Arc<str>),
}

impl Demand {
    /// The demand for a resource; `None` for types that are never requested on demand.
    pub fn of(kind: ResourceType, name: &str) -> Option<Self> {
        match kind {
            ResourceType::VirtualHost => {
                let (table, host) = split_virtual_host(name)?;
                Some(Self::VirtualHost { table: table.into(), host: host.into() })
            }
            ResourceType::Listener => Some(Self::Listener(name.into())),
            ResourceType::Cluster => Some(Self::Cluster(name.into())),
            _ => None,
        }
    }

    /// The resource type.
    pub fn kind(&self) -> ResourceType {
        match self {
            Self::VirtualHost { .. } => ResourceType::VirtualHost,
            Self::Listener(_) => ResourceType::Listener,
            Self::Cluster(_) => ResourceType::Cluster,
        }
    }

    /// The resource name.
    pub fn name(&self) -> Arc<str> {
        match self {
            Self::VirtualHost { table, host } => format!("{table}/{host}").into(),
            Self::Listener(name) | Self::Cluster(name) => name.clone(),
        }
    }
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VirtualHost { table, host } => write!(f, "host {host:?} in routes {table:?}"),
            Self::Listener(name) => write!(f, "listener {name:?}"),
            Self::Cluster(name) => write!(f, "cluster {name:?}"),
        }
    }
}

/// Splits a virtual host's resource name, `TABLE/HOST`. Host names cannot contain a slash.
pub fn split_virtual_host(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('/').filter(|(table, host)| !table.is_empty() && !host.is_empty())
}

/// The listeners that may serve an original destination: the one of exactly this address, else the one of any address
/// with its port. They are named as Istio names them.
pub fn listeners_of(destination: SocketAddr) -> [Arc<str>; 2] {
    let port = destination.port();
    let any = match destination {
        SocketAddr::V4(_) => format!("0.0.0.0_{port}"),
        SocketAddr::V6(_) => format!("::_{port}"),
    };
    [format!("{}_{port}", destination.ip()).into(), any.into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let check = |kind, name: &str| {
            let demand = Demand::of(kind, name).expect("a demand");
            assert_eq!((demand.kind(), &*demand.name()), (kind, name));
        };
        check(ResourceType::VirtualHost, "80/reviews.shop");
        check(ResourceType::VirtualHost, "80/[fd00::1]");
        check(ResourceType::Listener, "10.96.0.1_5432");
        check(ResourceType::Cluster, "outbound|80||reviews.shop.svc.cluster.local");
        assert_eq!(Demand::of(ResourceType::VirtualHost, "80"), None);
        assert_eq!(Demand::of(ResourceType::VirtualHost, "80/"), None);
        assert_eq!(Demand::of(ResourceType::Secret, "default"), None);
    }

    #[test]
    fn listeners_are_named_by_address() {
        let check = |destination: &str, expected: [&str; 2]| {
            let names = listeners_of(destination.parse().expect("an address"));
            assert_eq!([&*names[0], &*names[1]], expected);
        };
        check("10.96.0.1:5432", ["10.96.0.1_5432", "0.0.0.0_5432"]);
        check("[fd00::1]:80", ["fd00::1_80", "::_80"]);
    }
}

/// Requesting clusters on demand, when they are first needed (`OnDemandCds`, `TcpProxy.OnDemand`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnDemandClusters {
    /// Maximum time to hold a request or connection; 5 s when unset.
    pub timeout: Duration,
}
