//! base64url (RFC 4648 section 5), as strict as RFC 7515 asks, except that correct padding is accepted, which some
//! issuers write: no other alphabet, no white space, no bits beyond the last byte. So no two texts mean the same bytes
//! except by their padding.

use base64::Engine;
use base64::prelude::{BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD};

/// The decoded bytes; `None` if the text is not base64url.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let engine = if text.ends_with('=') { BASE64_URL_SAFE } else { BASE64_URL_SAFE_NO_PAD };
    engine.decode(text).ok()
}
