//! `GrpcWeb` of `envoy.filters.http.grpc_web`.

use evenkeel_xds::pb::envoy::extensions::filters::http::grpc_web::v3 as filter;

use super::Cx;
use crate::grpc_web::GrpcWeb;

pub(crate) fn grpc_web(_: &mut Cx<'_>, _: &filter::GrpcWeb) -> Option<GrpcWeb> {
    Some(GrpcWeb)
}
