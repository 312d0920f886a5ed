//! The filter's statistics.

use evenkeel_stats::{Writer, layout};

layout! {
    /// `http.PREFIX.jwt_authn.`
    pub mod stats {
        counters {
            allowed, cors_preflight_bypassed, denied, jwks_fetch_failed, jwks_fetch_success, jwt_cache_hit,
            jwt_cache_miss
        }
        gauges {}
        histograms {}
        statuses None
    }
}

/// One worker's counters of one filter.
pub(super) type Counts = Writer<stats::Stats>;
