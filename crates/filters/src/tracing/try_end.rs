//! The end of a try, as recorded in its span.

use crate::info::ResponseFlags;

/// The outcome of a try.
#[derive(Debug, Clone, Copy)]
pub enum TryEnd<'t> {
    /// With a response.
    Answered {
        /** Its status. */
        status: u16,
        /** The rest of the response is not wanted. */
        canceled: bool,
    },
    /// The stream was reset, or there was no connection.
    Reset {
        /** Envoy's words. */
        reason: &'t str,
        /** What went wrong. */
        flags: ResponseFlags,
    },
    /// This proxy has given up.
    Canceled {
        /** What went wrong. */
        flags: ResponseFlags,
    },
}
