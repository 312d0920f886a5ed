//! `envoy.filters.http.header_mutation`, compiled: edits of headers and trailers.

use std::sync::Arc;

use crate::filter_needs::FilterNeeds;
use crate::header_edits::{AppendAction, HeaderMutation};
use crate::substitution_format::Format;

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
