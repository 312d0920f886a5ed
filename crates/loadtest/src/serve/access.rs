//! Who may call: a page of another site may not start a run in a visitor's browser.

use std::net::IpAddr;

use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, Uri};

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The name is none of this server's: another site's name may have been pointed at it (DNS rebinding).
    #[error("the Host header names another server: use an address or localhost, or start with -host NAME")]
    Host,
    /// A page of another site sent it.
    #[error("a page of another site sent this request")]
    OtherSite,
}

/// The names by which this server is reached.
#[derive(Debug)]
pub struct Access {
    /// In lower case, without ports.
    names: Vec<String>,
}

impl Access {
    /// `names` beside addresses and localhost.
    pub fn new(names: &[String]) -> Self {
        let names = names.iter().map(|name| name.to_ascii_lowercase());
        Self { names: names.chain(["localhost".to_owned()]).collect() }
    }

    /// Whether a request with these headers may be served. `acts`: it does more than to show something.
    ///
    /// # Errors
    /// It may not.
    pub fn check(&self, headers: &HeaderMap, acts: bool) -> Result<(), Refusal> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let host = text(HOST.as_str()).ok_or(Refusal::Host)?;
        if !self.is_own(host) {
            return Err(Refusal::Host);
        }
        // What browsers say of every request since 2023, and of those that may change something for longer. Other programs send neither.
        if let Some(site) = text("sec-fetch-site")
            && !matches!(site, "same-origin" | "none")
        {
            return Err(Refusal::OtherSite);
        }
        let other = |origin: &str| !origin.parse::<Uri>().is_ok_and(|uri| uri.authority().is_some_and(|at| at == host));
        if headers.contains_key(ORIGIN) && text(ORIGIN.as_str()).is_none_or(other) {
            return Err(Refusal::OtherSite);
        }
        // To plain HTTP at other addresses than loopback browsers do not say which site asks, and a GET has no origin.
        let is_browser = text("user-agent").is_some_and(|agent| agent.starts_with("Mozilla/"));
        if acts && is_browser && !headers.contains_key("sec-fetch-site") && !headers.contains_key(ORIGIN) {
            return Err(Refusal::OtherSite);
        }
        Ok(())
    }

    fn is_own(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host();
        let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        is_address || self.names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_other_sites_start_nothing() {
        let access = Access::new(&["Load.example".to_owned()]);
        let check = |lines: &[&str], expected: Result<(), Refusal>| {
            let mut headers = HeaderMap::new();
            for line in lines {
                let (name, value) = line.split_once(": ").expect("a header");
                headers.append(http::HeaderName::try_from(name).expect("a name"), value.parse().expect("a value"));
            }
            assert_eq!(access.check(&headers, true), expected, "{lines:?}");
        };
        for host in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "[::1]", "10.0.0.1", "load.example:8080"] {
            check(&[&format!("host: {host}")], Ok(()));
        }
        for host in [
            "attacker.example:8080",
            "localhost.attacker.example",
            "localhost@attacker.example",
            "127.0.0.1.attacker.example",
        ] {
            check(&[&format!("host: {host}")], Err(Refusal::Host));
        }
        check(&[], Err(Refusal::Host));
        check(&["host: localhost:8080", "sec-fetch-site: same-origin", "origin: http://localhost:8080"], Ok(()));
        check(&["host: localhost:8080", "sec-fetch-site: none"], Ok(()));
        check(&["host: 10.0.0.1:8080", "user-agent: Mozilla/5.0"], Err(Refusal::OtherSite));
        check(&["host: 10.0.0.1:8080", "user-agent: curl/8"], Ok(()));
        for line in [
            "sec-fetch-site: cross-site",
            "sec-fetch-site: same-site",
            "origin: null",
            "origin: http://localhost:9090",
            "origin: http://attacker.example",
        ] {
            check(&["host: localhost:8080", line], Err(Refusal::OtherSite));
        }
    }
}
