//! `x-forwarded-client-cert`: passes on details of the client's certificate.
//!
//! An element is a list of `Key=value` separated by `;`; a header is a list of elements separated by `,`. Certificates
//! contain text that clients choose, as far as their CA signs it: none of it may end a value, an element or the line.

use std::fmt::Write as _;

use evenkeel_http::{HeaderId, Headers};
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::hcm::{ClientCertDetails, ForwardClientCert};
use evenkeel_runtime_config::view::{ConnectionView, PeerIdentity};

/// Sets the header as `forward_client_cert_details` says.
pub(super) fn set(headers: &mut Headers, hcm: &HttpConnectionManager, connection: &ConnectionView) {
    set_as(headers, hcm.forward_client_cert, hcm.client_cert_details, connection.peer.as_deref());
}

/// `peer`: the client, if it has proved who it is.
fn set_as(headers: &mut Headers, mode: ForwardClientCert, details: ClientCertDetails, peer: Option<&PeerIdentity>) {
    let Some(peer) = peer else {
        if mode != ForwardClientCert::AlwaysForwardOnly {
            headers.remove(HeaderId::ForwardedClientCert);
        }
        return;
    };
    match mode {
        ForwardClientCert::Sanitize => headers.remove(HeaderId::ForwardedClientCert),
        ForwardClientCert::ForwardOnly | ForwardClientCert::AlwaysForwardOnly => {}
        ForwardClientCert::AppendForward => {
            headers.append_to_list(HeaderId::ForwardedClientCert, element(peer, details).as_bytes());
        }
        ForwardClientCert::SanitizeSet => {
            headers.set(HeaderId::ForwardedClientCert, element(peer, details).as_bytes());
        }
    }
}

/// This proxy's element: `By=…;Hash=…;Cert="…";Chain="…";Subject="…";URI=…;DNS=…`.
fn element(peer: &PeerIdentity, details: ClientCertDetails) -> String {
    let mut element = String::with_capacity(256);
    peer.local_uri_sans.iter().for_each(|uri| name(&mut element, "By", uri));
    name(&mut element, "Hash", &peer.sha256);
    // URL-encoded, so they contain no quotes to escape.
    if details.cert
        && let Some(pem) = &peer.cert_pem_urlencoded
    {
        quoted(&mut element, "Cert", pem);
    }
    if details.chain
        && let Some(pem) = &peer.chain_pem_urlencoded
    {
        quoted(&mut element, "Chain", pem);
    }
    if details.subject {
        quoted(&mut element, "Subject", &peer.subject);
    }
    if details.uri {
        peer.uri_sans.iter().for_each(|uri| name(&mut element, "URI", uri));
        // A peer without a URI gets an empty one, as in Envoy.
        if peer.uri_sans.is_empty() {
            name(&mut element, "URI", "");
        }
    }
    if details.dns {
        peer.dns_sans.iter().for_each(|dns| name(&mut element, "DNS", dns));
    }
    element
}

/// A value without quotes, as Envoy writes names; quoted if it could be read as more than one value.
fn name(element: &mut String, key: &str, value: &str) {
    if value.bytes().any(|byte| matches!(byte, b',' | b';' | b'=' | b'"' | b'\\' | b' ')) {
        let escaped: String =
            value.chars().flat_map(|c| ['\\', c].into_iter().skip(usize::from(!matches!(c, '"' | '\\')))).collect();
        quoted(element, key, &escaped);
    } else {
        begin(element, key);
        visible(element, value);
    }
}

/// A quoted value. Quotes and backslashes that are part of `value` must have a backslash before them, as in RFC 2253
/// subjects; a quote without one gets it.
fn quoted(element: &mut String, key: &str, value: &str) {
    begin(element, key);
    element.push('"');
    if !value.bytes().any(|byte| matches!(byte, b'"' | b'\\')) {
        visible(element, value);
        element.push('"');
        return;
    }
    let mut escaped = false;
    for character in value.chars() {
        if character == '"' && !escaped {
            element.push('\\');
        }
        escaped = character == '\\' && !escaped;
        visible(element, character.encode_utf8(&mut [0; 4]));
    }
    if escaped {
        element.push('\\');
    }
    element.push('"');
}

fn begin(element: &mut String, key: &str) {
    if !element.is_empty() {
        element.push(';');
    }
    element.push_str(key);
    element.push('=');
}

/// Text in which everything but visible ASCII and spaces is URL-encoded.
fn visible(element: &mut String, text: &str) {
    let is_visible = |byte: &u8| matches!(byte, b' '..=b'~');
    for part in text.as_bytes().chunk_by(|a, b| is_visible(a) == is_visible(b)) {
        match std::str::from_utf8(part) {
            Ok(part) if part.as_bytes().first().is_some_and(is_visible) => element.push_str(part),
            // Writing to a String cannot fail.
            _ => part.iter().for_each(|byte| _ = write!(element, "%{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_peer() {
        let peer = PeerIdentity {
            uri_sans: vec!["spiffe://a/ns/b/sa/c".into()],
            dns_sans: vec!["d".into()],
            subject: r#"CN=\"x\",O=y"#.into(),
            sha256: "ab".into(),
            local_uri_sans: vec!["spiffe://me".into()],
            cert_pem_urlencoded: Some("PEM".into()),
            chain_pem_urlencoded: Some("PEMS".into()),
        };
        let all = ClientCertDetails { subject: true, cert: true, chain: true, dns: true, uri: true };
        assert_eq!(
            element(&peer, all),
            r#"By=spiffe://me;Hash=ab;Cert="PEM";Chain="PEMS";Subject="CN=\"x\",O=y";URI=spiffe://a/ns/b/sa/c;DNS=d"#
        );
        let uri = ClientCertDetails { uri: true, ..ClientCertDetails::default() };
        assert_eq!(element(&peer, uri), "By=spiffe://me;Hash=ab;URI=spiffe://a/ns/b/sa/c");
    }

    /// What is left of a header that the client has sent, from a client with a certificate and from one without.
    #[test]
    fn each_mode_trusts_whom_it_may() {
        use ForwardClientCert::{AlwaysForwardOnly, AppendForward, ForwardOnly, Sanitize, SanitizeSet};
        let peer = PeerIdentity { uri_sans: vec!["spiffe://a".into()], sha256: "ab".into(), ..PeerIdentity::default() };
        let details = ClientCertDetails { uri: true, ..ClientCertDetails::default() };
        let check = |mode, sent: Option<&str>, with_peer: Option<&str>, without: Option<&str>| {
            for (peer, expected) in [(Some(&peer), with_peer), (None, without)] {
                let mut headers = Headers::default();
                if let Some(sent) = sent {
                    headers.append(b"x-forwarded-client-cert", sent.as_bytes());
                }
                set_as(&mut headers, mode, details, peer);
                let got = headers.get(HeaderId::ForwardedClientCert).map(String::from_utf8_lossy);
                assert_eq!(got.as_deref(), expected, "{mode:?}, {sent:?}, {peer:?}");
            }
        };
        let (lie, own) = (Some("URI=spiffe://root"), Some("Hash=ab;URI=spiffe://a"));
        check(Sanitize, lie, None, None);
        check(Sanitize, None, None, None);
        check(ForwardOnly, lie, lie, None);
        check(ForwardOnly, None, None, None);
        check(AppendForward, lie, Some("URI=spiffe://root,Hash=ab;URI=spiffe://a"), None);
        check(AppendForward, None, own, None);
        check(SanitizeSet, lie, own, None);
        check(SanitizeSet, None, own, None);
        check(AlwaysForwardOnly, lie, lie, lie);
        check(AlwaysForwardOnly, None, None, None);
    }

    #[test]
    fn no_name_is_more_than_a_value() {
        let check = |text: &str, as_subject: &str, as_name: &str| {
            let peer = PeerIdentity {
                uri_sans: vec![text.into()],
                dns_sans: vec![text.into()],
                subject: text.into(),
                sha256: "ab".into(),
                ..PeerIdentity::default()
            };
            let all = ClientCertDetails { subject: true, dns: true, uri: true, ..ClientCertDetails::default() };
            let expected = format!("Hash=ab;Subject={as_subject};URI={as_name};DNS={as_name}");
            assert_eq!(element(&peer, all), expected, "{text:?}");
        };
        check("a;URI=spiffe://x", r#""a;URI=spiffe://x""#, r#""a;URI=spiffe://x""#);
        check("a,By=b", r#""a,By=b""#, r#""a,By=b""#);
        check("a\r\nevil: 1", r#""a%0D%0Aevil: 1""#, r#""a%0D%0Aevil: 1""#);
        check("a\0\u{fc}\u{7f}", r#""a%00%C3%BC%7F""#, "a%00%C3%BC%7F");
        // In a subject the backslash is already an escape.
        check(r#"a";b"#, r#""a\";b""#, r#""a\";b""#);
        check(r#"a\"b"#, r#""a\"b""#, r#""a\\\"b""#);
        check(r#"a\\"b"#, r#""a\\\"b""#, r#""a\\\\\"b""#);
        check(r"a\", r#""a\\""#, r#""a\\""#);
    }
}
