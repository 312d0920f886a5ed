//! Extensions of xDS between Evenkeel's proxies and control planes; see `protos/evenkeel/xds.proto`.

#![allow(missing_docs, reason = "generated from protos/evenkeel, documented there")]

use prost::Message as _;

use crate::Any;
use crate::pb::google::rpc;

include!("generated/evenkeel.xds.v1.rs");

/// The prefix of `control_plane.identifier` for Evenkeel control planes.
pub const IDENTIFIER_PREFIX: &str = "evenkeel/";

/// The key in a node's metadata by which our proxies identify themselves; see [`is_evenkeel`].
pub const NODE_METADATA: &str = "EVENKEEL";

/// The key in a node's metadata by which our proxies tell how their process is confined, for people.
pub const CONFINEMENT_METADATA: &str = "EVENKEEL_CONFINEMENT";

/// How the process of a proxy that its agent runs begins its text of [`CONFINEMENT_METADATA`].
pub const IN_AGENT: &str = "in its agent: ";

impl prost::Name for Rejections {
    const NAME: &'static str = "Rejections";
    const PACKAGE: &'static str = "evenkeel.xds.v1";
}

impl prost::Name for Report {
    const NAME: &'static str = "Report";
    const PACKAGE: &'static str = "evenkeel.xds.v1";
}

impl prost::Name for ListingRequest {
    const NAME: &'static str = "ListingRequest";
    const PACKAGE: &'static str = "evenkeel.xds.v1";
}

/// Whether a node is one of our proxies, by its metadata or its program's name.
pub fn is_evenkeel(node: &crate::pb::envoy::config::core::v3::Node) -> bool {
    let says_so = node.metadata.as_ref().is_some_and(|metadata| metadata.fields.contains_key(NODE_METADATA));
    says_so || node.user_agent_name == "evenkeel"
}

impl Report {
    /// The report of a request, if there is one.
    pub fn in_status(status: Option<&rpc::Status>) -> Option<Self> {
        let detail = status?.details.iter().find(|any| any.type_url == crate::type_url::REPORT)?;
        Self::decode(&*detail.value).ok()
    }

    /// In the form that a request carries.
    pub fn into_status(self) -> rpc::Status {
        let any: Any = crate::pack(&self);
        rpc::Status { code: 0, message: String::new(), details: vec![any] }
    }
}
