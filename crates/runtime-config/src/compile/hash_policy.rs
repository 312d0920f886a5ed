//! `HashPolicy` of routes, load balancers and the TCP proxy.

use evenkeel_xds::pb::envoy::config::route::v3::route_action as route;
use evenkeel_xds::pb::envoy::r#type::v3 as tcp;

use super::{Cx, matcher};
use crate::cookie::Cookie;
use crate::hash_policy::{HashPolicies, HashPolicy, HashSource};

/// Compiles the policies of a route or a load balancer.
pub(super) fn hash_policies(cx: &mut Cx<'_>, policies: &[route::HashPolicy]) -> Option<HashPolicies> {
    let compiled = cx.each("hash_policy", policies, |cx, policy| {
        let source = source(cx, policy)?;
        Some(source.map(|source| HashPolicy { source, terminal: policy.terminal }))
    });
    Some(compiled.into_iter().flatten().collect())
}

/// `Some(None)`: a policy that never applies.
fn source(cx: &mut Cx<'_>, policy: &route::HashPolicy) -> Option<Option<HashSource>> {
    use route::hash_policy::PolicySpecifier;
    Some(Some(match &policy.policy_specifier {
        Some(PolicySpecifier::Header(header)) => cx.at("header", |cx| {
            let name = cx.non_empty("header_name", &header.header_name)?.to_ascii_lowercase();
            let rewrite = match &header.regex_rewrite {
                None => None,
                Some(rewrite) => Some(matcher::substitution(cx, "regex_rewrite", rewrite)?),
            };
            let name = if name == "host" { ":authority".into() } else { name.into() };
            Some(HashSource::Header { name, rewrite })
        })?,
        Some(PolicySpecifier::Cookie(cookie)) => cx.at("cookie", |cx| {
            let ttl = cx.duration("ttl", cookie.ttl.as_ref());
            let attributes = cx.each("attributes", &cookie.attributes, |cx, attribute| {
                Some((cx.non_empty("name", &attribute.name)?.into(), attribute.value.as_str().into()))
            });
            Some(HashSource::Cookie(Cookie {
                name: cx.non_empty("name", &cookie.name)?.into(),
                ttl_seconds: ttl.map(|ttl| ttl.as_secs()),
                path: cookie.path.as_str().into(),
                attributes,
            }))
        })?,
        Some(PolicySpecifier::ConnectionProperties(properties)) => {
            if properties.source_ip {
                HashSource::SourceIp
            } else {
                return Some(None);
            }
        }
        Some(PolicySpecifier::QueryParameter(parameter)) => {
            let name = cx.at("query_parameter", |cx| cx.non_empty("name", &parameter.name))?;
            HashSource::QueryParameter(name.into())
        }
        Some(PolicySpecifier::FilterState(_)) => {
            return cx.fail_at("filter_state", "no filter here leaves state to hash");
        }
        None => {
            return cx.fail("one of header, cookie, connection_properties, query_parameter is required");
        }
    }))
}

/// Whether the TCP proxy hashes the client's address.
pub(super) fn tcp_hash_policy(cx: &mut Cx<'_>, policies: &[tcp::HashPolicy]) -> bool {
    use tcp::hash_policy::PolicySpecifier;
    let sources = cx.each("hash_policy", policies, |cx, policy| match &policy.policy_specifier {
        Some(PolicySpecifier::SourceIp(_)) => Some(()),
        Some(PolicySpecifier::FilterState(_)) => cx.fail_at("filter_state", "no filter here leaves state to hash"),
        None => cx.fail("source_ip is required"),
    });
    !sources.is_empty()
}
