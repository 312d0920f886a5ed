//! ReferenceGrant: which objects of other namespaces may refer to objects of this one.

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;

use crate::decode::{Context, Label};

object! {
    /// Allows references from other namespaces.
    pub struct ReferenceGrant {
        /// The specification.
        spec: ReferenceGrantSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The specification of a ReferenceGrant.
    pub struct ReferenceGrantSpec {
        /// Who may refer.
        from: Vec<Spanned<GrantFrom>> = "from",
        /// To what.
        to: Vec<GrantTo> = "to",
    }
    check: check_grant;
}

object! {
    /// The objects of a kind in a namespace.
    pub struct GrantFrom {
        /// Their group.
        group: String = "group",
        /// Their kind.
        kind: String = "kind",
        /// Their namespace.
        namespace: Label = "namespace",
    }
}

object! {
    /// The objects of a kind in the grant's namespace.
    pub struct GrantTo {
        /// Their group; empty: Kubernetes' core.
        group: String = "group",
        /// Their kind.
        kind: String = "kind",
        /// The name of a single one; all if not given.
        name: Option<String> = "name",
    }
}

fn check_grant(grant: &ReferenceGrantSpec, node: &Node, cx: &mut Context) {
    for (field, len) in [("from", grant.from.len()), ("to", grant.to.len())] {
        super::limits::at_most(16, len, field, &node.span, cx);
        if len == 0 {
            let message = "a grant needs at least one entry here";
            cx.at_field(field, |cx| cx.error("missing-field", &node.span, message, "add who may refer, and to what"));
        }
    }
}

/// A reference from an object of one namespace to one of another.
#[derive(Debug, Clone, Copy)]
pub struct CrossReference<'a> {
    /// The group of the object that refers.
    pub from_group: &'a str,
    /// Its kind.
    pub from_kind: &'a str,
    /// Its namespace.
    pub from_namespace: &'a str,
    /// The group of the object that is referred to.
    pub to_group: &'a str,
    /// Its kind.
    pub to_kind: &'a str,
    /// Its name.
    pub to_name: &'a str,
}

impl ReferenceGrantSpec {
    /// Whether it allows a reference to an object of the grant's namespace.
    pub fn allows(&self, reference: &CrossReference<'_>) -> bool {
        let is_source = |source: &Spanned<GrantFrom>| {
            let of_kind = source.group == reference.from_group && source.kind == reference.from_kind;
            of_kind && *source.namespace.0 == *reference.from_namespace
        };
        let is_target = |target: &GrantTo| {
            let is_named = target.name.as_deref().is_none_or(|name| name == reference.to_name);
            target.group == reference.to_group && target.kind == reference.to_kind && is_named
        };
        self.from.iter().any(is_source) && self.to.iter().any(is_target)
    }
}
