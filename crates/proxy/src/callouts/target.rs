//! Calls of the proxy's own to a configured gRPC service.

use std::net::SocketAddr;

use evenkeel_filters::format::{Record, header_value};
use evenkeel_filters::{ConnectionInfo, StreamInfo, header_edits};
use evenkeel_http::Headers;
use evenkeel_runtime_config::ext_authz::GrpcTarget;
use evenkeel_upstream::turn;

use crate::clock::wall_clock;

/// The headers of a call that serves no request (`initial_metadata`): operators about one have no value.
pub(crate) fn metadata(target: &GrpcTarget) -> Headers {
    let mut metadata = Headers::default();
    if target.metadata.is_empty() {
        return metadata;
    }
    let now = turn::now().into_std();
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let (stream, connection) = (StreamInfo::new(now), ConnectionInfo::new(0, now, nowhere, nowhere));
    let record = Record::headless(&stream, &connection, (wall_clock(turn::now()), now));
    for addition in &target.metadata {
        header_edits::add_header(&mut metadata, addition, &header_value(&addition.value, &record));
    }
    metadata
}
