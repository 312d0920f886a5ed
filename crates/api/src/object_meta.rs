//! `metadata` of an object or of a Pod template.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;

use crate::decode::{Context, Decode, Label, Schema};
use crate::remote;

object! {
    /// `metadata` of an object or of a Pod template.
    pub struct ObjectMeta {
        /// Its name; a template has none.
        name: Option<Spanned<ObjectName>> = "name",
        /// Its namespace.
        namespace: Option<Label> = "namespace",
        /// Its labels.
        labels: BTreeMap<String, String> = "labels",
        /// Its annotations.
        annotations: BTreeMap<String, Spanned<String>> = "annotations",
        /// The objects that made it.
        owner_references: Vec<OwnerReference> = "ownerReferences",
        /// When it is to end: a Pod with one is about to.
        deletion_timestamp: Option<String> = "deletionTimestamp",
    }
    later: ["generateName"];
    inert: [
        "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "finalizers", "selfLink",
        "deletionGracePeriodSeconds",
    ];
}

object! {
    /// An object that made another.
    pub struct OwnerReference {
        /// Its kind, e.g. `ReplicaSet`.
        kind: String = "kind",
        /// Its name.
        name: String = "name",
    }
    inert: ["apiVersion", "uid", "controller", "blockOwnerDeletion"];
}

/// The name of an object: DNS labels joined by dots (RFC 1123).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectName(pub Arc<str>);

impl Decode for ObjectName {
    fn schema() -> Schema {
        Schema::String("a name of lower-case letters, digits, `-` and `.`")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        let Some(text) = node.as_str() else {
            cx.wrong_type(node, &Self::schema());
            return None;
        };
        let label = |l: &str| {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            !l.is_empty() && l.chars().all(inner) && !l.starts_with('-') && !l.ends_with('-')
        };
        // Of a remote cluster: only a source without files has such names.
        let (cluster, own) = if node.span.is_object() { remote::split(text) } else { ("", text) };
        let is_of_cluster = cluster.is_empty() || remote::is_cluster_name(cluster);
        if own.len() > evenkeel_base::limits::MAX_HOSTNAME_CHARS || !own.split('.').all(label) || !is_of_cluster {
            let help = "expected lower-case letters, digits, `-` and `.`, at most 253 characters";
            cx.error("bad-name", &node.span, format!("`{text}` is not a valid name"), help);
            return None;
        }
        Some(Self(text.into()))
    }
}
