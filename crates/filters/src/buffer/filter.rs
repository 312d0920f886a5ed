//! Decides which requests wait for their bodies. The proxy does the waiting, and sends 413 if a body is too large.

use std::sync::Arc;

use evenkeel_runtime_config::buffer::{Buffer, BufferPerRoute};

use crate::http::{Body, Decision, Filter, Hooks, RequestContext, Setup};
use crate::verdict::FilterVerdict;

/// `envoy.filters.http.buffer`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<Buffer>,
}

impl Filter for HttpFilter {
    type Config = Buffer;
    type State = ();
    const HOOKS: Hooks = Hooks::REQUEST_HEAD;

    fn verdict(_: &Buffer) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(config: Arc<Self::Config>, _: &Setup<'_>) -> Self {
        Self { config }
    }

    fn request_head(&self, (): &mut (), context: &mut RequestContext<'_>) -> Decision {
        let buffer = match context.per_route() {
            None => *self.config,
            Some(BufferPerRoute::Buffer(buffer)) => *buffer,
            Some(BufferPerRoute::Disabled) => return Decision::Continue,
        };
        let max_bytes = buffer.max_request_bytes as usize;
        match context.body {
            Body::Empty => Decision::Continue,
            // Another filter had it collected, and this one's limit allows its length.
            Body::Whole(body) if body.len() <= max_bytes => Decision::Continue,
            Body::Coming | Body::Start(_) | Body::Whole(_) => Decision::Collect { max_bytes },
        }
    }
}
