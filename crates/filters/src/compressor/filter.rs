//! Decides whether a message is compressed, as Envoy does, and compresses it.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_http::{HeaderId, Headers};
use evenkeel_runtime_config::compression::Compression;
use evenkeel_runtime_config::compressor::{Compressible, Compressor, CompressorPerRoute};
use evenkeel_stats::Writer;

use super::counts::{Accepted, Counts, Passed, direction};
use crate::compression::{Encoder, Encodings, forget_length, is_upgrade, lists, tokens};
use crate::http::{
    BadBody, Body, Data, Decision, Filter, Flow, Hooks, RequestContext, ResponseContext, ResponseDecision, Setup,
    TrailersContext,
};
use crate::info::{Form, StateObject};
use crate::verdict::FilterVerdict;

/// The key of what the compressors of a chain know of each other.
const KEY: &str = "evenkeel.encodings";
/// Names of codings in `transfer-encoding`: such a body is compressed already.
const TRANSFER_CODINGS: [&[u8]; 5] = [b"gzip", b"br", b"deflate", b"compress", b"zstd"];

/// `envoy.filters.http.compressor`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<Compressor>,
    counts: Counts,
}

/// A request in progress.
#[derive(Default)]
pub struct Exchange {
    /// `accept-encoding`.
    accepted: Option<Box<[u8]>>,
    /// The route's configuration.
    route: CompressorPerRoute,
    request: Option<Box<Encoder>>,
    response: Option<Box<Encoder>>,
    /// The end of the response that is held back until all filters have added to its body.
    tail: Vec<u8>,
    /// The response is the proxy's own: it comes in one piece.
    local: bool,
}

impl StateObject for Encodings {
    fn write(&self, _: Form, _: &mut Vec<u8>) -> bool {
        false
    }

    fn encodings(&self) -> Option<&Encodings> {
        Some(self)
    }
}

impl Filter for HttpFilter {
    type Config = Compressor;
    /// `None` if the filter has not seen the request.
    type State = Option<Box<Exchange>>;
    const HOOKS: Hooks = Hooks::REQUEST_HEAD
        .and(Hooks::REQUEST_DATA)
        .and(Hooks::RESPONSE_HEAD)
        .and(Hooks::RESPONSE_DATA)
        .and(Hooks::RESPONSE_TRAILERS);

    fn verdict(_: &Compressor) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(config: Arc<Compressor>, setup: &Setup<'_>) -> Self {
        let counts = Counts::new(&config, setup);
        Self { config, counts }
    }

    fn request_head(&self, state: &mut Self::State, context: &mut RequestContext<'_>) -> Decision {
        let route = context.per_route::<CompressorPerRoute>().cloned().unwrap_or_default();
        let accepted = accepted(&context.head.headers);
        let coding = self.compression(&route).coding();
        match context.info.object(KEY).and_then(StateObject::encodings) {
            Some(known) => known.meet(&self.config, coding),
            None => {
                let known = Encodings::default();
                known.meet(&self.config, coding);
                context.info.set_object(KEY, Rc::new(known));
            }
        }
        let headers = &mut context.head.headers;
        let removes = route.remove_accept_encoding.unwrap_or(self.config.responses.remove_accept_encoding);
        if self.compresses_responses(&route) && removes {
            headers.remove_name(b"accept-encoding");
        }
        let wanted = self.config.requests.as_ref().filter(|wanted| wanted.enabled && context.body != Body::Empty);
        let fits = wanted.is_some_and(|wanted| {
            !is_upgrade(headers)
                && is_long(wanted, headers, &self.counts.request)
                && is_kind(wanted, headers)
                && headers.find(b"content-encoding").is_none()
                && is_not_coded(headers)
        });
        let encoder = if fits { Encoder::new(self.config.compression) } else { None };
        self.counts.request.inc(if encoder.is_some() { Passed::compressed } else { Passed::not_compressed });
        if encoder.is_some() {
            forget_length(headers);
            headers.set_name(b"content-encoding", self.config.compression.coding().token().as_bytes());
        }
        let request = encoder.map(Box::new);
        *state = Some(Box::new(Exchange { accepted, route, request, ..Exchange::default() }));
        Decision::Continue
    }

    fn request_data(&self, state: &mut Self::State, data: &mut Data<'_>) -> Result<Flow, BadBody> {
        if let Some(exchange) = state
            && exchange.request.is_some()
        {
            pass(&mut exchange.request, data, data.ends, &self.counts.request);
        }
        Ok(Flow::Continue)
    }

    fn response_head(&self, state: &mut Self::State, context: &mut ResponseContext<'_>) -> ResponseDecision {
        let exchange = state.get_or_insert_default();
        exchange.local = context.local;
        let compression = self.compression(&exchange.route);
        let (responses, headers) = (&self.config.responses, &context.head.headers);
        let is_worth_it =
            self.compresses_responses(&exchange.route) && is_long(&responses.bodies, headers, &self.counts.response);
        let compressible = is_worth_it
            && !opens_tunnel(context)
            && is_kind(&responses.bodies, headers)
            && !lists(headers, b"cache-control", b"no-transform")
            && self.allows_etag(headers)
            && headers.find(b"content-encoding").is_none()
            && !responses.uncompressible.contains(&context.head.status);
        let compresses = !context.ends && self.is_accepted(exchange, is_worth_it, context) && compressible;
        let headers = &mut context.head.headers;
        let encoder = if compresses { Encoder::new(compression) } else { None };
        self.counts.response.inc(if encoder.is_some() { Passed::compressed } else { Passed::not_compressed });
        if encoder.is_some() {
            self.change_etag(headers);
            forget_length(headers);
            headers.set_name(b"content-encoding", compression.coding().token().as_bytes());
        }
        exchange.response = encoder.map(Box::new);
        // A cache has to know that another client gets another body.
        if compressible {
            vary(headers);
        }
        ResponseDecision::Continue
    }

    fn response_data(&self, state: &mut Self::State, data: &mut Data<'_>) -> Flow {
        if let Some(exchange) = state
            && exchange.response.is_some()
        {
            pass(&mut exchange.response, data, exchange.local && data.ends, &self.counts.response);
            if data.ends && !exchange.local {
                // Another filter may add to the body when it sees the trailers.
                exchange.tail.extend_from_slice(&data.bytes);
                data.bytes = Cow::Borrowed(b"");
                data.ends = false;
            }
        }
        Flow::Continue
    }

    fn response_trailers(&self, state: &mut Self::State, context: &mut TrailersContext<'_>) {
        let Some(exchange) = state else { return };
        let Some(encoder) = exchange.response.take() else { return };
        let end = encoder.finish();
        self.counts.response.add(Passed::total_compressed_bytes, end.len() as u64);
        context.body = std::mem::take(&mut exchange.tail);
        context.body.extend(end);
    }
}

impl HttpFilter {
    fn compression(&self, route: &CompressorPerRoute) -> Compression {
        route.compression.unwrap_or(self.config.compression)
    }

    fn compresses_responses(&self, route: &CompressorPerRoute) -> bool {
        route.responses.unwrap_or(self.config.responses.bodies.enabled)
    }

    /// Whether the client takes the response in this filter's coding. `counts`: whether the response may be compressed at all.
    fn is_accepted(&self, exchange: &Exchange, counts: bool, context: &ResponseContext<'_>) -> bool {
        if !counts {
            return false;
        }
        let Some(accepted) = &exchange.accepted else {
            self.counts.accepted.inc(Accepted::no_accept_header);
            return false;
        };
        let Some(all) = context.info.object(KEY).and_then(StateObject::encodings) else { return false };
        let choice = all.choice(accepted, context.head.headers.get(HeaderId::ContentType));
        self.counts.decided(choice, self.compression(&exchange.route).coding())
    }

    fn allows_etag(&self, headers: &Headers) -> bool {
        let refused = self.config.responses.disable_on_etag && headers.find(b"etag").is_some();
        if refused {
            self.counts.accepted.inc(Accepted::not_compressed_etag);
        }
        !refused
    }

    /// The compressed body is not the same bytes: a strong validator (RFC 9110 section 8.8.1) does not hold.
    fn change_etag(&self, headers: &mut Headers) {
        let Some(etag) = headers.find(b"etag") else { return };
        let is_weak = matches!(etag, [b'w' | b'W', b'/', ..]);
        if is_weak || etag.len() <= 2 {
            return;
        }
        if self.config.responses.weaken_etag {
            let weak = [b"W/", etag].concat();
            headers.set_name(b"etag", &weak);
        } else {
            headers.remove_name(b"etag");
        }
    }
}

/// Compresses a piece.
fn pass(encoder: &mut Option<Box<Encoder>>, data: &mut Data<'_>, finish: bool, counts: &Writer<direction::Stats>) {
    let Some(active) = encoder else { return };
    counts.add(Passed::total_uncompressed_bytes, data.bytes.len() as u64);
    let mut bytes = active.push(&data.bytes);
    if finish && let Some(ended) = encoder.take() {
        bytes.extend(ended.finish());
    }
    counts.add(Passed::total_compressed_bytes, bytes.len() as u64);
    data.bytes = bytes.into();
}

/// Whether what follows the head are another protocol's bytes. The header that names it is gone by now, as are transfer codings.
fn opens_tunnel(response: &ResponseContext<'_>) -> bool {
    let status = response.head.status;
    status == 101 || (response.facts.head.method() == b"CONNECT" && (200..300).contains(&status))
}

/// The client's `accept-encoding`; several headers are one list.
fn accepted(headers: &Headers) -> Option<Box<[u8]>> {
    let mut all = headers.find_all(b"accept-encoding");
    let mut joined = all.next()?.to_vec();
    for more in all {
        joined.push(b',');
        joined.extend_from_slice(more);
    }
    Some(joined.into())
}

/// Whether the body is long enough, or nobody knows.
fn is_long(wanted: &Compressible, headers: &Headers, counts: &Writer<direction::Stats>) -> bool {
    let Some(length) = headers.get(HeaderId::ContentLength) else { return true };
    let length: Option<u64> = std::str::from_utf8(length).ok().and_then(|length| length.parse().ok());
    let is_long = length.is_some_and(|length| length >= wanted.min_content_length);
    if !is_long {
        counts.inc(Passed::content_length_too_small);
    }
    is_long
}

/// Whether the body is of a type that is compressed, or nobody knows.
fn is_kind(wanted: &Compressible, headers: &Headers) -> bool {
    headers.get(HeaderId::ContentType).is_none_or(|kind| wanted.takes(kind))
}

fn is_not_coded(headers: &Headers) -> bool {
    let coded = |coding: &[u8]| TRANSFER_CODINGS.iter().any(|known| known.eq_ignore_ascii_case(coding));
    !headers.get(HeaderId::TransferEncoding).is_some_and(|codings| tokens(codings).any(coded))
}

fn vary(headers: &mut Headers) {
    const FIELD: &[u8] = b"accept-encoding";
    let Some(known) = headers.find(b"vary") else {
        headers.append(b"vary", b"Accept-Encoding");
        return;
    };
    if !tokens(known).any(|field| field.eq_ignore_ascii_case(FIELD)) {
        let longer = [known, b", Accept-Encoding"].concat();
        headers.set_name(b"vary", &longer);
    }
}
