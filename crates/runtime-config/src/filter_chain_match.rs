//! Filter chain selection: Envoy's precedence, compiled into nested maps.
//!
//! The criteria narrow the choice one after the other, the most specific value first, **without backtracking**: once a
//! chain names the connection's port, chains for any port are excluded, even if the remaining criteria do not match.
//! Order: destination port, destination range, server name, transport protocol, application protocol, directly
//! connected peer range, source type, source range, source port (`FilterChainMatch` in the v3 API).

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::FastMap;

/// Index of a listener's filter chains by their match criteria.
#[derive(Debug, Default)]
pub struct ChainIndex {
    by_port: FastMap<u16, Ranges<ServerNames>>,
    any_port: Option<Ranges<ServerNames>>,
}

/// Two chains with the same match: the choice would be ambiguous, so the listener is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DuplicateMatch {
    /// Index of the first chain.
    pub first: usize,
    /// Index of the rejected chain.
    pub second: usize,
}

impl ChainIndex {
    /// Indexes chains by their match criteria, in order.
    pub fn new<'m>(matches: impl IntoIterator<Item = &'m FilterChainMatch>) -> Result<Self, DuplicateMatch> {
        let mut index = Self::default();
        for (chain, matches) in matches.into_iter().enumerate() {
            index.insert(chain, matches)?;
        }
        Ok(index)
    }

    /// The index of the most specific matching chain, not considering the default chain.
    pub fn find(&self, input: &ChainInput<'_>) -> Option<usize> {
        let ranges = match self.by_port.get(&input.destination.port()) {
            Some(ranges) => ranges,
            None => self.any_port.as_ref()?,
        };
        let transports = ranges.find(canonical(input.destination.ip()))?.find(input.server_name)?;
        let applications = transports.exact.get(input.transport_protocol).or(transports.any.as_deref())?;
        let direct = input
            .application_protocols
            .iter()
            .find_map(|protocol| applications.exact.get(*protocol))
            .or(applications.any.as_deref())?;
        let sources = direct.find(canonical(input.direct_source.ip()))?.find(input)?;
        let ports = sources.find(canonical(input.source.ip()))?;
        ports.exact.get(&input.source.port()).or(ports.any.as_deref()).copied()
    }

    fn insert(&mut self, chain: usize, m: &FilterChainMatch) -> Result<(), DuplicateMatch> {
        let ranges = match m.destination_port {
            Some(port) => self.by_port.entry(port).or_default(),
            None => self.any_port.get_or_insert_default(),
        };
        for range in or_any(&m.prefix_ranges) {
            for name in or_any(&m.server_names) {
                let transports = ranges.entry(range).entry(name.map(|n| &**n));
                let applications = transports.entry(m.transport_protocol.as_deref());
                for protocol in or_any(&m.application_protocols) {
                    let direct = applications.entry(protocol.map(|p| &**p));
                    for range in or_any(&m.direct_source_prefix_ranges) {
                        let sources = direct.entry(range).entry(m.source_type);
                        insert_sources(sources, chain, m)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn insert_sources(sources: &mut Sources, chain: usize, m: &FilterChainMatch) -> Result<(), DuplicateMatch> {
    for range in or_any(&m.source_prefix_ranges) {
        let ports = sources.entry(range);
        for port in or_any(&m.source_ports) {
            let taken = match port {
                Some(port) => *ports.exact.entry(*port).or_insert(chain),
                None => **ports.any.get_or_insert_with(|| Box::new(chain)),
            };
            // The same chain may list a value twice; two chains may not share one.
            if taken != chain {
                return Err(DuplicateMatch { first: taken, second: chain });
            }
        }
    }
    Ok(())
}

/// The values of a criterion, or a single `None` if it is not set.
fn or_any<T>(values: &[T]) -> impl Iterator<Item = Option<&T>> {
    values.iter().map(Some).chain(values.is_empty().then_some(None))
}

type Sources = Ranges<ByValue<u16, usize>>;
type DirectSources = Ranges<SourceTypes>;
type Transports = ByName<ByName<DirectSources>>;
type ByName<T> = ByValue<Box<str>, T>;

/// Exact values, and the entry for all others.
#[derive(Debug)]
struct ByValue<K, T> {
    exact: FastMap<K, T>,
    any: Option<Box<T>>,
}

impl<K, T> Default for ByValue<K, T> {
    fn default() -> Self {
        Self { exact: FastMap::default(), any: None }
    }
}

impl<T: Default> ByName<T> {
    fn entry(&mut self, name: Option<&str>) -> &mut T {
        match name {
            Some(name) => self.exact.entry(name.into()).or_default(),
            None => self.any.get_or_insert_default(),
        }
    }
}

/// Address ranges; the longest prefix wins.
#[derive(Debug)]
struct Ranges<T> {
    /// Longest prefix first.
    nets: Vec<(IpNet, T)>,
    any: Option<Box<T>>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self { nets: Vec::new(), any: None }
    }
}

impl<T: Default> Ranges<T> {
    fn entry(&mut self, range: Option<&IpNet>) -> &mut T {
        let Some(range) = range.map(IpNet::trunc) else { return self.any.get_or_insert_default() };
        let at = match self.nets.iter().position(|(net, _)| *net == range) {
            Some(at) => at,
            None => {
                let at = self.nets.partition_point(|(net, _)| net.prefix_len() >= range.prefix_len());
                self.nets.insert(at, (range, T::default()));
                at
            }
        };
        &mut self.nets[at].1
    }

    fn find(&self, address: IpAddr) -> Option<&T> {
        let ranged = self.nets.iter().find(|(net, _)| net.contains(&address)).map(|(_, value)| value);
        ranged.or(self.any.as_deref())
    }
}

/// Server names: exact, then wildcards from the longest suffix, then any.
#[derive(Debug, Default)]
struct ServerNames {
    exact: FastMap<Box<str>, Transports>,
    /// `*.example.com` as `.example.com`.
    wildcard: FastMap<Box<str>, Transports>,
    any: Option<Box<Transports>>,
}

impl ServerNames {
    fn entry(&mut self, name: Option<&str>) -> &mut Transports {
        match name.map(|name| (name, name.strip_prefix('*'))) {
            None => self.any.get_or_insert_default(),
            Some((_, Some(suffix))) => self.wildcard.entry(suffix.into()).or_default(),
            Some((name, None)) => self.exact.entry(name.into()).or_default(),
        }
    }

    fn find(&self, name: Option<&str>) -> Option<&Transports> {
        let Some(name) = name else { return self.any.as_deref() };
        if let Some(exact) = self.exact.get(name) {
            return Some(exact);
        }
        if !self.wildcard.is_empty() {
            // The first label must not be empty: ".example.com" does not match "*.example.com".
            for (at, _) in name.match_indices('.').filter(|(at, _)| *at > 0) {
                if let Some(found) = self.wildcard.get(&name[at..]) {
                    return Some(found);
                }
            }
        }
        self.any.as_deref()
    }
}

#[derive(Debug, Default)]
struct SourceTypes {
    any: Option<Sources>,
    local: Option<Sources>,
    external: Option<Sources>,
}

impl SourceTypes {
    fn entry(&mut self, kind: SourceType) -> &mut Sources {
        match kind {
            SourceType::Any => &mut self.any,
            SourceType::SameIpOrLoopback => &mut self.local,
            SourceType::External => &mut self.external,
        }
        .get_or_insert_default()
    }

    fn find(&self, input: &ChainInput<'_>) -> Option<&Sources> {
        let source = canonical(input.source.ip());
        let local = source.is_loopback() || source == canonical(input.destination.ip());
        let kind = if local { &self.local } else { &self.external };
        kind.as_ref().or(self.any.as_ref())
    }
}

/// The properties of a connection when its filter chain is selected.
#[derive(Debug, Clone)]
pub struct ChainInput<'a> {
    /// Destination (original destination when redirected).
    pub destination: SocketAddr,
    /// Peer as known when the chain is selected; the PROXY protocol may have replaced it.
    pub source: SocketAddr,
    /// Peer of the socket.
    pub direct_source: SocketAddr,
    /// SNI, lower case.
    pub server_name: Option<&'a str>,
    /// `tls` or `raw_buffer`; empty before detection.
    pub transport_protocol: &'a str,
    /// The offered ALPN protocols, or what the HTTP inspector detected.
    pub application_protocols: &'a [&'a str],
}

/// `FilterChainMatch`; an empty list matches everything.
#[derive(Debug, Clone, Default)]
pub struct FilterChainMatch {
    /// Destination port.
    pub destination_port: Option<u16>,
    /// Destination ranges; the longest prefix wins.
    pub prefix_ranges: Vec<IpNet>,
    /// SNI: exact names or `*.suffix`; the most specific wins.
    pub server_names: Vec<Box<str>>,
    /// `tls` or `raw_buffer`.
    pub transport_protocol: Option<Box<str>>,
    /// ALPN values.
    pub application_protocols: Vec<Box<str>>,
    /// Ranges of the directly connected peer.
    pub direct_source_prefix_ranges: Vec<IpNet>,
    /// Peer ranges.
    pub source_prefix_ranges: Vec<IpNet>,
    /// Peer ports.
    pub source_ports: Vec<u16>,
    /// Whether the peer's address must be this host's (`SAME_IP_OR_LOOPBACK`) or must not (`EXTERNAL`).
    pub source_type: SourceType,
}

/// `FilterChainMatch.ConnectionSourceType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SourceType {
    /// Any peer.
    #[default]
    Any,
    /// Same address as the destination, or loopback.
    SameIpOrLoopback,
    /// Any other address.
    External,
}

/// Canonical form of addresses for filter chain matching: IPv4-mapped IPv6 counts as IPv4.
pub fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}
