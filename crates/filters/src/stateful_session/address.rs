//! A host's address as encoded in cookies and headers. This is Envoy's encoding, so that sessions survive an exchange of the proxy.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Field 1 of Envoy's message `Cookie`, the address, length-delimited.
const ADDRESS: u8 = 0x0a;
/// Field 2, a varint: the expiry time, in seconds of uptime of the machine that wrote it.
const EXPIRES: u8 = 0x10;

/// A header's value.
pub(super) fn in_header(address: &str) -> String {
    STANDARD.encode(address)
}

/// A cookie's value. The expiry time is omitted: the browser knows it, and no other machine could interpret it.
pub(super) fn in_cookie(address: &str) -> Option<String> {
    let length = u8::try_from(address.len()).ok().filter(|length| *length < 0x80)?;
    Some(STANDARD.encode([&[ADDRESS, length], address.as_bytes()].concat()))
}

/// Decodes what [`in_header`] encoded.
pub(super) fn of_header(value: &[u8]) -> Option<String> {
    let address = String::from_utf8(STANDARD.decode(value).ok()?).ok()?;
    (!address.is_empty()).then_some(address)
}

/// Decodes what [`in_cookie`] or Envoy encoded; older cookies hold the bare address.
pub(super) fn of_cookie(value: &[u8]) -> Option<String> {
    let bytes = STANDARD.decode(value).ok()?;
    let address = match bytes.as_slice() {
        [ADDRESS, length, rest @ ..] if *length < 0x80 => {
            let (address, rest) = rest.split_at_checked((*length).into())?;
            matches!(rest.first(), None | Some(&EXPIRES)).then(|| address.to_vec())?
        }
        _ => bytes,
    };
    let address = String::from_utf8(address).ok()?;
    (!address.is_empty()).then_some(address)
}
