//! `/debug/ca`: the certificate authorities, the rotation from one to the next, and certificates that expire soon.

pub use evenkeel_ca::rotation::{Kind, Origin, Phase, Signer, State, Waiting};
use serde::{Deserialize, Serialize};

/// The path of the page.
pub const PATH: &str = "/debug/ca";

/// The page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The state of the rotation, with all authorities.
    pub state: State,
    /// Version of the trusted roots.
    pub bundle: String,
    /// What the rotation waits for.
    pub waiting: Waiting,
    /// Workloads with a certificate.
    pub workloads: usize,
    /// The external signer that signs workloads' certificates, or why it cannot.
    pub external: Option<External>,
    /// Certificates that expire soon.
    #[serde(default)]
    pub alarms: Vec<Alarm>,
    /// The time of this control plane, in seconds since 1970.
    pub now: u64,
}

/// An external signer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct External {
    /// Its address.
    pub address: Option<String>,
    /// Why it cannot be used.
    pub problem: Option<String>,
    /// Workloads that have acknowledged the present roots, including the signer's.
    pub trusting: usize,
}

/// A certificate that expires soon.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Alarm {
    /// What it is the certificate of.
    pub kind: AlarmKind,
    /// The workload, or the authority's id.
    pub of: String,
    /// The identity of a workload.
    pub identity: Option<String>,
    /// When it expires, in seconds since 1970.
    pub not_after: u64,
}

/// Whose certificate expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlarmKind {
    /// A root of the external signer.
    ExternalRoot,
    /// An authority below a root.
    Intermediate,
    /// A workload.
    Leaf,
    /// A root.
    Root,
}

impl AlarmKind {
    /// As on the page.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ExternalRoot => "external-root",
            Self::Intermediate => "intermediate",
            Self::Leaf => "leaf",
            Self::Root => "root",
        }
    }
}
