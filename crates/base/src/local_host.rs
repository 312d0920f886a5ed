//! Whether a `Host` header names this machine, or whether a web page may have chosen it.

use std::net::{IpAddr, Ipv6Addr};

/// Whether the host of this authority (`HOST` or `HOST:PORT`) is an address or a name that no stranger can own: one
/// without dots, or below `localhost` (RFC 6761 section 6.3).
///
/// A page of a stranger can have a browser connect to loopback, by a name that resolves to 127.0.0.1 (DNS rebinding).
/// The browser then sends this name as `Host`, so a server on loopback that refuses such names cannot be read.
pub fn is_local(authority: &str) -> bool {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
    }
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.is_empty() || host.parse::<IpAddr>().is_ok() {
        return true;
    }
    !host.contains('.') || host.to_ascii_lowercase().ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn names_of_strangers_are_not_local() {
        for host in [
            "",
            "127.0.0.1",
            "127.0.0.1:15000",
            "10.0.0.1",
            "[::1]",
            "[::1]:15000",
            "localhost",
            "LOCALHOST:1",
            "admin",
            "a.localhost",
            "web:80",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:15000",
            "127.0.0.1.evil.example",
            "evil.example.",
            "[::1",
            "a.localhost.example",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }
}
