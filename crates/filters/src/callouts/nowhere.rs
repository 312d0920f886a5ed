//! Calls where there is no worker: whatever is asked fails.

use std::future::ready;
use std::sync::Arc;
use std::task::{Context, Poll};

use evenkeel_http::{Headers, RequestHead, ResponseHead};

use super::{CallOptions, Callout, CalloutError, Callouts, HttpCall, HttpStream, Problem};

/// Makes no calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nowhere;

fn failed() -> CalloutError {
    CalloutError::new(Problem::UnknownCluster, 503, "no_worker")
}

impl Callouts for Nowhere {
    fn http(&self, _: HttpCall) -> Callout {
        Callout::new(ready(Err(failed())))
    }

    fn stream(&self, _: &Arc<str>, _: RequestHead, _: CallOptions) -> Box<dyn HttpStream> {
        Box::new(Self)
    }
}

impl HttpStream for Nowhere {
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CalloutError>> {
        Poll::Ready(Err(failed()))
    }

    fn send(&mut self, _: &[u8]) {}

    fn finish(&mut self, _: Headers) {}

    fn poll_head(&mut self, _: &mut Context<'_>) -> Poll<Result<ResponseHead, CalloutError>> {
        Poll::Ready(Err(failed()))
    }

    fn poll_data(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Vec<u8>>, CalloutError>> {
        Poll::Ready(Err(failed()))
    }

    fn trailers(&mut self) -> Headers {
        Headers::default()
    }
}
