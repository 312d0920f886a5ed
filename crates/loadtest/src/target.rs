//! Where requests go.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use http::Uri;

/// The port of Fortio's gRPC server.
const GRPC_PORT: u16 = 8079;

/// The protocol of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP over TCP.
    Http,
    /// HTTP over TLS.
    Https,
    /// Bytes over TCP, which the server echoes.
    Tcp,
    /// Datagrams, which the server echoes.
    Udp,
}

/// A URL, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its protocol.
    pub scheme: Scheme,
    /// Host without port and brackets.
    pub host: String,
    /// Port, also if it is the protocol's own.
    pub port: u16,
    /// Host and port as they were written.
    pub authority: String,
    /// Path and query.
    pub path: String,
}

/// Which addresses of a name are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum IpType {
    /// IPv4.
    Ip4,
    /// IPv6.
    Ip6,
    /// Both.
    Ip,
}

impl Target {
    /// Reads a URL; without a protocol it is `http://`.
    ///
    /// # Errors
    /// It is no URL; says why.
    pub fn parse(url: &str) -> Result<Self, String> {
        let wrong = |reason: &str| format!("{url:?}: {reason}");
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = full.parse().map_err(|error| wrong(&format!("{error}")))?;
        let scheme = match uri.scheme_str() {
            Some("http") => Scheme::Http,
            Some("https") => Scheme::Https,
            Some("tcp") => Scheme::Tcp,
            Some("udp") => Scheme::Udp,
            _ => return Err(wrong("expected http://, https://, tcp:// or udp://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("no host"))?;
        let written = authority.as_str().rsplit('@').next().unwrap_or_default();
        let has_port = written.strip_prefix(authority.host()).is_some_and(|rest| !rest.is_empty());
        if has_port && authority.port_u16().is_none() {
            return Err(wrong("the port is no number from 0 to 65535"));
        }
        let port = authority.port_u16().or(match scheme {
            Scheme::Http => Some(80),
            Scheme::Https => Some(443),
            Scheme::Tcp | Scheme::Udp => None,
        });
        Ok(Self {
            scheme,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: port.ok_or_else(|| wrong("no port"))?,
            authority: written.to_owned(),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        })
    }

    /// Reads the destination of gRPC calls; without protocol and port the port is Fortio's.
    ///
    /// # Errors
    /// It is none; says why.
    pub fn grpc(destination: &str) -> Result<Self, String> {
        let mut target = Self::parse(destination)?;
        if matches!(target.scheme, Scheme::Tcp | Scheme::Udp) {
            return Err(format!("{destination:?}: gRPC needs HOST:PORT or https://"));
        }
        if !destination.contains("://") && !target.authority.ends_with(&format!(":{}", target.port)) {
            target.port = GRPC_PORT;
            target.authority = format!("{}:{GRPC_PORT}", target.authority);
        }
        Ok(target)
    }

    /// The addresses that connections use in turn.
    ///
    /// # Errors
    /// The name has none of that type.
    pub fn addresses(&self, ip_type: IpType, resolve: Option<IpAddr>) -> Result<Vec<SocketAddr>, String> {
        if let Some(ip) = resolve.or_else(|| self.host.parse().ok()) {
            return Ok(vec![SocketAddr::new(ip, self.port)]);
        }
        let wanted = |address: &SocketAddr| match ip_type {
            IpType::Ip4 => address.is_ipv4(),
            IpType::Ip6 => address.is_ipv6(),
            IpType::Ip => true,
        };
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        let found: Vec<_> =
            found.map_err(|error| format!("resolving {}: {error}", self.host))?.filter(wanted).collect();
        if found.is_empty() {
            return Err(format!("{} has no address of the type that -resolve-ip-type names", self.host));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let check = |url: &str, scheme: Scheme, host: &str, port: u16, path: &str| {
            let target = Target::parse(url).unwrap();
            assert_eq!((target.scheme, target.port), (scheme, port), "{url}");
            assert_eq!((target.host.as_str(), target.path.as_str()), (host, path), "{url}");
        };
        check("http://a:8080/echo?size=1", Scheme::Http, "a", 8080, "/echo?size=1");
        check("localhost:8079", Scheme::Http, "localhost", 8079, "/");
        check("https://a.b", Scheme::Https, "a.b", 443, "/");
        check("tcp://[::1]:8078", Scheme::Tcp, "::1", 8078, "/");
        check("udp://10.0.0.1:8078/", Scheme::Udp, "10.0.0.1", 8078, "/");
        for url in ["", "ftp://a", "tcp://a", "http://", "http://a:b"] {
            assert!(Target::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn grpc_has_a_port_of_its_own() {
        for (destination, authority) in [("a", "a:8079"), ("a:80", "a:80"), ("http://a", "a"), ("https://a:1", "a:1")] {
            assert_eq!(Target::grpc(destination).unwrap().authority, authority);
        }
        assert!(Target::grpc("tcp://a:1").is_err());
    }

    #[test]
    fn a_name_may_be_resolved_by_the_user() {
        let target = Target::parse("http://no-such-name.invalid:81/").unwrap();
        let ip = "127.0.0.9".parse().unwrap();
        assert_eq!(target.addresses(IpType::Ip4, Some(ip)), Ok(vec![SocketAddr::new(ip, 81)]));
        assert!(target.addresses(IpType::Ip4, None).is_err());
    }
}
