//! Findings about selectors and references without effect.

use evenkeel_api::Object;
use evenkeel_api::istio::TargetRef;
use evenkeel_base::{Diagnostic, Diagnostics};

use super::objects::note_idle_selector;
use super::tracking::Cx;
use crate::Selection;

/// Reports references that have no effect, and selectors and Gateways without Pods. `is_told`: another finding says what
/// becomes of references for waypoints.
pub(super) fn note_idle<'a>(
    cx: &Cx<'_>,
    object: &Object,
    selection: &Selection,
    targets: impl Iterator<Item = &'a TargetRef>,
    is_told: bool,
    found: &mut Diagnostics,
) {
    for target in targets.filter(|target| !is_told && !target.is_gateway()) {
        let message = format!(
            "{object} has no effect on {} `{}`: only waypoints look at it, and there are none",
            target.kind.value, target.name.value
        );
        let finding = Diagnostic::warning("no-effect", target.kind.span.clone(), message).about(object.reference());
        found.push(finding.with_help("nothing is enforced by this reference; select the workloads by `selector`"));
    }
    match selection {
        Selection::Labels(labels) => note_idle_selector(cx, object, labels, found),
        Selection::Gateways(_) if is_told => {}
        Selection::Gateways(gateways) => {
            gateways.iter().for_each(|labels| note_idle_selector(cx, object, labels, found));
        }
    }
}
