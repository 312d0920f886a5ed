//! Findings about a mesh as a whole: those of reading and building it, with Istio's message codes, and those that only an
//! analysis makes.
//!
//! | question | file |
//! |---|---|
//! | which of Istio's codes is a finding, and which codes do not apply here? | `codes.rs` |
//! | what does an analysis look for beyond the model? | `checks/` |
//! | what would a mesh of Istio do differently here, and in which order can it move? | `migration.rs` |
//! | which routes of the Gateway API are the equal of VirtualServices and Ingresses? | `routes/` |
//! | which findings did the user suppress? | `suppress.rs` |
//! | the findings as istioctl's JSON, and as SARIF | `report.rs` |

#![forbid(unsafe_code)]
// Input comes from users' files: an impossible state is an error, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod checks;
pub mod codes;
pub mod migration;
pub mod report;
pub mod routes;
mod suppress;

use evenkeel_api::Object;
use evenkeel_base::{Diagnostic, Diagnostics, Severity};
use evenkeel_model::request_authentication::of_files_alone;
use evenkeel_model::{AddressBook, MeshConfig, Snapshot};

pub use codes::Code;
pub use suppress::{Suppression, SuppressionError};

/// A finding, and Istio's code for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The finding. Its severity is Istio's, if that is higher.
    pub diagnostic: Diagnostic,
    /// Istio's code, if it has one for this.
    pub istio: Option<&'static Code>,
}

/// Analyses objects together. `mesh` has the control plane's options; `read` are the findings of reading the objects.
pub fn analyze(objects: &[Object], mesh: &MeshConfig, read: Diagnostics, suppressed: &[Suppression]) -> Vec<Finding> {
    let (snapshot, built) = evenkeel_model::build(objects, mesh, &mut AddressBook::default());
    let built = of_files_alone(built);
    let all = read.into_iter().chain(built).chain(check(objects, &snapshot));
    let mut findings: Vec<Finding> = all.map(Finding::new).collect();
    let suppressing = suppress::suppressing(objects);
    findings.retain(|finding| {
        !suppress::by_annotation(finding, &suppressing) && !suppressed.iter().any(|rule| rule.covers(finding))
    });
    findings.sort_by(|a, b| {
        let (a, b) = (&a.diagnostic, &b.diagnostic);
        a.span.cmp(&b.span).then(b.severity.cmp(&a.severity)).then(a.code.cmp(b.code))
    });
    findings.dedup();
    findings
}

/// RequestAuthentications of gRPC programs without a proxy, which cannot execute them.
pub fn tokens_of_grpc_programs(objects: &[Object], snapshot: &Snapshot) -> Diagnostics {
    let mut found = Diagnostics::new();
    let objects: Vec<&Object> = objects.iter().collect();
    checks::grpc::tokens(&objects, snapshot, &mut found);
    found
}

/// Returns the findings that only an analysis makes, except those that their objects suppress.
pub fn unsuppressed(objects: &[Object], snapshot: &Snapshot) -> Diagnostics {
    let found = check(objects, snapshot).into_iter().map(Finding::unchanged);
    let suppressing = suppress::suppressing(objects);
    found.filter(|finding| !suppress::by_annotation(finding, &suppressing)).map(|finding| finding.diagnostic).collect()
}

/// The findings that only an analysis looks for.
pub fn check(objects: &[Object], snapshot: &Snapshot) -> Diagnostics {
    let mut found = Diagnostics::new();
    let sound: Vec<&Object> = objects.iter().filter(|object| object.refused.is_none()).collect();
    for check in checks::ALL {
        check(&sound, snapshot, &mut found);
    }
    found
}

impl Finding {
    /// Classifies a finding.
    pub fn new(mut diagnostic: Diagnostic) -> Self {
        let istio = codes::of(&diagnostic);
        // The meaning of another program's kinds is unknown here.
        if diagnostic.code == "foreign-kind" {
            diagnostic.severity = Severity::Info;
        }
        if let Some(code) = istio {
            diagnostic.severity = diagnostic.severity.max(code.level);
        }
        Self { diagnostic, istio }
    }

    /// Classifies a finding, and keeps its severity.
    pub fn unchanged(diagnostic: Diagnostic) -> Self {
        Self { istio: codes::of(&diagnostic), diagnostic }
    }

    /// The finding as a diagnostic that names Istio's code.
    pub fn to_diagnostic(&self) -> Diagnostic {
        let mut diagnostic = self.diagnostic.clone();
        if let Some(code) = self.istio {
            diagnostic.message = format!("{} [{}]", diagnostic.message, code.code);
        }
        diagnostic
    }
}
