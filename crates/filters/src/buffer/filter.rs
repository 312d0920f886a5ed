//! Which requests wait for their bodies. Waiting itself, and 413 for what is too long, are the proxy's.

use std::sync::Arc;

use evenkeel_runtime_config::buffer::{Buffer, BufferPerRoute};
use evenkeel_runtime_config::view::RequestView;
use evenkeel_stats::{Registry, ScopeName};

use crate::http::{Body, Decision, Filter, Kept, RequestContext};

/// `envoy.filters.http.buffer`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<Buffer>,
}

impl Filter for HttpFilter {
    type Config = Buffer;

    fn new(config: Arc<Self::Config>, _: &Registry, _: &ScopeName) -> Self {
        Self { config }
    }

    async fn on_request<R: RequestView>(&self, context: &RequestContext<'_, R>, _: &mut Kept) -> Decision {
        let buffer = match context.route.and_then(|route| route.filters.buffer) {
            None => *self.config,
            Some(BufferPerRoute::Buffer(buffer)) => buffer,
            Some(BufferPerRoute::Disabled) => return Decision::Continue,
        };
        let max_bytes = buffer.max_request_bytes as usize;
        match context.body {
            Body::Empty => Decision::Continue,
            // Another filter had it collected, and allows more.
            Body::Whole(body) if body.len() <= max_bytes => Decision::Continue,
            Body::Coming | Body::Whole(_) => Decision::Collect { max_bytes },
        }
    }
}
