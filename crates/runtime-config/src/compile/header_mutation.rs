//! `HeaderMutation` and `HeaderMutationPerRoute`.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::config::common::mutation_rules::v3 as mutation_rules;
use evenkeel_xds::pb::envoy::extensions::filters::http::header_mutation::v3 as filter;

use super::{Cx, headers};
use crate::access_log::{FormatPart, Operator};
use crate::header_edits::HeaderMutation;
use crate::header_mutation::{HeaderMutationFilter, Mutations};

pub(crate) fn header_mutation(cx: &mut Cx<'_>, config: &filter::HeaderMutation) -> Option<HeaderMutationFilter> {
    Some(HeaderMutationFilter {
        mutations: mutations(cx, config.mutations.as_ref()),
        most_specific_wins: config.most_specific_header_mutations_wins,
    })
}

pub(crate) fn per_route(cx: &mut Cx<'_>, config: &filter::HeaderMutationPerRoute) -> Option<Arc<Mutations>> {
    Some(mutations(cx, config.mutations.as_ref()))
}

fn mutations(cx: &mut Cx<'_>, config: Option<&filter::Mutations>) -> Arc<Mutations> {
    let Some(config) = config else { return Arc::default() };
    cx.at("mutations", |cx| {
        Arc::new(Mutations {
            request: cx.each("request_mutations", &config.request_mutations, mutation),
            request_trailers: cx.each("request_trailers_mutations", &config.request_trailers_mutations, mutation),
            response: cx.each("response_mutations", &config.response_mutations, mutation),
            response_trailers: cx.each("response_trailers_mutations", &config.response_trailers_mutations, mutation),
        })
    })
}

/// The filter only sees the messages, so operators that need anything else are rejected.
fn mutation(cx: &mut Cx<'_>, mutation: &mutation_rules::HeaderMutation) -> Option<HeaderMutation> {
    let compiled = headers::mutation(cx, mutation)?;
    if let HeaderMutation::Add(addition) = &compiled {
        let is_known = |part: &FormatPart| match part {
            FormatPart::Literal(_) => true,
            FormatPart::Operator { operator, .. } => matches!(operator, Operator::Req(..) | Operator::Resp(..)),
        };
        if !addition.value.parts.iter().all(is_known) {
            return cx.fail_at("append.header.value", "only %REQ(…)% and %RESP(…)% are supported here");
        }
    }
    Some(compiled)
}
