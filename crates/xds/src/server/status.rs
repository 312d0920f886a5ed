//! The status of one stream, for operators. It is cheap to make, because it is made after every step.

use std::sync::Arc;
use std::time::Duration;

use crate::{ResourceType, Version, evenkeel};

/// A client's refusal of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nack {
    /// The client's reason, at most [`super::MAX_NACK_BYTES`].
    pub message: String,
    /// Generation of the refused response.
    pub version: String,
    /// The refused resources with their origins (`file:line:column`); during a search, all resources that may be bad.
    pub resources: Vec<NackedResource>,
    /// Whether the search for the bad ones continues.
    pub searching: bool,
}

/// One resource of a refused response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NackedResource {
    /// Its name.
    pub name: String,
    /// The position in the user's files that it comes from.
    pub origin: Option<String>,
    /// How often this version was rejected.
    pub times: u32,
}

/// One resource type on one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeStatus {
    /// `CDS`, `EDS`, ….
    pub kind: ResourceType,
    /// Whether everything of the type is subscribed to.
    pub wildcard: bool,
    /// Names subscribed to.
    pub names: usize,
    /// Generation of the last response that the client accepted.
    pub acked_version: Option<u64>,
    /// Generation of the response that is not answered yet.
    pub in_flight_version: Option<u64>,
    /// When that was sent, since the stream began.
    pub waiting_since: Option<Duration>,
    /// Responses sent.
    pub pushes: u64,
    /// Resources in them.
    pub resources_sent: u64,
    /// Bytes of those resources, encoded.
    pub bytes_sent: u64,
    /// Responses refused.
    pub rejects: u64,
    /// The present refusal, if any.
    pub nack: Option<Arc<Nack>>,
    /// The ages of changes in its last report that had any.
    pub ages: Option<Arc<evenkeel::Ages>>,
    /// Reports with ages so far.
    pub reports: u64,
}

/// A client held something else than the server had recorded; it was corrected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The number of divergences on the stream, including this one.
    pub number: u64,
    /// The type.
    pub kind: ResourceType,
    /// The names, sorted.
    pub names: Vec<String>,
}

/// One stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The last generation that the client has answered in full; 0 before the first.
    pub settled_generation: u64,
    /// The version of the roots (PCDS) that the client is known to hold; none while a response is not answered.
    pub roots: Option<Version>,
    /// Types that the client has subscribed to so far.
    pub types: Vec<TypeStatus>,
    /// The last divergence found.
    pub divergence: Option<Arc<Divergence>>,
}

impl Status {
    /// Whether the client has everything of `generation` and refused none of it.
    pub fn is_live(&self, generation: u64) -> bool {
        self.settled_generation >= generation && self.types.iter().all(|status| status.nack.is_none())
    }

    /// Returns the status of one type, if the client has subscribed to it.
    pub fn of(&self, kind: ResourceType) -> Option<&TypeStatus> {
        self.types.iter().find(|status| status.kind == kind)
    }
}
