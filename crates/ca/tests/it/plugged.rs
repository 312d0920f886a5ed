use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use evenkeel_ca::{Authority, AuthorityError};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};

use crate::{DAY, now};

type Ca = CertifiedIssuer<'static, KeyPair>;

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn root(name: &str) -> Ca {
    Ca::self_signed(params(name), KeyPair::generate().unwrap()).unwrap()
}

fn below(issuer: &Ca, name: &str) -> Ca {
    Ca::signed_by(params(name), KeyPair::generate().unwrap(), issuer).unwrap()
}

fn write(folder: &Path, ca: &Ca, chain: Option<&str>, roots: &str) {
    fs::write(folder.join("ca-cert.pem"), ca.pem()).unwrap();
    let key = folder.join("ca-key.pem");
    fs::write(&key, ca.key().serialize_pem()).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(folder.join("root-cert.pem"), roots).unwrap();
    if let Some(chain) = chain {
        fs::write(folder.join("cert-chain.pem"), chain).unwrap();
    }
}

/// How many certificates a workload gets.
fn sign(authority: &Authority) -> usize {
    let id = "spiffe://cluster.local/ns/a/sa/b";
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
    let csr = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
    authority.sign(csr.der(), &id.parse().unwrap(), DAY, now()).unwrap().chain.len()
}

#[test]
fn an_operators_authority_is_used_with_its_chain() {
    let top = root("top");
    let middle = below(&top, "middle");
    let bottom = below(&middle, "bottom");
    let check = |ca: &Ca, chain: Option<String>, roots: String, expected: usize| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), ca, chain.as_deref(), &roots);
        let authority = Authority::plugged_in(folder.path(), now()).unwrap();
        assert_eq!(authority.trust_bundle_pem(), roots);
        assert_eq!(sign(&authority), expected);
    };
    check(&top, None, top.pem(), 1);
    check(&middle, None, top.pem(), 2);
    check(&middle, Some(middle.pem() + &top.pem()), top.pem(), 2);
    check(&bottom, Some(bottom.pem() + &middle.pem() + &top.pem()), top.pem(), 3);
    check(&bottom, Some(middle.pem()), root("old").pem() + &top.pem(), 3);
}

#[test]
fn what_does_not_fit_is_refused() {
    let top = root("top");
    let middle = below(&top, "middle");
    let bottom = below(&middle, "bottom");
    let open = |ca: &Ca, chain: Option<String>, roots: String| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), ca, chain.as_deref(), &roots);
        Authority::plugged_in(folder.path(), now()).err().expect("an error")
    };
    assert!(matches!(open(&bottom, None, top.pem()), AuthorityError::Chain { .. }));
    assert!(matches!(open(&middle, None, root("top").pem()), AuthorityError::Chain { .. }), "same name, other key");

    let key = KeyPair::generate().unwrap();
    let leaf = Ca::signed_by(CertificateParams::default(), key, &top).unwrap();
    assert!(matches!(open(&leaf, None, top.pem()), AuthorityError::NotAnAuthority(_)));

    let folder = tempfile::tempdir().unwrap();
    let error = Authority::plugged_in(folder.path(), now()).err().expect("an error").to_string();
    assert!(error.contains("ca-cert.pem: "), "{error}");
}
