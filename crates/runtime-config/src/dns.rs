//! Resolution of DNS names.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A name to resolve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsTarget {
    /// Host name.
    pub host: Arc<str>,
    /// Port of the endpoints.
    pub port: u16,
    /// Weight of each address.
    pub weight: u32,
}

/// The DNS resolver.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct DnsResolver {
    /// Servers, in order; empty: the system's.
    pub servers: Vec<SocketAddr>,
    /// Queries use TCP from the start, instead of only after a truncated UDP response.
    pub tcp_only: bool,
}

/// How a DNS cluster's names are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsOptions {
    /// The resolver to query.
    pub resolver: Arc<DnsResolver>,
    /// Address families to query.
    pub family: DnsFamily,
    /// Interval between resolutions (5 s when unset), unless `respect_ttl`.
    pub refresh: Duration,
    /// Resolve again when the records' time to live has passed.
    pub respect_ttl: bool,
    /// Interval after a failure, growing at random from the first value to the second (`dns_failure_refresh_rate`);
    /// `refresh` when unset.
    pub failure_refresh: Option<(Duration, Duration)>,
    /// Up to this much random time is added to the interval.
    pub jitter: Duration,
}

impl Default for DnsOptions {
    fn default() -> Self {
        Self {
            resolver: Arc::default(),
            family: DnsFamily::Auto,
            refresh: Duration::from_secs(5),
            respect_ttl: false,
            failure_refresh: None,
            jitter: Duration::ZERO,
        }
    }
}

/// `dns_lookup_family`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DnsFamily {
    /// IPv6 addresses, or IPv4 when there are none.
    #[default]
    Auto,
    /// IPv4 addresses.
    V4Only,
    /// IPv6 addresses.
    V6Only,
    /// IPv4 addresses, or IPv6 when there are none.
    V4Preferred,
    /// Both.
    All,
}
