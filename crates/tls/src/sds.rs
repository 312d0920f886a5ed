//! Names of secrets that arrive over SDS.

use std::fmt;

/// A secret that is delivered over SDS.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SdsSecret {
    /// The secret's name, such as `default` or `ROOTCA`.
    pub name: String,
    /// The server that delivers it.
    pub server: SdsServer,
}

impl fmt::Display for SdsSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The server that delivers a secret (`sds_config`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SdsServer {
    /// The aggregated stream.
    Ads,
    /// A stream of its own over a static cluster, such as `sds-grpc`.
    Cluster(String),
    /// A file.
    File(String),
}

/// What a secret must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SecretKind {
    /// `tls_certificate`.
    Certificate,
    /// `validation_context`.
    Trust,
}
