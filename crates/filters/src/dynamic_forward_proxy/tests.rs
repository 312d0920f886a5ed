//! Parsing of authorities. Lookups are tested with a proxy (`proxy/tests/it/dynamic_forward_proxy.rs`).

use super::names::{Called, read_authority};

#[test]
fn authorities_are_read_or_refused() {
    let check = |authority: &str, expected: Option<(&str, u16)>| {
        let called = expected.map(|(name, port)| Called { name: name.into(), port });
        assert_eq!(read_authority(authority.as_bytes(), 80), called, "{authority:.80}");
    };
    check("a.example.com", Some(("a.example.com", 80)));
    check("A.Example.COM:8080", Some(("a.example.com", 8080)));
    check("a.example.com.", Some(("a.example.com.", 80)));
    check("_sip._tcp.example.com", Some(("_sip._tcp.example.com", 80)));
    check("localhost", Some(("localhost", 80)));
    check("10.0.0.1:65535", Some(("10.0.0.1", 65535)));
    check("[2001:DB8::1]", Some(("2001:db8::1", 80)));
    check("[2001:db8::1]:443", Some(("2001:db8::1", 443)));
    let longest = format!("{}.{}.{}.{}", "a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61));
    check(&longest, Some((&longest, 80)));
    let long_label = format!("{}.com", "a".repeat(64));
    let long = format!("{longest}e");
    let refused = [
        "",
        ".",
        "..",
        "a..b",
        ".a",
        ":80",
        "a:",
        "a:0",
        "a:99999",
        "a:80x",
        "a:-1",
        "a:+1",
        "a b",
        "a/b",
        "a@b",
        "a%41",
        "2001:db8::1",
        "[2001:db8::1",
        "[2001:db8::1]x",
        "[2001:db8::1]80",
        "[a]:80",
        "[]",
        "\u{e4}.example.com",
        "a\0b",
        &long_label,
        &long,
    ];
    refused.iter().for_each(|authority| check(authority, None));
}
