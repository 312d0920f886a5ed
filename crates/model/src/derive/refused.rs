//! Findings about stand-ins for refused objects, and about objects that are ignored.

use std::sync::Arc;

use evenkeel_api::Object;
use evenkeel_base::Diagnostic;

use super::tracking::Cx;

/// Reports what a stand-in closes for a document that is refused, or that is ignored because its name is taken.
pub(super) fn closed(object: &Object, effect: &str) -> Diagnostic {
    let whole = object.namespace.is_empty();
    let what = if whole { "the content of this file".to_owned() } else { object.to_string() };
    let message = format!("{what} is refused; until it is corrected, {effect}");
    let finding = Diagnostic::warning("closed", object.origin.clone(), message).about(object.reference());
    let finding = finding.with_help("correct the mistake, or remove the document");
    match &object.refused {
        Some(refusal) => finding.with_related(refusal.place.clone(), "refused because of this"),
        None => finding,
    }
}

/// The objects that are ignored because this one has their name, except those with the same content. Objects that an
/// applied object or a source of lower rank replaces are not mistakes.
pub(super) fn ignored<'t>(cx: &Cx<'t>, first: &'t Arc<Object>) -> impl Iterator<Item = &'t Arc<Object>> + use<'t> {
    let claims = cx.claims(&first.key());
    let is_closed = !cx.mesh().leave_out_refused;
    let is_mistake = move |object: &&Arc<Object>| {
        is_closed && !first.is_applied() && object.source == first.source && !object.says_the_same(first)
    };
    claims.iter().skip(1).map(|(_, object)| object).filter(is_mistake)
}
