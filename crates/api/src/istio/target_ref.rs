//! References from policies to the resources whose workloads they apply to.

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;

use super::WorkloadSelector;
use crate::decode::Context;

object! {
    /// A resource whose workloads are selected.
    pub struct TargetRef {
        /// Its group.
        group: Option<String> = "group",
        /// Its kind.
        kind: Spanned<String> = "kind",
        /// Its name.
        name: Spanned<String> = "name",
        /// Its namespace, which has to be that of the policy.
        namespace: Option<Spanned<String>> = "namespace",
    }
    check: check_target;
}

impl TargetRef {
    /// Whether it is a Gateway of the Gateway API.
    pub fn is_gateway(&self) -> bool {
        self.kind.as_str() == "Gateway" && self.group.as_deref() == Some("gateway.networking.k8s.io")
    }
}

/// The kinds of resources that Istio's policies may be for, each with its group.
const TARGETS: [(&str, &str); 4] = [
    ("Gateway", "gateway.networking.k8s.io"),
    ("GatewayClass", "gateway.networking.k8s.io"),
    ("Service", ""),
    ("ServiceEntry", "networking.istio.io"),
];

fn check_target(target: &TargetRef, _: &Node, cx: &mut Context) {
    let group = target.group.as_deref().unwrap_or_default();
    // Kubernetes calls the group of its first kinds `core`, too.
    let is_it =
        |(kind, of): &&(&str, &str)| *kind == target.kind.value && (*of == group || (of.is_empty() && group == "core"));
    if !target.kind.is_empty() && TARGETS.iter().find(is_it).is_none() {
        let kinds =
            TARGETS.map(|(kind, group)| if group.is_empty() { kind.to_owned() } else { format!("{kind} ({group})") });
        let message = format!("no policy can be for the kind `{}` of the group `{group}`", *target.kind);
        let help = match TARGETS.iter().find(|(kind, _)| *kind == target.kind.value) {
            Some((kind, group)) => format!("the group of {kind} is `{group}`"),
            None => format!("the kinds are {}; or select the workloads by `selector`", kinds.join(", ")),
        };
        cx.at_field("kind", |cx| cx.error("bad-value", &target.kind.span, message, help));
    }
    for (field, text) in [("kind", &target.kind), ("name", &target.name)] {
        if text.is_empty() {
            let message = format!("`{field}` is empty");
            cx.at_field(field, |cx| cx.error("missing-field", &text.span, message, "write what the policy is for"));
        }
    }
    if let Some(namespace) = &target.namespace {
        let help = "remove it: a policy is for resources of its own namespace";
        let message = "`namespace` cannot be given here".to_owned();
        cx.at_field("namespace", |cx| cx.error("bad-value", &namespace.span, message, help));
    }
}

/// Only one of `selector`, `targetRef` and `targetRefs` may say which workloads a policy is for.
pub(super) fn check_only_one(
    selector: Option<&WorkloadSelector>,
    target: Option<&TargetRef>,
    targets: &[TargetRef],
    cx: &mut Context,
) {
    let Some(first) = target.or(targets.first()) else { return };
    if selector.is_some() {
        let message = "`selector` and `targetRefs` exclude each other".to_owned();
        cx.at_field("selector", |cx| cx.error("conflict", &first.kind.span, message, "remove one of them"));
    }
    if let (Some(_), Some(second)) = (target, targets.first()) {
        let message = "`targetRef` and `targetRefs` exclude each other".to_owned();
        cx.at_field("targetRefs", |cx| cx.error("conflict", &second.kind.span, message, "use only `targetRefs`"));
    }
}
