//! `envoy.filters.http.decompressor`, compiled: which bodies are decompressed.

use evenkeel_xds::pb::envoy::extensions::filters::http::decompressor::v3 as filter;

use super::compression::{self, Decompression};
use crate::compile::Cx;
use crate::compile::runtime::flag;
use crate::filter_needs::FilterNeeds;
use crate::support::message::{MessageSupport, extension, part};

/// Configuration of the filter.
#[derive(Debug)]
pub struct Decompressor {
    /// The library's name, in statistics and trailers.
    pub library: Box<str>,
    /// How bodies are decompressed.
    pub decompression: Decompression,
    /// Requests.
    pub requests: Direction,
    /// Responses.
    pub responses: Direction,
    /// Whether upstreams learn from `accept-encoding` that responses may be compressed.
    pub advertises: bool,
}

/// Which bodies of one direction are decompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direction {
    /// Whether any is.
    pub enabled: bool,
    /// Also those with `cache-control: no-transform`.
    pub ignore_no_transform: bool,
}

impl FilterNeeds for Decompressor {}

pub(crate) fn decompressor(cx: &mut Cx<'_>, config: &filter::Decompressor) -> Option<Decompressor> {
    let library = cx.required("decompressor_library", config.decompressor_library.as_ref())?;
    let (library, decompression) = cx.at("decompressor_library", |cx| compression::decompressor(cx, library))?;
    let requests = config.request_direction_config.as_ref();
    let responses = config.response_direction_config.as_ref();
    let advertises = requests.and_then(|direction| direction.advertise_accept_encoding.as_ref());
    Some(Decompressor {
        library,
        decompression,
        requests: direction(cx, requests.and_then(|direction| direction.common_config.as_ref())),
        responses: direction(cx, responses.and_then(|direction| direction.common_config.as_ref())),
        advertises: advertises.is_none_or(|advertises| advertises.value),
    })
}

fn direction(cx: &Cx<'_>, config: Option<&filter::decompressor::CommonDirectionConfig>) -> Direction {
    Direction {
        enabled: flag(cx, config.and_then(|config| config.enabled.as_ref()), true),
        ignore_no_transform: config.is_some_and(|config| config.ignore_no_transform_header),
    }
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    extension("envoy.extensions.filters.http.decompressor.v3.Decompressor",
        &["decompressor_library", "request_direction_config", "response_direction_config"]),
    part("envoy.extensions.filters.http.decompressor.v3.Decompressor.CommonDirectionConfig",
        &["enabled", "ignore_no_transform_header"]),
    part("envoy.extensions.filters.http.decompressor.v3.Decompressor.RequestDirectionConfig",
        &["common_config", "advertise_accept_encoding"]),
    part("envoy.extensions.filters.http.decompressor.v3.Decompressor.ResponseDirectionConfig", &["common_config"]),
];
