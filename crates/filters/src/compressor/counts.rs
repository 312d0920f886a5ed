//! Statistics under Envoy's names: `http.PREFIX.compressor.LIBRARY.CODING.`, and `request.` and `response.` below.

use evenkeel_runtime_config::compression::Coding;
use evenkeel_runtime_config::compressor::Compressor;
use evenkeel_stats::{ScopeName, Writer, layout};

use crate::compression::Choice;
use crate::http::Setup;

layout! {
    /// Of one direction.
    pub mod direction {
        counters {
            /// Messages that were compressed.
            compressed,
            /// Messages that were not.
            not_compressed,
            /// Bytes of those that were, before.
            total_uncompressed_bytes,
            /// Bytes of those that were, after.
            total_compressed_bytes,
            /// Messages that were not because they are short.
            content_length_too_small,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// What clients accept.
    pub mod accepted {
        counters {
            /// Requests without `accept-encoding`.
            no_accept_header,
            /// Requests that prefer no compression.
            header_identity,
            /// Requests that name this filter's coding.
            header_compressor_used,
            /// Requests whose response another filter compresses.
            header_compressor_overshadowed,
            /// Requests that take any coding.
            header_wildcard,
            /// Requests that take no coding that there is.
            header_not_valid,
            /// Responses with an `etag` that are therefore not compressed.
            not_compressed_etag,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

pub(super) use accepted::Counter as Accepted;
pub(super) use direction::Counter as Passed;

/// One worker's counters of one filter.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) request: Writer<direction::Stats>,
    pub(super) response: Writer<direction::Stats>,
    pub(super) accepted: Writer<accepted::Stats>,
}

impl Counts {
    pub(super) fn new(config: &Compressor, setup: &Setup<'_>) -> Self {
        let base = below(setup.outer, "compressor", &config.library, config.compression.coding().stat_name());
        let part = |name: &str| ScopeName {
            dotted: format!("{}{name}.", base.dotted),
            family: format!("{}{name}_", base.family),
            tags: base.tags.clone(),
        };
        let response = if config.responses.own_statistics { part("response") } else { base.clone() };
        Self {
            request: setup.registry.scope(part("request")).writer(),
            response: setup.registry.scope(response).writer(),
            accepted: setup.registry.scope(base).writer(),
        }
    }

    /// Counts the choice; true if this filter compresses.
    pub(super) fn decided(&self, choice: Choice, own: Coding) -> bool {
        let is_own = choice.coding() == Some(own);
        self.accepted.inc(match choice {
            Choice::Named(_) if is_own => Accepted::header_compressor_used,
            Choice::Named(_) => Accepted::header_compressor_overshadowed,
            Choice::Any(_) => Accepted::header_wildcard,
            Choice::Identity => Accepted::header_identity,
            Choice::Invalid => Accepted::header_not_valid,
        });
        is_own
    }
}

/// `http.PREFIX.FILTER.LIBRARY.CODING.`
pub(crate) fn below(outer: &ScopeName, filter: &str, library: &str, coding: &str) -> ScopeName {
    let plain: String = library.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    ScopeName {
        dotted: format!("{}{filter}.{library}.{coding}.", outer.dotted),
        family: format!("{}{filter}_{plain}_{coding}_", outer.family),
        tags: outer.tags.clone(),
    }
}
