use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_ca::{Authority, AuthorityError};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, SanType, SignatureAlgorithm,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

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
fn authorities_of_every_kind_of_key_sign_and_are_verified() {
    let kinds: [&'static SignatureAlgorithm; 3] = [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_RSA_SHA256];
    for (of_root, of_intermediate) in kinds.into_iter().flat_map(|root| kinds.map(|other| (root, other))) {
        let key = |kind: &'static SignatureAlgorithm| KeyPair::generate_for(kind).unwrap();
        let top = Ca::self_signed(params("top"), key(of_root)).unwrap();
        let middle = Ca::signed_by(params("middle"), key(of_intermediate), &top).unwrap();
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &middle, None, &top.pem());
        let authority = Authority::plugged_in(folder.path(), now()).unwrap();
        // The chain is verified as a proxy does it.
        let server = authority.server_certificate(&["a.test"], DAY, now()).unwrap();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(server.chain_pem.as_bytes()).map(Result::unwrap).collect();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(top.pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let since = now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let name = ServerName::try_from("a.test").unwrap();
        verifier
            .verify_server_cert(&chain[0], &chain[1..], &name, &[], UnixTime::since_unix_epoch(since))
            .unwrap_or_else(|error| panic!("{of_root:?} {of_intermediate:?}: {error}"));
    }
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
