//! Decides whether a message is decompressed, as Envoy does, and decompresses it.

use std::sync::Arc;

use evenkeel_http::Headers;
use evenkeel_runtime_config::decompressor::{Decompressor, Direction};
use evenkeel_stats::{ScopeName, Writer, layout};

use crate::compression::{Decoder, Malformed, forget_length, lists, tokens};
use crate::compressor::below;
use crate::http::{
    BadBody, Body, Data, Decision, Filter, Flow, Hooks, RequestContext, ResponseContext, ResponseDecision, Setup,
    TrailersContext,
};
use crate::verdict::FilterVerdict;

layout! {
    /// `http.PREFIX.decompressor.LIBRARY.CODING.request.`, and `response.`
    pub mod stats {
        counters {
            /// Messages that were decompressed.
            decompressed,
            /// Messages with a body that were not.
            not_decompressed,
            /// Bytes of those that were, after.
            total_uncompressed_bytes,
            /// Bytes of those that were, before.
            total_compressed_bytes,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

use stats::Counter;

const BAD_BODY: BadBody =
    BadBody { status: 400, body: "The body is not in its content-encoding.", details: "decompression_failed" };

/// `envoy.filters.http.decompressor`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<Decompressor>,
    request: Writer<stats::Stats>,
    response: Writer<stats::Stats>,
    /// Names of trailers with the numbers of bytes: compressed, uncompressed.
    trailers: [String; 2],
}

/// A request in progress.
#[derive(Default)]
pub struct Exchange {
    request: Option<Inflating>,
    response: Option<Inflating>,
}

/// A body that is being decompressed.
struct Inflating {
    decoder: Decoder,
    compressed: u64,
    uncompressed: u64,
    /// It has ended, or cannot be read: what follows is dropped.
    over: bool,
}

impl Filter for HttpFilter {
    type Config = Decompressor;
    /// `None` if nothing is decompressed.
    type State = Option<Box<Exchange>>;
    const HOOKS: Hooks = Hooks::REQUEST_HEAD
        .and(Hooks::REQUEST_DATA)
        .and(Hooks::RESPONSE_HEAD)
        .and(Hooks::RESPONSE_DATA)
        .and(Hooks::RESPONSE_TRAILERS);

    fn verdict(_: &Decompressor) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(config: Arc<Decompressor>, setup: &Setup<'_>) -> Self {
        let base = below(setup.outer, "decompressor", &config.library, config.decompression.coding.stat_name());
        let part = |name: &str| {
            let name = ScopeName {
                dotted: format!("{}{name}.", base.dotted),
                family: format!("{}{name}_", base.family),
                tags: base.tags.clone(),
            };
            setup.registry.scope(name).writer()
        };
        let trailer = |what: &str| format!("x-envoy-decompressor-{}-{what}-bytes", config.library).to_ascii_lowercase();
        let trailers = [trailer("compressed"), trailer("uncompressed")];
        Self { request: part("request"), response: part("response"), trailers, config }
    }

    fn request_head(&self, state: &mut Self::State, context: &mut RequestContext<'_>) -> Decision {
        let headers = &mut context.head.headers;
        if self.config.responses.enabled && self.config.advertises {
            self.advertise(headers);
        }
        if context.body != Body::Empty {
            let decoder = self.begin(self.config.requests, headers, &self.request);
            if decoder.is_some() {
                state.get_or_insert_default().request = decoder;
            }
        }
        Decision::Continue
    }

    fn request_data(&self, state: &mut Self::State, data: &mut Data<'_>) -> Result<Flow, BadBody> {
        if let Some(body) = state.as_mut().and_then(|exchange| exchange.request.as_mut()) {
            body.pass(data, &self.request).map_err(|Malformed| BAD_BODY)?;
        }
        Ok(Flow::Continue)
    }

    fn response_head(&self, state: &mut Self::State, context: &mut ResponseContext<'_>) -> ResponseDecision {
        if !context.ends {
            let decoder = self.begin(self.config.responses, &mut context.head.headers, &self.response);
            if decoder.is_some() {
                state.get_or_insert_default().response = decoder;
            }
        }
        ResponseDecision::Continue
    }

    fn response_data(&self, state: &mut Self::State, data: &mut Data<'_>) -> Flow {
        if let Some(body) = state.as_mut().and_then(|exchange| exchange.response.as_mut()) {
            // As in Envoy, the client gets what could be decompressed.
            _ = body.pass(data, &self.response);
        }
        Flow::Continue
    }

    fn response_trailers(&self, state: &mut Self::State, context: &mut TrailersContext<'_>) {
        let Some(body) = state.as_ref().and_then(|exchange| exchange.response.as_ref()) else { return };
        for (name, bytes) in self.trailers.iter().zip([body.compressed, body.uncompressed]) {
            context.trailers.append(name.as_bytes(), bytes.to_string().as_bytes());
        }
    }
}

impl HttpFilter {
    /// The server learns that it may compress.
    fn advertise(&self, headers: &mut Headers) {
        let own = self.config.decompression.coding.token().as_bytes();
        let mut all: Vec<u8> = Vec::new();
        for coding in headers.find_all(b"accept-encoding").flat_map(tokens) {
            let name = coding.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
            if name != own {
                all.extend_from_slice(coding);
                all.push(b',');
            }
        }
        all.extend_from_slice(own);
        headers.set_name(b"accept-encoding", &all);
    }

    /// Begins to decompress, if the message is to be.
    fn begin(&self, direction: Direction, headers: &mut Headers, counts: &Writer<stats::Stats>) -> Option<Inflating> {
        let is_meant =
            direction.enabled && (direction.ignore_no_transform || !lists(headers, b"cache-control", b"no-transform"));
        let decoder = match self.rest_of_codings(headers).filter(|_| is_meant) {
            None => None,
            Some(rest) => Decoder::new(self.config.decompression).map(|decoder| (decoder, rest)),
        };
        let Some((decoder, rest)) = decoder else {
            counts.inc(Counter::not_decompressed);
            return None;
        };
        counts.inc(Counter::decompressed);
        forget_length(headers);
        headers.remove_name(b"content-encoding");
        if !rest.is_empty() {
            headers.append(b"content-encoding", &rest);
        }
        Some(Inflating { decoder, compressed: 0, uncompressed: 0, over: false })
    }

    /// The codings without the one that was applied last, which is the last in the list (RFC 9110 section 8.4), if that is this filter's.
    fn rest_of_codings(&self, headers: &Headers) -> Option<Vec<u8>> {
        let mut codings: Vec<&[u8]> = headers.find_all(b"content-encoding").flat_map(tokens).collect();
        let last = codings.pop()?;
        last.eq_ignore_ascii_case(self.config.decompression.coding.token().as_bytes()).then(|| codings.join(&b", "[..]))
    }
}

impl Inflating {
    fn pass(&mut self, data: &mut Data<'_>, counts: &Writer<stats::Stats>) -> Result<(), Malformed> {
        if self.over {
            data.bytes = b"".into();
            return Ok(());
        }
        let compressed = data.bytes.len() as u64;
        let decoded = self.decoder.push(&data.bytes, data.ends);
        self.over = decoded.is_err() || data.ends;
        let (bytes, outcome) = match decoded {
            Ok(bytes) => (bytes, Ok(())),
            Err(malformed) => (self.decoder.rest(), Err(malformed)),
        };
        let uncompressed = bytes.len() as u64;
        self.compressed += compressed;
        self.uncompressed += uncompressed;
        counts.add(Counter::total_compressed_bytes, compressed);
        counts.add(Counter::total_uncompressed_bytes, uncompressed);
        data.bytes = bytes.into();
        outcome
    }
}
