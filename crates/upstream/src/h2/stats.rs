//! Envoy's HTTP/2 codec statistics: `http2.` for downstream connections, `cluster.NAME.http2.` for upstream ones.

use evenkeel_http::h2::{ConnectionError, Counter as Event, Violation};
use evenkeel_stats::{ScopeName, Writer, layout};

layout! {
    /// Statistics of an HTTP/2 codec.
    pub mod http2 {
        counters {
            dropped_headers_with_underscores, goaway_sent, header_overflow, inbound_empty_frames_flood, inbound_priority_frames_flood,
            inbound_window_update_frames_flood, keepalive_timeout, outbound_control_flood, outbound_flood,
            requests_rejected_with_underscores_in_headers, rx_messaging_error, rx_reset, stream_refused_errors, trailers, tx_flush_timeout, tx_reset,
        }
        gauges { pending_send_bytes, streams_active }
        histograms {}
        statuses None
    }
}

pub use http2::{Counter, Gauge, Stats};

/// `http2.`: all downstream connections.
pub fn downstream_name() -> ScopeName {
    ScopeName::plain("http2.")
}

/// `cluster.NAME.http2.`
pub fn upstream_name(cluster: &str) -> ScopeName {
    let outer = ScopeName::tagged("cluster", "envoy_cluster_name", cluster);
    ScopeName { dotted: format!("{}http2.", outer.dotted), family: format!("{}http2_", outer.family), tags: outer.tags }
}

/// Counts an event of the codec.
pub(super) fn count(stats: &Writer<Stats>, event: Event) {
    stats.inc(match event {
        Event::RxReset => Counter::rx_reset,
        Event::TxReset => Counter::tx_reset,
        Event::RxMessagingError => Counter::rx_messaging_error,
        Event::HeaderOverflow => Counter::header_overflow,
        Event::Trailers => Counter::trailers,
        Event::DroppedUnderscore => Counter::dropped_headers_with_underscores,
        Event::RejectedUnderscore => Counter::requests_rejected_with_underscores_in_headers,
    });
}

/// Counts a connection that ended because its peer broke the protocol or a limit.
pub(super) fn count_violation(stats: &Writer<Stats>, error: &ConnectionError) {
    stats.inc(Counter::goaway_sent);
    stats.inc(match error.violation {
        Violation::HeaderOverflow => Counter::header_overflow,
        Violation::OutboundFlood => Counter::outbound_flood,
        Violation::OutboundControlFlood => Counter::outbound_control_flood,
        Violation::InboundEmptyFramesFlood => Counter::inbound_empty_frames_flood,
        Violation::InboundPriorityFramesFlood => Counter::inbound_priority_frames_flood,
        Violation::InboundWindowUpdateFramesFlood => Counter::inbound_window_update_frames_flood,
        // These were counted per message already.
        Violation::Messaging => return,
        Violation::Protocol | Violation::Compression | Violation::PrematureResets => return,
    });
}
