//! Parts of frames and header blocks, kept until the rest has arrived.

use super::sink::StreamKey;

/// A DATA frame that has arrived in part.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartialData {
    /// The stream it belongs to; `None` if it is skipped.
    pub stream: Option<StreamKey>,
    /// Bytes of data still to come.
    pub data: usize,
    /// Bytes of padding behind them.
    pub padding: usize,
    pub end: bool,
}

/// A header block that has arrived in part.
#[derive(Debug)]
pub(super) struct HeaderBlock {
    pub stream: u32,
    pub end: bool,
    pub self_dependent: bool,
    pub bytes: Vec<u8>,
    pub frames: u32,
}
