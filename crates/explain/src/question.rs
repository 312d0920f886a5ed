//! The call in question.

use std::fmt;

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The caller.
    pub from: Caller,
    /// The called target.
    pub target: Target,
    /// The Unix socket that the client connects to, instead of the target's address: a path, or `@NAME`.
    pub socket: Option<String>,
    /// The result of every random draw: weighted destinations and fractions follow it.
    pub random: u64,
}

/// A caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// A workload (or one of its Pods), and its namespace.
    Workload {
        /// Its name.
        name: String,
        /// Its namespace; without one, the only namespace that has the name.
        namespace: Option<String>,
    },
    /// A client outside the mesh, which calls through the gateway that listens on the port.
    Outside,
}

/// A called target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// An HTTP request.
    Http {
        /// The client speaks TLS.
        tls: bool,
        /// The host name or address in the URL.
        host: String,
        /// The port.
        port: u16,
        /// Path and query.
        path: String,
        /// The method.
        method: String,
        /// Headers, names in lower case. `host` replaces the URL's host in the request.
        headers: Vec<(String, String)>,
        /// The name that the client sends in its ClientHello; the URL's host if not given.
        sni: Option<String>,
    },
    /// A connection that carries bytes.
    Tcp {
        /// Host name or address.
        host: String,
        /// The port.
        port: u16,
        /// The client speaks TLS and sends this name.
        sni: Option<String>,
    },
    /// Datagrams.
    Udp {
        /// Host name or address.
        host: String,
        /// The port.
        port: u16,
    },
}

/// Why a question cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// The URL is not one.
    #[error("`{url}` is not a URL: {reason}; expected http://HOST[:PORT]/PATH or https://…")]
    Url {
        /// As given.
        url: String,
        /// The error.
        reason: String,
    },
    /// `--tcp` or `--udp` is not `HOST:PORT`.
    #[error("`{0}` is not HOST:PORT")]
    Address(String),
    /// Only a sidecar listens on Unix sockets.
    #[error("{caller} has no sidecar, which could listen on {socket}")]
    NoSocket {
        /// The caller.
        caller: String,
        /// The socket.
        socket: String,
    },
    /// A header without colon.
    #[error("`{0}` is not a header; expected `NAME: VALUE`")]
    Header(String),
    /// There is no such workload.
    #[error("there is no workload `{name}`; {there}")]
    NoWorkload {
        /// The name in the question.
        name: String,
        /// The existing ones.
        there: String,
    },
    /// Several namespaces have a workload of this name.
    #[error("several namespaces have a workload `{name}`: {namespaces}; say {name}.NAMESPACE")]
    Ambiguous {
        /// The name in the question.
        name: String,
        /// The namespaces.
        namespaces: String,
    },
    /// No gateway listens on the port.
    #[error("no gateway listens on port {port}; {there}")]
    NoGateway {
        /// The port in the question.
        port: u16,
        /// The ports there are.
        there: String,
    },
}

impl Caller {
    /// Reads `WORKLOAD.NAMESPACE`, `WORKLOAD` or `NAMESPACE/WORKLOAD`.
    pub fn parse(text: &str) -> Self {
        let (name, namespace) = match (text.split_once('/'), text.rsplit_once('.')) {
            (Some((namespace, name)), _) | (None, Some((name, namespace))) => (name, Some(namespace)),
            (None, None) => (text, None),
        };
        Self::Workload { name: name.to_owned(), namespace: namespace.map(str::to_owned) }
    }
}

impl Target {
    /// Reads a URL.
    pub fn parse_url(url: &str, method: &str, headers: Vec<(String, String)>) -> Result<Self, QuestionError> {
        let wrong = |reason: &str| QuestionError::Url { url: url.to_owned(), reason: reason.to_owned() };
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(wrong("the scheme is neither http nor https")),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = authority.rsplit_once('@').map_or(authority, |(_, authority)| authority);
        let path = path.split('#').next().unwrap_or_default();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let (host, port) = host_and_port(authority).ok_or_else(|| wrong("its port is not a number below 65536"))?;
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        let port = port.unwrap_or(if tls { 443 } else { 80 });
        Ok(Self::Http { tls, host, port, path, method: method.to_owned(), headers, sni: None })
    }

    /// Reads `HOST:PORT`.
    pub fn parse_tcp(text: &str, sni: Option<String>) -> Result<Self, QuestionError> {
        match host_and_port(text) {
            Some((host, Some(port))) if !host.is_empty() => Ok(Self::Tcp { host, port, sni }),
            _ => Err(QuestionError::Address(text.to_owned())),
        }
    }

    /// Reads `HOST:PORT` of datagrams.
    pub fn parse_udp(text: &str) -> Result<Self, QuestionError> {
        match host_and_port(text) {
            Some((host, Some(port))) if !host.is_empty() => Ok(Self::Udp { host, port }),
            _ => Err(QuestionError::Address(text.to_owned())),
        }
    }

    /// Host name or address.
    pub fn host(&self) -> &str {
        match self {
            Self::Http { host, .. } | Self::Tcp { host, .. } | Self::Udp { host, .. } => host,
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Http { port, .. } | Self::Tcp { port, .. } | Self::Udp { port, .. } => *port,
        }
    }

    /// The name in the client's ClientHello, in lower case; `None` if it does not speak TLS or calls an address.
    pub fn server_name(&self) -> Option<String> {
        let name = match self {
            Self::Http { tls: false, .. } | Self::Udp { .. } => return None,
            Self::Http { host, sni, .. } => sni.as_ref().unwrap_or(host),
            Self::Tcp { sni, .. } => sni.as_ref()?,
        };
        name.parse::<std::net::IpAddr>().is_err().then(|| name.to_ascii_lowercase())
    }

    /// Whether the client speaks TLS.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Http { tls: true, .. } | Self::Tcp { sni: Some(_), .. })
    }

    /// The `:authority` that the client sends, as curl does: without the scheme's own port.
    pub fn authority(&self) -> String {
        let Self::Http { host, port, tls, headers, .. } = self else { return String::new() };
        if let Some((_, host)) = headers.iter().find(|(name, _)| name == "host") {
            return host.clone();
        }
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        if *port == if *tls { 443 } else { 80 } { host } else { format!("{host}:{port}") }
    }
}

/// Reads a header as curl takes it: `NAME: VALUE`.
pub fn parse_header(text: &str) -> Result<(String, String), QuestionError> {
    match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        }
        _ => Err(QuestionError::Header(text.to_owned())),
    }
}

/// Splits `HOST[:PORT]`; `None` if the port is none.
fn host_and_port(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match (text.strip_prefix('[').and_then(|rest| rest.split_once(']')), text.rsplit_once(':')) {
        (Some((host, rest)), _) => (host, rest.strip_prefix(':')),
        // A bare IPv6 address has no port.
        (None, Some((host, port))) if !host.contains(':') => (host, Some(port)),
        _ => (text, None),
    };
    match port {
        None | Some("") => Some((host.to_owned(), None)),
        Some(port) => Some((host.to_owned(), Some(port.parse().ok().filter(|port| *port > 0)?))),
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload { name, namespace: Some(namespace) } => write!(f, "{name}.{namespace}"),
            Self::Workload { name, namespace: None } => f.write_str(name),
            Self::Outside => f.write_str("outside"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { tls, host, port, path, method, .. } => {
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                write!(f, "{method} {}://{host}:{port}{path}", if *tls { "https" } else { "http" })
            }
            Self::Tcp { host, port, sni } => {
                write!(f, "{} {host}:{port}", if sni.is_some() { "TLS" } else { "TCP" })
            }
            Self::Udp { host, port } => write!(f, "UDP {host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_curl_reads_them() {
        let check = |url: &str, expected: &str, authority: &str| match Target::parse_url(url, "GET", Vec::new()) {
            Ok(target) => assert_eq!((&*target.to_string(), &*target.authority()), (expected, authority), "{url}"),
            Err(error) => assert!(error.to_string().contains(expected), "{url}: {error}"),
        };
        check("http://reviews:9080/x?y=1#z", "GET http://reviews:9080/x?y=1", "reviews:9080");
        check("http://reviews", "GET http://reviews:80/", "reviews");
        check("https://a.example.com?q", "GET https://a.example.com:443/?q", "a.example.com");
        check("reviews:80/p", "GET http://reviews:80/p", "reviews");
        check("http://[::1]:8080/", "GET http://[::1]:8080/", "[::1]:8080");
        check("ftp://x", "neither http nor https", "");
        check("http://:80/", "no host", "");
        check("http://a:99999/", "not a number", "");
    }

    #[test]
    fn callers_are_named_in_three_ways() {
        let check = |text: &str, name: &str, namespace: Option<&str>| {
            let expected = Caller::Workload { name: name.to_owned(), namespace: namespace.map(str::to_owned) };
            assert_eq!(Caller::parse(text), expected, "{text}");
        };
        check("web.shop", "web", Some("shop"));
        check("shop/web", "web", Some("shop"));
        check("web", "web", None);
    }

    #[test]
    fn addresses_and_headers_are_checked() {
        assert!(Target::parse_tcp("db", None).is_err());
        assert!(Target::parse_tcp("db:0", None).is_err());
        assert!(Target::parse_udp("dns").is_err() && Target::parse_udp(":53").is_err());
        assert_eq!(Target::parse_udp("dns:53").unwrap().to_string(), "UDP dns:53");
        assert_eq!(Target::parse_tcp("db:5432", None).unwrap().port(), 5432);
        assert_eq!(parse_header("X-User:  jason ").unwrap(), ("x-user".to_owned(), "jason".to_owned()));
        assert!(parse_header("novalue").is_err());
    }
}
