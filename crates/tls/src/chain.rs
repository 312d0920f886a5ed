//! Verification of a chain outside of a handshake.

use std::time::{SystemTime, UNIX_EPOCH};

use rustls::client::danger::ServerCertVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::config::PeerChecks;
use crate::trust::TrustBundle;
use crate::verify::{ClientVerifier, ServerVerifier};

/// A chain that no root of a bundle vouches for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ChainError(String);

/// Whether peers that trust `trust` accept this chain, leaf first, from a server and from a client: signatures, validity,
/// usages, revocation.
///
/// # Errors
/// Why they would not.
pub fn verify_chain(trust: &TrustBundle, chain: &[CertificateDer<'_>], now: SystemTime) -> Result<(), ChainError> {
    let Some((leaf, intermediates)) = chain.split_first() else {
        return Err(ChainError("there is no certificate".to_owned()));
    };
    let now = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
    let refused = |error: rustls::Error| ChainError(error.to_string());
    // Names are ignored: like Envoy, the verifier compares only configured ones.
    let name = ServerName::IpAddress(std::net::IpAddr::from([0, 0, 0, 0]).into());
    let checks = PeerChecks::default();
    ServerVerifier::chain(trust, &checks).verify_server_cert(leaf, intermediates, &name, &[], now).map_err(refused)?;
    let clients = ClientVerifier::new(trust, &checks, true).map_err(|error| ChainError(error.to_string()))?;
    clients.verify_client_cert(leaf, intermediates, now).map(drop).map_err(refused)
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
        KeyUsagePurpose,
    };

    use super::*;

    #[test]
    fn an_authority_that_may_not_sign_certificates_vouches_for_nobody() {
        use KeyUsagePurpose::{CrlSign, DigitalSignature, KeyCertSign};
        let key = || KeyPair::generate().expect("a key");
        let params = |name: &str, usages: &[KeyUsagePurpose]| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = usages.to_vec();
            params
        };
        let root = CertifiedIssuer::self_signed(params("root", &[KeyCertSign]), key()).expect("a root");
        let trust = TrustBundle::from_pem(root.pem().as_bytes()).expect("roots");
        let check = |usages: &[KeyUsagePurpose], expected: bool| {
            let middle = CertifiedIssuer::signed_by(params("middle", usages), key(), &root).expect("an authority");
            let mut leaf = CertificateParams::new(vec!["a.test".to_owned()]).expect("a name");
            leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            let leaf = leaf.signed_by(&key(), &middle).expect("a leaf");
            let chain = [leaf.der().clone(), middle.der().clone()];
            let verified = verify_chain(&trust, &chain, SystemTime::now());
            assert_eq!(verified.is_ok(), expected, "{usages:?}: {verified:?}");
        };
        check(&[], true);
        check(&[KeyCertSign], true);
        check(&[KeyCertSign, CrlSign], true);
        check(&[CrlSign], false);
        check(&[DigitalSignature], false);
    }
}
