//! Findings about a cluster as a source: what is not read, and that its API server cannot be followed.

use std::collections::BTreeMap;

use evenkeel_base::{Diagnostic, Diagnostics, Span};
use evenkeel_control::source::SOURCE_OUTAGE;

use crate::definition_gaps::DefinitionGaps;

/// Where such findings are: in no object.
const PLACE: &str = "kubernetes";

/// The findings. `left_out`: what RBAC forbids to read, with the reasons; `outage`: why the API server cannot be followed now;
/// `gaps`: what of the cluster's definitions is not read.
pub(crate) fn notes(left_out: &BTreeMap<String, String>, outage: Option<&str>, gaps: &DefinitionGaps) -> Diagnostics {
    let mut notes = gaps.findings();
    if let Some(reason) = outage {
        let text = format!("the API server cannot be followed: {reason}");
        let help = "what it has said last stays in force; changes have no effect until it answers";
        notes.push(Diagnostic::warning(SOURCE_OUTAGE, Span::whole_file(PLACE), text).with_help(help));
    }
    for (what, reason) in left_out {
        let text = format!("RBAC forbids to read {what}{reason}: the mesh runs without");
        let help = "allow `get`, `list` and `watch` to the control plane's service account (docs/kubernetes.md), or remove what refers to it";
        notes.push(Diagnostic::warning("forbidden-by-rbac", Span::whole_file(PLACE), text).with_help(help));
    }
    notes
}
