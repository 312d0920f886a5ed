//! Applies the edits: the filter's own first, then those of the per-route levels.

use std::sync::Arc;

use evenkeel_http::{Headers, RequestHead};
use evenkeel_runtime_config::header_edits::HeaderMutation;
use evenkeel_runtime_config::header_mutation::{HeaderMutationFilter, Mutations};

use super::edit::{Seen, apply, value};
use super::query;
use crate::http::{Decision, Filter, Hooks, RequestContext, ResponseContext, ResponseDecision, Setup, TrailersContext};

/// `envoy.filters.http.header_mutation`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<HeaderMutationFilter>,
}

/// State of one request.
#[derive(Default)]
pub struct Message {
    /// The per-route edits, in the order they are applied.
    routes: Vec<Arc<Mutations>>,
    /// The request's head, if later edits refer to it.
    request: Option<Box<RequestHead>>,
}

impl Filter for HttpFilter {
    type Config = HeaderMutationFilter;
    type State = Message;
    const HOOKS: Hooks =
        Hooks::REQUEST_HEAD.and(Hooks::REQUEST_TRAILERS).and(Hooks::RESPONSE_HEAD).and(Hooks::RESPONSE_TRAILERS);

    fn new(config: Arc<HeaderMutationFilter>, _: &Setup<'_>) -> Self {
        Self { config }
    }

    fn request_head(&self, state: &mut Message, context: &mut RequestContext<'_>) -> Decision {
        state.routes = context.route.filters.all::<Arc<Mutations>>(context.filter()).cloned().collect();
        if self.config.most_specific_wins {
            state.routes.reverse();
        }
        for level in levels(&self.config, &state.routes) {
            for mutation in &level.request {
                let value = value(mutation, Seen { request: Some(context.head), response: None });
                apply(&mut context.head.headers, mutation, &value);
            }
            query::edit(context.head, &level.query);
        }
        if levels(&self.config, &state.routes).any(Mutations::remember_request) {
            state.request = Some(Box::new(context.head.clone()));
        }
        Decision::Continue
    }

    fn request_trailers(&self, state: &mut Message, trailers: &mut Headers) {
        let seen = Seen { request: state.request.as_deref(), response: None };
        for level in levels(&self.config, &state.routes) {
            edit_trailers(trailers, &level.request_trailers, seen);
        }
    }

    fn response_head(&self, state: &mut Message, context: &mut ResponseContext<'_>) -> ResponseDecision {
        for level in levels(&self.config, &state.routes) {
            for mutation in &level.response {
                let response = Some((context.head.status, &context.head.headers));
                let value = value(mutation, Seen { request: state.request.as_deref(), response });
                apply(&mut context.head.headers, mutation, &value);
            }
        }
        ResponseDecision::Continue
    }

    fn response_trailers(&self, state: &mut Message, context: &mut TrailersContext<'_>) {
        if context.trailers.is_empty() {
            return;
        }
        let seen = Seen { request: state.request.as_deref(), response: None };
        for level in levels(&self.config, &state.routes) {
            edit_trailers(context.trailers, &level.response_trailers, seen);
        }
    }
}

fn levels<'l>(config: &'l HeaderMutationFilter, routes: &'l [Arc<Mutations>]) -> impl Iterator<Item = &'l Mutations> {
    std::iter::once(&config.mutations).chain(routes).map(|level| &**level)
}

fn edit_trailers(trailers: &mut Headers, mutations: &[HeaderMutation], seen: Seen<'_>) {
    for mutation in mutations {
        let value = value(mutation, seen);
        apply(trailers, mutation, &value);
    }
}
