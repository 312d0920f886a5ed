//! Which requests are calls of gRPC. The proxy then shows the [`Call`] what goes by.

use std::sync::Arc;

use evenkeel_base::grpc::is_grpc;
use evenkeel_runtime_config::grpc_stats::GrpcStats;
use evenkeel_runtime_config::view::RequestView;
use evenkeel_stats::{Registry, ScopeName};

use super::call::Call;
use crate::http::{Decision, Filter, Kept, RequestContext};

/// `envoy.filters.http.grpc_stats`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<GrpcStats>,
}

impl Filter for HttpFilter {
    type Config = GrpcStats;

    fn new(config: Arc<Self::Config>, _: &Registry, _: &ScopeName) -> Self {
        Self { config }
    }

    async fn on_request<R: RequestView>(&self, context: &RequestContext<'_, R>, kept: &mut Kept) -> Decision {
        if context.request.header("content-type").is_some_and(|kind| is_grpc(&kind)) {
            kept.call = Some(Call::new(Arc::clone(&self.config)));
        }
        Decision::Continue
    }
}
