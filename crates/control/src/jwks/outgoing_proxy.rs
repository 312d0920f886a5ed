//! The HTTP proxy for outgoing requests, from the environment variables `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, which are
//! read as Go programs, and so istiod, read them (the rules of `golang.org/x/net/http/httpproxy`).

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use ipnet::IpNet;
use percent_encoding::percent_decode_str;

/// The variable with the hosts that are called without a proxy.
const NO_PROXY: &str = "NO_PROXY";
/// Set in CGI programs, where `HTTP_PROXY` comes from the client's header `Proxy`.
const CGI: &str = "REQUEST_METHOD";

/// An HTTP proxy.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct OutgoingProxy {
    /// Whether the connection to the proxy itself uses TLS.
    pub tls: bool,
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The value of `proxy-authorization`.
    pub authorization: Option<String>,
}

impl std::fmt::Debug for OutgoingProxy {
    // Without its password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The proxies that an environment configures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OutgoingProxies {
    http: Option<OutgoingProxy>,
    https: Option<OutgoingProxy>,
    direct: Vec<Direct>,
}

/// Hosts that are called directly.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Direct {
    Everything,
    Network(IpNet),
    Address(IpAddr, Option<u16>),
    /// Hosts below a domain, which has a leading dot; `apex`: also the domain itself.
    Domain {
        suffix: String,
        apex: bool,
        port: Option<u16>,
    },
}

/// An environment variable that does not name a usable proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutgoingProxyError {
    /// The value is not a URL.
    #[error(
        "environment variable {0}: the value is no address of a proxy; write `http://HOST:PORT` or `https://HOST:PORT`, with `USER:PASSWORD@` before the host if the proxy asks for it"
    )]
    Url(&'static str),
    /// The kind of proxy is not supported.
    #[error("environment variable {0}: a proxy of the kind `{1}` is not supported; write `http://HOST:PORT`")]
    Scheme(&'static str, String),
}

impl OutgoingProxies {
    /// Reads the variables through `lookup`.
    pub(crate) fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, OutgoingProxyError> {
        let either = |name: &str| {
            let filled = |text: &String| !text.is_empty();
            lookup(name).filter(filled).or_else(|| lookup(&name.to_lowercase()).filter(filled))
        };
        let of = |name: &'static str| either(name).map(|text| parse(name, text.trim())).transpose();
        let is_cgi = lookup(CGI).is_some_and(|method| !method.is_empty());
        let http = if is_cgi { None } else { of("HTTP_PROXY")? };
        Ok(Self { http, https: of("HTTPS_PROXY")?, direct: direct(&either(NO_PROXY).unwrap_or_default()) })
    }

    /// Returns the proxy for a URL; `None`: it is called directly. Addresses of this machine are always called directly.
    pub(crate) fn of(&self, url: &Uri) -> Option<&OutgoingProxy> {
        let is_https = url.scheme_str() == Some("https");
        let proxy = if is_https { self.https.as_ref() } else { self.http.as_ref() }?;
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_lowercase();
        let port = url.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
            return None;
        }
        let same_port = |wanted: &Option<u16>| wanted.is_none_or(|wanted| wanted == port);
        let is_direct = self.direct.iter().any(|direct| match direct {
            Direct::Everything => true,
            Direct::Network(network) => address.is_some_and(|address| network.contains(&address)),
            Direct::Address(own, wanted) => address == Some(*own) && same_port(wanted),
            Direct::Domain { suffix, apex, port } => {
                (host.ends_with(suffix.as_str()) || (*apex && suffix.get(1..) == Some(host.as_str())))
                    && same_port(port)
            }
        });
        (!is_direct).then_some(proxy)
    }
}

/// Parses a proxy's URL; `http://` may be left out.
fn parse(variable: &'static str, text: &str) -> Result<OutgoingProxy, OutgoingProxyError> {
    let wrong = || OutgoingProxyError::Url(variable);
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let tls = match scheme.to_ascii_lowercase().as_str() {
        "http" => false,
        "https" => true,
        other => return Err(OutgoingProxyError::Scheme(variable, other.to_owned())),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (user, place) = authority.rsplit_once('@').map_or((None, authority), |(user, place)| (Some(user), place));
    let place: http::uri::Authority = place.parse().map_err(|_| wrong())?;
    // Only a port may follow the host.
    let port = match place.as_str().strip_prefix(place.host()) {
        Some("" | ":") => Some(if tls { 443 } else { 80 }),
        _ => place.port_u16().filter(|port| *port != 0),
    };
    let host = place.host().trim_matches(['[', ']']).to_owned();
    let authorization = user.map(|user| {
        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        let decoded = [name, password].map(|part| percent_decode_str(part).collect::<Vec<u8>>());
        format!("Basic {}", STANDARD.encode(decoded.join(&b':')))
    });
    match port {
        Some(port) if !host.is_empty() => Ok(OutgoingProxy { tls, host, port, authorization }),
        _ => Err(wrong()),
    }
}

/// Parses the hosts of `NO_PROXY`. As in Go, invalid entries are ignored.
fn direct(text: &str) -> Vec<Direct> {
    let entries = text.split(',').map(|entry| entry.trim().to_lowercase());
    entries.filter_map(|entry| direct_entry(&entry)).collect()
}

fn direct_entry(entry: &str) -> Option<Direct> {
    if entry == "*" {
        return Some(Direct::Everything);
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return Some(Direct::Network(network));
    }
    let (host, port) = match entry.parse::<IpAddr>() {
        // An IPv6 address without brackets.
        Ok(_) => (entry, None),
        Err(_) => match entry.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (entry, None),
        },
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = host.parse::<IpAddr>() {
        return Some(Direct::Address(address.to_canonical(), port));
    }
    let host = if host.starts_with("*.") { host.get(1..)? } else { host };
    match host.strip_prefix('.') {
        _ if host.is_empty() => None,
        Some(_) => Some(Direct::Domain { suffix: host.to_owned(), apex: false, port }),
        None => Some(Direct::Domain { suffix: format!(".{host}"), apex: true, port }),
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<OutgoingProxies, String> {
        let lookup = |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
        OutgoingProxies::from_env(lookup).map_err(|error| error.to_string())
    }

    #[test]
    fn the_environment_is_read_as_go_reads_it() {
        let through = |variables: &[(&str, &str)], url: &str| {
            let proxies = read(variables).expect("an environment");
            proxies
                .of(&url.parse().expect("a URL"))
                .map(|proxy| format!("{} {proxy:?}", if proxy.tls { "tls" } else { "tcp" }))
        };
        let https = |value| [("HTTPS_PROXY", value)];
        for (variables, url, expected) in [
            (&[][..], "https://a.test/", None),
            (&https("p.test:3128"), "https://a.test/", Some("tcp p.test:3128")),
            (&https("http://p.test"), "https://a.test/", Some("tcp p.test:80")),
            (&https("https://u:secret@p.test/"), "https://a.test/", Some("tls p.test:443")),
            (&https("http://[2001:db8::1]:8080"), "https://a.test/", Some("tcp 2001:db8::1:8080")),
            (&https("p.test:3128"), "http://a.test/", None),
            (&[("https_proxy", "p.test:1")], "https://a.test/", Some("tcp p.test:1")),
            (&[("HTTPS_PROXY", ""), ("https_proxy", "p.test:1")], "https://a.test/", Some("tcp p.test:1")),
            (&[("http_proxy", "p.test:1")], "http://a.test/", Some("tcp p.test:1")),
            (&[("HTTP_PROXY", "p.test:1"), ("REQUEST_METHOD", "GET")], "http://a.test/", None),
            (&[("ALL_PROXY", "p.test:1")], "https://a.test/", None),
            // This machine.
            (&https("p.test:1"), "https://localhost/", None),
            (&https("p.test:1"), "https://LOCALHOST:8443/", None),
            (&https("p.test:1"), "https://127.8.8.8/", None),
            (&https("p.test:1"), "https://[::1]/", None),
            (&https("p.test:1"), "https://localhost.test/", Some("tcp p.test:1")),
        ] {
            assert_eq!(through(variables, url).as_deref(), expected, "{variables:?} {url}");
        }
    }

    #[test]
    fn hosts_without_a_proxy_are_read_as_go_reads_them() {
        let is_direct = |no_proxy: &str, url: &str| {
            let proxies = read(&[("HTTPS_PROXY", "p.test:1"), ("NO_PROXY", no_proxy)]).expect("an environment");
            proxies.of(&url.parse().expect("a URL")).is_none()
        };
        for (no_proxy, url, expected) in [
            ("*", "https://a.test/", true),
            ("b.test, *", "https://a.test/", true),
            ("a.test", "https://a.test/", true),
            ("A.Test", "https://a.test/", true),
            ("a.test", "https://A.TEST/", true),
            ("a.test", "https://x.a.test/", true),
            ("a.test", "https://xa.test/", false),
            (".a.test", "https://x.a.test/", true),
            (".a.test", "https://a.test/", false),
            ("*.a.test", "https://x.a.test/", true),
            ("*.a.test", "https://a.test/", false),
            ("a.test:443", "https://a.test/", true),
            ("a.test:8443", "https://a.test/", false),
            ("a.test:8443", "https://a.test:8443/", true),
            ("a.test:x", "https://a.test/", false),
            ("10.0.0.0/8", "https://10.1.2.3/", true),
            ("10.0.0.0/8", "https://11.1.2.3/", false),
            ("10.0.0.0/8", "https://10.test/", false),
            ("10.1.2.3", "https://10.1.2.3:8443/", true),
            ("10.1.2.3:443", "https://10.1.2.3:8443/", false),
            ("2001:db8::1", "https://[2001:db8::1]/", true),
            ("[2001:db8::1]:443", "https://[2001:db8::1]/", true),
            ("2001:db8::/32", "https://[2001:db8::9]/", true),
            (",, ,:80,.", "https://a.test/", false),
            ("b.test,a.test", "https://a.test/", true),
        ] {
            assert_eq!(is_direct(no_proxy, url), expected, "{no_proxy} {url}");
        }
    }

    #[test]
    fn what_is_no_proxy_is_said_without_its_password() {
        for (value, expected) in [
            ("socks5://u:secret@p.test:1080", "a proxy of the kind `socks5` is not supported"),
            ("ftp://p.test", "a proxy of the kind `ftp` is not supported"),
            ("http://u:secret@", "HTTPS_PROXY: the value is no address of a proxy"),
            ("http://u:secret@p.test:99999", "no address"),
            ("http://u:secret@p.test:0", "no address"),
            ("p.test:x", "no address"),
            ("http://p test", "no address"),
            ("http://:80", "no address"),
        ] {
            let error = read(&[("HTTPS_PROXY", value)]).expect_err(value);
            assert!(error.contains(expected) && !error.contains("secret"), "{value}: {error}");
        }
        let proxies = read(&[("HTTPS_PROXY", "http://u%40x:se%3Acret@p.test")]).expect("an environment");
        let proxy = proxies.of(&"https://a.test/".parse().expect("a URL")).expect("a proxy").clone();
        assert_eq!(proxy.authorization.as_deref(), Some(&*format!("Basic {}", STANDARD.encode("u@x:se:cret"))));
        assert!(!format!("{proxies:?}").contains("cret"), "{proxies:?}");
    }
}
