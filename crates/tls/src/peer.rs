//! The contents of a peer's certificate.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;
use evenkeel_base::spiffe::SpiffeId;
use rustls_pki_types::CertificateDer;
use x509_parser::asn1_rs::Any;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Name;

use crate::pem_form::pem_urlencoded;

/// A parsed leaf certificate, with the chain it came in. Parsing proves nothing: the chain must be verified separately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Subject alternative names of kind URI, in order.
    pub uri_sans: Vec<String>,
    /// Subject alternative names of kind DNS, in order.
    pub dns_sans: Vec<String>,
    /// Subject alternative names of kind e-mail, in order.
    pub email_sans: Vec<String>,
    /// Subject alternative names of kind IP address, in their text form.
    pub ip_sans: Vec<String>,
    /// The subject's distinguished name in the form of RFC 2253; empty for workload certificates.
    pub subject: String,
    /// The issuer's distinguished name in the form of RFC 2253.
    pub issuer: String,
    /// Serial number, lower-case hexadecimal.
    pub serial: String,
    /// SHA-256 of the certificate's DER form (`Hash` in x-forwarded-client-cert).
    pub sha256: [u8; 32],
    /// The chain as presented, leaf first, DER.
    pub chain: Vec<CertificateDer<'static>>,
    not_before: i64,
    not_after: i64,
    not_before_text: String,
    not_after_text: String,
}

/// Whether a DNS name of a certificate can be one of a host: it has no character that only other kinds of names have.
pub fn is_host_name(name: &str) -> bool {
    !name.contains(['/', ':'])
}

/// A certificate that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SanError(pub(crate) String);

impl PeerCertificate {
    /// Parses the first certificate of a chain.
    pub fn parse(chain: &[CertificateDer<'_>]) -> Result<Self, SanError> {
        let leaf = chain.first().ok_or_else(|| SanError("the chain is empty".into()))?;
        let (rest, parsed) = X509Certificate::from_der(leaf).map_err(|error| SanError(error.to_string()))?;
        if !rest.is_empty() {
            return Err(SanError(format!("{} bytes after the certificate", rest.len())));
        }
        let mut certificate = Self::without_names(&parsed, leaf);
        certificate.chain = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
        let extension = parsed.subject_alternative_name().map_err(|error| SanError(error.to_string()))?;
        for name in extension.iter().flat_map(|extension| &extension.value.general_names) {
            match name {
                GeneralName::URI(uri) => certificate.uri_sans.push((*uri).to_owned()),
                GeneralName::DNSName(dns) => certificate.dns_sans.push((*dns).to_owned()),
                GeneralName::RFC822Name(email) => certificate.email_sans.push((*email).to_owned()),
                GeneralName::IPAddress(bytes) => certificate.ip_sans.extend(ip_text(bytes)),
                _ => {}
            }
        }
        Ok(certificate)
    }

    /// The first and the last second of a certificate's validity, since 1970.
    pub(crate) fn validity(certificate: &CertificateDer<'_>) -> Result<(u64, u64), SanError> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| SanError(error.to_string()))?;
        let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
        let validity = parsed.validity();
        Ok((seconds(validity.not_before.timestamp()), seconds(validity.not_after.timestamp())))
    }

    fn without_names(parsed: &X509Certificate<'_>, der: &[u8]) -> Self {
        let validity = parsed.validity();
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(digest::digest(&digest::SHA256, der).as_ref());
        Self {
            uri_sans: Vec::new(),
            dns_sans: Vec::new(),
            email_sans: Vec::new(),
            ip_sans: Vec::new(),
            subject: rfc2253(parsed.subject()),
            issuer: rfc2253(parsed.issuer()),
            serial: parsed.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect(),
            sha256,
            chain: Vec::new(),
            not_before: validity.not_before.timestamp(),
            not_after: validity.not_after.timestamp(),
            not_before_text: validity.not_before.to_string(),
            not_after_text: validity.not_after.to_string(),
        }
    }

    /// The DNS names that can be names of hosts. Whoever may choose the DNS names of a certificate must not be able to choose an
    /// identity with them (`spiffe://…`).
    pub fn host_names(&self) -> impl Iterator<Item = &String> {
        self.dns_sans.iter().filter(|name| is_host_name(name))
    }

    /// The workload's id: the only URI, when it has the form of one.
    pub fn spiffe_id(&self) -> Option<SpiffeId> {
        match self.uri_sans.as_slice() {
            [uri] => uri.parse().ok(),
            _ => None,
        }
    }

    /// Beginning of the validity.
    pub fn not_before(&self) -> SystemTime {
        time_from_unix(self.not_before)
    }

    /// End of the validity.
    pub fn not_after(&self) -> SystemTime {
        time_from_unix(self.not_after)
    }

    /// [`Self::sha256`] in lower-case hexadecimal.
    pub fn sha256_hex(&self) -> String {
        self.sha256.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// SHA-256 of each certificate of the chain, in lower-case hexadecimal.
    pub fn chain_sha256(&self) -> Vec<String> {
        self.chain.iter().map(|der| hex(digest::digest(&digest::SHA256, der).as_ref())).collect()
    }

    /// SHA-1 of each certificate of the chain, in lower-case hexadecimal: a name for it in logs, and no more.
    pub fn chain_sha1(&self) -> Vec<String> {
        self.chain.iter().map(|der| hex(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, der).as_ref())).collect()
    }

    /// The serial number of each certificate of the chain.
    pub fn chain_serials(&self) -> Vec<String> {
        let parsed = self.chain.iter().filter_map(|der| X509Certificate::from_der(der).ok());
        parsed.map(|(_, certificate)| hex(certificate.raw_serial())).collect()
    }

    /// The certificate as PEM, percent-encoded; empty if it is not known.
    pub fn encoded_pem(&self) -> String {
        self.chain.first().map(|der| pem_urlencoded(der)).unwrap_or_default()
    }

    /// A name for messages: the first URI or DNS name, else the subject.
    pub fn display_name(&self) -> String {
        match self.uri_sans.first().or(self.dns_sans.first()) {
            Some(name) => printable(name),
            None if self.subject.is_empty() => format!("serial {}", self.serial),
            None => self.subject.clone(),
        }
    }

    /// All names, for messages about a mismatch.
    pub(crate) fn all_sans(&self) -> Vec<String> {
        let names = [&self.uri_sans, &self.dns_sans, &self.email_sans, &self.ip_sans];
        names.into_iter().flatten().map(|name| printable(name)).collect()
    }

    pub(crate) fn not_before_text(&self) -> &str {
        &self.not_before_text
    }

    pub(crate) fn not_after_text(&self) -> &str {
        &self.not_after_text
    }
}

fn ip_text(bytes: &[u8]) -> Option<String> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok().map(|ip| ip.to_string())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes text from a peer safe for messages: escapes control characters, which could end a line or move a terminal's
/// cursor.
pub fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            character if character.is_control() => printable.extend(character.escape_default()),
            character => printable.push(character),
        }
    }
    printable
}

/// A distinguished name as RFC 2253 writes it: last element first, special characters escaped.
pub(crate) fn rfc2253(name: &X509Name<'_>) -> String {
    let mut elements: Vec<String> = name
        .iter()
        .map(|set| {
            let pairs = set.iter().map(|pair| {
                let key = match pair.attr_type().to_id_string().as_str() {
                    "2.5.4.3" => "CN".to_owned(),
                    "2.5.4.7" => "L".to_owned(),
                    "2.5.4.8" => "ST".to_owned(),
                    "2.5.4.10" => "O".to_owned(),
                    "2.5.4.11" => "OU".to_owned(),
                    "2.5.4.6" => "C".to_owned(),
                    "2.5.4.9" => "STREET".to_owned(),
                    "0.9.2342.19200300.100.1.25" => "DC".to_owned(),
                    "0.9.2342.19200300.100.1.1" => "UID".to_owned(),
                    other => other.to_owned(),
                };
                format!("{key}={}", escape(pair.attr_value()))
            });
            pairs.collect::<Vec<_>>().join("+")
        })
        .collect();
    elements.reverse();
    elements.join(",")
}

/// Escapes like Envoy's `XN_FLAG_RFC2253`: special characters with a backslash, control and non-ASCII characters byte
/// by byte in hexadecimal digits.
fn escape(value: &Any<'_>) -> String {
    let last = value.data.len().saturating_sub(1);
    let mut escaped = String::with_capacity(value.data.len());
    for (index, byte) in value.data.iter().enumerate() {
        let special = matches!(byte, b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';')
            || (index == 0 && matches!(byte, b'#' | b' '))
            || (index == last && *byte == b' ');
        match byte {
            b' '..=b'~' if !special => {}
            b' '..=b'~' => escaped.push('\\'),
            byte => {
                // Writing to a String cannot fail.
                let _ = write!(escaped, "\\{byte:02X}");
                continue;
            }
        }
        escaped.push(char::from(*byte));
    }
    escaped
}

/// Seconds since 1970 as a point in time; earlier times become 1970.
pub(crate) fn time_from_unix(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.try_into().unwrap_or(0))
}
