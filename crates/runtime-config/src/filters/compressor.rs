//! `envoy.filters.http.compressor`, compiled: which bodies are compressed, and how.

use evenkeel_xds::pb::envoy::extensions::filters::http::compressor::v3 as filter;
use evenkeel_xds::pb::google::protobuf::UInt32Value;

use super::compression::{self, Compression};
use crate::compile::runtime::flag;
use crate::compile::{Cx, matcher};
use crate::filter_needs::FilterNeeds;
use crate::string_match::StringMatcher;
use crate::support::message::{MessageSupport, Role::Extension, extension, part};

/// A body shorter than this is not compressed if nothing else is configured, in bytes.
const MIN_CONTENT_LENGTH: u64 = 30;
/// What is compressed if nothing else is configured, as in Envoy.
const CONTENT_TYPES: [&str; 20] = [
    "text/html",
    "text/plain",
    "text/css",
    "application/javascript",
    "application/x-javascript",
    "text/javascript",
    "text/x-javascript",
    "text/ecmascript",
    "text/js",
    "text/jscript",
    "text/x-js",
    "application/ecmascript",
    "application/x-json",
    "application/xml",
    "application/json",
    "image/svg+xml",
    "text/xml",
    "application/xhtml+xml",
    "application/grpc-web",
    "application/grpc-web+proto",
];

/// Configuration of the filter.
#[derive(Debug)]
pub struct Compressor {
    /// The library's name, in statistics.
    pub library: Box<str>,
    /// How bodies are compressed.
    pub compression: Compression,
    /// Requests that are compressed; `None`: none is.
    pub requests: Option<Compressible>,
    /// Responses that may be compressed.
    pub responses: Responses,
    /// Of codings that the client likes alike, this one is taken if it is the first in its list.
    pub choose_first: bool,
}

/// Which bodies of one direction are compressed.
#[derive(Debug)]
pub struct Compressible {
    /// Whether any is.
    pub enabled: bool,
    /// The least length that is worth it, in bytes.
    pub min_content_length: u64,
    /// Media types without parameters; one has to match, if there is a type.
    pub content_types: Vec<StringMatcher>,
}

/// Which responses are compressed.
#[derive(Debug)]
pub struct Responses {
    /// By length and type.
    pub bodies: Compressible,
    /// Whether the field is set that gives their statistics a place of their own.
    pub own_statistics: bool,
    /// Those with an `etag` are not compressed.
    pub disable_on_etag: bool,
    /// Strong validators become weak ones, instead of being removed.
    pub weaken_etag: bool,
    /// The upstream does not see `accept-encoding`.
    pub remove_accept_encoding: bool,
    /// Those with these statuses are not compressed.
    pub uncompressible: Vec<u16>,
}

/// A route's configuration.
#[derive(Debug, Clone, Default)]
pub struct CompressorPerRoute {
    /// Whether responses are compressed; `None`: as configured at the filter.
    pub responses: Option<bool>,
    /// Whether the upstream sees `accept-encoding`.
    pub remove_accept_encoding: Option<bool>,
    /// Another way to compress.
    pub compression: Option<Compression>,
}

impl FilterNeeds for Compressor {}

impl Compressible {
    /// Whether a media type is among those that are compressed. `content_type`: the field's value.
    pub fn takes(&self, content_type: &[u8]) -> bool {
        let media_type = content_type.rsplitn(2, |byte| *byte == b';').last().unwrap_or_default().trim_ascii();
        self.content_types.iter().any(|wanted| wanted.matches(media_type))
    }
}

pub(crate) fn compressor(cx: &mut Cx<'_>, config: &filter::Compressor) -> Option<Compressor> {
    let library = cx.required("compressor_library", config.compressor_library.as_ref())?;
    let (library, compression) = cx.at("compressor_library", |cx| compression::compressor(cx, library))?;
    let requests = match &config.request_direction_config {
        None => None,
        Some(direction) => Some(cx.at("request_direction_config", |cx| common(cx, direction.common_config.as_ref()))?),
    };
    let responses = match &config.response_direction_config {
        None => older(cx, config),
        Some(direction) => cx.at("response_direction_config", |cx| responses(cx, direction))?,
    };
    Some(Compressor { library, compression, requests, responses, choose_first: config.choose_first })
}

pub(crate) fn per_route(cx: &mut Cx<'_>, config: &filter::CompressorPerRoute) -> Option<CompressorPerRoute> {
    use filter::compressor_per_route::Override;
    match &config.r#override {
        Some(Override::Disabled(true)) => {
            Some(CompressorPerRoute { responses: Some(false), ..CompressorPerRoute::default() })
        }
        Some(Override::Disabled(false)) => cx.fail_at("disabled", "must be true"),
        Some(Override::Overrides(overrides)) => cx.at("overrides", |cx| {
            let direction = overrides.response_direction_config.as_ref();
            let compression = match &overrides.compressor_library {
                None => None,
                Some(library) => Some(cx.at("compressor_library", |cx| compression::compressor(cx, library))?.1),
            };
            Some(CompressorPerRoute {
                responses: direction.map(|_| true),
                remove_accept_encoding: direction
                    .and_then(|direction| direction.remove_accept_encoding_header.as_ref())
                    .map(|remove| remove.value),
                compression,
            })
        }),
        None => cx.fail("one of disabled, overrides is required"),
    }
}

fn common(cx: &mut Cx<'_>, config: Option<&filter::compressor::CommonDirectionConfig>) -> Option<Compressible> {
    let Some(config) = config else { return Some(compressible(true, None, &[])) };
    cx.at("common_config", |cx| {
        #[allow(deprecated)]
        let mut wanted = compressible(
            flag(cx, config.enabled.as_ref(), true),
            config.min_content_length.as_ref(),
            &config.content_type,
        );
        if !config.content_type_matcher.is_empty() {
            #[allow(deprecated)]
            if !config.content_type.is_empty() {
                return cx.fail_at("content_type", "must not be set beside content_type_matcher");
            }
            wanted.content_types = cx.each("content_type_matcher", &config.content_type_matcher, |cx, wanted| {
                matcher::string_here(cx, wanted)
            });
        }
        Some(wanted)
    })
}

fn compressible(enabled: bool, least: Option<&UInt32Value>, types: &[String]) -> Compressible {
    let exactly =
        |value: &str| StringMatcher::Exact { value: value.to_ascii_lowercase().into_bytes().into(), ignore_case: true };
    let content_types = match types {
        [] => CONTENT_TYPES.iter().map(|value| exactly(value)).collect(),
        some => some.iter().map(|value| exactly(value)).collect(),
    };
    let least = least.map_or(0, |least| u64::from(least.value));
    Compressible { enabled, min_content_length: if least == 0 { MIN_CONTENT_LENGTH } else { least }, content_types }
}

/// What older configurations have beside the library.
#[allow(deprecated)]
fn older(cx: &Cx<'_>, config: &filter::Compressor) -> Responses {
    let enabled = flag(cx, config.runtime_enabled.as_ref(), true);
    Responses {
        bodies: compressible(enabled, config.content_length.as_ref(), &config.content_type),
        own_statistics: false,
        disable_on_etag: config.disable_on_etag_header,
        weaken_etag: false,
        remove_accept_encoding: config.remove_accept_encoding_header,
        uncompressible: Vec::new(),
    }
}

fn responses(cx: &mut Cx<'_>, config: &filter::compressor::ResponseDirectionConfig) -> Option<Responses> {
    let bodies = common(cx, config.common_config.as_ref())?;
    let codes = &config.uncompressible_response_codes;
    let uncompressible = cx.each("uncompressible_response_codes", codes, |cx, code| match u16::try_from(*code) {
        Ok(code @ 200..=599) => Some(code),
        _ => cx.fail("must lie between 200 and 599"),
    });
    if config.disable_on_etag_header && config.weaken_etag_on_compress {
        return cx.fail_at("weaken_etag_on_compress", "has no effect beside disable_on_etag_header");
    }
    Some(Responses {
        bodies,
        own_statistics: true,
        disable_on_etag: config.disable_on_etag_header,
        weaken_etag: config.weaken_etag_on_compress,
        remove_accept_encoding: config.remove_accept_encoding_header,
        uncompressible,
    })
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    MessageSupport {
        name: "envoy.extensions.filters.http.compressor.v3.Compressor",
        role: Extension,
        full: &["compressor_library", "request_direction_config", "response_direction_config", "choose_first", "content_length",
            "content_type", "disable_on_etag_header", "remove_accept_encoding_header", "runtime_enabled"],
        values: &[],
        no_effect: &[],
    },
    part("envoy.extensions.filters.http.compressor.v3.Compressor.CommonDirectionConfig",
        &["enabled", "min_content_length", "content_type", "content_type_matcher"]),
    part("envoy.extensions.filters.http.compressor.v3.Compressor.RequestDirectionConfig", &["common_config"]),
    part("envoy.extensions.filters.http.compressor.v3.Compressor.ResponseDirectionConfig",
        &["common_config", "disable_on_etag_header", "weaken_etag_on_compress", "remove_accept_encoding_header",
          "uncompressible_response_codes"]),
    extension("envoy.extensions.filters.http.compressor.v3.CompressorPerRoute", &["disabled", "overrides"]),
    part("envoy.extensions.filters.http.compressor.v3.CompressorOverrides", &["response_direction_config", "compressor_library"]),
    part("envoy.extensions.filters.http.compressor.v3.ResponseDirectionOverrides", &["remove_accept_encoding_header"]),
];
