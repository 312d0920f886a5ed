//! Objects of sources without files, as the log holds them.

use std::fmt;

use evenkeel_api::ObjectKey;
use evenkeel_base::{ObjectRef, Rank, SourceId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::source::json_text::JsonText;
use crate::source::objects::PastObject;

/// Which object of which source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectId {
    /// The source's name.
    pub source: String,
    /// The source's rank.
    pub rank: u8,
    /// The API group; empty for Kubernetes' core.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The namespace; empty for kinds without.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// An object at some time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ObjectContent {
    /// When it was created, in seconds since 1970; 0 if that is unknown.
    #[serde(default)]
    pub created: i64,
    /// The object.
    pub object: Value,
}

/// An object; of one with errors also the content in force.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ObjectState {
    /// The object's name.
    pub id: ObjectId,
    /// The last content without errors, unless it is the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good: Option<ObjectContent>,
    /// The present content.
    pub present: ObjectContent,
}

/// An object changed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ObjectChange {
    /// The object's name.
    pub id: ObjectId,
    /// Its new content; `None`: it was removed.
    pub new: Option<ObjectContent>,
}

impl ObjectId {
    /// Returns the source, by which its objects are ordered among those of others.
    pub fn source(&self) -> SourceId {
        SourceId::new(&self.source, Rank(self.rank))
    }

    /// Returns the key within the source; `None` if its kind is not known to this version.
    pub fn key(&self) -> Option<ObjectKey> {
        let version = if self.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", self.group) };
        let metadata = json!({ "namespace": self.namespace, "name": self.name });
        ObjectKey::of_json(&json!({ "apiVersion": version, "kind": self.kind, "metadata": metadata }))
    }

    /// Whether its content is secret: then the log does not hold it.
    pub fn is_secret(&self) -> bool {
        self.group.is_empty() && self.kind == "Secret"
    }
}

impl From<&ObjectRef> for ObjectId {
    fn from(object: &ObjectRef) -> Self {
        Self {
            source: object.source.name().to_owned(),
            rank: object.source.rank().0,
            group: object.group.to_owned(),
            kind: object.kind.to_owned(),
            namespace: object.namespace.to_string(),
            name: object.name.to_string(),
        }
    }
}

/// `kubernetes/VirtualService.networking.istio.io/shop/reviews`, as in findings.
impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = if self.group.is_empty() { String::new() } else { format!(".{}", self.group) };
        let namespace = if self.namespace.is_empty() { String::new() } else { format!("/{}", self.namespace) };
        write!(f, "{}/{}{group}{namespace}/{}", self.source, self.kind, self.name)
    }
}

impl From<PastObject> for ObjectContent {
    fn from(object: PastObject) -> Self {
        Self { created: object.created, object: object.json.value() }
    }
}

impl From<&ObjectContent> for PastObject {
    fn from(content: &ObjectContent) -> Self {
        Self { created: content.created, json: JsonText::new(&content.object) }
    }
}
