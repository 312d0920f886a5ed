//! `Http2ProtocolOptions`.

use std::ops::RangeInclusive;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::google::protobuf::UInt32Value;

use super::Cx;
use crate::http2::{Http2Keepalive, Http2Options};

/// The initial window by RFC 9113 section 6.9.2; Envoy accepts no less.
const SMALLEST_WINDOW: u32 = 65_535;
/// RFC 9113 section 6.9.1.
const LARGEST_WINDOW: u32 = i32::MAX as u32;
/// Maximum HPACK table for encoding or decoding heads, in bytes.
const LARGEST_HPACK_TABLE: u32 = 1024 * 1024;
/// Envoy's minimum of the keepalive interval and timeout.
const SHORTEST_KEEPALIVE: Duration = Duration::from_millis(1);
const DEFAULT_JITTER_PERCENT: f64 = 15.0;

/// Compiles the options at `field`; unset ones have their defaults.
pub(crate) fn options(cx: &mut Cx<'_>, field: &str, options: Option<&core::Http2ProtocolOptions>) -> Http2Options {
    let Some(options) = options else { return Http2Options::default() };
    cx.at(field, |cx| compile(cx, options))
}

fn compile(cx: &mut Cx<'_>, options: &core::Http2ProtocolOptions) -> Http2Options {
    let sized = Http2Options {
        allow_connect: options.allow_connect,
        stream_error_on_invalid_message: options
            .override_stream_error_on_invalid_http_message
            .as_ref()
            .is_some_and(|set| set.value),
        ..sizes(cx, options)
    };
    let bounded = floods(cx, options, sized);
    let keepalive = options.connection_keepalive.as_ref().and_then(|settings| keepalive(cx, settings));
    Http2Options { keepalive, ..bounded }
}

/// Sizes: streams, windows, tables.
fn sizes(cx: &mut Cx<'_>, options: &core::Http2ProtocolOptions) -> Http2Options {
    let default = Http2Options::default();
    let streams = (&options.max_concurrent_streams, default.max_concurrent_streams);
    let stream = (&options.initial_stream_window_size, default.stream_window);
    let connection = (&options.initial_connection_window_size, default.connection_window);
    let table = (&options.hpack_table_size, default.hpack_table_bytes);
    let windows = SMALLEST_WINDOW..=LARGEST_WINDOW;
    Http2Options {
        max_concurrent_streams: number(cx, "max_concurrent_streams", streams, 1..=LARGEST_WINDOW),
        stream_window: number(cx, "initial_stream_window_size", stream, windows.clone()),
        connection_window: number(cx, "initial_connection_window_size", connection, windows),
        hpack_table_bytes: number(cx, "hpack_table_size", table, 0..=LARGEST_HPACK_TABLE),
        ..default
    }
}

/// Limits that end a connection whose peer floods the proxy.
fn floods(cx: &mut Cx<'_>, options: &core::Http2ProtocolOptions, base: Http2Options) -> Http2Options {
    let frames = (&options.max_outbound_frames, base.max_outbound_frames);
    let control_frames = (&options.max_outbound_control_frames, base.max_outbound_control_frames);
    let (empty_field, empty_frames) = (
        "max_consecutive_inbound_frames_with_empty_payload",
        (&options.max_consecutive_inbound_frames_with_empty_payload, base.max_consecutive_empty_frames),
    );
    let (priority_field, priority_frames) = (
        "max_inbound_priority_frames_per_stream",
        (&options.max_inbound_priority_frames_per_stream, base.max_priority_frames_per_stream),
    );
    let (updates_field, window_updates) = (
        "max_inbound_window_update_frames_per_data_frame_sent",
        (&options.max_inbound_window_update_frames_per_data_frame_sent, base.max_window_updates_per_data_frame),
    );
    Http2Options {
        max_outbound_frames: number(cx, "max_outbound_frames", frames, 1..=u32::MAX),
        max_outbound_control_frames: number(cx, "max_outbound_control_frames", control_frames, 1..=u32::MAX),
        max_consecutive_empty_frames: number(cx, empty_field, empty_frames, 0..=u32::MAX),
        max_priority_frames_per_stream: number(cx, priority_field, priority_frames, 0..=u32::MAX),
        max_window_updates_per_data_frame: number(cx, updates_field, window_updates, 1..=u32::MAX),
        ..base
    }
}

/// The value at `field`, or the default beside it; rejected if out of range.
fn number(
    cx: &mut Cx<'_>,
    field: &str,
    (value, default): (&Option<UInt32Value>, u32),
    range: RangeInclusive<u32>,
) -> u32 {
    let Some(value) = value.as_ref().map(|value| value.value) else { return default };
    if !range.contains(&value) {
        cx.fail_at::<()>(field, format!("must lie between {} and {}", range.start(), range.end()));
    }
    value
}

fn keepalive(cx: &mut Cx<'_>, settings: &core::KeepaliveSettings) -> Option<Http2Keepalive> {
    cx.at("connection_keepalive", |cx| {
        let interval = cx.limit("interval", settings.interval.as_ref(), None);
        let timeout = cx.required("timeout", settings.timeout.as_ref())?;
        let timeout = cx.duration("timeout", Some(timeout))?;
        for (field, value) in [("interval", interval), ("timeout", Some(timeout))] {
            if value.is_some_and(|value| value < SHORTEST_KEEPALIVE) {
                cx.fail_at::<()>(field, "must be at least 1 ms");
            }
        }
        let jitter = settings.interval_jitter.as_ref().map_or(DEFAULT_JITTER_PERCENT, |percent| percent.value);
        if !(0.0..=100.0).contains(&jitter) {
            return cx.fail_at("interval_jitter", "must lie between 0 and 100");
        }
        Some(Http2Keepalive {
            interval,
            timeout,
            jitter_permille: (jitter * 10.0) as u32,
            idle_interval: cx.limit("connection_idle_interval", settings.connection_idle_interval.as_ref(), None),
        })
    })
}

/// `max_requests_per_connection`, where 0 means no limit.
pub(crate) fn max_requests(common: &core::HttpProtocolOptions) -> Option<u32> {
    common.max_requests_per_connection.as_ref().map(|limit| limit.value).filter(|limit| *limit > 0)
}
