//! What an operator wants to know about one stream.

use serde::Serialize;

/// A client's refusal of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nack {
    /// The client's reason, at most [`super::MAX_NACK_BYTES`].
    pub message: String,
    /// Version of the refused response.
    pub version: String,
    /// Names and origins (`file:line:column`) of the resources that were in the refused response.
    pub resources: Vec<NackedResource>,
}

/// One resource of a refused response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NackedResource {
    /// Its name.
    pub name: String,
    /// Where the user wrote what it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

/// One resource type on one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TypeStatus {
    /// `CDS`, `EDS`, ….
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Whether everything of the type is subscribed to.
    pub wildcard: bool,
    /// Names subscribed to.
    pub names: usize,
    /// Resources the client was sent.
    pub sent: usize,
    /// Version the client accepted last.
    pub acked_version: Option<String>,
    /// Version sent and not answered yet.
    pub in_flight_version: Option<String>,
    /// The last answer, when it was a refusal.
    pub nack: Option<Nack>,
}

/// One stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Generation the client has been sent and has answered in full; 0 before the first.
    pub settled_generation: u64,
    /// Types asked for so far.
    pub types: Vec<TypeStatus>,
}

impl Status {
    /// Whether the client has everything of `generation` and refused none of it.
    pub fn is_live(&self, generation: u64) -> bool {
        self.settled_generation >= generation && self.types.iter().all(|status| status.nack.is_none())
    }
}
