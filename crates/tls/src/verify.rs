//! Verification of peers: rustls checks the chain and the handshake's signature, these verifiers add the names.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fmt, iter};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, SignatureVerificationAlgorithm, UnixTime};
use webpki::KeyUsage;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::authorities::{Authorities, Usage};
use crate::config::PeerChecks;
use crate::error::{ConfigError, HandshakeError, SanMismatch};
use crate::peer::PeerCertificate;
use crate::pins::Pins;
use crate::provider::provider;
use crate::revocation::RevocationLists;
use crate::san::{SanKind, SanMatcher, StringPattern};
use crate::trust::{self, DomainError, TrustBundle};
use crate::verified_chains::{ChainKey, VerifiedChains};
use crate::version1::{self, Version1};

thread_local! {
    /// The leaf certificate of the client that this thread refused last. A verifier serves many handshakes at once, and
    /// neither rustls' connection nor its error has the certificate; but the code that drives the handshake sees the
    /// failure before anything else runs on the thread.
    static REFUSED: Cell<Option<CertificateDer<'static>>> = const { Cell::new(None) };
}

/// The certificate of the client whose handshake has just failed on this thread, if it was refused because of its
/// certificate.
pub(crate) fn take_refused() -> Option<Arc<PeerCertificate>> {
    let certificate = REFUSED.take()?;
    PeerCertificate::parse(std::slice::from_ref(&certificate)).ok().map(Arc::new)
}

/// Verifies a server as Envoy does: the chain, then the subject alternative names; the SNI is not used.
pub(crate) struct ServerVerifier {
    /// `None` verifies no chain (no validation context), only that the peer holds its certificate's key.
    chain: Option<(TrustBundle, PeerRules)>,
    verified: VerifiedChains,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerVerifier {
    pub(crate) fn chain(trust: &TrustBundle, checks: &PeerChecks) -> Self {
        Self { chain: Some((trust.clone(), PeerRules::new(trust, checks))), ..Self::accept_any() }
    }

    pub(crate) fn accept_any() -> Self {
        Self {
            chain: None,
            verified: VerifiedChains::default(),
            algorithms: provider().signature_verification_algorithms,
        }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some((trust, rules)) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        let presented = || iter::once(end_entity).chain(intermediates);
        let key = ChainKey::of(presented());
        if !self.verified.holds(&key, now) {
            let algorithms = self.algorithms.all;
            let verify = |roots: &RootCertStore| {
                if let Some(leaf) = Version1::read(end_entity) {
                    return rules.verify_version1(&leaf, (roots, intermediates), Usage::Server, algorithms, now);
                }
                version1::refuse_authorities(intermediates)?;
                let certificate = ParsedCertificate::try_from(end_entity)?;
                verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
                let leaf = (end_entity, KeyUsage::server_auth());
                rules.check_revocation(leaf, intermediates, roots, algorithms, now)
            };
            match trust.domains() {
                None => verify(&trust.roots())?,
                Some(domains) => {
                    let (domain, roots) = of_its_domain(domains, end_entity)?;
                    trust::of_domain(verify(roots), &domain)?;
                }
            }
            may_sign(intermediates)?;
            rules.check(end_entity)?;
            if rules.may_be_remembered() {
                self.verified.insert(key, presented(), now);
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Returns the value for the trust domain of a certificate.
fn of_its_domain<'d, T>(
    domains: &'d BTreeMap<Box<str>, T>,
    end_entity: &CertificateDer<'_>,
) -> Result<(String, &'d T), Error> {
    let domain = trust::trust_domain(end_entity)?;
    match domains.get(domain.as_str()) {
        Some(found) => Ok((domain, found)),
        None => Err(DomainError::Unknown(domain).into()),
    }
}

fn tls12_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    match Version1::read(certificate) {
        None => verify_tls12_signature(message, certificate, signature, algorithms),
        Some(leaf) => {
            version1::verify_tls12_signature(&leaf.public_key(), message, signature, algorithms)?;
            Ok(HandshakeSignatureValid::assertion())
        }
    }
}

fn tls13_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    match Version1::read(certificate) {
        None => verify_tls13_signature(message, certificate, signature, algorithms),
        Some(leaf) => verify_tls13_signature_with_raw_key(message, &leaf.public_key(), signature, algorithms),
    }
}

/// Verifies a client: rustls' own verifier for the chain, then its revocation and the subject alternative names.
pub(crate) struct ClientVerifier {
    /// Verifies with all roots: its names are sent to clients, and it verifies clients if trust domains are not separate.
    chain: ChainVerifier,
    /// The verifier for each trust domain, if they are separate.
    domains: Option<BTreeMap<Box<str>, ChainVerifier>>,
    rules: PeerRules,
    verified: VerifiedChains,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The roots that may vouch for a client.
struct ChainVerifier {
    roots: Arc<RootCertStore>,
    webpki: Arc<dyn ClientCertVerifier>,
}

impl ChainVerifier {
    fn new(roots: Arc<RootCertStore>, mandatory: bool) -> Result<Self, ConfigError> {
        let builder = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider());
        let builder = if mandatory { builder } else { builder.allow_unauthenticated() };
        let webpki = builder.build().map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { roots, webpki })
    }

    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        rules: &PeerRules,
        algorithms: &WebPkiSupportedAlgorithms,
        now: UnixTime,
    ) -> Result<(), Error> {
        if let Some(leaf) = Version1::read(end_entity) {
            return rules.verify_version1(&leaf, (&self.roots, intermediates), Usage::Client, algorithms.all, now);
        }
        version1::refuse_authorities(intermediates)?;
        self.webpki.verify_client_cert(end_entity, intermediates, now)?;
        // rustls' verifier takes the first list of an issuer, whether it is valid or not.
        let leaf = (end_entity, KeyUsage::client_auth());
        rules.check_revocation(leaf, intermediates, &self.roots, algorithms.all, now)
    }
}

/// Verifies clients that may, but need not, present a certificate. If it has a URI, it must have one only, of this trust domain:
/// the roots may be those of other meshes, too. A certificate without one is no identity of any mesh.
///
/// # Errors
/// When the roots cannot be used.
pub fn optional_clients(trust: &TrustBundle, trust_domain: &str) -> Result<Arc<dyn ClientCertVerifier>, ConfigError> {
    let inner = ClientVerifier::new(trust, &PeerChecks::default(), false)?;
    Ok(Arc::new(OfTrustDomain { inner, trust_domain: trust_domain.to_owned() }))
}

/// See [`optional_clients`].
#[derive(Debug)]
struct OfTrustDomain {
    inner: ClientVerifier,
    trust_domain: String,
}

impl ClientCertVerifier for OfTrustDomain {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let certificate = PeerCertificate::parse(std::slice::from_ref(end_entity))
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        if certificate.uri_sans.is_empty() {
            return Ok(verified);
        }
        match trust::trust_domain(end_entity)? {
            found if found == self.trust_domain => Ok(verified),
            found => Err(DomainError::Other { found, wanted: self.trust_domain.clone() }.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

impl ClientVerifier {
    /// `mandatory`: a client without a certificate is refused.
    pub(crate) fn new(trust: &TrustBundle, checks: &PeerChecks, mandatory: bool) -> Result<Self, ConfigError> {
        let rules = PeerRules::new(trust, checks);
        let chain = ChainVerifier::new(trust.roots(), mandatory)?;
        let of_domain = |(name, roots): (&_, &Arc<RootCertStore>)| {
            Ok::<_, ConfigError>((Box::<str>::clone(name), ChainVerifier::new(roots.clone(), mandatory)?))
        };
        let domains = trust.domains().map(|domains| domains.iter().map(of_domain).collect()).transpose()?;
        let algorithms = provider().signature_verification_algorithms;
        Ok(Self { chain, domains, rules, verified: VerifiedChains::default(), algorithms })
    }

    fn verify_chain(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let Some(domains) = &self.domains else {
            return self.chain.verify(end_entity, intermediates, &self.rules, &self.algorithms, now);
        };
        let (domain, verifier) = of_its_domain(domains, end_entity)?;
        let verified = verifier.verify(end_entity, intermediates, &self.rules, &self.algorithms, now);
        trust::of_domain(verified, &domain)
    }

    /// Whether a chain, leaf first, identifies a client that was let in with it.
    pub(crate) fn identify(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> Result<(), Error> {
        let (end_entity, intermediates) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        let now = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
        self.verify_all(end_entity, intermediates, now)
    }

    fn verify_all(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let presented = || iter::once(end_entity).chain(intermediates);
        let key = ChainKey::of(presented());
        if !self.verified.holds(&key, now) {
            self.verify_chain(end_entity, intermediates, now)?;
            may_sign(intermediates)?;
            self.rules.check(end_entity)?;
            if self.rules.may_be_remembered() {
                self.verified.insert(key, presented(), now);
            }
        }
        Ok(())
    }
}

/// An authority whose certificate says what its key is for signs certificates only if that is among it (RFC 5280 section
/// 4.2.1.3). BoringSSL looks at this, webpki does not.
fn may_sign(intermediates: &[CertificateDer<'_>]) -> Result<(), Error> {
    for intermediate in intermediates {
        let (_, certificate) = X509Certificate::from_der(intermediate).map_err(|_| CertificateError::BadEncoding)?;
        let usage = certificate.key_usage().map_err(|_| CertificateError::BadEncoding)?;
        if usage.is_some_and(|usage| certificate.is_ca() && !usage.value.key_cert_sign()) {
            return Err(CertificateError::InvalidPurpose.into());
        }
    }
    Ok(())
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.chain.webpki.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chain.webpki.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verify_all(end_entity, intermediates, now);
        verified.inspect_err(|_| REFUSED.set(Some(end_entity.clone().into_owned())))?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The checks besides the chain.
#[derive(Debug)]
struct PeerRules {
    names: Vec<SanMatcher>,
    pins: Pins,
    revocation: Option<RevocationLists>,
    leaf_only: bool,
}

impl PeerRules {
    fn new(trust: &TrustBundle, checks: &PeerChecks) -> Self {
        Self {
            names: checks.subject_alt_names.clone(),
            pins: checks.pins.clone(),
            revocation: trust.revocation().or(checks.revocation.as_ref()).cloned(),
            leaf_only: checks.revocation_of_leaf_only,
        }
    }

    /// Checks the revocation of a leaf, whose chain has been verified, for its usage.
    fn check_revocation(
        &self,
        leaf: (&CertificateDer<'_>, KeyUsage),
        intermediates: &[CertificateDer<'_>],
        roots: &RootCertStore,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
        now: UnixTime,
    ) -> Result<(), Error> {
        match &self.revocation {
            None => Ok(()),
            Some(lists) => lists.check(leaf, intermediates, roots, self.leaf_only, algorithms, now),
        }
    }

    fn verify_version1(
        &self,
        leaf: &Version1<'_>,
        (roots, intermediates): (&RootCertStore, &[CertificateDer<'_>]),
        usage: Usage,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
        now: UnixTime,
    ) -> Result<(), Error> {
        version1::refuse_authorities(intermediates)?;
        let revocation = self.revocation.as_ref().map(|lists| (lists, self.leaf_only));
        leaf.verify(&Authorities { roots, intermediates, usage, revocation, algorithms, now })
    }

    fn check(&self, end_entity: &CertificateDer<'_>) -> Result<(), Error> {
        verify_names(end_entity, &self.names)?;
        let mismatch = |error| Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))));
        self.pins.check(end_entity).map_err(mismatch)
    }

    /// A revocation list ends, and nothing else would notice it.
    fn may_be_remembered(&self) -> bool {
        self.revocation.is_none()
    }
}

/// Checks that a server's certificate has the name, or the address, that a request calls.
pub(crate) fn verify_called(certificate: &PeerCertificate, name: &str) -> Result<(), HandshakeError> {
    let kind = if name.parse::<IpAddr>().is_ok() { SanKind::IpAddress } else { SanKind::Dns };
    let matcher = SanMatcher { kind: Some(kind), pattern: StringPattern::exact(name) };
    if matcher.matches(certificate) {
        Ok(())
    } else {
        Err(HandshakeError::PeerNames(SanMismatch { expected: matcher.to_string(), presented: certificate.all_sans() }))
    }
}

fn verify_names(end_entity: &CertificateDer<'_>, matchers: &[SanMatcher]) -> Result<(), Error> {
    if matchers.is_empty() {
        return Ok(());
    }
    let certificate = PeerCertificate::parse(std::slice::from_ref(end_entity))
        .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    if matchers.iter().any(|matcher| matcher.matches(&certificate)) {
        return Ok(());
    }
    let expected = matchers.iter().map(SanMatcher::to_string).collect::<Vec<_>>().join(" or ");
    let mismatch = SanMismatch { expected, presented: certificate.all_sans() };
    Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(mismatch)))))
}

impl fmt::Debug for ServerVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerVerifier").field("chain", &self.chain.is_some()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientVerifier").field("rules", &self.rules).finish_non_exhaustive()
    }
}
