//! Statuses: the findings about an object that a source writes into the object itself, for its author.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_base::{Diagnostic, ObjectRef, Severity};

use crate::{Condition, GatewayApiStatus};

/// The prefix of the codes of findings about missing objects that an object refers to.
const MISSING: &str = "missing-";

/// The `status` of an object, as Kubernetes' kinds have it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// The generation of the object that the status describes.
    pub observed_generation: Option<i64>,
    /// Its conditions, each type once.
    pub conditions: Vec<Condition>,
    /// The virtual addresses that its hosts have been allotted.
    pub addresses: Vec<HostAddress>,
    /// The findings about it, for kinds whose status lists them and for objects without a status.
    pub findings: Vec<Diagnostic>,
    /// What the specification of the Gateway API wants, for objects of its kinds that are served here.
    pub gateway_api: Option<Arc<GatewayApiStatus>>,
}

/// The virtual address of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAddress {
    /// The host.
    pub host: Arc<str>,
    /// Its address.
    pub address: IpAddr,
}

impl Status {
    /// Makes the status of an object of this generation from the findings about it.
    pub fn of<'f>(generation: Option<i64>, findings: impl IntoIterator<Item = &'f Diagnostic>) -> Self {
        let (mut error, mut missing) = (None, None);
        let findings: Vec<&Diagnostic> = findings.into_iter().collect();
        for &finding in &findings {
            if finding.severity == Severity::Error {
                error.get_or_insert(finding);
            }
            if finding.code.starts_with(MISSING) {
                missing.get_or_insert(finding);
            }
        }
        let condition = |kind, holds, fails, finding: Option<&Diagnostic>| Condition {
            kind,
            holds: finding.is_none(),
            reason: if finding.is_none() { holds } else { fails },
            message: finding.map(|finding| finding.message.clone()).unwrap_or_default(),
        };
        let conditions = vec![
            condition("Accepted", "Accepted", "Invalid", error),
            condition("ResolvedRefs", "ResolvedRefs", "RefNotFound", missing),
        ];
        let findings = findings.into_iter().cloned().collect();
        Self { observed_generation: generation, conditions, addresses: Vec::new(), findings, gateway_api: None }
    }
}

/// The target of statuses: the API server that the objects come from. Objects in files have none.
pub trait StatusSink {
    /// Writes the present status of an object.
    fn write(&mut self, object: &ObjectRef, status: &Arc<Status>);
}
