//! What has come in only in part, and is kept until the rest is there.

use super::sink::StreamKey;

/// A DATA frame of which more is to come.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartialData {
    /// Whose it is; `None`: nobody's, it is skipped.
    pub stream: Option<StreamKey>,
    /// Bytes of data still to come.
    pub data: usize,
    /// Bytes of padding behind them.
    pub padding: usize,
    pub end: bool,
}

/// A header block of which more is to come.
#[derive(Debug)]
pub(super) struct HeaderBlock {
    pub stream: u32,
    pub end: bool,
    pub self_dependent: bool,
    pub bytes: Vec<u8>,
    pub frames: u32,
}
