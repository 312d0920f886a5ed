//! Recognizes gRPC calls and passes their messages to [`Call`].

use std::sync::Arc;

use evenkeel_base::grpc::is_grpc;
use evenkeel_http::HeaderId;
use evenkeel_runtime_config::grpc_stats::GrpcStats;

use super::call::Call;
use super::counts::ClusterCalls;
use crate::http::{
    BadBody, Data, Decision, Filter, Flow, Hooks, RequestContext, ResponseContext, ResponseDecision, Setup,
    TrailersContext,
};
use crate::verdict::FilterVerdict;

/// The filter state key under which access logs find a call's message counts.
const MESSAGES: &str = "envoy.filters.http.grpc_stats";

/// `envoy.filters.http.grpc_stats`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<GrpcStats>,
}

impl Filter for HttpFilter {
    type Config = GrpcStats;
    /// `None` if the request is not a gRPC call.
    type State = Option<Box<Call>>;
    const HOOKS: Hooks = Hooks::REQUEST_HEAD
        .and(Hooks::REQUEST_DATA)
        .and(Hooks::RESPONSE_HEAD)
        .and(Hooks::RESPONSE_DATA)
        .and(Hooks::RESPONSE_TRAILERS);

    fn verdict(_: &GrpcStats) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(config: Arc<Self::Config>, _: &Setup<'_>) -> Self {
        Self { config }
    }

    fn request_head(&self, call: &mut Self::State, context: &mut RequestContext<'_>) -> Decision {
        if context.head.headers.get(HeaderId::ContentType).is_some_and(is_grpc) {
            let cluster = context.route.cluster.and_then(|cluster| context.services.clusters().scope(cluster));
            let calls = cluster.map(|cluster| cluster.get(ClusterCalls::new));
            let new = Call::new(Arc::clone(&self.config), calls.as_deref(), context.head.path());
            if let Some(messages) = new.messages() {
                context.info.set_object(MESSAGES, messages);
            }
            *call = Some(Box::new(new));
        }
        Decision::Continue
    }

    fn request_data(&self, call: &mut Self::State, data: &mut Data<'_>) -> Result<Flow, BadBody> {
        if let Some(call) = call {
            call.sends(&data.bytes);
        }
        Ok(Flow::Continue)
    }

    fn response_head(&self, call: &mut Self::State, context: &mut ResponseContext<'_>) -> ResponseDecision {
        if let Some(call) = call {
            call.is_answered(context.head, context.ends, context.since_request);
        }
        ResponseDecision::Continue
    }

    fn response_data(&self, call: &mut Self::State, data: &mut Data<'_>) -> Flow {
        if let Some(call) = call {
            call.receives(&data.bytes);
        }
        Flow::Continue
    }

    fn response_trailers(&self, call: &mut Self::State, context: &mut TrailersContext<'_>) {
        if let Some(call) = call {
            call.ends(context.trailers, context.since_request);
        }
    }
}
