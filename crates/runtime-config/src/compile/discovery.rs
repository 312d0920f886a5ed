//! `ExtensionConfigSource`: the configuration of a filter, which ECDS sends.
//!
//! The filter is compiled with the configuration that has arrived, or else with the default one. When one arrives or changes, the
//! builder compiles the listener again.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::Any;
use evenkeel_xds::pb::envoy::config::core::v3 as core;

use super::source::{ExtensionUse, Source};
use super::{Cx, type_name};

/// The configuration in force for a filter of this name; `Some(None)`: it has none, so nothing may pass.
pub(super) fn discovered(
    cx: &mut Cx<'_>,
    name: &str,
    source: &core::ExtensionConfigSource,
) -> Option<Option<Arc<Any>>> {
    let mut reference = cx.reference(name, "config_source", source.config_source.as_ref())?;
    if reference.source != Source::Ads {
        return cx.fail_at("config_source", "must be ads or self");
    }
    if source.type_urls.is_empty() {
        return cx.fail_at("type_urls", "must not be empty");
    }
    let default = source.default_config.as_ref();
    if let Some(default) = default {
        cx.at("default_config", |cx| expected_type(cx, name, default, &source.type_urls))?;
    }
    let awaited = !source.apply_default_config_without_warming;
    if !awaited {
        if default.is_none() {
            return cx.fail_at("default_config", "is required with apply_default_config_without_warming");
        }
        // Nothing waits for the first answer, the server's readiness neither.
        reference.initial_fetch_timeout = Some(Duration::ZERO);
    }
    let used = cx.extensions.and_then(|all| all.get(name)).map(Arc::clone);
    if let Some(used) = &used {
        expected_type(cx, name, used, &source.type_urls)?;
    }
    let config = used.clone().or_else(|| default.map(|default| Arc::new(default.clone())));
    cx.references.extensions.push(ExtensionUse { reference, used, awaited });
    Some(config)
}

fn expected_type(cx: &mut Cx<'_>, name: &str, config: &Any, type_urls: &[String]) -> Option<()> {
    let kind = type_name(&config.type_url);
    if type_urls.iter().any(|url| type_name(url) == kind) {
        return Some(());
    }
    let names: Vec<_> = type_urls.iter().map(|url| type_name(url)).collect();
    cx.fail(format!("the configuration of {name:?} is a {kind}; type_urls expects {}", names.join(" or ")))
}
