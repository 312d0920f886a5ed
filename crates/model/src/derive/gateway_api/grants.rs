//! References to objects of other namespaces, which a ReferenceGrant there allows.

use std::sync::Arc;

use evenkeel_api::gateway_api::CrossReference;
use evenkeel_api::{Kind, Object, Resource};

use super::super::tracking::Cx;

/// An object of another namespace that is referred to.
pub(super) struct Referred<'a> {
    pub(super) group: &'a str,
    pub(super) kind: &'a str,
    pub(super) namespace: &'a Arc<str>,
    pub(super) name: &'a str,
}

/// Whether `object` may refer to an object: it is of its own namespace, or a grant there allows it.
pub(super) fn is_granted(cx: &Cx<'_>, object: &Object, to: &Referred<'_>) -> bool {
    if object.namespace == *to.namespace {
        return true;
    }
    let reference = CrossReference {
        from_group: object.kind().group(),
        from_kind: object.kind().as_str(),
        from_namespace: &object.namespace,
        to_group: to.group,
        to_kind: to.kind,
        to_name: to.name,
    };
    cx.objects_in(Kind::ReferenceGrant, to.namespace).into_iter().any(|(_, grant)| match &grant.resource {
        Resource::ReferenceGrant(grant) => grant.spec.allows(&reference),
        _ => false,
    })
}
