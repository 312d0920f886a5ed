//! Turns gRPC-Web's requests into gRPC's, and gRPC's responses into gRPC-Web's, exactly as Envoy's filter does.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_base::grpc::{CONTENT_TYPE, is_grpc, percent_encoded, status_of_http};
use evenkeel_http::{HeaderId, Headers, ResponseHead};
use evenkeel_runtime_config::grpc_web::GrpcWeb;
use evenkeel_stats::Writer;

use super::text::{Decoder, Encoder, Malformed};
use crate::grpc_stats::{Stats, WebCalls, count_end, method_of};
use crate::http::{
    BadBody, Body, Data, Decision, Filter, Flow, Hooks, RequestContext, ResponseContext, ResponseDecision, Setup,
    TrailersContext,
};
use crate::remark::Remark;
use crate::verdict::FilterVerdict;

const BINARY: &str = "application/grpc-web";
const BINARY_PROTO: &str = "application/grpc-web+proto";
const TEXT: &str = "application/grpc-web-text";
const TEXT_PROTO: &str = "application/grpc-web-text+proto";

/// The flag of the frame that has the trailers.
const TRAILERS: u8 = 0b1000_0000;
/// The longest part of a body that is not gRPC's which becomes `grpc-message`, in bytes.
const MAX_MESSAGE_BYTES: usize = 16_384;
/// `grpc-accept-encoding` of requests that have none.
const ACCEPT_ENCODING: (&[u8], &[u8]) = (b"grpc-accept-encoding", b"identity");

/// `envoy.filters.http.grpc_web`.
#[derive(Debug)]
pub struct HttpFilter;

/// A call in progress.
#[derive(Debug)]
pub struct Call {
    /// The request's body is in base64.
    request: Option<Decoder>,
    /// The response's body has to be.
    response: Option<Encoder>,
    /// The response is not gRPC's: its body became a header.
    swallows: bool,
    /// `None` if it goes to no cluster or names no method.
    counts: Option<Rc<Writer<Stats>>>,
}

impl Filter for HttpFilter {
    type Config = GrpcWeb;
    /// `None` if the request is not gRPC-Web.
    type State = Option<Box<Call>>;
    const HOOKS: Hooks = Hooks::REQUEST_HEAD
        .and(Hooks::REQUEST_DATA)
        .and(Hooks::RESPONSE_HEAD)
        .and(Hooks::RESPONSE_DATA)
        .and(Hooks::RESPONSE_TRAILERS);

    fn verdict(_: &GrpcWeb) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(_: Arc<GrpcWeb>, _: &Setup<'_>) -> Self {
        Self
    }

    fn request_head(&self, call: &mut Self::State, context: &mut RequestContext<'_>) -> Decision {
        let headers = &mut context.head.headers;
        let Some(is_text) = headers.get(HeaderId::ContentType).and_then(is_text) else { return Decision::Continue };
        let wants_text =
            headers.find(b"accept").is_some_and(|kind| [TEXT, TEXT_PROTO].iter().any(|t| t.as_bytes() == kind));
        headers.remove(HeaderId::ContentLength);
        headers.set(HeaderId::ContentType, CONTENT_TYPE.as_bytes());
        headers.set(HeaderId::Te, b"trailers");
        let (name, value) = ACCEPT_ENCODING;
        if headers.find(name).is_none() {
            headers.append(name, value);
        }
        let cluster = context.route.cluster.and_then(|cluster| context.services.clusters().scope(cluster));
        let counts = cluster.zip(method_of(context.head.path()));
        context.info.made_grpc = true;
        *call = Some(Box::new(Call {
            request: is_text.then(Decoder::default),
            response: wants_text.then(Encoder::default),
            swallows: false,
            counts: counts.map(|(cluster, method)| cluster.get(WebCalls::new).of(&method)),
        }));
        Decision::Continue
    }

    fn remark(&self, call: &Self::State, _: &RequestContext<'_>) -> Option<Remark> {
        call.as_ref().map(|_| Remark::Note("the call is gRPC-Web: the server gets it as gRPC".to_owned()))
    }

    fn request_data(&self, call: &mut Self::State, data: &mut Data<'_>) -> Result<Flow, BadBody> {
        let Some(decoder) = call.as_mut().and_then(|call| call.request.as_mut()) else { return Ok(Flow::Continue) };
        let decoded = decoder.take(&data.bytes, data.ends).map_err(|wrong| BadBody {
            status: 400,
            body: "Bad gRPC-web request, invalid base64 data.",
            details: match wrong {
                Malformed::Size => "grpc_base_64_decode_failed_bad_size",
                Malformed::Data => "grpc_base_64_decode_failed",
            },
        })?;
        data.bytes = decoded.into();
        Ok(Flow::Continue)
    }

    fn response_head(&self, call: &mut Self::State, context: &mut ResponseContext<'_>) -> ResponseDecision {
        let Some(call) = call else { return ResponseDecision::Continue };
        let is_message = !context.ends && !is_grpc_response(context.head);
        if is_message && context.body == Body::Coming {
            return ResponseDecision::CollectStart { bytes: MAX_MESSAGE_BYTES };
        }
        call.count(&context.head.headers);
        let headers = &mut context.head.headers;
        headers.remove(HeaderId::ContentLength);
        let kind = if call.response.is_some() { TEXT_PROTO } else { BINARY_PROTO };
        headers.set(HeaderId::ContentType, kind.as_bytes());
        if is_message {
            let body = if let Body::Whole(body) = context.body { body } else { b"" };
            headers.set_name(b"grpc-message", &percent_encoded(body));
            let mut digits = itoa::Buffer::new();
            headers.set(HeaderId::GrpcStatus, digits.format(status_of_http(context.head.status)).as_bytes());
            headers.set(HeaderId::ContentLength, b"0");
            call.swallows = true;
        }
        ResponseDecision::Continue
    }

    fn response_data(&self, call: &mut Self::State, data: &mut Data<'_>) -> Flow {
        match call.as_deref_mut() {
            Some(Call { swallows: true, .. }) => data.bytes = b"".into(),
            Some(Call { response: Some(encoder), .. }) => data.bytes = encoder.take(&data.bytes).into(),
            _ => {}
        }
        Flow::Continue
    }

    fn response_trailers(&self, call: &mut Self::State, context: &mut TrailersContext<'_>) {
        let Some(call) = call else { return };
        if context.trailers.is_empty() {
            return;
        }
        call.count(context.trailers);
        if call.swallows {
            return;
        }
        let frame = trailers_frame(context.trailers);
        context.trailers.clear();
        context.body = match &mut call.response {
            Some(encoder) => encoder.last(&frame),
            None => frame,
        };
    }
}

impl Call {
    fn count(&self, fields: &Headers) {
        if let Some((counts, status)) = self.counts.as_ref().zip(fields.get(HeaderId::GrpcStatus)) {
            count_end(counts, status);
        }
    }
}

/// Whether a request of gRPC-Web has its body in base64; `None`: it is none.
fn is_text(content_type: &[u8]) -> Option<bool> {
    let is = |kinds: [&str; 2]| kinds.iter().any(|kind| kind.as_bytes() == content_type);
    if is([BINARY, BINARY_PROTO]) { Some(false) } else { is([TEXT, TEXT_PROTO]).then_some(true) }
}

/// Whether a response with a body is gRPC's, or gRPC-Web's already.
fn is_grpc_response(head: &ResponseHead) -> bool {
    let Some(kind) = head.headers.get(HeaderId::ContentType).filter(|_| head.status == 200) else { return false };
    let without_parameters = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
    is_grpc(kind) || [BINARY, BINARY_PROTO].iter().any(|web| web.as_bytes().eq_ignore_ascii_case(without_parameters))
}

/// The trailers as a frame.
fn trailers_frame(trailers: &Headers) -> Vec<u8> {
    let mut lines = Vec::new();
    for (_, name, value) in trailers.iter() {
        lines.extend([name, b":", value, b"\r\n"].concat());
    }
    let length = u32::try_from(lines.len()).unwrap_or(u32::MAX);
    [&[TRAILERS][..], &length.to_be_bytes(), &lines].concat()
}
