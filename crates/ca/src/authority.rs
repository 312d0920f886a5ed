//! The certificate authority, with a self-signed root or one that the operator provides, and the certificates that it signs.

use std::path::Path;
use std::time::{Duration, SystemTime};

use aws_lc_rs::rand;
use evenkeel_base::spiffe::SpiffeId;
use evenkeel_store::{Readers, Store};
use evenkeel_tls::Identity;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use time::OffsetDateTime;

use crate::csr::{self, CsrError};
use crate::files::{AuthorityError, CA_CERT_FILE, CA_KEY_FILE, certificate_error, hex, io_error};
use crate::plugged::{self, PluggedFiles};

/// Default lifetime of a workload certificate, as in Istio.
pub const DEFAULT_TTL: Duration = Duration::from_secs(24 * 3600);
/// Maximum lifetime of a workload certificate; Istio's `MAX_WORKLOAD_CERT_TTL`.
pub const MAX_TTL: Duration = Duration::from_secs(90 * 24 * 3600);
/// Minimum lifetime of a certificate; with less, renewal could not keep up.
pub const MIN_TTL: Duration = Duration::from_secs(10);
/// Lifetime of a self-signed root.
const ROOT_TTL: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Lifetime of an intermediate authority below such a root.
const INTERMEDIATE_TTL: Duration = Duration::from_secs(365 * 24 * 3600);
/// How far a certificate's validity is dated back, for machines whose clock is slow.
const CLOCK_SKEW: Duration = Duration::from_secs(120);

/// A certificate authority with its key.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Certificates between a leaf and the root, PEM; empty when the authority is the root itself.
    intermediates: Vec<String>,
    roots: String,
    not_before: SystemTime,
    not_after: SystemTime,
    key_id: String,
    id: String,
}

/// A workload's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The certificates in PEM: leaf, then intermediates; the root is not among them.
    pub chain: Vec<String>,
    /// Serial number of the leaf, lower-case hexadecimal.
    pub serial: String,
    /// Beginning of the leaf's validity.
    pub not_before: SystemTime,
    /// End of the leaf's validity.
    pub not_after: SystemTime,
}

/// A server's certificate with its key, PEM.
pub struct ServerCertificate {
    /// Leaf, then intermediates.
    pub chain_pem: String,
    /// The private key, PKCS #8.
    pub key_pem: String,
    /// End of the leaf's validity.
    pub not_after: SystemTime,
}

/// Why a certificate was not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The request is not acceptable.
    #[error(transparent)]
    Csr(#[from] CsrError),
    /// The authority's own certificate ends before a new certificate would be useful.
    #[error("the certificate authority's own certificate has expired")]
    AuthorityExpired,
    /// Signing failed.
    #[error("signing failed: {0}")]
    Signing(#[from] rcgen::Error),
}

impl Authority {
    /// Opens the authority in the state directory; creates a new root for `trust_domain` if there is none.
    pub fn open(state: impl Into<Store>, trust_domain: &str, now: SystemTime) -> Result<Self, AuthorityError> {
        let store = state.into();
        let (cert_path, key_path) = (store.place(CA_CERT_FILE), store.place(CA_KEY_FILE));
        let cert = store.text(CA_CERT_FILE).map_err(io_error(&cert_path))?;
        let key = match (store.secret(CA_KEY_FILE)?, &cert) {
            (Some(key), _) => key,
            (None, Some(_)) => return Err(AuthorityError::KeyMissing(key_path)),
            (None, None) => {
                let key = new_key().map_err(certificate_error(&key_path))?.serialize_pem();
                store.put(CA_KEY_FILE, key.as_bytes(), Readers::Owner).map_err(io_error(&key_path))?;
                key
            }
        };
        // The key is written first: after a crash in between, the next start creates the root for the existing key.
        let cert = match cert {
            Some(cert) => cert,
            None => {
                let cert = self_sign(&key, trust_domain, now).map_err(certificate_error(&cert_path))?;
                store.put(CA_CERT_FILE, cert.as_bytes(), Readers::All).map_err(io_error(&cert_path))?;
                cert
            }
        };
        let validity = check(&cert_path, &cert, &key, now)?;
        Self::assemble(&cert_path, &cert, &key, Vec::new(), cert.clone(), validity)
    }

    /// Opens an authority that the operator provides, in a directory with Istio's file names or those of a TLS Secret
    /// ([`PluggedFiles::read`]).
    pub fn plugged_in(folder: &Path, now: SystemTime) -> Result<Self, AuthorityError> {
        Self::from_files(&PluggedFiles::read(folder)?, now)
    }

    /// Opens an authority from files that have been read.
    pub fn from_files(files: &PluggedFiles, now: SystemTime) -> Result<Self, AuthorityError> {
        let validity = check(&files.certificate_path, &files.certificate, &files.key, now)?;
        let intermediates = plugged::intermediates(&files.certificate, &files.chain, &files.roots)
            .ok_or_else(|| AuthorityError::Chain { path: files.roots_path.clone() })?;
        if let Some(lists) = &files.revocation_lists
            && let Some(reason) = plugged::missing_list(&files.certificate, &files.chain, &files.roots, lists)
        {
            let path = files.certificate_path.with_file_name(plugged::CRL_FILE);
            return Err(AuthorityError::RevocationLists { path, reason });
        }
        let (path, roots) = (&files.certificate_path, files.roots.clone());
        Self::assemble(path, &files.certificate, &files.key, intermediates, roots, validity)
    }

    /// Creates a new root with a new key for `trust_domain`.
    pub fn new_root(trust_domain: &str, now: SystemTime) -> Result<PluggedFiles, SignError> {
        let key = new_key()?.serialize_pem();
        let certificate = self_sign(&key, trust_domain, now)?;
        Ok(PluggedFiles::made(certificate.clone(), key, certificate, String::new()))
    }

    /// Creates an intermediate authority below this one, with a new key.
    pub fn new_intermediate(&self, trust_domain: &str, now: SystemTime) -> Result<PluggedFiles, SignError> {
        let not_after = (now + INTERMEDIATE_TTL).min(self.not_after);
        if not_after <= now {
            return Err(SignError::AuthorityExpired);
        }
        let mut params = authority_params(trust_domain, now, not_after)?;
        params.distinguished_name.push(DnType::CommonName, format!("intermediate {}", hex(&random_bytes::<4>()?)));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.use_authority_key_identifier_extension = true;
        let key = new_key()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        let chain = self.intermediates.concat();
        Ok(PluggedFiles::made(certificate, key.serialize_pem(), self.roots.clone(), chain))
    }

    fn assemble(
        path: &Path,
        cert: &str,
        key: &str,
        intermediates: Vec<String>,
        roots: String,
        (not_before, not_after): (SystemTime, SystemTime),
    ) -> Result<Self, AuthorityError> {
        let key = KeyPair::from_pem(key).map_err(certificate_error(path))?;
        let issuer = Issuer::from_ca_cert_pem(cert, key).map_err(certificate_error(path))?;
        let id = plugged::fingerprint(cert).unwrap_or_default();
        let mut this = Self { issuer, intermediates, roots, not_before, not_after, key_id: String::new(), id };
        // A proxy sees the key id in leaves, and only signing one shows what it is.
        this.key_id = this.probe_key_id().map_err(certificate_error(path))?;
        Ok(this)
    }

    fn probe_key_id(&self) -> Result<String, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(random_serial()?);
        let probe = params.signed_by(&new_key()?, &self.issuer)?;
        Ok(plugged::authority_key_id(probe.der()).unwrap_or_default())
    }

    /// Returns the roots that peers should trust, in PEM.
    pub fn trust_bundle_pem(&self) -> &str {
        &self.roots
    }

    /// Returns the SHA-256 of the signing certificate in lower-case hexadecimal, which identifies the authority.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the authority key identifier in the certificates that it signs, in lower-case hexadecimal.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// Whether leaves are signed with the root's own key.
    pub fn is_root(&self) -> bool {
        self.intermediates.is_empty()
    }

    /// Returns the beginning of the authority's own validity.
    pub fn not_before(&self) -> SystemTime {
        self.not_before
    }

    /// Returns the end of the authority's own validity.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Signs a workload's request (PEM or DER) for the identity that the caller has authenticated.
    ///
    /// Only the public key is taken from the request; its signature must be valid, and `identity` must be its only
    /// name. `ttl` is clamped to [`MIN_TTL`] and [`MAX_TTL`], and the certificate never outlives the authority's own.
    pub fn sign(
        &self,
        request: &[u8],
        identity: &SpiffeId,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<IssuedCertificate, SignError> {
        let key = csr::public_key(request, identity)?;
        let name = SanType::URI(identity.to_string().try_into()?);
        let (params, not_after) = self.leaf(vec![name], ttl, now)?;
        let serial = params.serial_number.as_ref().map(|serial| hex(serial.as_ref())).unwrap_or_default();
        let leaf = params.signed_by(&key, &self.issuer)?.pem();
        let chain = std::iter::once(leaf).chain(self.intermediates.iter().cloned()).collect();
        Ok(IssuedCertificate { chain, serial, not_before: now - CLOCK_SKEW, not_after })
    }

    /// Creates a key and a certificate for a server with DNS names or IP addresses, such as the control plane itself.
    pub fn server_certificate(
        &self,
        names: &[&str],
        ttl: Duration,
        now: SystemTime,
    ) -> Result<ServerCertificate, SignError> {
        let names = names.iter().map(|name| match name.parse() {
            Ok(address) => Ok(SanType::IpAddress(address)),
            Err(_) => Ok(SanType::DnsName((*name).try_into()?)),
        });
        let (params, not_after) = self.leaf(names.collect::<Result<_, rcgen::Error>>()?, ttl, now)?;
        let key = new_key()?;
        let leaf = params.signed_by(&key, &self.issuer)?.pem();
        let chain_pem = std::iter::once(leaf).chain(self.intermediates.iter().cloned()).collect();
        Ok(ServerCertificate { chain_pem, key_pem: key.serialize_pem(), not_after })
    }

    fn leaf(
        &self,
        names: Vec<SanType>,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<(CertificateParams, SystemTime), SignError> {
        let not_after = (now + ttl.clamp(MIN_TTL, MAX_TTL)).min(self.not_after);
        if not_after <= now {
            return Err(SignError::AuthorityExpired);
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = names;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        params.not_before = OffsetDateTime::from(now - CLOCK_SKEW);
        params.not_after = OffsetDateTime::from(not_after);
        params.serial_number = Some(random_serial()?);
        Ok((params, not_after))
    }
}

fn self_sign(key: &str, trust_domain: &str, now: SystemTime) -> Result<String, rcgen::Error> {
    let mut params = authority_params(trust_domain, now, now + ROOT_TTL)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Ok(params.self_signed(&KeyPair::from_pem(key)?)?.pem())
}

fn authority_params(
    trust_domain: &str,
    now: SystemTime,
    not_after: SystemTime,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, trust_domain);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = OffsetDateTime::from(now - CLOCK_SKEW);
    params.not_after = OffsetDateTime::from(not_after);
    params.serial_number = Some(random_serial()?);
    Ok(params)
}

/// Checks that certificate and key belong together, are valid now, and may sign; returns the validity.
fn check(path: &Path, cert: &str, key: &str, now: SystemTime) -> Result<(SystemTime, SystemTime), AuthorityError> {
    let identity = Identity::from_pem(cert.as_bytes(), key.as_bytes(), now)
        .map_err(|source| AuthorityError::Identity { path: path.to_owned(), source })?;
    if plugged::is_authority(cert) {
        Ok((identity.certificate().not_before(), identity.not_after()))
    } else {
        Err(AuthorityError::NotAnAuthority(path.to_owned()))
    }
}

fn new_key() -> Result<KeyPair, rcgen::Error> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
}

/// Returns a serial number of 126 random bits: positive and unique (RFC 5280 section 4.1.2.2). rcgen's default is a hash of
/// the key, which would repeat when the same key is certified again.
fn random_serial() -> Result<SerialNumber, rcgen::Error> {
    let mut bytes = random_bytes::<16>()?;
    // A leading zero byte would not be part of the number.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn random_bytes<const N: usize>() -> Result<[u8; N], rcgen::Error> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).map_err(|_| rcgen::Error::RingUnspecified)?;
    Ok(bytes)
}
