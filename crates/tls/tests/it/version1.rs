//! Certificates of X.509 version 1 behind authorities, and with revocation lists. (Handshakes with them: `peers.rs`.)

use std::time::SystemTime;

use evenkeel_tls::{TrustBundle, verify_chain};
use rcgen::{BasicConstraints, CertificateParams, IsCa};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use crate::support::*;

/// A leaf of version 1 behind authorities, verified like one of version 3 behind the same.
#[test]
fn authorities_vouch_for_certificates_of_version_1() {
    use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, CodeSigning, ServerAuth};
    use rcgen::KeyUsagePurpose::{CrlSign, DigitalSignature, KeyCertSign};
    let root = TestCa::new("root");
    let outcome = |trust: &TrustBundle, chain: &str| {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(chain.as_bytes()).map(|one| one.unwrap()).collect();
        verify_chain(trust, &chain, SystemTime::now()).map_err(|error| error.to_string())
    };
    let trust = TrustBundle::from_pem(root.pem().as_bytes()).unwrap();
    // `expected`: a part of the reason; empty: it is accepted.
    let check = |what: &str, chain: &str, expected: &str| match outcome(&trust, chain) {
        Ok(()) => assert_eq!("", expected, "{what}"),
        Err(reason) => assert!(!expected.is_empty() && reason.contains(expected), "{what}: {reason}"),
    };
    let of = |what: &str, change: &dyn Fn(&mut CertificateParams), expected: &str| {
        let middle = root.authority("middle", change);
        check(what, &(middle.version1("web").chain + &middle.pem()), expected);
        // The same authority and a leaf that webpki reads.
        let third = middle.workload("spiffe://cluster.local/ns/a/sa/b").chain + &middle.pem();
        assert_eq!(outcome(&trust, &third).is_ok(), expected.is_empty(), "{what}: version 3");
    };
    of("an authority", &|_| {}, "");
    of("that signs", &|params| params.key_usages = vec![KeyCertSign, CrlSign], "");
    of("no path below it", &|params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)), "");
    of("for both usages", &|params| params.extended_key_usages = vec![ServerAuth, ClientAuth], "");
    of("no authority", &|params| params.is_ca = IsCa::ExplicitNoCa, "UnknownIssuer");
    of("one that says nothing of it", &|params| params.is_ca = IsCa::NoCa, "UnknownIssuer");
    of("that signs lists only", &|params| params.key_usages = vec![CrlSign], "InvalidPurpose");
    of("that signs nothing", &|params| params.key_usages = vec![DigitalSignature], "InvalidPurpose");
    of("for programs", &|params| params.extended_key_usages = vec![CodeSigning], "InvalidPurpose");
    of("for servers only", &|params| params.extended_key_usages = vec![ServerAuth], "InvalidPurpose");
    of("expired", &|params| params.not_after = rcgen::date_time_ymd(2001, 1, 1), "Expired");
    of("of the future", &|params| params.not_before = rcgen::date_time_ymd(2100, 1, 1), "NotValidYet");
    let unknown = |params: &mut CertificateParams| {
        let mut extension = rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]);
        extension.set_criticality(true);
        params.custom_extensions = vec![extension];
    };
    of("a critical extension", &unknown, "UnhandledCriticalExtension");
    // Two levels, in whatever order they come; a length of the path that allows no second one.
    for (deepest, expected) in [(1, ""), (0, "InvalidPurpose")] {
        let upper = root.authority("upper", |params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(deepest)));
        let lower = upper.authority("lower", |_| {});
        let web = lower.version1("web").chain;
        check("two levels", &(web.clone() + &lower.pem() + &upper.pem()), expected);
        check("two levels, another order", &(web.clone() + &upper.pem() + &lower.pem()), expected);
        check("one is missing", &(web + &lower.pem()), "UnknownIssuer");
    }
    let middle = root.authority("middle", |_| {});
    let web = middle.version1("web").chain;
    check("without its authority", &web, "neither a trusted root nor an authority");
    check("another of the same name", &(web.clone() + &root.authority("middle", |_| {}).pem()), "BadSignature");
    let false_root = TestCa::new("root");
    let false_middle = false_root.authority("middle", |_| {});
    check("another root", &(false_middle.version1("web").chain + &false_middle.pem()), "BadSignature");
    check("a leaf as an authority", &(root.version1("x").chain + &root.version1("middle").chain), "cannot sign others");
    // Names cannot be compared with constraints where there are none.
    let constraints = rcgen::NameConstraints {
        permitted_subtrees: vec![rcgen::GeneralSubtree::DnsName("a.test".to_owned())],
        excluded_subtrees: Vec::new(),
    };
    let narrow = root.authority("narrow", |params| params.name_constraints = Some(constraints));
    check("name constraints", &(narrow.version1("web").chain + &narrow.pem()), "InvalidPurpose");
}

/// The serial numbers: 7 the leaf of version 1, 77 its authority.
#[test]
fn certificates_of_version_1_are_looked_up_in_revocation_lists() {
    let root = TestCa::new("root");
    let middle = root.authority("middle", |_| {});
    let (direct, behind) = (root.version1("web").chain, middle.version1("web").chain + &middle.pem());
    let check = |what: &str, chain: &str, lists: &[String], expected: &str| {
        let trust = TrustBundle::from_pem(root.pem().as_bytes()).unwrap();
        let trust = trust.with_revocation_lists(lists.concat().as_bytes()).unwrap();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(chain.as_bytes()).map(|one| one.unwrap()).collect();
        match verify_chain(&trust, &chain, SystemTime::now()).map_err(|error| error.to_string()) {
            Ok(()) => assert_eq!("", expected, "{what}"),
            Err(reason) => assert!(!expected.is_empty() && reason.contains(expected), "{what}: {reason}"),
        }
    };
    let (of_root, of_middle) = (root.revocation_list(&[1], 60), middle.revocation_list(&[1], 60));
    check("not named", &direct, std::slice::from_ref(&of_root), "");
    check("named", &direct, &[root.revocation_list(&[7], 60)], "Revoked");
    check("named by the newer list", &direct, &[of_root.clone(), root.revocation_list_of(&[7], -60..60, 2)], "Revoked");
    check(
        "named by the older list",
        &direct,
        &[root.revocation_list(&[7], 60), root.revocation_list_of(&[], -60..60, 2)],
        "",
    );
    check("an old list", &direct, &[root.revocation_list(&[], -1)], "ExpiredRevocationList");
    check("no list of its issuer", &direct, std::slice::from_ref(&of_middle), "UnknownRevocationStatus");
    check(
        "a list by another of the same name",
        &direct,
        &[TestCa::new("root").revocation_list(&[], 60)],
        "UnknownRevocationStatus",
    );
    check("both lists", &behind, &[of_root.clone(), of_middle.clone()], "");
    check("no list of the authority's issuer", &behind, std::slice::from_ref(&of_middle), "UnknownRevocationStatus");
    check("no list of the authority", &behind, std::slice::from_ref(&of_root), "UnknownRevocationStatus");
    check("the leaf is named", &behind, &[of_root, middle.revocation_list(&[7], 60)], "Revoked");
    check("the authority is named", &behind, &[root.revocation_list(&[77], 60), of_middle], "Revoked");
    let silent = root.authority("silent", |params| params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign]);
    let mute = silent.version1("web").chain + &silent.pem();
    check("an authority that signs no lists", &mute, &[root.revocation_list(&[], 60)], "UnknownRevocationStatus");
}
