//! `stats_config` of the bootstrap, as the registry needs it: which statistics are reported, their labels, and the buckets of
//! histograms.

use evenkeel_runtime_config::bootstrap::Bootstrap;
use evenkeel_runtime_config::histogram_buckets::HistogramBuckets;
use evenkeel_runtime_config::stats_matcher::StatsMatcher;
use evenkeel_runtime_config::stats_tags::{StatsTag, StatsTags, TagValue};
use evenkeel_stats::{BucketSetting, DefaultTags, Extractor, Find, Found, Registry, Tagging, label_name};

/// Makes the registry report what the bootstrap says. To be called before the first scope is made.
pub fn apply(registry: &Registry, bootstrap: &Bootstrap) {
    if !matches!(bootstrap.stats, StatsMatcher::All) {
        let matcher = bootstrap.stats.clone();
        registry.keep_only(move |name| matcher.reports(name));
    }
    if let Some(tagging) = tagging(&bootstrap.stats_tags) {
        registry.tag(tagging);
    }
    if !bootstrap.histogram_buckets.is_empty() {
        registry.bucket(bootstrap.histogram_buckets.iter().map(buckets).collect());
    }
}

fn buckets(setting: &HistogramBuckets) -> BucketSetting {
    let HistogramBuckets { matcher, bounds } = setting.clone();
    BucketSetting { matches: Box::new(move |name| matcher.matches(name.as_bytes())), bounds }
}

/// `None` if only the built-in tags are taken out.
fn tagging(tags: &StatsTags) -> Option<Tagging> {
    let defaults = match &tags.defaults {
        None if tags.tags.is_empty() => return None,
        None => DefaultTags::All,
        Some(names) => DefaultTags::Only(names.iter().map(|name| label_name(name)).collect()),
    };
    let extractor = |tag: &StatsTag| {
        let label = label_name(&tag.name);
        match tag.value.clone() {
            TagValue::Fixed(value) => Extractor { label, token: None, find: Find::Fixed(value) },
            TagValue::Captured(regex) => {
                let token = regex.token.clone();
                let search = move |name: &str| {
                    let (removed, value) = regex.find(name)?;
                    Some(Found { removed, value })
                };
                Extractor { label, token, find: Find::Search(Box::new(search)) }
            }
        }
    };
    Some(Tagging { defaults, extractors: tags.tags.iter().map(extractor).collect() })
}
