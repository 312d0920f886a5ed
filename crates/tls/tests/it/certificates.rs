use std::time::{Duration, SystemTime};

use evenkeel_tls::{Identity, PeerCertificate, SanKind, SanMatcher, StringPattern, TrustBundle};
use rcgen::{DnType, SanType};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::support::{INFO, TestCa, WEB};

#[test]
fn what_does_not_make_an_identity_is_named() {
    let ca = TestCa::new("root");
    let (web, other, expired) = (ca.workload(WEB), ca.workload(INFO), ca.expired(WEB));
    let check = |chain: &str, key: &str, expected: &str| {
        let error = Identity::from_pem(chain.as_bytes(), key.as_bytes(), SystemTime::now()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "expected {expected}\nfound    {error}");
    };
    check("", &web.key, "certificate_chain holds no `BEGIN CERTIFICATE` section");
    check(&web.key, &web.key, "certificate_chain holds no `BEGIN CERTIFICATE` section");
    check(&web.chain[..200], &web.key, "certificate 1 of certificate_chain cannot be parsed: ");
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    check(garbage, &web.key, "certificate 1 of certificate_chain cannot be parsed: ");
    check(&web.chain.repeat(11), &web.key, "certificate_chain holds more than 10 certificates");
    check(&web.chain, "", "private_key holds no `BEGIN PRIVATE KEY` section");
    check(&web.chain, &web.chain, "private_key holds no `BEGIN PRIVATE KEY` section");
    let broken = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    check(&web.chain, broken, "private_key cannot be used: ");
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    check(&web.chain, encrypted, "private_key is encrypted; remove the passphrase");
    check(
        &web.chain,
        &other.key,
        &format!("private_key does not belong to the first certificate of certificate_chain ({WEB})"),
    );
    check(&expired.chain, &expired.key, &format!("the certificate of {WEB} expired on "));

    let early = SystemTime::UNIX_EPOCH + Duration::from_secs(60);
    let error = Identity::from_pem(web.chain.as_bytes(), web.key.as_bytes(), early).unwrap_err().to_string();
    assert!(error.contains("is not valid before") && error.contains("clock"), "{error}");
}

#[test]
fn what_does_not_make_a_trust_bundle_is_named() {
    let ca = TestCa::new("root");
    let check = |text: &str, expected: &str| {
        let error = TrustBundle::from_pem(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "expected {expected}\nfound    {error}");
    };
    check("", "holds no `BEGIN CERTIFICATE` section");
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    check(&(ca.pem() + garbage), "certificate 2 cannot be used as a root: ");
    assert_eq!(TrustBundle::from_pem((ca.pem() + &TestCa::new("b").pem()).as_bytes()).unwrap().count(), 2);
}

fn parsed(names: Vec<SanType>, subject: &[(DnType, &str)]) -> PeerCertificate {
    let pair = TestCa::new("root").issue(|params| {
        params.subject_alt_names = names;
        for (kind, text) in subject {
            params.distinguished_name.push(kind.clone(), *text);
        }
    });
    PeerCertificate::parse(&[CertificateDer::from_pem_slice(pair.chain.as_bytes()).unwrap()]).unwrap()
}

#[test]
fn names_of_all_kinds_are_read() {
    let certificate = parsed(
        vec![
            SanType::URI(WEB.try_into().unwrap()),
            SanType::DnsName("a.example.org".try_into().unwrap()),
            SanType::DnsName("*.example.org".try_into().unwrap()),
            SanType::Rfc822Name("me@example.org".try_into().unwrap()),
            SanType::IpAddress("10.0.0.1".parse().unwrap()),
            SanType::IpAddress("2001:db8::1".parse().unwrap()),
        ],
        &[(DnType::OrganizationName, "Acme, Inc."), (DnType::CommonName, "#web ")],
    );
    assert_eq!(certificate.uri_sans, [WEB]);
    assert_eq!(certificate.dns_sans, ["a.example.org", "*.example.org"]);
    assert_eq!(certificate.email_sans, ["me@example.org"]);
    assert_eq!(certificate.ip_sans, ["10.0.0.1", "2001:db8::1"]);
    // RFC 2253: the last element first, special characters escaped.
    assert_eq!(certificate.subject, "CN=\\#web\\ ,O=Acme\\, Inc.");
    let hostile = parsed(Vec::new(), &[(DnType::CommonName, "a\r\nevil: \"\u{fc}\u{7f}\0")]);
    assert_eq!(hostile.subject, r#"CN=a\0D\0Aevil: \"\C3\BC\7F\00"#);
    assert_eq!(hostile.display_name(), hostile.subject);
    assert!(certificate.issuer.starts_with("CN=root"), "{}", certificate.issuer);
}

#[test]
fn matchers_follow_envoy() {
    let certificate = parsed(
        vec![
            SanType::URI(WEB.try_into().unwrap()),
            SanType::DnsName("*.example.org".try_into().unwrap()),
            SanType::DnsName("Host.test".try_into().unwrap()),
        ],
        &[],
    );
    let check = |kind, pattern: StringPattern, expected: bool| {
        let matcher = SanMatcher { kind, pattern };
        assert_eq!(matcher.matches(&certificate), expected, "{matcher}");
    };
    check(Some(SanKind::Uri), StringPattern::exact(WEB), true);
    check(None, StringPattern::exact(WEB), true);
    check(Some(SanKind::Dns), StringPattern::exact(WEB), false);
    check(Some(SanKind::Uri), StringPattern::exact(&WEB[..WEB.len() - 1]), false);
    check(Some(SanKind::Uri), StringPattern::prefix("spiffe://cluster.local/"), true);
    check(Some(SanKind::Uri), StringPattern::suffix("/sa/web"), true);
    check(Some(SanKind::Uri), StringPattern::contains("/ns/default/"), true);
    check(Some(SanKind::Uri), StringPattern::contains("/NS/default/"), false);
    check(Some(SanKind::Uri), StringPattern::contains("/NS/default/").ignoring_case(true), true);
    check(Some(SanKind::Uri), StringPattern::regex("spiffe://[^/]+/ns/default/sa/w.b").unwrap(), true);
    // Envoy's regular expressions match the whole name.
    check(Some(SanKind::Uri), StringPattern::regex("spiffe").unwrap(), false);
    // Exact DNS names know wildcards and no case; one label only, and never below a top-level domain.
    check(Some(SanKind::Dns), StringPattern::exact("a.example.org"), true);
    check(Some(SanKind::Dns), StringPattern::exact("A.Example.Org"), true);
    check(Some(SanKind::Dns), StringPattern::exact("a.b.example.org"), false);
    check(Some(SanKind::Dns), StringPattern::exact("example.org"), false);
    check(Some(SanKind::Dns), StringPattern::exact("host.test"), true);
    check(None, StringPattern::exact("a.example.org"), true);
    assert!(StringPattern::regex("(").is_err());
    // A DNS name that has the form of an identity is none, whatever is looked at.
    let other = parsed(vec![SanType::DnsName(WEB.try_into().unwrap())], &[]);
    for kind in [None, Some(SanKind::Uri), Some(SanKind::Dns)] {
        for pattern in [StringPattern::exact(WEB), StringPattern::prefix("spiffe://")] {
            let matcher = SanMatcher { kind, pattern };
            assert!(!matcher.matches(&other), "{matcher}");
        }
    }
}
