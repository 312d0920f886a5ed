//! Limits on frames that cost this side more than they cost the peer.

use super::error::{ConnectionError, Reason, Violation};
use super::frame::Output;
use super::options::Options;

#[derive(Debug, Default)]
pub(super) struct Floods {
    /// Consecutive frames without payload.
    empty: u32,
    priority: u64,
    window_updates: u64,
    pub data_frames_sent: u64,
    pub streams_opened: u64,
    streams_closed: u64,
    premature_resets: u64,
}

impl Floods {
    /// A HEADERS, CONTINUATION or DATA frame came.
    pub(super) fn payload(&mut self, is_empty: bool, options: &Options) -> Result<(), ConnectionError> {
        if !is_empty {
            self.empty = 0;
            return Ok(());
        }
        self.empty += 1;
        check(
            self.empty <= options.max_consecutive_inbound_frames_with_empty_payload,
            Violation::InboundEmptyFramesFlood,
            "too many frames without payload",
        )
    }

    /// A PRIORITY frame came.
    pub(super) fn priority(&mut self, options: &Options) -> Result<(), ConnectionError> {
        self.priority += 1;
        let most = u64::from(options.max_inbound_priority_frames_per_stream) * (1 + self.streams_opened);
        check(self.priority <= most, Violation::InboundPriorityFramesFlood, "too many PRIORITY frames")
    }

    /// A WINDOW_UPDATE frame came.
    pub(super) fn window_update(&mut self, options: &Options) -> Result<(), ConnectionError> {
        self.window_updates += 1;
        let per_data = u64::from(options.max_inbound_window_update_frames_per_data_frame_sent);
        let most = 5 + 2 * (self.streams_opened + per_data * self.data_frames_sent);
        check(self.window_updates <= most, Violation::InboundWindowUpdateFramesFlood, "too many WINDOW_UPDATE frames")
    }

    /// Records that a stream was closed.
    pub(super) fn stream_closed(&mut self) {
        self.streams_closed += 1;
    }

    /// Records that a stream was reset before it was answered. The limit is Envoy's: more than half of the configured number
    /// of closed streams, checked as soon as this is certain.
    pub(super) fn premature_reset(&mut self, options: &Options) -> Result<(), ConnectionError> {
        self.premature_resets += 1;
        let of = self.streams_closed.max(u64::from(options.premature_reset_total_stream_count));
        check(self.premature_resets * 2 < of.max(1), Violation::PrematureResets, "too many streams reset prematurely")
    }

    /// Checks that the peer reads the output that its frames cause.
    pub(super) fn output(output: &Output, options: &Options) -> Result<(), ConnectionError> {
        check(
            output.control_frames() <= options.max_outbound_control_frames,
            Violation::OutboundControlFlood,
            "too many control frames wait to be sent",
        )?;
        check(
            output.frames() <= options.max_outbound_frames,
            Violation::OutboundFlood,
            "too many frames wait to be sent",
        )
    }
}

fn check(within: bool, violation: Violation, text: &'static str) -> Result<(), ConnectionError> {
    if within { Ok(()) } else { Err(ConnectionError { reason: Reason::ENHANCE_YOUR_CALM, text, violation }) }
}
