//! The PROXY protocol, versions 1 and 2 (HAProxy's specification of 2020/03/05), by which a load balancer passes on the
//! addresses of the original connection. Pure functions over bytes.
//!
//! Parsing is strict: a connection whose header deviates from the specification is refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use evenkeel_runtime_config::proxy_protocol::ProxyProtocolVersion as Version;
use evenkeel_runtime_config::proxy_protocol::Tlv;

/// Maximum size of a version 1 header in bytes, CRLF included (section 2.1).
const MAX_V1_BYTES: usize = 107;
const V1_PREFIX: &[u8] = b"PROXY ";
/// Begins a version 2 header (section 2.2).
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Length of signature, version and command, family, and length field.
const V2_FIXED_BYTES: usize = 16;
/// Maximum size of the part after [`V2_FIXED_BYTES`], in bytes: addresses and TLVs. The length field allows 65,535.
const MAX_V2_BYTES: usize = 16 * 1024;
/// `PP2_TYPE_NOOP`: padding.
const TLV_NOOP: u8 = 0x04;
/// `PP2_TYPE_CRC32C`.
const TLV_CRC32C: u8 = 0x03;

/// A header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The header's version.
    pub version: Version,
    /// Source and destination of the original connection; `None` for `LOCAL`, `UNKNOWN` and families other than IP,
    /// where the socket's own addresses apply.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// Type-length-value vectors of version 2, in order, without padding.
    pub tlvs: Vec<Tlv>,
}

/// Result of parsing a connection's first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// A header, and its length in bytes.
    Header(Header, usize),
    /// The bytes may be the beginning of a header.
    Incomplete,
    /// No header.
    Absent,
}

/// Why a header is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed PROXY protocol version {} header: {reason}", .version.number())]
pub struct ParseError {
    /// The version that the header claims.
    pub version: Version,
    /// The error.
    pub reason: &'static str,
}

/// Parses the header at the beginning of a connection.
pub fn parse(bytes: &[u8]) -> Result<Parsed, ParseError> {
    let begins = |with: &[u8]| bytes.iter().zip(with).all(|(byte, wanted)| byte == wanted);
    if begins(V2_SIGNATURE) {
        return v2(bytes).map_err(|reason| ParseError { version: Version::V2, reason });
    }
    if begins(V1_PREFIX) {
        return v1(bytes).map_err(|reason| ParseError { version: Version::V1, reason });
    }
    Ok(Parsed::Absent)
}

/// Writes the header of a connection from `source` to `destination`.
///
/// Addresses of different families are converted to IPv6, since a header has one family. Version 1 cannot carry `tlvs`;
/// version 2 carries as many as its length field allows.
pub fn encode(version: Version, source: SocketAddr, destination: SocketAddr, tlvs: &[Tlv]) -> Vec<u8> {
    let (source, destination) = one_family(source, destination);
    match version {
        Version::V1 => {
            let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
            let (from, to) = (source.ip(), destination.ip());
            format!("PROXY {family} {from} {to} {} {}\r\n", source.port(), destination.port()).into_bytes()
        }
        Version::V2 => encode_v2(source, destination, tlvs),
    }
}

fn v1(bytes: &[u8]) -> Result<Parsed, &'static str> {
    let window = bytes.get(..MAX_V1_BYTES).unwrap_or(bytes);
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        let stray = window.iter().position(|byte| *byte == b'\n').is_some()
            || window.iter().rev().skip(1).any(|byte| *byte == b'\r');
        return match (stray, bytes.len() < MAX_V1_BYTES) {
            (true, _) => Err("a lone CR or LF"),
            (false, true) => Ok(Parsed::Incomplete),
            (false, false) => Err("no CRLF within 107 bytes"),
        };
    };
    let line = std::str::from_utf8(window.get(..end).unwrap_or_default()).map_err(|_| "not ASCII")?;
    let mut words = line.split(' ').skip(1);
    let addresses = match words.next() {
        // Whatever follows is to be ignored (section 2.1).
        Some("UNKNOWN") => None,
        Some("TCP4") => Some(v1_addresses(words, |text| text.parse::<Ipv4Addr>().ok().map(IpAddr::V4))?),
        Some("TCP6") => Some(v1_addresses(words, |text| text.parse::<Ipv6Addr>().ok().map(IpAddr::V6))?),
        _ => return Err("the family is none of TCP4, TCP6, UNKNOWN"),
    };
    let header = Header { version: Version::V1, addresses, tlvs: Vec::new() };
    Ok(Parsed::Header(header, end + 2))
}

fn v1_addresses<'l>(
    mut words: impl Iterator<Item = &'l str>,
    address: impl Fn(&str) -> Option<IpAddr>,
) -> Result<(SocketAddr, SocketAddr), &'static str> {
    let mut next = || words.next().ok_or("too few words");
    let (from, to, from_port, to_port) = (next()?, next()?, next()?, next()?);
    if words.next().is_some() {
        return Err("too many words");
    }
    let from = address(from).ok_or("the source is no address of its family")?;
    let to = address(to).ok_or("the destination is no address of its family")?;
    Ok((SocketAddr::new(from, v1_port(from_port)?), SocketAddr::new(to, v1_port(to_port)?)))
}

/// A decimal number without sign or leading zeros.
fn v1_port(text: &str) -> Result<u16, &'static str> {
    let canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| canonical).ok_or("a port is no number from 0 to 65535")
}

fn v2(bytes: &[u8]) -> Result<Parsed, &'static str> {
    let Some((fixed, rest)) = bytes.split_first_chunk::<V2_FIXED_BYTES>() else {
        return Ok(Parsed::Incomplete);
    };
    let [.., command, family, high, low] = *fixed;
    let local = match command {
        0x20 => true,
        0x21 => false,
        _ if command >> 4 != 2 => return Err("the version is not 2"),
        _ => return Err("the command is neither LOCAL nor PROXY"),
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > MAX_V2_BYTES {
        return Err("longer than 16 KiB");
    }
    let Some(body) = rest.get(..length) else { return Ok(Parsed::Incomplete) };
    // For LOCAL the family may be anything and is ignored (section 2.2).
    let (addresses, vectors) = match family {
        _ if local => (None, local_vectors(family, body)),
        0x11 => v4_addresses(body)?,
        0x21 => v6_addresses(body)?,
        0x00 => (None, body),
        // Datagrams and Unix sockets are well formed, but of no use to a TCP listener.
        0x12 => (None, body.get(12..).ok_or("too short for its family")?),
        0x22 => (None, body.get(36..).ok_or("too short for its family")?),
        0x31 | 0x32 => (None, body.get(216..).ok_or("too short for its family")?),
        _ => return Err("unknown address family or transport"),
    };
    let total = V2_FIXED_BYTES + length;
    let tlvs = tlvs(vectors, bytes.get(..total).unwrap_or_default())?;
    Ok(Parsed::Header(Header { version: Version::V2, addresses, tlvs }, total))
}

/// The bytes after the addresses that a LOCAL header may carry.
fn local_vectors(family: u8, body: &[u8]) -> &[u8] {
    let addresses = match family {
        0x11 | 0x12 => 12,
        0x21 | 0x22 => 36,
        0x31 | 0x32 => 216,
        _ => 0,
    };
    body.get(addresses..).unwrap_or_default()
}

type Split<'b> = (Option<(SocketAddr, SocketAddr)>, &'b [u8]);

fn v4_addresses(body: &[u8]) -> Result<Split<'_>, &'static str> {
    let (part, rest) = body.split_first_chunk::<12>().ok_or("too short for its family")?;
    let [a, b, c, d, e, f, g, h, from_high, from_low, to_high, to_low] = *part;
    let from = SocketAddr::from(([a, b, c, d], u16::from_be_bytes([from_high, from_low])));
    let to = SocketAddr::from(([e, f, g, h], u16::from_be_bytes([to_high, to_low])));
    Ok((Some((from, to)), rest))
}

fn v6_addresses(body: &[u8]) -> Result<Split<'_>, &'static str> {
    let short = "too short for its family";
    let (from, rest) = body.split_first_chunk::<16>().ok_or(short)?;
    let (to, rest) = rest.split_first_chunk::<16>().ok_or(short)?;
    let (&[from_high, from_low, to_high, to_low], rest) = rest.split_first_chunk::<4>().ok_or(short)?;
    let from = SocketAddr::from((*from, u16::from_be_bytes([from_high, from_low])));
    let to = SocketAddr::from((*to, u16::from_be_bytes([to_high, to_low])));
    Ok((Some((from, to)), rest))
}

fn tlvs(mut bytes: &[u8], header: &[u8]) -> Result<Vec<Tlv>, &'static str> {
    let mut tlvs = Vec::new();
    while let Some((&[kind, high, low], rest)) = bytes.split_first_chunk::<3>() {
        let length = usize::from(u16::from_be_bytes([high, low]));
        let value = rest.get(..length).ok_or("a TLV is longer than the header")?;
        if kind == TLV_CRC32C {
            check_crc(value, header)?;
        }
        if kind != TLV_NOOP {
            tlvs.push(Tlv { kind, value: value.to_vec() });
        }
        bytes = rest.get(length..).unwrap_or_default();
    }
    if bytes.is_empty() { Ok(tlvs) } else { Err("a TLV is cut off") }
}

/// Section 2.2.3: the checksum covers the whole header, with its own four bytes taken as zeros.
fn check_crc(value: &[u8], header: &[u8]) -> Result<(), &'static str> {
    let expected = u32::from_be_bytes(value.try_into().map_err(|_| "a CRC32C of other than 4 bytes")?);
    let at = value.as_ptr().addr() - header.as_ptr().addr();
    let masked = header.iter().enumerate().map(|(index, byte)| if (at..at + 4).contains(&index) { 0 } else { *byte });
    if crc32c(masked) == expected { Ok(()) } else { Err("the CRC32C does not fit") }
}

/// CRC-32C (RFC 3720 appendix B.4), computed bit by bit: headers are short and few.
fn crc32c(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

fn one_family(a: SocketAddr, b: SocketAddr) -> (SocketAddr, SocketAddr) {
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let (a, b) = (canonical(a), canonical(b));
    if a.is_ipv4() == b.is_ipv4() { (a, b) } else { (mapped(a), mapped(b)) }
}

fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

fn encode_v2(source: SocketAddr, destination: SocketAddr, tlvs: &[Tlv]) -> Vec<u8> {
    let mut body = Vec::with_capacity(64);
    for ip in [source.ip(), destination.ip()] {
        match ip {
            IpAddr::V4(ip) => body.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => body.extend_from_slice(&ip.octets()),
        }
    }
    body.extend_from_slice(&source.port().to_be_bytes());
    body.extend_from_slice(&destination.port().to_be_bytes());
    for tlv in tlvs {
        let Ok(length) = u16::try_from(tlv.value.len()) else { continue };
        if body.len() + 3 + tlv.value.len() <= usize::from(u16::MAX) {
            body.push(tlv.kind);
            body.extend_from_slice(&length.to_be_bytes());
            body.extend_from_slice(&tlv.value);
        }
    }
    let mut header = V2_SIGNATURE.to_vec();
    header.extend_from_slice(&[0x21, if source.is_ipv4() { 0x11 } else { 0x21 }]);
    // Never over 65,535: TLVs that would not fit were left out.
    header.extend_from_slice(&u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes());
    header.extend_from_slice(&body);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(from: &str, to: &str) -> Option<(SocketAddr, SocketAddr)> {
        Some((from.parse().expect("an address"), to.parse().expect("an address")))
    }

    fn v2_header(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).expect("short");
        [V2_SIGNATURE, &[command, family][..], &length.to_be_bytes()[..], body].concat()
    }

    const V4_BODY: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 2, 0xc0, 0x00, 0x01, 0xbb];

    #[test]
    fn version_1() {
        let check = |text: &str, expected: Option<(SocketAddr, SocketAddr)>| {
            let bytes = [text.as_bytes(), b"rest"].concat();
            let header = Header { version: Version::V1, addresses: expected, tlvs: Vec::new() };
            assert_eq!(parse(&bytes), Ok(Parsed::Header(header, text.len())), "{text:?}");
            for length in 0..text.len() {
                assert_eq!(parse(&bytes[..length]), Ok(Parsed::Incomplete), "{text:?}, {length} bytes");
            }
        };
        check("PROXY TCP4 192.0.2.1 198.51.100.2 49152 443\r\n", addresses("192.0.2.1:49152", "198.51.100.2:443"));
        check("PROXY TCP6 2001:db8::1 ::1 1 65535\r\n", addresses("[2001:db8::1]:1", "[::1]:65535"));
        check("PROXY UNKNOWN\r\n", None);
        check("PROXY UNKNOWN ffff:f...f:ffff 1 2 3\r\n", None);
    }

    #[test]
    fn malformed_version_1() {
        let check = |text: &str| {
            let result = parse(text.as_bytes());
            assert!(matches!(result, Err(ParseError { version: Version::V1, .. })), "{text:?}: {result:?}");
        };
        check("PROXY TCP4 192.0.2.1 198.51.100.2 49152 443\n");
        check("PROXY TCP4 192.0.2.1 198.51.100.2 49152\r\n");
        check("PROXY TCP4 192.0.2.1 198.51.100.2 49152 443 1\r\n");
        check("PROXY TCP4 192.0.2.1  198.51.100.2 49152 443\r\n");
        check("PROXY TCP4 192.0.2.1 198.51.100.2 49152 65536\r\n");
        check("PROXY TCP4 192.0.2.1 198.51.100.2 +1 443\r\n");
        check("PROXY TCP4 192.0.2.1 198.51.100.2 01 443\r\n");
        check("PROXY TCP4 192.0.2.01 198.51.100.2 1 443\r\n");
        check("PROXY TCP4 ::1 ::1 1 443\r\n");
        check("PROXY TCP6 192.0.2.1 192.0.2.1 1 443\r\n");
        check("PROXY TCP5 192.0.2.1 192.0.2.1 1 443\r\n");
        check("PROXY  TCP4 192.0.2.1 192.0.2.1 1 443\r\n");
        check("PROXY TCP4\r192.0.2.1");
        check(&format!("PROXY UNKNOWN {}", "x".repeat(100)));
    }

    #[test]
    fn version_2() {
        let check = |bytes: Vec<u8>, expected: Option<(SocketAddr, SocketAddr)>, tlvs: Vec<Tlv>| {
            let header = Header { version: Version::V2, addresses: expected, tlvs };
            let length = bytes.len();
            assert_eq!(parse(&[&bytes[..], b"rest"].concat()), Ok(Parsed::Header(header, length)), "{bytes:?}");
            for length in 0..length {
                assert_eq!(parse(&bytes[..length]), Ok(Parsed::Incomplete), "{bytes:?}, {length} bytes");
            }
        };
        let v4 = addresses("192.0.2.1:49152", "198.51.100.2:443");
        check(v2_header(0x21, 0x11, &V4_BODY), v4, Vec::new());
        let vectors = [&V4_BODY[..], &[0x04, 0, 2, 9, 9], &[0xea, 0, 3, b'v', b'p', b'c'], &[0x02, 0, 0]].concat();
        let expected = vec![Tlv { kind: 0xea, value: b"vpc".to_vec() }, Tlv { kind: 2, value: Vec::new() }];
        check(v2_header(0x21, 0x11, &vectors), v4, expected);
        let v6 = [[0x20; 16], [0x21; 16]].concat();
        let v6 = [&v6[..], &[0, 1, 0, 2]].concat();
        check(
            v2_header(0x21, 0x21, &v6),
            addresses("[2020:2020:2020:2020:2020:2020:2020:2020]:1", "[2121:2121:2121:2121:2121:2121:2121:2121]:2"),
            Vec::new(),
        );
        check(v2_header(0x20, 0x00, &[]), None, Vec::new());
        check(v2_header(0x20, 0x11, &V4_BODY), None, Vec::new());
        check(v2_header(0x21, 0x31, &[b'a'; 216]), None, Vec::new());
    }

    #[test]
    fn malformed_version_2() {
        let check = |bytes: Vec<u8>| {
            let result = parse(&bytes);
            assert!(matches!(result, Err(ParseError { version: Version::V2, .. })), "{bytes:?}: {result:?}");
        };
        check(v2_header(0x11, 0x11, &V4_BODY));
        check(v2_header(0x22, 0x11, &V4_BODY));
        check(v2_header(0x21, 0x13, &V4_BODY));
        check(v2_header(0x21, 0x41, &V4_BODY));
        check(v2_header(0x21, 0x11, &V4_BODY[..11]));
        check(v2_header(0x21, 0x21, &V4_BODY));
        check(v2_header(0x21, 0x11, &[&V4_BODY[..], &[1]].concat()));
        check(v2_header(0x21, 0x11, &[&V4_BODY[..], &[1, 0, 2, 0]].concat()));
        check(v2_header(0x21, 0x11, &[&V4_BODY[..], &[TLV_CRC32C, 0, 4, 1, 2, 3, 4]].concat()));
        let mut long = v2_header(0x21, 0x11, &V4_BODY);
        long[14] = 0xff;
        check(long);
    }

    #[test]
    fn the_checksum_is_checked() {
        // RFC 3720 appendix B.4.
        assert_eq!(crc32c([0; 32].into_iter()), 0x8a91_36aa);
        assert_eq!(crc32c(0..32), 0x46dd_794e);
        let mut bytes = v2_header(0x21, 0x11, &[&V4_BODY[..], &[TLV_CRC32C, 0, 4, 0, 0, 0, 0]].concat());
        let sum = crc32c(bytes.iter().copied());
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&sum.to_be_bytes());
        assert!(matches!(parse(&bytes), Ok(Parsed::Header(_, length)) if length == bytes.len()));
        bytes[16] ^= 1;
        assert!(parse(&bytes).is_err());
    }

    #[test]
    fn other_protocols_have_no_header() {
        let check = |bytes: &[u8]| assert_eq!(parse(bytes), Ok(Parsed::Absent), "{bytes:?}");
        check(b"GET / HTTP/1.1\r\n");
        check(b"PROPFIND / HTTP/1.1\r\n");
        check(b"\r\n\r\n\0\r\nQUIT\r");
        check(b"\x16\x03\x01");
    }

    #[test]
    fn what_is_written_reads_back() {
        let tlvs = vec![Tlv { kind: 0xe0, value: vec![7; 300] }];
        let check = |version: Version, from: &str, to: &str, expected: Option<(SocketAddr, SocketAddr)>| {
            let (from, to) = (from.parse().expect("an address"), to.parse().expect("an address"));
            let bytes = encode(version, from, to, &tlvs);
            let tlvs = if version == Version::V1 { Vec::new() } else { tlvs.clone() };
            let header = Header { version, addresses: expected, tlvs };
            assert_eq!(parse(&bytes), Ok(Parsed::Header(header, bytes.len())));
        };
        for version in [Version::V1, Version::V2] {
            let check = |from: &str, to: &str| check(version, from, to, addresses(from, to));
            check("192.0.2.1:49152", "198.51.100.2:443");
            check("[2001:db8::1]:1", "[2001:db8::2]:2");
            mixed(version);
        }
    }

    fn mixed(version: Version) {
        let bytes = encode(
            version,
            "192.0.2.1:1".parse().expect("an address"),
            "[2001:db8::2]:2".parse().expect("an address"),
            &[],
        );
        let Ok(Parsed::Header(header, _)) = parse(&bytes) else { panic!("{bytes:?}") };
        assert_eq!(header.addresses, addresses("[::ffff:192.0.2.1]:1", "[2001:db8::2]:2"));
    }
}
