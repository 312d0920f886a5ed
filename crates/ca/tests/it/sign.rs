use std::time::Duration;

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_ca::{Authority, DEFAULT_TTL, SignError};
use evenkeel_tls::Identity;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, PKCS_ECDSA_P384_SHA384,
    PKCS_ED25519, PKCS_RSA_SHA256, SanType,
};

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use crate::{DAY, HOUR, now};

fn web() -> SpiffeId {
    "spiffe://cluster.local/ns/default/sa/web".parse().unwrap()
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

fn authority() -> Authority {
    let state = tempfile::tempdir().unwrap();
    Authority::open(state.path(), "cluster.local", now()).unwrap()
}

fn request(key: &KeyPair, names: Vec<SanType>) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = names;
    params.serialize_request(key).unwrap().der().to_vec()
}

fn pem(der: &[u8]) -> String {
    pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", der))
}

#[test]
fn a_request_is_signed_for_its_key_and_the_identity() {
    let authority = authority();
    for key in [
        KeyPair::generate().unwrap(),
        KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap(),
        KeyPair::generate_for(&PKCS_ED25519).unwrap(),
        KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap(),
    ] {
        let der = request(&key, vec![uri(&web().to_string())]);
        for form in [der.clone(), pem(&der).into_bytes()] {
            let issued = authority.sign(&form, &web(), DEFAULT_TTL, now()).unwrap();
            assert_eq!(issued.chain.len(), 1, "the root is not sent");
            // Identity checks that certificate and key belong together.
            let identity =
                Identity::from_pem(issued.chain[0].as_bytes(), key.serialize_pem().as_bytes(), now()).unwrap();
            assert_eq!(identity.certificate().spiffe_id(), Some(web()));
            assert_eq!(identity.certificate().subject, "");
            assert_eq!(identity.certificate().issuer, "O=cluster.local");
        }
    }
}

#[test]
fn nothing_but_the_key_is_taken_from_the_request() {
    let authority = authority();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![uri(&web().to_string())];
    params.distinguished_name.push(DnType::CommonName, "admin");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let der = params.serialize_request(&key).unwrap();
    match authority.sign(der.der(), &web(), DEFAULT_TTL, now()) {
        Ok(issued) => {
            let identity =
                Identity::from_pem(issued.chain[0].as_bytes(), key.serialize_pem().as_bytes(), now()).unwrap();
            assert_eq!(identity.certificate().subject, "");
            let other = KeyPair::generate().unwrap();
            let issuer = rcgen::Issuer::from_ca_cert_pem(&issued.chain[0], other);
            assert!(issuer.is_err() || !is_authority(&issued.chain[0]), "a workload got an authority's certificate");
        }
        // rcgen refuses to parse what it does not know.
        Err(error) => assert!(matches!(error, SignError::Csr(_)), "{error}"),
    }
}

fn is_authority(certificate: &str) -> bool {
    let der = pem::parse(certificate).unwrap();
    x509_parser::parse_x509_certificate(der.contents()).unwrap().1.is_ca()
}

#[test]
fn requests_for_other_identities_name_both() {
    let authority = authority();
    let key = KeyPair::generate().unwrap();
    let check = |names: Vec<SanType>, requested: &str| {
        let error = authority.sign(&request(&key, names), &web(), DEFAULT_TTL, now()).unwrap_err().to_string();
        let expected = format!(
            "the certificate signing request asks for {requested}, but the caller is \
             `spiffe://cluster.local/ns/default/sa/web`"
        );
        assert_eq!(error, expected);
    };
    let info = "spiffe://cluster.local/ns/default/sa/info";
    check(vec![uri(info)], &format!("`{info}`"));
    check(vec![], "no name");
    check(vec![uri(&web().to_string()), uri(info)], &format!("`{}` and `{info}`", web()));
    let dns = SanType::DnsName("istiod.istio-system.svc".try_into().unwrap());
    check(vec![uri(&web().to_string()), dns], &format!("`{}` and DNS `istiod.istio-system.svc`", web()));
    check(vec![uri("spiffe://cluster.local/ns/default/sa/web2")], "`spiffe://cluster.local/ns/default/sa/web2`");
}

#[test]
fn damaged_requests_are_refused_whatever_byte_is_changed() {
    let authority = authority();
    let der = request(&KeyPair::generate().unwrap(), vec![uri(&web().to_string())]);
    // What the signature covers: all but the name of its algorithm and itself.
    let (_, parsed) = X509CertificationRequest::from_der(&der).unwrap();
    let info = parsed.certification_request_info.raw;
    let signed = info.as_ptr() as usize - der.as_ptr() as usize;
    let signed = signed..signed + info.len();
    for index in 0..der.len() {
        let mut changed = der.clone();
        changed[index] ^= 0x01;
        let result = authority.sign(&changed, &web(), DEFAULT_TTL, now());
        if signed.contains(&index) {
            assert!(matches!(result, Err(SignError::Csr(_))), "byte {index} of {}", der.len());
        }
        let result = authority.sign(&der[..index], &web(), DEFAULT_TTL, now());
        assert!(matches!(result, Err(SignError::Csr(_))), "cut at {index}");
    }
    let check = |bytes: &[u8], expected: &str| {
        let error = authority.sign(bytes, &web(), DEFAULT_TTL, now()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(b"", "cannot be used");
    check(b"-----BEGIN CERTIFICATE REQUEST-----\n!!\n", "the PEM text is damaged");
    check(&vec![0x30; 20_000], "more than 16384 bytes");
}

#[test]
fn another_key_than_the_signing_one_is_told_as_such() {
    let authority = authority();
    let (key, thief) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let names = || vec![uri(&web().to_string())];
    let (own, stolen) = (request(&thief, names()), request(&key, names()));
    // The public key of one request put into the other.
    let find = |der: &[u8], raw: &[u8]| der.windows(raw.len()).position(|window| window == raw).unwrap();
    let at = find(&own, thief.public_key_raw());
    let mut forged = own.clone();
    let raw = key.public_key_raw();
    forged[at..at + raw.len()].copy_from_slice(raw);
    assert_ne!(forged, stolen);
    let error = authority.sign(&forged, &web(), DEFAULT_TTL, now()).unwrap_err().to_string();
    assert_eq!(error, "the certificate signing request is not signed by the key it holds");
}

#[test]
fn lifetimes_are_kept_within_limits() {
    let authority = authority();
    let key = KeyPair::generate().unwrap();
    let der = request(&key, vec![uri(&web().to_string())]);
    let start = now();
    let lifetime = |ttl: Duration| {
        let issued = authority.sign(&der, &web(), ttl, start).unwrap();
        issued.not_after.duration_since(start).unwrap()
    };
    assert_eq!(lifetime(HOUR), HOUR);
    assert_eq!(lifetime(Duration::ZERO), Duration::from_secs(10));
    assert_eq!(lifetime(400 * DAY), 90 * DAY);
    // Never beyond the root's own end.
    let late = authority.not_after() - HOUR;
    assert_eq!(authority.sign(&der, &web(), DAY, late).unwrap().not_after, authority.not_after());
    let error = authority.sign(&der, &web(), DAY, authority.not_after()).unwrap_err();
    assert!(matches!(error, SignError::AuthorityExpired), "{error}");
}

#[test]
fn serial_numbers_differ_even_for_one_key() {
    let authority = authority();
    let key = KeyPair::generate().unwrap();
    let der = request(&key, vec![uri(&web().to_string())]);
    let serial = || {
        let issued = authority.sign(&der, &web(), DAY, now()).unwrap();
        let identity = Identity::from_pem(issued.chain[0].as_bytes(), key.serialize_pem().as_bytes(), now()).unwrap();
        identity.certificate().serial.clone()
    };
    assert_ne!(serial(), serial());
}

#[test]
fn the_server_certificate_has_its_names() {
    let names = ["istiod.istio-system.svc", "localhost"];
    let server = authority().server_certificate(&names, DAY, now()).unwrap();
    let identity = Identity::from_pem(server.chain_pem.as_bytes(), server.key_pem.as_bytes(), now()).unwrap();
    assert_eq!(identity.certificate().dns_sans, names);
}
