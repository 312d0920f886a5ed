//! RBAC filters and per-route configuration.

use std::sync::Arc;

use evenkeel_base::re2::Regex;
use evenkeel_xds::pb::envoy::config::core::v3::{CidrRange, TypedExtensionConfig};
use evenkeel_xds::pb::envoy::config::rbac::v3 as rbac;
use evenkeel_xds::pb::envoy::extensions::filters::http::rbac::v3 as http;
use evenkeel_xds::pb::envoy::extensions::filters::network::rbac::v3 as network;
use evenkeel_xds::pb::envoy::extensions::path::r#match::uri_template::v3::UriTemplateMatchConfig;
use evenkeel_xds::pb::envoy::r#type::matcher::v3::{MetadataMatcher as MetadataMatcherPb, PathMatcher, path_matcher};

use crate::compile::Cx;
use crate::compile::address::{cidr, port_number};
use crate::compile::matcher::{header, metadata, string};
use crate::compile::uri_template::pattern;
use crate::dynamic_metadata::MetadataMatcher;
use crate::filters::rbac::policy::{OutcomeMetadata, Permission, Policy, Principal};
use crate::filters::rbac::{FieldNames, NetworkRbac, RbacAction, RbacFilter, RbacPerRoute, Rules};
use crate::matching::CidrSet;
use crate::string_match::StringMatcher;

/// Filters that pass connections without parsing them; a rule about what they find out would never match.
const UNPARSED: [&str; 2] = ["envoy.filters.network.mongo_proxy", "envoy.filters.network.mysql_proxy"];

/// The kind of filter; rules about requests are not allowed in network filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    Network,
    Http,
}

impl Layer {
    /// The namespace of the filter's dynamic metadata, whatever its name.
    fn namespace(self) -> &'static str {
        match self {
            Self::Network => "envoy.filters.network.rbac",
            Self::Http => "envoy.filters.http.rbac",
        }
    }
}

/// `envoy.filters.network.rbac`.
pub(crate) fn network_filter(cx: &mut Cx<'_>, config: &network::Rbac) -> Option<NetworkRbac> {
    use network::rbac::EnforcementType;
    let continuous = match EnforcementType::try_from(config.enforcement_type) {
        Ok(EnforcementType::OneTimeOnFirstByte) => false,
        Ok(EnforcementType::Continuous) => true,
        Err(_) => return cx.fail_at("enforcement_type", format!("unknown value {}", config.enforcement_type)),
    };
    let delay_deny = cx.duration("delay_deny", config.delay_deny.as_ref()).unwrap_or_default();
    let stat_prefix = cx.non_empty("stat_prefix", &config.stat_prefix)?.into();
    let shadow_stat_prefix: Arc<str> = config.shadow_rules_stat_prefix.as_str().into();
    let (enforced, shadow) = names(Layer::Network, &Arc::default(), &shadow_stat_prefix);
    let rules = rules(cx, "rules", config.rules.as_ref(), (Layer::Network, enforced))?;
    let shadow_rules = self::rules(cx, "shadow_rules", config.shadow_rules.as_ref(), (Layer::Network, shadow))?;
    let filter = RbacFilter { stat_prefix, rules, shadow_rules, shadow_stat_prefix };
    Some(NetworkRbac { filter, continuous, delay_deny })
}

/// `envoy.filters.http.rbac`.
pub(crate) fn http_filter(cx: &mut Cx<'_>, config: &http::Rbac) -> Option<RbacFilter> {
    let stat_prefix: Arc<str> = config.rules_stat_prefix.as_str().into();
    let shadow_stat_prefix: Arc<str> = config.shadow_rules_stat_prefix.as_str().into();
    let (enforced, shadow) = names(Layer::Http, &stat_prefix, &shadow_stat_prefix);
    let rules = rules(cx, "rules", config.rules.as_ref(), (Layer::Http, enforced))?;
    let shadow_rules = self::rules(cx, "shadow_rules", config.shadow_rules.as_ref(), (Layer::Http, shadow))?;
    Some(RbacFilter { stat_prefix, rules, shadow_rules, shadow_stat_prefix })
}

/// The names of the dynamic metadata for enforced and shadow rules.
fn names(layer: Layer, prefix: &Arc<str>, shadow_prefix: &Arc<str>) -> (FieldNames, FieldNames) {
    let filter = layer.namespace();
    let enforced = FieldNames { filter, prefix: Arc::clone(prefix), kind: "enforced" };
    (enforced, FieldNames { filter, prefix: Arc::clone(shadow_prefix), kind: "shadow" })
}

/// RBAC of a route or virtual host.
pub(crate) fn per_route(cx: &mut Cx<'_>, config: &http::RbacPerRoute) -> Option<RbacPerRoute> {
    let filter = match &config.rbac {
        None => None,
        Some(rbac) => Some(cx.at("rbac", |cx| http_filter(cx, rbac))?),
    };
    Some(RbacPerRoute { filter })
}

/// `Some(None)`: there are no rules.
fn rules(
    cx: &mut Cx<'_>,
    field: &str,
    rules: Option<&rbac::Rbac>,
    (layer, fields): (Layer, FieldNames),
) -> Option<Option<Arc<Rules>>> {
    let Some(rules) = rules else { return Some(None) };
    cx.at(field, |cx| {
        let action = match rbac::rbac::Action::try_from(rules.action) {
            Ok(rbac::rbac::Action::Allow) => RbacAction::Allow,
            Ok(rbac::rbac::Action::Deny) => RbacAction::Deny,
            Ok(rbac::rbac::Action::Log) => RbacAction::Log,
            Err(_) => return cx.fail_at("action", format!("unknown value {}", rules.action)),
        };
        // Envoy evaluates policies in the order of their names.
        let mut named: Vec<_> = rules.policies.iter().collect();
        named.sort_by_key(|(name, _)| *name);
        let policies = cx.at("policies", |cx| {
            named
                .into_iter()
                .filter_map(|(name, p)| cx.element(format_args!("{name:?}"), |cx| policy(cx, name, p, layer)))
                .collect()
        });
        Some(Some(Arc::new(Rules::new(action, policies, fields))))
    })
}

fn policy(cx: &mut Cx<'_>, name: &str, policy: &rbac::Policy, layer: Layer) -> Option<Policy> {
    if policy.permissions.is_empty() {
        cx.fail_at::<()>("permissions", "must not be empty; use any: true for everything");
    }
    if policy.principals.is_empty() {
        cx.fail_at::<()>("principals", "must not be empty; use any: true for everyone");
    }
    let permissions = cx.each("permissions", &policy.permissions, |cx, p| permission(cx, p, layer));
    let principals = cx.each("principals", &policy.principals, |cx, p| principal(cx, p, layer));
    Some(Policy { name: name.into(), permissions, principals, metadata: OutcomeMetadata::default() })
}

#[allow(deprecated)] // `metadata` is still what Istio sends.
fn permission(cx: &mut Cx<'_>, permission: &rbac::Permission, layer: Layer) -> Option<Permission> {
    use rbac::permission::Rule;
    match &permission.rule {
        Some(Rule::Any(true)) => Some(Permission::Any),
        Some(Rule::Any(false)) => cx.fail_at("any", "must be true"),
        Some(Rule::AndRules(set)) => permissions(cx, "and_rules", set, layer).map(Permission::And),
        Some(Rule::OrRules(set)) => permissions(cx, "or_rules", set, layer).map(Permission::Or),
        Some(Rule::NotRule(rule)) => {
            let rule = cx.at("not_rule", |cx| self::permission(cx, rule, layer))?;
            Some(Permission::Not(Box::new(rule)))
        }
        Some(Rule::Header(matcher)) => {
            let matcher = cx.at("header", |cx| of_request(cx, layer).and_then(|()| header(cx, matcher)))?;
            Some(Permission::Header(matcher))
        }
        Some(Rule::UrlPath(path)) => url_path(cx, path, layer).map(Permission::UrlPath),
        Some(Rule::UriTemplate(template)) => uri_template(cx, template, layer).map(Permission::UrlPath),
        Some(Rule::DestinationIp(range)) => range_set(cx, "destination_ip", range).map(Permission::DestinationIp),
        Some(Rule::DestinationPort(port)) => {
            port_number(cx, "destination_port", *port).map(Permission::DestinationPort)
        }
        Some(Rule::DestinationPortRange(range)) => {
            // `end` is exclusive; 65536 itself is no port and means "up to the last one".
            let (start, end) = (u16::try_from(range.start), u32::try_from(range.end));
            match (start, end) {
                (Ok(start), Ok(end)) if u32::from(start) < end && end <= 65536 => {
                    Some(Permission::DestinationPortRange(start, end))
                }
                _ => cx.fail_at("destination_port_range", "must satisfy 0 <= start < end <= 65536"),
            }
        }
        Some(Rule::RequestedServerName(name)) => {
            string(cx, "requested_server_name", name).map(Permission::RequestedServerName)
        }
        Some(Rule::Metadata(matcher)) => dynamic_metadata(cx, "metadata", matcher, layer).map(Permission::Metadata),
        Some(Rule::SourcedMetadata(sourced)) => sourced_metadata(cx, sourced, layer).map(Permission::Metadata),
        _ => cx.fail("a rule is required"),
    }
}

fn permissions(cx: &mut Cx<'_>, field: &str, set: &rbac::permission::Set, layer: Layer) -> Option<Vec<Permission>> {
    cx.at(field, |cx| {
        if set.rules.is_empty() {
            return cx.fail_at("rules", "must not be empty");
        }
        Some(cx.each("rules", &set.rules, |cx, rule| permission(cx, rule, layer)))
    })
}

#[allow(deprecated)] // As above.
fn principal(cx: &mut Cx<'_>, principal: &rbac::Principal, layer: Layer) -> Option<Principal> {
    use rbac::principal::Identifier;
    match &principal.identifier {
        Some(Identifier::Any(true)) => Some(Principal::Any),
        Some(Identifier::Any(false)) => cx.fail_at("any", "must be true"),
        Some(Identifier::AndIds(set)) => principals(cx, "and_ids", set, layer).map(Principal::And),
        Some(Identifier::OrIds(set)) => principals(cx, "or_ids", set, layer).map(Principal::Or),
        Some(Identifier::NotId(id)) => {
            let id = cx.at("not_id", |cx| self::principal(cx, id, layer))?;
            Some(Principal::Not(Box::new(id)))
        }
        Some(Identifier::Authenticated(authenticated)) => {
            let name = authenticated.principal_name.as_ref();
            let name = match name {
                None => None,
                Some(name) => Some(cx.at("authenticated", |cx| string(cx, "principal_name", name))?),
            };
            Some(Principal::Authenticated(name))
        }
        Some(Identifier::DirectRemoteIp(range)) => {
            range_set(cx, "direct_remote_ip", range).map(Principal::DirectRemoteIp)
        }
        Some(Identifier::SourceIp(range)) => range_set(cx, "source_ip", range).map(Principal::SourceIp),
        Some(Identifier::RemoteIp(range)) => range_set(cx, "remote_ip", range).map(Principal::RemoteIp),
        Some(Identifier::Header(matcher)) => {
            let matcher = cx.at("header", |cx| of_request(cx, layer).and_then(|()| header(cx, matcher)))?;
            Some(Principal::Header(matcher))
        }
        Some(Identifier::UrlPath(path)) => url_path(cx, path, layer).map(Principal::UrlPath),
        Some(Identifier::Metadata(matcher)) => {
            dynamic_metadata(cx, "metadata", matcher, layer).map(Principal::Metadata)
        }
        Some(Identifier::SourcedMetadata(sourced)) => sourced_metadata(cx, sourced, layer).map(Principal::Metadata),
        _ => cx.fail("an identifier is required"),
    }
}

fn principals(cx: &mut Cx<'_>, field: &str, set: &rbac::principal::Set, layer: Layer) -> Option<Vec<Principal>> {
    cx.at(field, |cx| {
        if set.ids.is_empty() {
            return cx.fail_at("ids", "must not be empty");
        }
        Some(cx.each("ids", &set.ids, |cx, id| principal(cx, id, layer)))
    })
}

fn url_path(cx: &mut Cx<'_>, path: &PathMatcher, layer: Layer) -> Option<StringMatcher> {
    cx.at("url_path", |cx| {
        of_request(cx, layer)?;
        match &path.rule {
            Some(path_matcher::Rule::Path(matcher)) => string(cx, "path", matcher),
            None => cx.fail_at("path", "is required"),
        }
    })
}

/// A path with wildcards.
fn uri_template(cx: &mut Cx<'_>, template: &TypedExtensionConfig, layer: Layer) -> Option<StringMatcher> {
    cx.at("uri_template", |cx| {
        of_request(cx, layer)?;
        let any = cx.required("typed_config", template.typed_config.as_ref())?;
        cx.at("typed_config", |cx| {
            let config: UriTemplateMatchConfig = cx.unpack(any)?;
            let parsed = pattern(&config.path_template).map_err(str::to_owned);
            let pattern = cx.check("path_template", parsed)?;
            cx.check("path_template", Regex::whole(&pattern)).map(StringMatcher::Regex)
        })
    })
}

fn dynamic_metadata(
    cx: &mut Cx<'_>,
    field: &str,
    matcher: &MetadataMatcherPb,
    layer: Layer,
) -> Option<MetadataMatcher> {
    // Requests never have it, in Envoy neither.
    if layer == Layer::Network && UNPARSED.contains(&matcher.filter.as_str()) {
        return cx.fail_at(field, format!("nothing here sets what `{}` finds out", matcher.filter));
    }
    cx.at(field, |cx| metadata(cx, matcher))
}

fn sourced_metadata(cx: &mut Cx<'_>, sourced: &rbac::SourcedMetadata, layer: Layer) -> Option<MetadataMatcher> {
    cx.at("sourced_metadata", |cx| {
        if sourced.metadata_source != rbac::MetadataSource::Dynamic as i32 {
            return cx.fail_at("metadata_source", "only DYNAMIC is supported");
        }
        let matcher = cx.required("metadata_matcher", sourced.metadata_matcher.as_ref())?;
        dynamic_metadata(cx, "metadata_matcher", matcher, layer)
    })
}

fn range_set(cx: &mut Cx<'_>, field: &str, range: &CidrRange) -> Option<CidrSet> {
    cx.at(field, |cx| cidr(cx, range)).map(|net| CidrSet(vec![net]))
}

/// Envoy evaluates request rules in a network filter against empty headers. Such a policy is a mistake, and with action
/// DENY a security hole, so it is rejected.
fn of_request(cx: &mut Cx<'_>, layer: Layer) -> Option<()> {
    match layer {
        Layer::Http => Some(()),
        Layer::Network => cx.fail("looks at a request; a network filter sees none"),
    }
}
