//! Calls a rate limit service (`envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_envoy_api::envoy::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor};
use evenkeel_envoy_api::envoy::service::ratelimit::v3::RateLimitRequest;
use evenkeel_http::Headers;
use evenkeel_runtime_config::ratelimit::RateLimit;
use prost::Message;

use super::answer::Answer;
use crate::callouts::grpc::{self, GrpcMethod};
use crate::callouts::{CallOptions, MAX_ANSWER_BYTES, Problem};
use crate::descriptor::Entry;
use crate::header_edits;
use crate::http::{Pause, RequestContext};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Maximum wait for a service without a time limit. The request's limits are usually lower.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// A call that a request waits for. It ends with its [`Pause`].
#[derive(Debug)]
pub(super) struct Pending(Rc<RefCell<Option<Answer>>>);

impl Pending {
    /// The answer; a call without one has failed.
    pub(super) fn take(&self) -> Answer {
        self.0.borrow_mut().take().unwrap_or(Answer::Failed)
    }
}

/// Asks about a request with these descriptors.
pub(super) fn ask(
    config: &RateLimit,
    domain: &str,
    descriptors: &[Vec<Entry<'_>>],
    context: &RequestContext<'_>,
) -> (Pending, Pause) {
    let entry = |(key, value): &Entry<'_>| rate_limit_descriptor::Entry {
        key: (*key).to_owned(),
        value: value.clone().into_owned(),
    };
    let descriptor = |entries: &Vec<Entry<'_>>| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    let message = RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    };
    let target = &config.service;
    let mut metadata = Headers::default();
    for addition in &target.metadata {
        header_edits::add_header(&mut metadata, addition, &context.value_of(&addition.value));
    }
    let method = GrpcMethod {
        cluster: target.call.cluster.clone(),
        path: METHOD.into(),
        authority: target.authority.clone(),
        metadata,
        options: CallOptions {
            timeout: target.call.timeout,
            retry: target.call.retry.clone(),
            envoy_headers: !target.skip_envoy_headers,
            max_answer_bytes: target.max_message_bytes.unwrap_or(MAX_ANSWER_BYTES),
            ..CallOptions::default()
        },
    };
    let call = grpc::call(context.services.callouts(), &method, &message.encode_to_vec());
    let answer = Rc::new(RefCell::new(None));
    let place = Rc::clone(&answer);
    let wait = async move {
        *place.borrow_mut() = Some(match call.await {
            Ok(answered) => Answer::of(&answered.message),
            Err(failure) if failure.cause.as_ref().is_some_and(|cause| cause.problem == Problem::TooManyCalls) => {
                Answer::Unasked
            }
            Err(_) => Answer::Failed,
        });
    };
    (Pending(answer), Pause::until(wait, target.call.timeout.unwrap_or(LONGEST_WAIT)))
}
