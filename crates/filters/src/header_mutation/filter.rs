//! Applies the edits: the filter's own first, then those of the per-route levels.

use std::sync::Arc;

use evenkeel_http::Headers;
use evenkeel_runtime_config::header_mutation::{HeaderMutationFilter, Mutations};
use evenkeel_runtime_config::substitution_format::Format;

use super::edit::Edited;
use super::query;
use crate::http::{
    Decision, Filter, Hooks, RequestContext, RequestTrailersContext, ResponseContext, ResponseDecision, Setup,
    TrailersContext,
};
use crate::verdict::FilterVerdict;

/// `envoy.filters.http.header_mutation`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<HeaderMutationFilter>,
}

/// The per-route edits of one request, in the order they are applied.
type Routes = Vec<Arc<Mutations>>;

impl Filter for HttpFilter {
    type Config = HeaderMutationFilter;
    type State = Routes;
    const HOOKS: Hooks =
        Hooks::REQUEST_HEAD.and(Hooks::REQUEST_TRAILERS).and(Hooks::RESPONSE_HEAD).and(Hooks::RESPONSE_TRAILERS);

    fn verdict(_: &HeaderMutationFilter) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(config: Arc<HeaderMutationFilter>, _: &Setup<'_>) -> Self {
        Self { config }
    }

    fn request_head(&self, routes: &mut Routes, context: &mut RequestContext<'_>) -> Decision {
        *routes = context.route.filters.all::<Arc<Mutations>>(context.filter()).cloned().collect();
        if self.config.most_specific_wins {
            routes.reverse();
        }
        context.note_cluster();
        for level in levels(&self.config, routes) {
            context.edit(&level.request);
            if let Some(path) = query::edited(context.head, &level.query, |format| context.value_of(format)) {
                context.head.set_path(&path);
            }
        }
        Decision::Continue
    }

    fn request_trailers(&self, routes: &mut Routes, context: &mut RequestTrailersContext<'_>) {
        for level in levels(&self.config, routes) {
            context.edit(&level.request_trailers);
        }
    }

    fn response_head(&self, routes: &mut Routes, context: &mut ResponseContext<'_>) -> ResponseDecision {
        for level in levels(&self.config, routes) {
            context.edit(&level.response);
        }
        ResponseDecision::Continue
    }

    fn response_trailers(&self, routes: &mut Routes, context: &mut TrailersContext<'_>) {
        if context.trailers.is_empty() {
            return;
        }
        for level in levels(&self.config, routes) {
            context.edit(&level.response_trailers);
        }
    }
}

fn levels<'l>(config: &'l HeaderMutationFilter, routes: &'l [Arc<Mutations>]) -> impl Iterator<Item = &'l Mutations> {
    std::iter::once(&config.mutations).chain(routes).map(|level| &**level)
}

impl Edited for RequestContext<'_> {
    fn fields(&mut self) -> &mut Headers {
        &mut self.head.headers
    }

    fn value_of(&self, format: &Format) -> Vec<u8> {
        self.value_of(format)
    }
}

impl Edited for RequestTrailersContext<'_> {
    fn fields(&mut self) -> &mut Headers {
        self.trailers
    }

    fn value_of(&self, format: &Format) -> Vec<u8> {
        self.value_of(format)
    }
}

impl Edited for ResponseContext<'_> {
    fn fields(&mut self) -> &mut Headers {
        &mut self.head.headers
    }

    fn value_of(&self, format: &Format) -> Vec<u8> {
        self.value_of(format)
    }
}

impl Edited for TrailersContext<'_> {
    fn fields(&mut self) -> &mut Headers {
        self.trailers
    }

    fn value_of(&self, format: &Format) -> Vec<u8> {
        self.value_of(format)
    }
}
