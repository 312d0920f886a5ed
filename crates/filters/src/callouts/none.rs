//! Callouts for contexts without clusters.

use std::future::ready;
use std::sync::Arc;
use std::task::{Context, Poll};

use evenkeel_http::{Headers, RequestHead, ResponseHead};

use super::{CallOptions, Callout, CalloutError, Callouts, HttpCall, HttpStream, Problem};

/// Fails every call: explanations decide without calling other services.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoCallouts;

impl NoCallouts {
    fn error() -> CalloutError {
        CalloutError::new(Problem::UnknownCluster, 503, "cluster_not_found")
    }
}

impl Callouts for NoCallouts {
    fn http(&self, _: HttpCall) -> Callout {
        Callout::new(ready(Err(Self::error())))
    }

    fn stream(&self, _: &Arc<str>, _: RequestHead, _: CallOptions) -> Box<dyn HttpStream> {
        Box::new(Self)
    }
}

/// A call that has failed already.
impl HttpStream for NoCallouts {
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CalloutError>> {
        Poll::Ready(Err(Self::error()))
    }

    fn send(&mut self, _: &[u8]) {}

    fn waiting(&self) -> usize {
        0
    }

    fn finish(&mut self, _: Headers) {}

    fn poll_head(&mut self, _: &mut Context<'_>) -> Poll<Result<ResponseHead, CalloutError>> {
        Poll::Ready(Err(Self::error()))
    }

    fn poll_data(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Vec<u8>>, CalloutError>> {
        Poll::Ready(Err(Self::error()))
    }

    fn trailers(&mut self) -> Headers {
        Headers::default()
    }
}
