//! Compresses a body piece by piece.

use std::io::{self, Write};

use brotli::enc::BrotliEncoderParams;
use brotli::enc::backward_references::BrotliEncoderMode;
use evenkeel_runtime_config::compression::{BrotliMode, Compression};

/// Brotli's input buffer, in bytes.
const BUFFER_BYTES: usize = 4096;
/// The largest window of Zstandard as a content coding, 8 MiB (RFC 9659 section 3), as a power of two.
const ZSTD_WINDOW_LOG: u32 = 23;
/// The first level whose window the library would make larger.
const ZSTD_ULTRA: u32 = 20;

/// A body that is being compressed.
pub(crate) enum Encoder {
    Gzip(flate2::write::GzEncoder<Vec<u8>>),
    Brotli(Box<brotli::CompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Encoder {
    /// `None`: the library refuses to begin, for want of memory.
    pub(crate) fn new(compression: Compression) -> Option<Self> {
        Some(match compression {
            Compression::Gzip { level } => {
                Self::Gzip(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(level)))
            }
            Compression::Brotli { quality, window_bits, mode } => {
                let params = BrotliEncoderParams {
                    quality: quality.cast_signed(),
                    lgwin: window_bits.cast_signed(),
                    mode: match mode {
                        BrotliMode::Generic => BrotliEncoderMode::BROTLI_MODE_GENERIC,
                        BrotliMode::Text => BrotliEncoderMode::BROTLI_MODE_TEXT,
                        BrotliMode::Font => BrotliEncoderMode::BROTLI_MODE_FONT,
                    },
                    ..BrotliEncoderParams::default()
                };
                Self::Brotli(Box::new(brotli::CompressorWriter::with_params(Vec::new(), BUFFER_BYTES, &params)))
            }
            Compression::Zstd { level, checksum } => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), level.cast_signed()).ok()?;
                encoder.include_checksum(checksum).ok()?;
                if level >= ZSTD_ULTRA {
                    encoder.window_log(ZSTD_WINDOW_LOG).ok()?;
                }
                Self::Zstd(encoder)
            }
        })
    }

    /// Compresses a piece. All of it can be read from what has been returned so far.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        if piece.is_empty() {
            return Vec::new();
        }
        // Writing to a vector does not fail.
        match self {
            Self::Gzip(encoder) => {
                _ = write(encoder, piece);
                std::mem::take(encoder.get_mut())
            }
            Self::Brotli(encoder) => {
                _ = write(encoder, piece);
                std::mem::take(encoder.get_mut())
            }
            Self::Zstd(encoder) => {
                _ = write(encoder, piece);
                std::mem::take(encoder.get_mut())
            }
        }
    }

    /// The end of the body.
    pub(crate) fn finish(self) -> Vec<u8> {
        match self {
            Self::Gzip(encoder) => encoder.finish().unwrap_or_default(),
            Self::Brotli(encoder) => encoder.into_inner(),
            Self::Zstd(encoder) => encoder.finish().unwrap_or_default(),
        }
    }
}

fn write(encoder: &mut impl Write, piece: &[u8]) -> io::Result<()> {
    encoder.write_all(piece)?;
    encoder.flush()
}
