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

/// The annotations that are read here.
pub const TRAFFIC_ANNOTATIONS: [&str; 6] = [
    INCLUDE_INBOUND_PORTS,
    EXCLUDE_INBOUND_PORTS,
    INCLUDE_OUTBOUND_PORTS,
    EXCLUDE_OUTBOUND_PORTS,
    INCLUDE_OUTBOUND_RANGES,
    EXCLUDE_OUTBOUND_RANGES,
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
}

impl Default for CaptureRules {
    /// Everything.
    fn default() -> Self {
        Self {
            inbound_ports: None,
            except_inbound_ports: Vec::new(),
            outbound_ranges: None,
            except_outbound_ranges: Vec::new(),
            outbound_ports: Vec::new(),
            except_outbound_ports: Vec::new(),
        }
    }
}

impl CaptureRules {
    /// Reads the annotations of a Pod. The decoder has reported values that cannot be read; they count as missing.
    pub fn of(annotations: &BTreeMap<String, Spanned<String>>) -> Self {
        let text = |name: &str| annotations.get(name).map(|value| value.as_str());
        let ports = |name: &str| text(name).and_then(|text| ports(text).ok());
        let ranges = |name: &str| text(name).and_then(|text| ranges(text).ok());
        Self {
            inbound_ports: ports(INCLUDE_INBOUND_PORTS).unwrap_or_default(),
            except_inbound_ports: ports(EXCLUDE_INBOUND_PORTS).flatten().unwrap_or_default(),
            outbound_ranges: ranges(INCLUDE_OUTBOUND_RANGES).unwrap_or_default(),
            except_outbound_ranges: ranges(EXCLUDE_OUTBOUND_RANGES).flatten().unwrap_or_default(),
            outbound_ports: ports(INCLUDE_OUTBOUND_PORTS).flatten().unwrap_or_default(),
            except_outbound_ports: ports(EXCLUDE_OUTBOUND_PORTS).flatten().unwrap_or_default(),
        }
    }

    /// Whether the annotations change anything.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// `*` as `None`, otherwise numbers separated by commas; an empty text is none of them.
fn ports(text: &str) -> Result<Option<Vec<u16>>, String> {
    if text.trim() == "*" {
        return Ok(None);
    }
    let port = |text: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("`{text}` is not a port")),
    };
    entries(text).map(port).collect::<Result<_, _>>().map(Some)
}

fn ranges(text: &str) -> Result<Option<Vec<IpNet>>, String> {
    if text.trim() == "*" {
        return Ok(None);
    }
    let range = |text: &str| cidr::parse(text).map_err(|_| format!("`{text}` is not a range of addresses"));
    entries(text).map(range).collect::<Result<_, _>>().map(Some)
}

fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

/// Checks the value of one of the annotations.
pub(super) fn check(name: &str, text: &str) -> Result<(), String> {
    let is_all = match name {
        INCLUDE_OUTBOUND_RANGES | EXCLUDE_OUTBOUND_RANGES => ranges(text)?.is_none(),
        _ => ports(text)?.is_none(),
    };
    match is_all && !matches!(name, INCLUDE_INBOUND_PORTS | INCLUDE_OUTBOUND_RANGES) {
        true => Err("`*` is not allowed here".to_owned()),
        false => Ok(()),
    }
}

/// What is expected there.
pub(super) fn expected(name: &str) -> &'static str {
    match name {
        INCLUDE_OUTBOUND_RANGES => "expected `*`, or ranges such as \"10.1.0.0/16,10.2.3.4/32\"",
        EXCLUDE_OUTBOUND_RANGES => "expected ranges such as \"10.1.0.0/16,10.2.3.4/32\"",
        INCLUDE_INBOUND_PORTS => "expected `*`, or ports such as \"80,8080\"",
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
    }
}
