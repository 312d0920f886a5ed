//! `Buffer` and `BufferPerRoute`.

use evenkeel_xds::pb::envoy::extensions::filters::http::buffer::v3 as filter;

use super::Cx;
use crate::buffer::{Buffer, BufferPerRoute};

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
