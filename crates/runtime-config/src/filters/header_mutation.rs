//! `envoy.filters.http.header_mutation`, compiled: edits of headers and trailers.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::extensions::filters::http::header_mutation::v3 as filter;
use evenkeel_xds::pb::google::protobuf::value::Kind;

use crate::compile::{Cx, headers};
use crate::filter_needs::FilterNeeds;
use crate::header_edits::{AppendAction, HeaderMutation};
use crate::substitution_format::Format;
use crate::support::message::{MessageSupport, extension, part};

/// The filter's configuration.
#[derive(Debug)]
pub struct HeaderMutationFilter {
    /// Edits of every message; per-route edits follow.
    pub mutations: Arc<Mutations>,
    /// Edits of the most specific level are applied last, and win (`most_specific_header_mutations_wins`); otherwise
    /// they are applied first.
    pub most_specific_wins: bool,
}

impl FilterNeeds for HeaderMutationFilter {
    fn may_stand_upstream(&self) -> bool {
        true
    }
}

/// The edits of each part of a message, in order.
#[derive(Debug, Default)]
pub struct Mutations {
    /// Request headers.
    pub request: Vec<HeaderMutation>,
    /// Parameters of the request's query, after its headers.
    pub query: Vec<QueryMutation>,
    /// Request trailers.
    pub request_trailers: Vec<HeaderMutation>,
    /// Response headers.
    pub response: Vec<HeaderMutation>,
    /// Response trailers.
    pub response_trailers: Vec<HeaderMutation>,
}

/// An edit of a query (`KeyValueMutation`).
#[derive(Debug)]
pub enum QueryMutation {
    /// Removes all parameters of this name.
    Remove(Box<str>),
    /// Adds a parameter, or replaces those of its name.
    Add {
        /// Its name.
        key: Box<str>,
        /// Its value.
        value: Format,
        /// How to treat existing parameters of this name.
        action: AppendAction,
    },
}

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
            request: cx.each("request_mutations", &config.request_mutations, headers::mutation),
            query: cx.each("query_parameter_mutations", &config.query_parameter_mutations, query_mutation),
            request_trailers: cx.each(
                "request_trailers_mutations",
                &config.request_trailers_mutations,
                headers::mutation,
            ),
            response: cx.each("response_mutations", &config.response_mutations, headers::mutation),
            response_trailers: cx.each(
                "response_trailers_mutations",
                &config.response_trailers_mutations,
                headers::mutation,
            ),
        })
    })
}

/// An edit of the query.
fn query_mutation(cx: &mut Cx<'_>, mutation: &core::KeyValueMutation) -> Option<QueryMutation> {
    use core::key_value_append::KeyValueAppendAction as Action;
    match (&mutation.append, mutation.remove.as_str()) {
        (None, "") => cx.fail("one of append, remove is required"),
        (Some(_), name) if !name.is_empty() => cx.fail("append and remove cannot stand together"),
        (None, name) => Some(QueryMutation::Remove(name.into())),
        (Some(append), _) => cx.at("append", |cx| {
            let record = cx.required("record", append.record.as_ref())?;
            let action = match Action::try_from(append.action) {
                Ok(Action::AppendIfExistsOrAdd) => AppendAction::AppendIfExistsOrAdd,
                Ok(Action::AddIfAbsent) => AppendAction::AddIfAbsent,
                Ok(Action::OverwriteIfExistsOrAdd) => AppendAction::OverwriteIfExistsOrAdd,
                Ok(Action::OverwriteIfExists) => AppendAction::OverwriteIfExists,
                Err(_) => return cx.fail_at("action", format!("unknown value {}", append.action)),
            };
            cx.at("record", |cx| {
                let key = cx.non_empty("key", &record.key)?.into();
                let Some(Kind::StringValue(text)) = record.value.as_ref().and_then(|value| value.kind.as_ref()) else {
                    return cx.fail_at("value", "must be a string");
                };
                let value = cx.format("value", text)?;
                Some(QueryMutation::Add { key, value, action })
            })
        }),
    }
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    extension("envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
        &["mutations", "most_specific_header_mutations_wins"]),
    extension("envoy.extensions.filters.http.header_mutation.v3.HeaderMutationPerRoute", &["mutations"]),
    part("envoy.extensions.filters.http.header_mutation.v3.Mutations",
        &["request_mutations", "query_parameter_mutations", "request_trailers_mutations", "response_mutations",
          "response_trailers_mutations"]),
    part("envoy.config.core.v3.KeyValueMutation", &["append", "remove"]),
    part("envoy.config.core.v3.KeyValueAppend", &["record", "action"]),
    part("envoy.config.core.v3.KeyValuePair", &["key", "value"]),
];
