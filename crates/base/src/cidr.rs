//! Address ranges.

use std::net::IpAddr;

pub use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Why a text is not an address range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address or CIDR range such as `10.1.2.3` or `10.1.0.0/16`")]
pub struct CidrError(pub String);

/// Reads `10.0.0.0/8`, or a single address as the range of only that address. Host bits are cleared.
pub fn parse(text: &str) -> Result<IpNet, CidrError> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(IpNet::from(address));
    }
    text.parse::<IpNet>().map(|net| net.trunc()).map_err(|_| CidrError(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_addresses_and_ranges() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(parse(text).ok().map(|n| n.to_string()).as_deref(), expected, "{text}");
        };
        check("10.1.2.3", Some("10.1.2.3/32"));
        check("10.1.2.3/8", Some("10.0.0.0/8"));
        check("fd00::1", Some("fd00::1/128"));
        check("10.1.2.3/33", None);
        check("10.1.2", None);
        check("", None);
    }
}
