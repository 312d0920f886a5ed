//! `traffic.sidecar.istio.io/*`: which connections of a Pod are captured.

use std::collections::BTreeMap;

use evenkeel_base::Spanned;
use evenkeel_base::cidr::{self, IpNet};

const INCLUDE_INBOUND_PORTS: &str = "traffic.sidecar.istio.io/includeInboundPorts";
const EXCLUDE_INBOUND_PORTS: &str = "traffic.sidecar.istio.io/excludeInboundPorts";
const INCLUDE_OUTBOUND_PORTS: &str = "traffic.sidecar.istio.io/includeOutboundPorts";
const EXCLUDE_OUTBOUND_PORTS: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
const INCLUDE_OUTBOUND_RANGES: &str = "traffic.sidecar.istio.io/includeOutboundIPRanges";
const EXCLUDE_OUTBOUND_RANGES: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";
const EXCLUDE_INTERFACES: &str = "traffic.sidecar.istio.io/excludeInterfaces";
const VIRTUAL_INTERFACES: [&str; 2] =
    ["istio.io/reroute-virtual-interfaces", "traffic.sidecar.istio.io/kubevirtInterfaces"];

/// The annotations that are read here.
pub const TRAFFIC_ANNOTATIONS: [&str; 7] = [
    INCLUDE_INBOUND_PORTS,
    EXCLUDE_INBOUND_PORTS,
    INCLUDE_OUTBOUND_PORTS,
    EXCLUDE_OUTBOUND_PORTS,
    INCLUDE_OUTBOUND_RANGES,
    EXCLUDE_OUTBOUND_RANGES,
    EXCLUDE_INTERFACES,
];

/// Which connections of a Pod are captured, as Istio's `istio-iptables` reads the annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureRules {
    /// The destination ports of inbound connections that are captured; `None`: all (`*`).
    pub inbound_ports: Option<Vec<u16>>,
    /// Ports of inbound connections that are not captured; only with all others.
    pub except_inbound_ports: Vec<u16>,
    /// The destinations of outbound connections that are captured; `None`: all (`*`).
    pub outbound_ranges: Option<Vec<IpNet>>,
    /// Destinations of outbound connections that are not captured.
    pub except_outbound_ranges: Vec<IpNet>,
    /// Ports of outbound connections that are captured in addition, whatever their address.
    pub outbound_ports: Vec<u16>,
    /// Ports of outbound connections that are not captured.
    pub except_outbound_ports: Vec<u16>,
    /// Network interfaces whose connections are not captured, in either direction.
    pub except_interfaces: Vec<String>,
}

impl Default for CaptureRules {
    /// Captures everything.
    fn default() -> Self {
        Self {
            inbound_ports: None,
            except_inbound_ports: Vec::new(),
            outbound_ranges: None,
            except_outbound_ranges: Vec::new(),
            outbound_ports: Vec::new(),
            except_outbound_ports: Vec::new(),
            except_interfaces: Vec::new(),
        }
    }
}

impl CaptureRules {
    /// Reads the annotations of a Pod. The decoder has reported values that cannot be read; they count as missing.
    pub fn of(annotations: &BTreeMap<String, Spanned<String>>) -> Self {
        let text = |name: &str| annotations.get(name).map(|value| value.as_str());
        let ports = |name: &str| text(name).and_then(|text| parse_ports(text).ok());
        let ranges = |name: &str| text(name).and_then(|text| parse_ranges(text).ok());
        Self {
            inbound_ports: ports(INCLUDE_INBOUND_PORTS).unwrap_or_default(),
            except_inbound_ports: ports(EXCLUDE_INBOUND_PORTS).flatten().unwrap_or_default(),
            outbound_ranges: ranges(INCLUDE_OUTBOUND_RANGES).unwrap_or_default(),
            except_outbound_ranges: ranges(EXCLUDE_OUTBOUND_RANGES).flatten().unwrap_or_default(),
            outbound_ports: ports(INCLUDE_OUTBOUND_PORTS).flatten().unwrap_or_default(),
            except_outbound_ports: ports(EXCLUDE_OUTBOUND_PORTS).flatten().unwrap_or_default(),
            except_interfaces: text(EXCLUDE_INTERFACES)
                .and_then(|text| parse_interfaces(text).ok())
                .unwrap_or_default(),
        }
    }

    /// Whether the annotations change anything.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The interfaces of virtual machines inside a Pod, under their newer or their older name (KubeVirt's). The decoder has reported names
/// that cannot be read; they count as missing.
pub fn virtual_interfaces(annotations: &BTreeMap<String, Spanned<String>>) -> Vec<String> {
    let named = VIRTUAL_INTERFACES.iter().find_map(|name| annotations.get(*name));
    named.and_then(|text| parse_interfaces(text).ok()).unwrap_or_default()
}

/// Parses `*` as `None`, otherwise numbers separated by commas; an empty text is none of them.
pub fn parse_ports(text: &str) -> Result<Option<Vec<u16>>, String> {
    if text.trim() == "*" {
        return Ok(None);
    }
    let port = |text: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("`{text}` is not a port")),
    };
    entries(text).map(port).collect::<Result<_, _>>().map(Some)
}

/// Parses `*` as `None`, otherwise ranges of addresses separated by commas.
pub fn parse_ranges(text: &str) -> Result<Option<Vec<IpNet>>, String> {
    if text.trim() == "*" {
        return Ok(None);
    }
    let range = |text: &str| cidr::parse(text).map_err(|_| format!("`{text}` is not a range of addresses"));
    entries(text).map(range).collect::<Result<_, _>>().map(Some)
}

/// Maximum length of a network interface's name, in bytes (`IFNAMSIZ` of Linux without the zero).
const MAX_INTERFACE_NAME: usize = 15;

/// Parses names of interfaces. They become part of rules for nftables and iptables, so no other characters are allowed.
pub fn parse_interfaces(text: &str) -> Result<Vec<String>, String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '@');
    let interface = |name: &str| {
        if name.len() <= MAX_INTERFACE_NAME && name.chars().all(is_part) {
            Ok(name.to_owned())
        } else {
            Err(format!("`{name}` is not the name of a network interface"))
        }
    };
    entries(text).map(interface).collect()
}

fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

/// Checks the value of one of the annotations.
pub(super) fn check(name: &str, text: &str) -> Result<(), String> {
    let is_all = match name {
        EXCLUDE_INTERFACES => return parse_interfaces(text).map(drop),
        INCLUDE_OUTBOUND_RANGES | EXCLUDE_OUTBOUND_RANGES => parse_ranges(text)?.is_none(),
        _ => parse_ports(text)?.is_none(),
    };
    if is_all && !matches!(name, INCLUDE_INBOUND_PORTS | INCLUDE_OUTBOUND_RANGES) {
        Err("`*` is not allowed here".to_owned())
    } else {
        Ok(())
    }
}

/// A range of IPv6 addresses in the value, if the annotation has ranges.
pub(super) fn range_of_ipv6<'t>(name: &str, text: &'t str) -> Option<&'t str> {
    let has_ranges = matches!(name, INCLUDE_OUTBOUND_RANGES | EXCLUDE_OUTBOUND_RANGES);
    entries(text).find(|entry| has_ranges && entry.contains(':'))
}

/// Returns the expected value.
pub(super) fn expected(name: &str) -> &'static str {
    match name {
        INCLUDE_OUTBOUND_RANGES => "expected `*`, or ranges such as \"10.1.0.0/16,10.2.3.4/32\"",
        EXCLUDE_OUTBOUND_RANGES => "expected ranges such as \"10.1.0.0/16,10.2.3.4/32\"",
        INCLUDE_INBOUND_PORTS => "expected `*`, or ports such as \"80,8080\"",
        EXCLUDE_INTERFACES => "expected names such as \"eth1,docker0\", of letters, digits, `_`, `-`, `.` and `@`",
        _ => "expected ports such as \"80,8080\"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ports_and_ranges() {
        let check = |pairs: &[(&str, &str)], expected: CaptureRules| {
            let spanned = |text: &str| Spanned::new(text.to_owned(), evenkeel_base::Span::whole_file("a.yaml"));
            let annotations = pairs.iter().map(|(name, value)| ((*name).to_owned(), spanned(value))).collect();
            assert_eq!(CaptureRules::of(&annotations), expected, "{pairs:?}");
        };
        let all = CaptureRules::default();
        check(&[], all.clone());
        check(&[(INCLUDE_INBOUND_PORTS, "*"), (INCLUDE_OUTBOUND_RANGES, "*")], all.clone());
        check(&[(INCLUDE_INBOUND_PORTS, "")], CaptureRules { inbound_ports: Some(vec![]), ..all.clone() });
        check(
            &[(INCLUDE_INBOUND_PORTS, "80, 8080")],
            CaptureRules { inbound_ports: Some(vec![80, 8080]), ..all.clone() },
        );
        check(&[(EXCLUDE_OUTBOUND_PORTS, "443")], CaptureRules { except_outbound_ports: vec![443], ..all.clone() });
        let net = |text: &str| cidr::parse(text).unwrap();
        check(
            &[(EXCLUDE_OUTBOUND_RANGES, "10.1.0.0/16,10.2.3.4")],
            CaptureRules { except_outbound_ranges: vec![net("10.1.0.0/16"), net("10.2.3.4/32")], ..all.clone() },
        );
        let interfaces = vec!["eth1".to_owned(), "br-0".to_owned()];
        check(&[(EXCLUDE_INTERFACES, "eth1, br-0")], CaptureRules { except_interfaces: interfaces, ..all.clone() });
        check(&[(INCLUDE_OUTBOUND_RANGES, "")], CaptureRules { outbound_ranges: Some(vec![]), ..all });
    }

    #[test]
    fn refuses_what_is_neither() {
        let refuses = |name: &str, text: &str| assert!(super::check(name, text).is_err(), "{name}: {text}");
        refuses(INCLUDE_INBOUND_PORTS, "http");
        refuses(INCLUDE_INBOUND_PORTS, "0");
        refuses(EXCLUDE_INBOUND_PORTS, "*");
        refuses(EXCLUDE_OUTBOUND_RANGES, "10.0.0.0/33");
        refuses(INCLUDE_OUTBOUND_RANGES, "10.0.0");
        refuses(EXCLUDE_INTERFACES, "eth0 } accept");
        refuses(EXCLUDE_INTERFACES, "an-interface-with-a-long-name");
    }
}
