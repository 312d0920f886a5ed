//! The text form of certificates in headers and logs.

use pem::{EncodeConfig, LineEnding, Pem};

/// A certificate as PEM, escaping the characters that Envoy escapes in `Cert=`.
pub fn pem_urlencoded(der: &[u8]) -> String {
    let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
    let text = pem::encode_config(&Pem::new("CERTIFICATE", der), lines);
    let mut escaped = String::with_capacity(text.len() + text.len() / 8);
    for character in text.chars() {
        match character {
            '\n' => escaped.push_str("%0A"),
            ' ' => escaped.push_str("%20"),
            '+' => escaped.push_str("%2B"),
            '/' => escaped.push_str("%2F"),
            '=' => escaped.push_str("%3D"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_escaped_pem() {
        // Bytes whose base64 has every character that is escaped: `++//` and padding, and a second line.
        let mut der = vec![0xfb, 0xef, 0xff];
        der.resize(49, 0);
        assert_eq!(
            pem_urlencoded(&der),
            format!(
                "-----BEGIN%20CERTIFICATE-----%0A%2B%2B%2F%2F{}%0AAA%3D%3D%0A-----END%20CERTIFICATE-----%0A",
                "A".repeat(60)
            )
        );
    }
}
