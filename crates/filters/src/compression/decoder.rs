//! Decompresses a body piece by piece, within a limit.

use std::io::{self, Write};

use brotli_decompressor::BrotliDecoderParameter::BROTLI_DECODER_PARAM_LARGE_WINDOW;
use evenkeel_runtime_config::compression::{Coding, Decompression};

/// Brotli's output buffer, in bytes.
const BUFFER_BYTES: usize = 4096;
/// What a body that grows little may save up for its next piece, in bytes: libraries keep back less than a block, and a bomb
/// behind a long harmless body is a bomb.
const MAX_SAVED_BYTES: u64 = 1 << 20;

/// Zstandard's largest window: 8 MiB, as RFC 9659 section 3 wants of the content coding. The library takes 128 MiB for who asks for it.
const MAX_ZSTD_WINDOW_LOG: u32 = 23;

/// A body that is being decompressed.
pub(crate) struct Decoder {
    library: Library,
    max_ratio: u64,
    received: u64,
}

enum Library {
    Gzip(flate2::write::MultiGzDecoder<Limited>),
    Brotli(Box<brotli::DecompressorWriter<Limited>>),
    Zstd(zstd::stream::write::Decoder<'static, Limited>),
}

/// The body is not in its coding, is cut off, or becomes too large.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Takes what is decompressed up to a limit: a few bytes may stand for gigabytes, which the libraries write in small pieces.
#[derive(Default)]
struct Limited {
    bytes: Vec<u8>,
    left: u64,
}

impl Write for Limited {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let length = piece.len() as u64;
        self.left = self.left.checked_sub(length).ok_or(io::ErrorKind::QuotaExceeded)?;
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Decoder {
    /// `None`: the library refuses to begin, for want of memory.
    pub(crate) fn new(decompression: Decompression) -> Option<Self> {
        let library = match decompression.coding {
            Coding::Gzip => Library::Gzip(flate2::write::MultiGzDecoder::new(Limited::default())),
            Coding::Brotli => {
                let mut decoder = brotli::DecompressorWriter::new(Limited::default(), BUFFER_BYTES);
                // The content coding has windows up to 16 MiB (RFC 7932 section 9.1); large ones go up to 1 GiB.
                decoder
                    .set_parameter(BROTLI_DECODER_PARAM_LARGE_WINDOW, 0)
                    .then(|| Library::Brotli(Box::new(decoder)))?
            }
            Coding::Zstd => {
                let mut decoder = zstd::stream::write::Decoder::new(Limited::default()).ok()?;
                decoder.window_log_max(MAX_ZSTD_WINDOW_LOG).ok()?;
                Library::Zstd(decoder)
            }
        };
        Some(Self { library, max_ratio: decompression.max_ratio.into(), received: 0 })
    }

    /// Decompresses a piece. `ends`: it is the last one.
    pub(crate) fn push(&mut self, piece: &[u8], ends: bool) -> Result<Vec<u8>, Malformed> {
        self.received = self.received.saturating_add(piece.len() as u64);
        let more = (piece.len() as u64).saturating_mul(self.max_ratio);
        let sink = self.sink();
        sink.left = sink.left.min(MAX_SAVED_BYTES).saturating_add(more);
        let empty = self.received == 0;
        let written = match &mut self.library {
            Library::Gzip(decoder) => {
                let written = decoder.write_all(piece).and_then(|()| decoder.flush());
                written.and_then(|()| if ends && !empty { decoder.try_finish() } else { Ok(()) })
            }
            Library::Brotli(decoder) => {
                let written = decoder.write_all(piece).and_then(|()| decoder.flush());
                written.and_then(|()| if ends && !empty { decoder.close() } else { Ok(()) })
            }
            Library::Zstd(decoder) => {
                let written = decoder.write_all(piece).and_then(|()| decoder.flush());
                written.and_then(|()| if ends && !empty { decoder.do_finish() } else { Ok(()) })
            }
        };
        written.map_err(|_| Malformed)?;
        Ok(std::mem::take(&mut self.sink().bytes))
    }

    /// What could be read of a piece that is malformed.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        // The libraries write out what they have before they read on, which fails again.
        _ = match &mut self.library {
            Library::Gzip(decoder) => decoder.try_finish(),
            Library::Brotli(_) => Ok(()),
            Library::Zstd(decoder) => decoder.do_finish(),
        };
        std::mem::take(&mut self.sink().bytes)
    }

    fn sink(&mut self) -> &mut Limited {
        match &mut self.library {
            Library::Gzip(decoder) => decoder.get_mut(),
            Library::Brotli(decoder) => decoder.get_mut(),
            Library::Zstd(decoder) => decoder.get_mut(),
        }
    }
}
