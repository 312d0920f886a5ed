//! Translates the WebSocket handshake between HTTP versions: in HTTP/1.1 the response to a key proves that the server speaks WebSocket (RFC
//! 6455 section 4.2.2), HTTP/2 has no use for one (RFC 8441 section 5).

use evenkeel_http::Headers;
use evenkeel_upstream::random::Random;

const KEY: &[u8] = b"sec-websocket-key";
const ACCEPT: &[u8] = b"sec-websocket-accept";
/// RFC 6455 section 1.3.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Adds a key to a request that came without one, for an upstream that expects it.
pub(super) fn add_key(request: &mut Headers, random: &Random) {
    if request.find(KEY).is_none() {
        let nonce = [random.next().to_be_bytes(), random.next().to_be_bytes()].concat();
        request.append(KEY, base64(&nonce).as_bytes());
    }
}

/// Adds the response to the request's key if the upstream sent none, because it was asked over HTTP/2.
pub(super) fn accept(request: &Headers, response: &mut Headers) {
    if let Some(key) = request.find(KEY)
        && response.find(ACCEPT).is_none()
    {
        let accept = base64(&sha1(&[key, GUID].concat()));
        response.append(ACCEPT, accept.as_bytes());
    }
}

/// RFC 4648 section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for at in 0..4 {
            let index = (bits >> (18 - 6 * at)) as usize & 63;
            text.push(if at > group.len() { '=' } else { char::from(ALPHABET[index]) });
        }
    }
    text
}

/// FIPS 180-4 section 6.1. Here it only tells a WebSocket server from others: no security depends on it.
fn sha1(message: &[u8]) -> [u8; 20] {
    let mut padded = message.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64), 0);
    if padded.len() < message.len() + 9 {
        padded.resize(padded.len() + 64, 0);
    }
    let at = padded.len() - 8;
    padded[at..].copy_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    let mut state = [0x6745_2301u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    for block in padded.chunks_exact(64) {
        let mut words = [0u32; 80];
        for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
            *word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        }
        for at in 16..80 {
            words[at] = (words[at - 3] ^ words[at - 8] ^ words[at - 14] ^ words[at - 16]).rotate_left(1);
        }
        let [mut a, mut b, mut c, mut d, mut e] = state;
        for (at, word) in words.iter().enumerate() {
            let (mixed, constant) = match at / 20 {
                0 => (b & c | !b & d, 0x5a82_7999),
                1 => (b ^ c ^ d, 0x6ed9_eba1),
                2 => (b & c | b & d | c & d, 0x8f1b_bcdc),
                _ => (b ^ c ^ d, 0xca62_c1d6u32),
            };
            let next = a.rotate_left(5).wrapping_add(mixed).wrapping_add(e).wrapping_add(constant).wrapping_add(*word);
            (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
        }
        for (sum, part) in state.iter_mut().zip([a, b, c, d, e]) {
            *sum = sum.wrapping_add(part);
        }
    }
    let mut digest = [0; 20];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_accepted_as_rfc_6455_has_it() {
        let (mut request, mut response) = (Headers::default(), Headers::default());
        accept(&request, &mut response);
        assert_eq!(response.find(ACCEPT), None, "nobody asked");
        request.append(KEY, b"dGhlIHNhbXBsZSBub25jZQ==");
        accept(&request, &mut response);
        assert_eq!(response.find(ACCEPT), Some(&b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="[..]));
        let mut answered = Headers::default();
        answered.append(ACCEPT, b"theirs");
        accept(&request, &mut answered);
        assert_eq!(answered.iter().count(), 1);
    }

    #[test]
    fn a_request_has_one_key() {
        let (mut headers, random) = (Headers::default(), Random::seeded(1));
        add_key(&mut headers, &random);
        let key = headers.find(KEY).map(<[u8]>::to_vec);
        assert!(key.as_ref().is_some_and(|key| key.len() == 24 && key.ends_with(b"==")), "{key:?}");
        add_key(&mut headers, &random);
        assert_eq!((headers.find(KEY).map(<[u8]>::to_vec), headers.iter().count()), (key, 1));
    }

    #[test]
    fn digests_of_every_length() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let check = |message: &[u8], expected: &str| assert_eq!(hex(&sha1(message)), expected);
        check(b"", "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        check(b"abc", "a9993e364706816aba3e25717850c26c9cd0d89d");
        check(b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
        assert_eq!(
            ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes())),
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]
        );
    }
}
