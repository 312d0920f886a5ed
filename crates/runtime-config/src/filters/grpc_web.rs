//! `envoy.filters.http.grpc_web`, compiled: it has no configuration.

use evenkeel_xds::pb::envoy::extensions::filters::http::grpc_web::v3 as filter;

use crate::compile::Cx;
use crate::filter_needs::FilterNeeds;
use crate::support::message::{MessageSupport, extension};

/// `GrpcWeb`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrpcWeb;

impl FilterNeeds for GrpcWeb {}

pub(crate) fn grpc_web(_: &mut Cx<'_>, _: &filter::GrpcWeb) -> Option<GrpcWeb> {
    Some(GrpcWeb)
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    extension("envoy.extensions.filters.http.grpc_web.v3.GrpcWeb", &[]),
];
