//! The resolvers that a workload would use without the mesh.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Maximum number of name servers (`MAXNS` of resolv.conf(5)).
const MAX_NAMESERVERS: usize = 3;

/// The name servers of a resolv.conf, port 53, without the DNS proxy itself; none when the file is missing.
pub fn resolvers(path: &Path, dns: SocketAddr) -> Vec<SocketAddr> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text, dns),
        Err(error) => {
            tracing::info!(path = %path.display(), %error, "no resolvers: only names of the mesh are answered");
            Vec::new()
        }
    }
}

fn parse(text: &str, dns: SocketAddr) -> Vec<SocketAddr> {
    let servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addresses = servers.filter_map(|rest| rest.trim().parse::<IpAddr>().ok());
    let others = addresses.map(|address| SocketAddr::new(address, 53)).filter(|server| *server != dns);
    others.take(MAX_NAMESERVERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_first_three_name_servers() {
        let dns = "127.0.0.1:53".parse().expect("an address");
        let check = |text: &str, expected: &[&str]| {
            let found: Vec<_> = parse(text, dns).iter().map(SocketAddr::to_string).collect();
            assert_eq!(found, expected, "{text}");
        };
        check("", &[]);
        check("# nameserver 1.1.1.1\nsearch a.b\nnameserver 10.0.0.2\n", &["10.0.0.2:53"]);
        check("nameserver\t::1\nnameserver nonsense\nnameserver", &["[::1]:53"]);
        check("nameserver 127.0.0.1\nnameserver 10.0.0.2", &["10.0.0.2:53"]);
        check(
            "nameserver 1.0.0.1\nnameserver 1.0.0.2\nnameserver 1.0.0.3\nnameserver 1.0.0.4",
            &["1.0.0.1:53", "1.0.0.2:53", "1.0.0.3:53"],
        );
    }
}
