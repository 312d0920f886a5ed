//! Calls an authorization service.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use evenkeel_http::Headers;
use evenkeel_runtime_config::ext_authz::{AuthzService, CallTarget, GrpcTarget, HttpTarget};
use evenkeel_runtime_config::substitution_format::Format;

use super::answer::Answer;
use super::check::Question;
use crate::callouts::grpc::{self, GrpcMethod};
use crate::callouts::{CallOptions, CalloutError, Callouts, HttpAnswer, HttpCall, MAX_ANSWER_BYTES, Problem};
use crate::header_edits;
use crate::http::Pause;

const METHOD: &str = "/envoy.service.auth.v3.Authorization/Check";
/// Maximum wait for a service whose configuration has no time limit. The request's limits are usually lower.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// A call that a request or connection waits for. It ends with its [`Pause`].
#[derive(Debug)]
pub(super) struct PendingCheck {
    pub(super) since: Instant,
    reply: Rc<RefCell<Option<RawReply>>>,
}

/// A response, not parsed yet.
#[derive(Debug)]
enum RawReply {
    /// A message, if the call has succeeded, and how long the call's own was.
    Grpc {
        message: Option<Vec<u8>>,
        sent: usize,
    },
    Http(HttpAnswer),
    /// The call was not made, because too many are under way.
    Unasked,
}

/// A parsed response.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) answer: Answer,
    /// Bytes of a gRPC call's messages, sent and received.
    pub(super) bytes: Option<(usize, usize)>,
}

impl PendingCheck {
    /// Returns the parsed response of a service; a call without one has failed.
    pub(super) fn take(&self, service: &AuthzService) -> Reply {
        match (self.reply.borrow_mut().take(), service) {
            (Some(reply @ (RawReply::Grpc { .. } | RawReply::Unasked)), _) => reply.of_grpc(),
            (Some(RawReply::Http(answer)), AuthzService::Http(target)) => {
                Reply { answer: Answer::of_http(target, answer), bytes: None }
            }
            _ => Reply::default(),
        }
    }

    /// Returns the parsed response of a gRPC service.
    pub(super) fn take_grpc(&self) -> Reply {
        self.reply.borrow_mut().take().map(RawReply::of_grpc).unwrap_or_default()
    }
}

impl RawReply {
    fn of_grpc(self) -> Reply {
        match self {
            Self::Grpc { message: Some(message), sent } => {
                Reply { answer: Answer::of_grpc(&message), bytes: Some((sent, message.len())) }
            }
            Self::Grpc { message: None, sent } => Reply { answer: Answer::default(), bytes: Some((sent, 0)) },
            Self::Unasked => Reply { answer: Answer::unasked(), bytes: None },
            Self::Http(_) => Reply::default(),
        }
    }
}

/// Whether a service can be asked about requests of this method: one over HTTP would take a question about CONNECT for a tunnel to
/// itself.
pub(super) fn can_be_asked(service: &AuthzService, method: &[u8]) -> bool {
    match service {
        AuthzService::Grpc(_) => true,
        AuthzService::Http(_) => method != b"CONNECT",
    }
}

/// Asks the configured service. The body of the request is known.
pub(super) fn ask(service: &AuthzService, question: &Question<'_, '_>) -> (PendingCheck, Pause) {
    let context = question.context;
    let (callouts, now) = (context.services.callouts(), context.now);
    match service {
        AuthzService::Grpc(target) => {
            let metadata = metadata(target, |format| context.value_of(format));
            grpc(target, callouts, question.to_grpc(), metadata, now)
        }
        AuthzService::Http(target) => http(target, question, now),
    }
}

/// The headers of a call to a gRPC service. `value_of`: the value of a format string.
pub(super) fn metadata(target: &GrpcTarget, value_of: impl Fn(&Format) -> Vec<u8>) -> Headers {
    let mut metadata = Headers::default();
    for addition in &target.metadata {
        header_edits::add_header(&mut metadata, addition, &value_of(&addition.value));
    }
    metadata
}

/// Asks a gRPC service. `metadata`: headers of the call.
pub(super) fn grpc(
    target: &GrpcTarget,
    callouts: &dyn Callouts,
    message: Vec<u8>,
    metadata: Headers,
    now: Instant,
) -> (PendingCheck, Pause) {
    let mut options = options(&target.call);
    options.envoy_headers = !target.skip_envoy_headers;
    options.max_answer_bytes = target.max_message_bytes.unwrap_or(MAX_ANSWER_BYTES);
    let method = GrpcMethod {
        cluster: target.call.cluster.clone(),
        path: METHOD.into(),
        authority: target.authority.clone(),
        metadata,
        options,
    };
    let (call, sent) = (grpc::call(callouts, &method, &message), message.len());
    let reply = Rc::new(RefCell::new(None));
    let place = Rc::clone(&reply);
    let wait = async move {
        *place.borrow_mut() = Some(match call.await {
            Err(failure) if failure.cause.as_ref().is_some_and(is_unasked) => RawReply::Unasked,
            result => RawReply::Grpc { message: result.ok().map(|answer| answer.message), sent },
        });
    };
    (PendingCheck { since: now, reply }, Pause::until(wait, limit(&target.call)))
}

fn http(target: &HttpTarget, question: &Question<'_, '_>, now: Instant) -> (PendingCheck, Pause) {
    let head = question.to_http(target);
    let reply = Rc::new(RefCell::new(None));
    let call = HttpCall {
        cluster: target.call.cluster.clone(),
        head,
        body: question.body.map(|body| body.bytes.to_vec()).unwrap_or_default(),
        options: CallOptions { names_itself: false, ..options(&target.call) },
    };
    let call = question.context.services.callouts().http(call);
    let place = Rc::clone(&reply);
    let wait = async move {
        *place.borrow_mut() = match call.await {
            Err(error) if is_unasked(&error) => Some(RawReply::Unasked),
            result => result.ok().map(RawReply::Http),
        };
    };
    (PendingCheck { since: now, reply }, Pause::until(wait, limit(&target.call)))
}

fn is_unasked(error: &CalloutError) -> bool {
    error.problem == Problem::TooManyCalls
}

fn options(target: &CallTarget) -> CallOptions {
    CallOptions { timeout: target.timeout, retry: target.retry.clone(), ..CallOptions::default() }
}

fn limit(target: &CallTarget) -> Duration {
    target.timeout.unwrap_or(LONGEST_WAIT)
}
