//! The contents of session cookies and headers, and how they are read.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::address::{in_cookie, in_header, of_cookie, of_header};

#[test]
fn addresses_travel_in_envoys_encoding() {
    // Field 1 of Envoy's message `Cookie`, recorded from Envoy 1.40.
    assert_eq!(in_cookie("127.0.0.1:8080").as_deref(), Some("Cg4xMjcuMC4wLjE6ODA4MA=="));
    assert_eq!(in_header("127.0.0.1:8080"), "MTI3LjAuMC4xOjgwODA=");
    for address in ["127.0.0.1:8080", "[2001:db8::1]:443", "/run/app.sock"] {
        assert_eq!(of_cookie(in_cookie(address).unwrap().as_bytes()).as_deref(), Some(address));
        assert_eq!(of_header(in_header(address).as_bytes()).as_deref(), Some(address));
    }
    assert_eq!(in_cookie(&"a".repeat(200)), None);
}

#[test]
fn cookies_are_read_whoever_wrote_them() {
    let check = |bytes: &[u8], expected: Option<&str>| {
        assert_eq!(of_cookie(STANDARD.encode(bytes).as_bytes()).as_deref(), expected, "{bytes:?}");
    };
    check(b"\x0a\x0b10.0.0.1:80\x10\x90\x4e", Some("10.0.0.1:80"));
    check(b"10.0.0.1:80", Some("10.0.0.1:80"));
    check(b"\x0a\x0c10.0.0.1:80", None);
    check(b"\x0a\x0b10.0.0.1:80\x1a\x00", None);
    check(b"\x0a\x00", None);
    check(b"\x0a", Some("\n"));
    check(b"", None);
    check(b"\xff\xfe", None);
    assert_eq!(of_cookie(b"not base64!"), None);
}
