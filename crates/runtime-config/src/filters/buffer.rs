//! `envoy.filters.http.buffer`, compiled: requests are forwarded only when received completely.

use evenkeel_xds::pb::envoy::extensions::filters::http::buffer::v3 as filter;

use crate::compile::Cx;
use crate::filter_needs::FilterNeeds;
use crate::support::message::{MessageSupport, extension};

/// Configuration of the filter, or of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Maximum size of a body, in bytes (`max_request_bytes`); 413 beyond.
    pub max_request_bytes: u32,
}

impl FilterNeeds for Buffer {
    fn may_stand_upstream(&self) -> bool {
        true
    }
}

/// `BufferPerRoute`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferPerRoute {
    /// Requests are not buffered.
    Disabled,
    /// Replaces the filter's configuration.
    Buffer(Buffer),
}

pub(crate) fn buffer(cx: &mut Cx<'_>, config: &filter::Buffer) -> Option<Buffer> {
    match cx.required("max_request_bytes", config.max_request_bytes.as_ref())?.value {
        0 => cx.fail_at("max_request_bytes", "must be greater than 0"),
        max_request_bytes => Some(Buffer { max_request_bytes }),
    }
}

pub(crate) fn per_route(cx: &mut Cx<'_>, config: &filter::BufferPerRoute) -> Option<BufferPerRoute> {
    use filter::buffer_per_route::Override;
    match &config.r#override {
        Some(Override::Disabled(true)) => Some(BufferPerRoute::Disabled),
        Some(Override::Disabled(false)) => cx.fail_at("disabled", "must be true"),
        Some(Override::Buffer(config)) => cx.at("buffer", |cx| buffer(cx, config)).map(BufferPerRoute::Buffer),
        None => cx.fail("one of disabled, buffer is required"),
    }
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    extension("envoy.extensions.filters.http.buffer.v3.Buffer", &["max_request_bytes"]),
    extension("envoy.extensions.filters.http.buffer.v3.BufferPerRoute", &["disabled", "buffer"]),
];
