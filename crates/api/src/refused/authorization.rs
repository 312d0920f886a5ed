//! Stand-ins for refused AuthorizationPolicies.

use std::collections::BTreeMap;

use evenkeel_base::yaml::{Mapping, Node};
use evenkeel_base::{Span, Spanned};

use super::parts::{selector, sound};
use crate::annotations::DRY_RUN;
use crate::decode::Decode;
use crate::istio::{Action, AuthorizationPolicy, AuthorizationPolicySpec, Rule, TargetRef, WorkloadSelector};

/// Fields that the document may have.
const FIELDS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
/// Fields of `spec` that do not change the meaning of other fields.
const SPEC_FIELDS: [&str; 6] = ["selector", "targetRef", "targetRefs", "action", "rules", "provider"];

/// Returns the stand-in for a policy. That for an ALLOW policy allows nothing. That for a DENY policy denies what the
/// readable parts of its rules match; so does that for a CUSTOM policy, whose provider is not asked. If the action cannot be
/// read, everything is denied. `None`: the policy would have denied nothing.
pub(super) fn policy(document: &Mapping) -> Option<AuthorizationPolicy> {
    let spec = document.get("spec").filter(|spec| !spec.is_null());
    if is_dry_run(document) {
        return None;
    }
    let whom = whom(document);
    let has_only = |mapping: Option<&Mapping>, known: &[&str]| {
        mapping.is_some_and(|mapping| mapping.iter().all(|entry| known.contains(&&*entry.key)))
    };
    // An unknown field may be a misspelt `action` or `rules`, or one of these in the wrong place.
    let is_clear =
        has_only(Some(document), &FIELDS) && spec.is_none_or(|spec| has_only(spec.as_mapping(), &SPEC_FIELDS));
    let action = spec.and_then(|spec| spec.get("action")).filter(|action| !action.is_null());
    match action.map(Node::as_str) {
        None if is_clear => Some(of(whom, Action::Allow, Vec::new())),
        Some(Some("ALLOW")) => Some(of(whom, Action::Allow, Vec::new())),
        Some(Some("AUDIT")) => None,
        Some(Some("DENY" | "CUSTOM")) if is_clear => {
            let rules = spec.and_then(|spec| spec.get("rules")).filter(|rules| !rules.is_null());
            let rules =
                rules.map_or(Some(Vec::new()), |rules| Some(rules.as_sequence()?.iter().map(widened).collect()));
            Some(of(whom, Action::Deny, rules.unwrap_or_else(|| vec![anything()])))
        }
        _ => Some(of(whom, Action::Deny, vec![anything()])),
    }
}

/// Whether the policy is only logged and counted; then nothing was denied before, either.
fn is_dry_run(document: &Mapping) -> bool {
    let metadata = document.get("metadata").and_then(Node::as_mapping);
    let annotations = metadata.and_then(|metadata| metadata.get("annotations")).and_then(Node::as_mapping);
    annotations.and_then(|annotations| annotations.get(DRY_RUN)).and_then(Node::as_str) == Some("true")
}

/// Refuses everything.
pub(super) fn everything(selector: BTreeMap<String, String>) -> AuthorizationPolicy {
    of(Whom { selector, targets: Vec::new() }, Action::Deny, vec![anything()])
}

/// Returns a rule that nobody has written, which matches everything.
fn anything() -> Spanned<Rule> {
    Spanned::new(Rule { from: Vec::new(), to: Vec::new(), when: Vec::new() }, Span::built_in())
}

/// The workloads that a stand-in applies to: those with these labels, or those of these resources.
struct Whom {
    selector: BTreeMap<String, String>,
    targets: Vec<TargetRef>,
}

/// Reads `selector`, or `targetRef` and `targetRefs`, as far as possible. If a reference has an error, or if there are
/// references besides a selector, it is unknown which workloads the policy applies to: it applies to the whole namespace.
fn whom(document: &Mapping) -> Whom {
    let spec = document.get("spec").and_then(Node::as_mapping);
    let field = |name| spec.and_then(|spec| spec.get(name)).filter(|node: &&Node| !node.is_null());
    let is_empty = |list: &&Node| list.as_sequence().is_some_and(|list| list.is_empty());
    let (one, list) = (field("targetRef"), field("targetRefs").filter(|list| !is_empty(list)));
    if one.is_none() && list.is_none() {
        return Whom { selector: selector(document), targets: Vec::new() };
    }
    let targets = match (field("selector"), one, list) {
        (None, Some(one), None) => sound::<TargetRef>(one).map(|one| vec![one]),
        (None, None, Some(list)) => sound::<Vec<TargetRef>>(list),
        _ => None,
    };
    Whom { selector: BTreeMap::new(), targets: targets.unwrap_or_default() }
}

fn of(whom: Whom, action: Action, rules: Vec<Spanned<Rule>>) -> AuthorizationPolicy {
    let selector = (!whom.selector.is_empty()).then_some(WorkloadSelector { match_labels: whom.selector });
    AuthorizationPolicy {
        spec: Some(AuthorizationPolicySpec {
            selector,
            action: Some(action),
            provider: None,
            rules,
            target_ref: None,
            target_refs: whom.targets,
        }),
    }
}

/// A rule whose parts with a mistake match anything. All parts of a rule must match, so leaving one out widens it.
fn widened(rule: &Node) -> Spanned<Rule> {
    let widened = Rule { from: part(rule, "from"), to: part(rule, "to"), when: part(rule, "when") };
    Spanned::new(widened, rule.span.clone())
}

fn part<T: Decode>(rule: &Node, name: &str) -> Vec<T> {
    rule.get(name).and_then(sound).unwrap_or_default()
}
