//! Libraries that compress or decompress bodies, compiled: which coding, and with which effort.

use evenkeel_xds::pb::envoy::config::core::v3::TypedExtensionConfig;
use evenkeel_xds::pb::envoy::extensions::compression as messages;
use evenkeel_xds::pb::google::protobuf::UInt32Value;

use crate::compile::{Cx, type_name};
use crate::support::message::{MessageSupport, Role::Extension};

const GZIP: &str = "envoy.extensions.compression.gzip.compressor.v3.Gzip";
const BROTLI: &str = "envoy.extensions.compression.brotli.compressor.v3.Brotli";
const ZSTD: &str = "envoy.extensions.compression.zstd.compressor.v3.Zstd";
const GUNZIP: &str = "envoy.extensions.compression.gzip.decompressor.v3.Gzip";
const UNBROTLI: &str = "envoy.extensions.compression.brotli.decompressor.v3.Brotli";
const UNZSTD: &str = "envoy.extensions.compression.zstd.decompressor.v3.Zstd";

/// Brotli's quality and the logarithm of its window if none are configured, as in Envoy.
const BROTLI_QUALITY: u32 = 3;
const BROTLI_WINDOW_BITS: u32 = 18;
/// Zstandard's level if none is configured, as in Envoy.
const ZSTD_LEVEL: u32 = 3;
/// The levels that zstd has.
const MAX_ZSTD_LEVEL: u32 = 22;
/// How many times as long as the compressed body the body may be, as in Envoy.
pub const MAX_INFLATE_RATIO: u32 = 100;

/// A content coding (RFC 9110 section 8.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coding {
    /// `gzip`.
    Gzip,
    /// `br`.
    Brotli,
    /// `zstd`.
    Zstd,
}

impl Coding {
    /// Its name in `content-encoding` and `accept-encoding`.
    pub fn token(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    /// Its name in statistics.
    pub fn stat_name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Brotli => "brotli",
            Self::Zstd => "zstd",
        }
    }
}

/// How bodies are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// With gzip; level 0 to 9.
    Gzip {
        #[allow(missing_docs)]
        level: u32,
    },
    /// With Brotli.
    Brotli {
        /// 0 (fast) to 11 (small).
        quality: u32,
        /// Logarithm of the window's bytes.
        window_bits: u32,
        /// What the data are.
        mode: BrotliMode,
    },
    /// With Zstandard.
    Zstd {
        /// 1 (fast) to 22 (small).
        level: u32,
        /// Whether a checksum follows the data.
        checksum: bool,
    },
}

/// What Brotli compresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrotliMode {
    /// Anything.
    Generic,
    /// Text in UTF-8.
    Text,
    /// Fonts.
    Font,
}

impl Compression {
    /// Its coding.
    pub fn coding(self) -> Coding {
        match self {
            Self::Gzip { .. } => Coding::Gzip,
            Self::Brotli { .. } => Coding::Brotli,
            Self::Zstd { .. } => Coding::Zstd,
        }
    }
}

/// How bodies are decompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decompression {
    /// The coding.
    pub coding: Coding,
    /// How many times as long as the compressed body the body may be.
    pub max_ratio: u32,
}

/// `compressor_library`, with its name.
pub(crate) fn compressor(cx: &mut Cx<'_>, library: &TypedExtensionConfig) -> Option<(Box<str>, Compression)> {
    let name = cx.non_empty("name", &library.name)?.into();
    let any = cx.required("typed_config", library.typed_config.as_ref())?;
    let compression = cx.at("typed_config", |cx| match type_name(&any.type_url) {
        GZIP => {
            let config = cx.unpack(any)?;
            gzip(cx, &config)
        }
        BROTLI => {
            let config = cx.unpack(any)?;
            brotli(cx, &config)
        }
        ZSTD => {
            let config = cx.unpack(any)?;
            zstd(cx, &config)
        }
        other => cx.fail(format!("{other} does not compress; expected {GZIP}, {BROTLI} or {ZSTD}")),
    })?;
    Some((name, compression))
}

fn gzip(cx: &mut Cx<'_>, config: &messages::gzip::compressor::v3::Gzip) -> Option<Compression> {
    use messages::gzip::compressor::v3::gzip::{CompressionLevel, CompressionStrategy};
    within(cx, "memory_level", config.memory_level.as_ref(), 1..=9, 5)?;
    within(cx, "window_bits", config.window_bits.as_ref(), 9..=15, 12)?;
    within(cx, "chunk_size", config.chunk_size.as_ref(), 4096..=65_536, 4096)?;
    if CompressionStrategy::try_from(config.compression_strategy).is_err() {
        return cx.fail_at("compression_strategy", format!("unknown value {}", config.compression_strategy));
    }
    match CompressionLevel::try_from(config.compression_level) {
        // zlib's own.
        Ok(CompressionLevel::DefaultCompression) => Some(Compression::Gzip { level: 6 }),
        Ok(level) => Some(Compression::Gzip { level: level as u32 }),
        Err(_) => cx.fail_at("compression_level", format!("unknown value {}", config.compression_level)),
    }
}

fn brotli(cx: &mut Cx<'_>, config: &messages::brotli::compressor::v3::Brotli) -> Option<Compression> {
    use messages::brotli::compressor::v3::brotli::EncoderMode;
    let quality = within(cx, "quality", config.quality.as_ref(), 0..=11, BROTLI_QUALITY);
    let window_bits = within(cx, "window_bits", config.window_bits.as_ref(), 10..=24, BROTLI_WINDOW_BITS);
    within(cx, "input_block_bits", config.input_block_bits.as_ref(), 16..=24, 24)?;
    within(cx, "chunk_size", config.chunk_size.as_ref(), 4096..=65_536, 4096)?;
    let mode = match EncoderMode::try_from(config.encoder_mode) {
        Ok(EncoderMode::Default | EncoderMode::Generic) => BrotliMode::Generic,
        Ok(EncoderMode::Text) => BrotliMode::Text,
        Ok(EncoderMode::Font) => BrotliMode::Font,
        Err(_) => return cx.fail_at("encoder_mode", format!("unknown value {}", config.encoder_mode)),
    };
    Some(Compression::Brotli { quality: quality?, window_bits: window_bits?, mode })
}

fn zstd(cx: &mut Cx<'_>, config: &messages::zstd::compressor::v3::Zstd) -> Option<Compression> {
    let level = within(cx, "compression_level", config.compression_level.as_ref(), 0..=MAX_ZSTD_LEVEL, ZSTD_LEVEL)?;
    within(cx, "chunk_size", config.chunk_size.as_ref(), 4096..=65_536, 4096)?;
    Some(Compression::Zstd { level, checksum: config.enable_checksum })
}

/// `decompressor_library`, with its name.
pub(crate) fn decompressor(cx: &mut Cx<'_>, library: &TypedExtensionConfig) -> Option<(Box<str>, Decompression)> {
    let name = cx.non_empty("name", &library.name)?.into();
    let any = cx.required("typed_config", library.typed_config.as_ref())?;
    let decompression = cx.at("typed_config", |cx| {
        let (coding, max_ratio) = match type_name(&any.type_url) {
            GUNZIP => {
                let config: messages::gzip::decompressor::v3::Gzip = cx.unpack(any)?;
                within(cx, "window_bits", config.window_bits.as_ref(), 9..=15, 15)?;
                within(cx, "chunk_size", config.chunk_size.as_ref(), 4096..=65_536, 4096)?;
                let ratio = config.max_inflate_ratio.as_ref();
                (Coding::Gzip, within(cx, "max_inflate_ratio", ratio, 1..=1032, MAX_INFLATE_RATIO)?)
            }
            UNBROTLI => (Coding::Brotli, MAX_INFLATE_RATIO),
            UNZSTD => (Coding::Zstd, MAX_INFLATE_RATIO),
            other => {
                return cx.fail(format!("{other} decompresses nothing; expected {GUNZIP}, {UNBROTLI} or {UNZSTD}"));
            }
        };
        Some(Decompression { coding, max_ratio })
    })?;
    Some((name, decompression))
}

fn within(
    cx: &mut Cx<'_>,
    field: &str,
    value: Option<&UInt32Value>,
    allowed: std::ops::RangeInclusive<u32>,
    absent: u32,
) -> Option<u32> {
    match value.map_or(absent, |value| value.value) {
        value if allowed.contains(&value) => Some(value),
        _ => cx.fail_at(field, format!("must lie between {} and {}", allowed.start(), allowed.end())),
    }
}

/// Memory that Envoy's libraries are told.
const MEMORY: &str = "the encoder chooses its own buffers; the output is valid for every decoder";
const DECODER_MEMORY: &str = "the decoder takes every window and chooses its own buffers";

const fn library(
    name: &'static str,
    full: &'static [&'static str],
    no_effect: &'static [(&'static str, &'static [&'static str])],
) -> MessageSupport {
    MessageSupport { name, role: Extension, full, values: &[], no_effect }
}

/// The supported fields of its messages.
pub(crate) const FIELDS: &[MessageSupport] = &[
    library(
        GZIP,
        &["compression_level"],
        &[(MEMORY, &["memory_level", "window_bits", "chunk_size", "compression_strategy"])],
    ),
    library(
        BROTLI,
        &["quality", "window_bits", "encoder_mode"],
        &[(MEMORY, &["input_block_bits", "chunk_size", "disable_literal_context_modeling"])],
    ),
    library(ZSTD, &["compression_level", "enable_checksum"], &[(MEMORY, &["strategy", "chunk_size"])]),
    library(GUNZIP, &["max_inflate_ratio"], &[(DECODER_MEMORY, &["window_bits", "chunk_size"])]),
    library(UNBROTLI, &[], &[(DECODER_MEMORY, &["disable_ring_buffer_reallocation", "chunk_size"])]),
    library(UNZSTD, &[], &[(DECODER_MEMORY, &["chunk_size"])]),
];
