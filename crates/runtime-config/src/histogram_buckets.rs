//! `envoy.config.metrics.v3.HistogramBucketSettings`: which buckets histograms have.

use evenkeel_xds::pb::envoy::config::metrics::v3 as metrics;

use crate::compile::{Cx, matcher};
use crate::string_match::StringMatcher;

/// One of `stats_config.histogram_bucket_settings`.
#[derive(Debug, Clone)]
pub struct HistogramBuckets {
    /// The names of histograms, as in `/stats`.
    pub matcher: StringMatcher,
    /// Upper bounds of their buckets, in any order.
    pub bounds: Vec<f64>,
}

/// `stats_config` of a bootstrap.
pub(crate) fn compile(cx: &mut Cx<'_>, config: Option<&metrics::StatsConfig>) -> Option<Vec<HistogramBuckets>> {
    let settings = config.map_or(&[][..], |config| &config.histogram_bucket_settings);
    let compile = |(index, setting): (usize, &metrics::HistogramBucketSettings)| {
        cx.at(&format!("stats_config.histogram_bucket_settings[{index}]"), |cx| {
            let matcher = cx.required("match", setting.r#match.as_ref())?;
            let matcher = matcher::string(cx, "match", matcher)?;
            for (at, bound) in setting.buckets.iter().enumerate() {
                if !(bound.is_finite() && *bound > 0.0) {
                    return cx.fail_at(&format!("buckets[{at}]"), "must be a number greater than 0");
                }
                if setting.buckets.iter().take(at).any(|other| other == bound) {
                    return cx.fail_at(&format!("buckets[{at}]"), "the same bound is there already");
                }
            }
            Some(HistogramBuckets { matcher, bounds: setting.buckets.clone() })
        })
    };
    let settings: Option<Vec<_>> = settings.iter().enumerate().map(compile).collect();
    // One without buckets says nothing about them, as in Envoy.
    Some(settings?.into_iter().filter(|setting| !setting.bounds.is_empty()).collect())
}
