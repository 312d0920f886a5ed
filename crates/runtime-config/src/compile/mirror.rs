//! `RequestMirrorPolicy`.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::config::route::v3::route_action::RequestMirrorPolicy;

use super::Cx;
use super::fraction::runtime_fraction;
use super::headers::mutation;
use super::inherited::{Inherited, cluster_name};
use crate::fraction::Fraction;
use crate::mirror::{MirrorCluster, MirrorPolicy};
use crate::route_filters::FilterOverrides;

/// The policies of one level; if it has none, those of the level above.
pub(super) fn mirror_policies(
    cx: &mut Cx<'_>,
    own: &[RequestMirrorPolicy],
    inherited: &Inherited<'_>,
) -> Option<Option<Arc<[MirrorPolicy]>>> {
    if own.is_empty() {
        return Some(inherited.mirrors.cloned());
    }
    let policies = cx.each("request_mirror_policies", own, |cx, policy| mirror_policy(cx, policy, inherited));
    (policies.len() == own.len()).then(|| Some(policies.into()))
}

/// The policies of a cluster.
pub(super) fn cluster_mirrors(
    cx: &mut Cx<'_>,
    policies: &[RequestMirrorPolicy],
) -> Option<Option<Arc<[MirrorPolicy]>>> {
    let inherited = Inherited {
        max_direct_response_body_bytes: 0,
        retry: None,
        filters: &FilterOverrides::default(),
        validate_clusters: false,
        mirrors: None,
        rate_limits: None,
    };
    mirror_policies(cx, policies, &inherited)
}

fn mirror_policy(cx: &mut Cx<'_>, policy: &RequestMirrorPolicy, inherited: &Inherited<'_>) -> Option<MirrorPolicy> {
    let cluster = match (policy.cluster.as_str(), policy.cluster_header.as_str()) {
        ("", "") => return cx.fail("one of cluster, cluster_header is required"),
        (name, "") => MirrorCluster::Named(cluster_name(cx, "cluster", name, inherited)?),
        ("", header) => MirrorCluster::Header(header.to_ascii_lowercase().into()),
        _ => return cx.fail_at("cluster_header", "cannot stand beside cluster"),
    };
    let fraction = runtime_fraction(cx, "runtime_fraction", policy.runtime_fraction.as_ref(), Fraction::ALL)?;
    let edits = cx.each("request_headers_mutations", &policy.request_headers_mutations, mutation);
    let host = policy.host_rewrite_literal.as_str();
    Some(MirrorPolicy {
        cluster,
        fraction_ppm: fraction.parts_per_million(),
        // An explicitly configured host is used unchanged.
        appends_suffix: !policy.disable_shadow_host_suffix_append && host.is_empty(),
        host: (!host.is_empty()).then(|| host.into()),
        edits,
        traced: policy.trace_sampled.as_ref().is_none_or(|traced| traced.value),
    })
}
