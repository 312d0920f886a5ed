//! Checks of a peer's certificate besides its chain and names: pins, and revocation, on either side.

use evenkeel_tls::config::{ClientCertificate, PeerChecks, TlsParams, TlsVersion, Validation};
use evenkeel_tls::{ConfigError, Pins, RevocationLists, SecretStore, TrustBundle};
use rcgen::SerialNumber;

use crate::support::*;

/// A workload's certificate with this serial number.
fn numbered(ca: &TestCa, uri: &str, serial: u64) -> Pair {
    ca.issue(|params| {
        params.subject_alt_names = vec![rcgen::SanType::URI(uri.try_into().unwrap())];
        params.serial_number = Some(SerialNumber::from(serial));
    })
}

fn checks(of: &mut Validation) -> &mut PeerChecks {
    match of {
        Validation::Chain { checks, .. } => checks,
        Validation::None => panic!("nothing is checked"),
    }
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_by_either_side() {
    let (ca, other) = (TestCa::new("root"), TestCa::new("other"));
    let (web, info) = (numbered(&ca, WEB, 7), numbered(&ca, INFO, 8));
    // What the server answers to a client with serial number 7, and the client to a server with 8.
    let check = async |lists: &str, by_server: Option<&str>, by_client: Option<&str>| {
        let lists = RevocationLists::from_pem(lists.as_bytes()).unwrap();
        let (mut far, mut near) = (server_context(&ca, &info), client_context(&ca, &web, INFO));
        checks(&mut far.common.validation).revocation = Some(lists.clone());
        let (_, served) = shake(&client(&near), &server(&far)).await;
        let expect = |error: Option<String>, expected: Option<&str>| match expected {
            None => assert_eq!(error, None),
            Some(text) => assert!(error.as_deref().unwrap_or("accepted").contains(text), "{error:?}, not {text}"),
        };
        expect(served.err().map(|e| e.to_string()), by_server);
        checks(&mut near.common.validation).revocation = Some(lists);
        let (connected, _) = shake(&client(&near), &server(&server_context(&ca, &info))).await;
        expect(connected.err().map(|e| e.to_string()), by_client);
    };
    let (revoked, unknown, old) = ("it has been revoked", "no revocation list", "out of date");
    check(&ca.revocation_list(&[], 60), None, None).await;
    check(&ca.revocation_list(&[7], 60), Some(revoked), None).await;
    check(&ca.revocation_list(&[8], 60), None, Some(revoked)).await;
    check(&ca.revocation_list(&[], -1), Some(old), Some(old)).await;
    check(&other.revocation_list(&[], 60), Some(unknown), Some(unknown)).await;
    check(&(other.revocation_list(&[], 60) + &ca.revocation_list(&[7, 8], 60)), Some(revoked), Some(revoked)).await;
}

/// An authority that publishes a list adds it to those that are there, before or behind them.
#[tokio::test]
async fn of_several_lists_of_an_issuer_the_newest_valid_one_counts() {
    let ca = TestCa::new("root");
    let (web, info) = (numbered(&ca, WEB, 7), numbered(&ca, INFO, 8));
    let list = |revoked: &[u64], minutes, number| ca.revocation_list_of(revoked, minutes, number);
    let error = async |lists: &str| {
        let (mut far, mut near) = (server_context(&ca, &info), client_context(&ca, &web, INFO));
        let lists = RevocationLists::from_pem(lists.as_bytes()).unwrap();
        checks(&mut far.common.validation).revocation = Some(lists.clone());
        let by_server = shake(&client(&near), &server(&far)).await.1.err().map(|error| error.to_string());
        checks(&mut near.common.validation).revocation = Some(lists);
        let far = server(&server_context(&ca, &info));
        (by_server, shake(&client(&near), &far).await.0.err().map(|error| error.to_string()))
    };
    let check = async |lists: [String; 2], expected: Option<&str>| {
        let [first, second] = &lists;
        for lists in [[first, second], [second, first]] {
            let (by_server, by_client) = error(&lists.map(String::as_str).concat()).await;
            for error in [by_server, by_client] {
                assert_eq!(error.is_some(), expected.is_some(), "{error:?}, not {expected:?}");
                assert!(error.unwrap_or_default().contains(expected.unwrap_or_default()));
            }
        }
    };
    let (revoked, old, unknown) = (Some("it has been revoked"), Some("out of date"), Some("no revocation list"));
    let (both, nobody): (&[u64], &[u64]) = (&[7, 8], &[]);
    check([list(nobody, -60..60, 1), list(both, -30..60, 2)], revoked).await;
    check([list(both, -60..60, 1), list(nobody, -30..60, 2)], None).await;
    // Of the same second the greater CRL number counts, also with more digits.
    check([list(nobody, -60..60, 9), list(both, -60..60, 300)], revoked).await;
    // One that has ended is passed over, whether it is the newer or the older one.
    check([list(both, -30..-10, 2), list(nobody, -60..60, 1)], None).await;
    check([list(nobody, -30..-10, 1), list(both, -20..60, 2)], revoked).await;
    check([list(nobody, -30..-10, 1), list(nobody, -20..-5, 2)], old).await;
    // One that has not begun does not count.
    check([list(both, -60..60, 1), list(nobody, 30..60, 2)], revoked).await;
    check([list(nobody, 30..60, 1), list(nobody, 40..60, 2)], unknown).await;
}

#[test]
fn which_lists_do_not_count_is_said() {
    let ca = TestCa::new("root");
    let check = |lists: &[(i64, i64)], expected: &[&str]| {
        let text: String = lists.iter().map(|(begin, end)| ca.revocation_list_of(&[], *begin..*end, 1)).collect();
        let remarks = RevocationLists::from_pem(text.as_bytes()).unwrap().remarks(std::time::SystemTime::now());
        assert_eq!(remarks, expected, "{lists:?}");
    };
    let newest = "of 2 of `CN=root` the newest valid one counts";
    let future = "1 of `CN=root` do not count yet, as their thisUpdate is in the future";
    let none = "none of `CN=root` is valid, so its certificates are refused";
    check(&[(-60, 60)], &[]);
    check(&[(-60, 60), (-30, 60)], &[newest]);
    check(&[(-60, 60), (30, 60)], &[future, newest]);
    check(&[(-60, -30)], &[none]);
    check(&[(30, 60)], &[future, none]);
}

#[tokio::test]
async fn revocation_lists_delivered_with_the_roots_replace_those_of_the_context() {
    let ca = TestCa::new("root");
    let (web, info) = (numbered(&ca, WEB, 7), numbered(&ca, INFO, 8));
    let secret =
        evenkeel_tls::SdsSecret { name: "kubernetes://shop-cacert".into(), server: evenkeel_tls::SdsServer::Ads };
    let store = SecretStore::new();
    let mut far = server_context(&ca, &info);
    let own = RevocationLists::from_pem(ca.revocation_list(&[7], 60).as_bytes()).unwrap();
    far.common.validation = Validation::Chain {
        trust: evenkeel_tls::config::TrustSource::Sds(secret.clone()),
        checks: PeerChecks { revocation: Some(own), ..PeerChecks::default() },
    };
    let far = evenkeel_tls::DownstreamTls::new(&far, &store).unwrap();
    let near = client(&client_context(&ca, &web, INFO));
    let serves = async |lists: Option<String>| {
        store.set_trust(&secret, ca.pem().as_bytes(), lists.as_ref().map(String::as_bytes)).unwrap();
        shake(&near, &far).await.1.is_ok()
    };
    assert!(!serves(None).await);
    assert!(serves(Some(ca.revocation_list(&[], 60))).await);
    // A session that began under another list is not resumed.
    assert!(!serves(Some(ca.revocation_list(&[7], 60))).await);
}

#[test]
fn texts_that_are_no_lists_are_refused() {
    let ca = TestCa::new("root");
    let error = |text: &str| RevocationLists::from_pem(text.as_bytes()).unwrap_err().to_string();
    assert!(error("").contains("BEGIN X509 CRL"));
    assert!(error(&ca.pem()).contains("BEGIN X509 CRL"));
    let damaged = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
    assert!(error(&(ca.revocation_list(&[], 1) + damaged)).starts_with("revocation list 2"));
    let bundle = TrustBundle::from_pem(ca.pem().as_bytes()).unwrap();
    assert!(bundle.with_revocation_lists(b"x").unwrap_err().to_string().starts_with("crl: "));
}

#[tokio::test]
async fn pins_accept_only_the_certificates_they_name() {
    let ca = TestCa::new("root");
    let (web, other, info) = (ca.workload(WEB), ca.workload(WEB), ca.workload(INFO));
    let hash = |pair: &Pair| pair.leaf().sha256_hex();
    let key = |pair: &Pair| pair.key_hash();
    let check = async |hashes: &[&str], keys: &[&str], expected: bool| {
        let mut far = server_context(&ca, &info);
        checks(&mut far.common.validation).pins =
            Pins::new(hashes.iter().copied(), keys.iter().copied()).expect("pins");
        let (_, served) = shake(&client(&client_context(&ca, &web, INFO)), &server(&far)).await;
        assert_eq!(served.is_ok(), expected, "{hashes:?} {keys:?}: {:?}", served.err().map(|e| e.to_string()));
    };
    check(&[], &[], true).await;
    check(&[&hash(&web)], &[], true).await;
    check(&[&hash(&other)], &[], false).await;
    check(&[], &[&key(&web)], true).await;
    check(&[], &[&key(&other)], false).await;
    check(&[&hash(&other)], &[&key(&web)], true).await;
    check(&[&hash(&other)], &[&key(&other)], false).await;
}

#[tokio::test]
async fn curves_follow_the_context() {
    let ca = TestCa::new("root");
    let (web, info) = (ca.workload(WEB), ca.workload(INFO));
    let params = |curves: &[&str]| TlsParams {
        ecdh_curves: curves.iter().map(|curve| (*curve).to_owned()).collect(),
        maximum_version: Some(TlsVersion::Tls13),
        ..TlsParams::default()
    };
    let check = async |near_has: &[&str], far_has: &[&str], expected: bool| {
        let (mut far, mut near) = (server_context(&ca, &info), client_context(&ca, &web, INFO));
        (near.common.params, far.common.params) = (params(near_has), params(far_has));
        let (_, served) = shake(&client(&near), &server(&far)).await;
        assert_eq!(served.is_ok(), expected, "{near_has:?} {far_has:?}");
    };
    // Without a context's word both have the group that also resists quantum computers.
    check(&[], &["X25519MLKEM768"], true).await;
    check(&["X25519MLKEM768"], &[], true).await;
    check(&[], &["P-256"], true).await;
    check(&["X25519", "P-384"], &["P-521", "P-384"], true).await;
    check(&["X25519"], &["P-256"], false).await;
    check(&["X25519MLKEM768"], &["X25519MLKEM768"], true).await;
    let refused = |curves: &[&str]| {
        let mut far = server_context(&ca, &info);
        far.common.params = params(curves);
        far.client_certificate = ClientCertificate::Required;
        evenkeel_tls::DownstreamTls::new(&far, &SecretStore::new()).unwrap_err()
    };
    assert!(matches!(refused(&["P-521"]), ConfigError::NoCurve(_)));
    assert!(matches!(refused(&["P-256", "secp256k1"]), ConfigError::UnknownCurve(name) if name == "secp256k1"));
}

/// BoringSSL does not look at the version of a leaf.
#[tokio::test]
async fn certificates_of_version_1_are_served_and_verified() {
    let (ca, other) = (TestCa::new("root"), TestCa::new("root"));
    let outcome = async |web: &Pair, info: &Pair, change: &dyn Fn(&mut PeerChecks), version| {
        let (mut far, mut near) = (server_context(&ca, info), client_context(&ca, web, INFO));
        for common in [&mut far.common, &mut near.common] {
            let checks = checks(&mut common.validation);
            checks.subject_alt_names = Vec::new();
            change(checks);
            common.params = TlsParams { maximum_version: Some(version), ..TlsParams::default() };
        }
        let (connected, accepted) = shake(&client(&near), &server(&far)).await;
        match (connected, accepted) {
            (Ok(_), Ok(_)) => None,
            (Err(error), Ok(_)) | (_, Err(error)) => Some(error.to_string()),
        }
    };
    let (web, info) = (ca.version1("web"), ca.version1("info"));
    let third = ca.workload(WEB);
    // OpenSSL's root has an RSA key unless told otherwise.
    let rsa = TestCa::rsa("root");
    let outcome_of = async |ca: &TestCa, web: &Pair, info: &Pair| {
        let (mut far, mut near) = (server_context(ca, info), client_context(ca, web, INFO));
        for common in [&mut far.common, &mut near.common] {
            checks(&mut common.validation).subject_alt_names = Vec::new();
        }
        let (connected, accepted) = shake(&client(&near), &server(&far)).await;
        connected.is_ok() && accepted.is_ok()
    };
    assert!(outcome_of(&rsa, &rsa.version1("web"), &rsa.version1("info")).await);
    assert!(!outcome_of(&rsa, &web, &rsa.version1("info")).await);
    for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
        for (web, info) in [(&web, &info), (&web, &third), (&third, &info)] {
            assert_eq!(outcome(web, info, &|_| {}, version).await, None, "{version:?}");
        }
        let check = async |web: &Pair, change: &dyn Fn(&mut PeerChecks), expected: &str| {
            let error = outcome(web, &third, change, version).await.expect("it is refused");
            assert!(error.contains(expected), "{error}, not {expected}");
        };
        check(&other.version1("web"), &|_| {}, "signature is wrong").await;
        let stranger = TestCa::new("else").version1("web");
        check(&stranger, &|_| {}, "`CN=web` is of X.509 version 1, and neither a trusted root").await;
        check(&stranger, &|_| {}, "make one of version 3").await;
        let named = |checks: &mut PeerChecks| {
            checks.subject_alt_names = vec![evenkeel_tls::SanMatcher::uri(WEB)];
        };
        check(&web, &named, "no name at all").await;
    }
}

#[test]
fn a_certificate_of_version_1_needs_its_own_key() {
    let ca = TestCa::new("root");
    let (web, info) = (ca.version1("web"), ca.version1("info"));
    let parse = |chain: &str, key: &str| evenkeel_tls::Identity::parse(chain.as_bytes(), key.as_bytes());
    assert!(parse(&web.chain, &web.key).is_ok());
    let error = parse(&web.chain, &info.key).unwrap_err().to_string();
    assert!(error.contains("does not belong to the first certificate"), "{error}");
    let error = parse(&(ca.pem() + &web.chain), &web.key).unwrap_err().to_string();
    assert!(error.contains("does not belong to the first certificate"), "{error}");
}
