//! Asks DNS servers.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_runtime_config::dns::{DnsFamily, DnsOptions, DnsResolver};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::{DnsError, NetError};

/// Minimum pause after a failure, however small the random one is.
const LEAST_FAILURE_PAUSE: Duration = Duration::from_millis(1);

/// The result of a lookup.
pub(crate) enum Found {
    /// The addresses in the order of the answer, and their TTL.
    Addresses(Vec<IpAddr>, Duration),
    /// The name does not exist or has no address, and the negative TTL (RFC 2308). An authoritative answer like this
    /// replaces known addresses; it does not make them stale data to keep (RFC 8767 section 4).
    Nothing(Option<Duration>, String),
    /// The lookup failed, and why.
    Failure(String),
}

/// Resolvers, made on demand.
pub(crate) type Resolvers = RefCell<Vec<(LookupIpStrategy, Arc<DnsResolver>, TokioResolver)>>;

/// Pause after the given number of consecutive failures: with `dns_failure_refresh_rate`, a random part of an
/// exponential backoff; otherwise the usual refresh rate. Known addresses stay in use meanwhile.
pub(crate) fn failure_pause(options: &DnsOptions, failures: u32) -> Duration {
    match options.failure_refresh {
        Some((base, longest)) => {
            let doubled = base.saturating_mul(1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
            jitter(doubled.min(longest)).max(LEAST_FAILURE_PAUSE)
        }
        None => options.refresh,
    }
}

pub(crate) fn resolver(resolvers: &Resolvers, options: &DnsOptions) -> Option<TokioResolver> {
    let mut resolvers = resolvers.borrow_mut();
    let (strategy, wanted) = (strategy(options.family), &options.resolver);
    let known = resolvers.iter().find(|(known, servers, _)| *known == strategy && servers == wanted);
    if let Some((_, _, resolver)) = known {
        return Some(resolver.clone());
    }
    let builder = match wanted.servers.as_slice() {
        [] => TokioResolver::builder_tokio(),
        servers => {
            let servers = servers.iter().map(|server| name_server(*server, wanted.tcp_only)).collect();
            let config = ResolverConfig::from_parts(None, Vec::new(), servers);
            Ok(TokioResolver::builder_with_config(config, Default::default()))
        }
    };
    let made = builder.and_then(|mut builder| {
        builder.options_mut().ip_strategy = strategy;
        // Caching of answers, including negative ones, is decided only here.
        builder.options_mut().cache_size = 0;
        builder.build()
    });
    match made {
        Ok(resolver) => {
            resolvers.push((strategy, wanted.clone(), resolver.clone()));
            Some(resolver)
        }
        Err(error) => {
            tracing::warn!(%error, "the system's DNS configuration cannot be read");
            None
        }
    }
}

/// The addresses in an order that does not depend on the server, so that a change is one; logs failures.
pub(crate) fn sorted(host: &str, mut found: Found) -> Found {
    match &mut found {
        Found::Addresses(addresses, _) => {
            addresses.sort();
            addresses.dedup();
        }
        Found::Nothing(_, answer) => tracing::warn!(host, answer, "DNS knows no address"),
        Found::Failure(error) => tracing::warn!(host, error, "DNS resolution failed"),
    }
    found
}

/// Looks up a name once.
pub(crate) async fn resolve(resolver: &TokioResolver, host: &str) -> Found {
    match resolver.lookup_ip(host).await {
        Ok(lookup) => {
            let addresses: Vec<IpAddr> = lookup.iter().collect();
            let ttl = lookup.valid_until().saturating_duration_since(Instant::now());
            Found::Addresses(addresses, ttl)
        }
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
            let ttl = none.negative_ttl.map(|seconds| Duration::from_secs(seconds.into()));
            Found::Nothing(ttl, none.response_code.to_string())
        }
        Err(error) => Found::Failure(error.to_string()),
    }
}

pub(crate) fn jitter(limit: Duration) -> Duration {
    if limit.is_zero() {
        return limit;
    }
    // The clock's low bits are random enough to spread resolutions.
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    limit.mul_f64(f64::from(nanos % 1_000_000) / 1e6)
}

fn strategy(family: DnsFamily) -> LookupIpStrategy {
    match family {
        DnsFamily::Auto => LookupIpStrategy::Ipv6thenIpv4,
        DnsFamily::V4Only => LookupIpStrategy::Ipv4Only,
        DnsFamily::V6Only => LookupIpStrategy::Ipv6Only,
        DnsFamily::V4Preferred => LookupIpStrategy::Ipv4thenIpv6,
        DnsFamily::All => LookupIpStrategy::Ipv4AndIpv6,
    }
}

fn name_server(server: SocketAddr, tcp_only: bool) -> NameServerConfig {
    let mut connections = if tcp_only { Vec::new() } else { vec![ConnectionConfig::udp()] };
    connections.push(ConnectionConfig::tcp());
    connections.iter_mut().for_each(|connection| connection.port = server.port());
    NameServerConfig::new(server.ip(), true, connections)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_after_failures_grow_up_to_their_limit() {
        let usual = DnsOptions { refresh: Duration::from_secs(7), ..DnsOptions::default() };
        assert_eq!(failure_pause(&usual, 3), Duration::from_secs(7));
        let (base, longest) = (Duration::from_millis(100), Duration::from_millis(800));
        let growing = DnsOptions { failure_refresh: Some((base, longest)), ..usual };
        for (failures, limit) in [(1, 100), (2, 200), (4, 800), (40, 800)] {
            let pause = failure_pause(&growing, failures);
            assert!(pause >= LEAST_FAILURE_PAUSE && pause <= Duration::from_millis(limit), "{failures}: {pause:?}");
        }
    }
}
