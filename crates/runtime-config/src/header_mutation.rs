//! `envoy.filters.http.header_mutation`, compiled: edits of heads and trailers.

use std::sync::Arc;

use crate::access_log::{FormatPart, Operator};
use crate::route::HeaderMutation;

/// The filter's configuration.
#[derive(Debug)]
pub struct HeaderMutationFilter {
    /// Edits of every message; routes have more, which come after.
    pub mutations: Arc<Mutations>,
    /// Edits of the most specific level come last, and win (`most_specific_header_mutations_wins`); otherwise they come first.
    pub most_specific_wins: bool,
}

/// What is edited, each in order.
#[derive(Debug, Default)]
pub struct Mutations {
    /// Of the request's head.
    pub request: Vec<HeaderMutation>,
    /// Of the request's trailers.
    pub request_trailers: Vec<HeaderMutation>,
    /// Of the answer's head.
    pub response: Vec<HeaderMutation>,
    /// Of the answer's trailers.
    pub response_trailers: Vec<HeaderMutation>,
}

impl Mutations {
    /// Some edit behind the request's head looks at that head.
    pub fn remember_request(&self) -> bool {
        let later = [&self.request_trailers, &self.response, &self.response_trailers];
        later.into_iter().flatten().any(|mutation| match mutation {
            HeaderMutation::Add(addition) => addition.value.parts.iter().any(|part| {
                let FormatPart::Operator { operator, .. } = part else { return false };
                matches!(operator, Operator::Req(..))
            }),
            HeaderMutation::Remove(_) | HeaderMutation::RemoveMatching(_) => false,
        })
    }
}
