//! The files of an authority, and the errors of opening one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use evenkeel_tls::IdentityError;

use evenkeel_store::SecretError;

/// File name of the root certificate in the state directory.
pub const CA_CERT_FILE: &str = "ca-cert.pem";
/// File name of the root's key in the state directory; its mode is 0600.
pub const CA_KEY_FILE: &str = "ca-key.pem";

/// Why an authority cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The key file cannot be used.
    #[error(transparent)]
    KeyFile(#[from] SecretError),
    /// Another file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The certificate exists, but its key does not.
    #[error(
        "{0} is missing, but its certificate is there; restore the key, or remove the certificate to make a new root"
    )]
    KeyMissing(PathBuf),
    /// Certificate and key do not belong together, or the certificate is expired or not yet valid.
    #[error("{path}: {source}")]
    Identity {
        /// The certificate's file.
        path: PathBuf,
        /// The error.
        source: IdentityError,
    },
    /// The certificate is not a CA certificate.
    #[error("{0}: not a CA certificate (its basic constraints do not allow signing)")]
    NotAnAuthority(PathBuf),
    /// No chain leads from the signing certificate to a root.
    #[error(
        "{path}: no chain leads from ca-cert.pem to a root in this file; cert-chain.pem must hold the intermediate certificates"
    )]
    Chain {
        /// The roots' file.
        path: PathBuf,
    },
    /// The revocation lists do not cover every certificate, so that peers would reject all of them.
    #[error("{path}: {reason}; add a list of every authority from ca-cert.pem to the root")]
    RevocationLists {
        /// The file of the lists.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// A certificate or key could not be made or parsed.
    #[error("{path}: {source}")]
    Certificate {
        /// The file of the certificate or key.
        path: PathBuf,
        /// The error.
        source: rcgen::Error,
    },
}

pub(crate) fn read_optional(path: &Path) -> Result<Option<String>, AuthorityError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error(path)(error)),
    }
}

pub(crate) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> AuthorityError {
    |source| AuthorityError::Io { path: path.to_owned(), source }
}

pub(crate) fn certificate_error(path: &Path) -> impl FnOnce(rcgen::Error) -> AuthorityError {
    |source| AuthorityError::Certificate { path: path.to_owned(), source }
}

/// Formats bytes in hexadecimal, as identifiers are written.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
