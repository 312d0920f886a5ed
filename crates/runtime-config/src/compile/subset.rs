//! Subsets and `envoy.lb` metadata.

use std::collections::BTreeSet;

use evenkeel_xds::pb::envoy::config::cluster::v3::cluster::LbSubsetConfig;
use evenkeel_xds::pb::envoy::config::cluster::v3::cluster::lb_subset_config as legacy;
use evenkeel_xds::pb::envoy::extensions::load_balancing_policies::subset::v3 as typed;

use super::Cx;
use super::metadata::metadata_match;
use crate::cluster::{SelectorFallback, SubsetConfig, SubsetFallback, SubsetSelector};

/// `Some(None)`: without selectors there are no subsets.
pub(super) fn subset_config(cx: &mut Cx<'_>, config: &LbSubsetConfig) -> Option<Option<SubsetConfig>> {
    no_metadata_fallback(cx, config.metadata_fallback_policy);
    let selectors = cx.each("subset_selectors", &config.subset_selectors, |cx, s| {
        selector(cx, &s.keys, s.single_host_per_subset, s.fallback_policy, &s.fallback_keys_subset)
    });
    let compiled = SubsetConfig {
        selectors,
        fallback: fallback(cx, config.fallback_policy)?,
        default_subset: config.default_subset.as_ref().map(metadata_match).unwrap_or_default(),
        locality_weight_aware: config.locality_weight_aware,
        panic_mode_any: config.panic_mode_any,
        list_as_any: config.list_as_any,
        allow_redundant_keys: false,
    };
    Some((!config.subset_selectors.is_empty()).then_some(compiled))
}

/// Compiles the same settings from the extension's message.
pub(super) fn typed_subset_config(cx: &mut Cx<'_>, config: &typed::Subset) -> Option<Option<SubsetConfig>> {
    no_metadata_fallback(cx, config.metadata_fallback_policy);
    let selectors = cx.each("subset_selectors", &config.subset_selectors, |cx, s| {
        selector(cx, &s.keys, s.single_host_per_subset, s.fallback_policy, &s.fallback_keys_subset)
    });
    let compiled = SubsetConfig {
        selectors,
        fallback: fallback(cx, config.fallback_policy)?,
        default_subset: config.default_subset.as_ref().map(metadata_match).unwrap_or_default(),
        locality_weight_aware: config.locality_weight_aware,
        panic_mode_any: config.panic_mode_any,
        list_as_any: config.list_as_any,
        allow_redundant_keys: config.allow_redundant_keys,
    };
    Some((!config.subset_selectors.is_empty()).then_some(compiled))
}

fn no_metadata_fallback(cx: &mut Cx<'_>, policy: i32) {
    if policy != 0 {
        cx.fail_at::<()>("metadata_fallback_policy", "only METADATA_NO_FALLBACK is supported");
    }
}

/// Both messages number their policies alike.
fn fallback(cx: &mut Cx<'_>, policy: i32) -> Option<SubsetFallback> {
    use evenkeel_xds::pb::envoy::config::cluster::v3::cluster::lb_subset_config::LbSubsetFallbackPolicy as Policy;
    match Policy::try_from(policy) {
        Ok(Policy::NoFallback) => Some(SubsetFallback::None),
        Ok(Policy::AnyEndpoint) => Some(SubsetFallback::Any),
        Ok(Policy::DefaultSubset) => Some(SubsetFallback::Default),
        Err(_) => cx.fail_at("fallback_policy", format!("unknown value {policy}")),
    }
}

fn selector(
    cx: &mut Cx<'_>,
    keys: &[String],
    single_host: bool,
    policy: i32,
    fallback_keys: &[String],
) -> Option<SubsetSelector> {
    use legacy::lb_subset_selector::LbSubsetSelectorFallbackPolicy as Policy;
    let sorted = |keys: &[String]| -> Vec<Box<str>> {
        keys.iter().map(|key| key.as_str().into()).collect::<BTreeSet<_>>().into_iter().collect()
    };
    let (keys, fewer) = (sorted(keys), sorted(fallback_keys));
    if single_host && keys.len() != 1 {
        return cx.fail_at("single_host_per_subset", "goes with exactly one key");
    }
    let policy = match Policy::try_from(policy) {
        Ok(policy) => policy,
        Err(_) => return cx.fail_at("fallback_policy", format!("unknown value {policy}")),
    };
    if !fewer.is_empty() && policy != Policy::KeysSubset {
        return cx.fail_at("fallback_keys_subset", "goes with fallback_policy KEYS_SUBSET");
    }
    let fallback = match policy {
        Policy::NotDefined => None,
        Policy::NoFallback => Some(SelectorFallback::None),
        Policy::AnyEndpoint => Some(SelectorFallback::Any),
        Policy::DefaultSubset => Some(SelectorFallback::Default),
        Policy::KeysSubset => {
            if fewer.is_empty() || fewer.len() >= keys.len() || !fewer.iter().all(|key| keys.contains(key)) {
                return cx.fail_at("fallback_keys_subset", "must be some of the keys, but not all");
            }
            Some(SelectorFallback::Keys(fewer))
        }
    };
    Some(SubsetSelector { keys, single_host, fallback })
}
