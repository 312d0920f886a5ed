//! Services that filters and sinks call: `GrpcService`, `HttpUri`, and the retry policy of both.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::config::route::v3 as route;
use evenkeel_xds::pb::google::protobuf;

use super::retry::retry_policy;
use super::{Cx, headers};
use crate::ext_authz::{CallTarget, GrpcTarget};
use crate::header_edits::{AppendAction, HeaderAddition};
use crate::retry::RetryPolicy;

/// Time limit of a call whose configuration has none.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(200);

/// A `GrpcService` that is a cluster.
pub(crate) fn grpc_target(cx: &mut Cx<'_>, service: &core::GrpcService) -> Option<GrpcTarget> {
    let timeout = cx.limit("timeout", service.timeout.as_ref(), Some(DEFAULT_TIMEOUT));
    let metadata = cx.each("initial_metadata", &service.initial_metadata, header);
    let Some(core::grpc_service::TargetSpecifier::EnvoyGrpc(grpc)) = &service.target_specifier else {
        return cx.fail_at("envoy_grpc", "is required");
    };
    cx.at("envoy_grpc", |cx| {
        let cluster = cx.non_empty("cluster_name", &grpc.cluster_name)?.into();
        let retry = retry(cx, grpc.retry_policy.as_ref())?;
        Some(GrpcTarget {
            call: CallTarget { cluster, timeout, retry },
            authority: grpc.authority.as_str().into(),
            metadata,
            max_message_bytes: grpc.max_receive_message_length.as_ref().map(|most| most.value as usize),
            skip_envoy_headers: grpc.skip_envoy_headers,
        })
    })
}

/// An `HttpUri`, of which only cluster and time limit count, as in Envoy.
pub(crate) fn http_target(
    cx: &mut Cx<'_>,
    uri: Option<&core::HttpUri>,
    policy: Option<&core::RetryPolicy>,
) -> Option<CallTarget> {
    let uri = cx.required("server_uri", uri)?;
    let (cluster, timeout) = cx.at("server_uri", |cx| {
        let timeout = cx.limit("timeout", uri.timeout.as_ref(), Some(DEFAULT_TIMEOUT));
        match &uri.http_upstream_type {
            Some(core::http_uri::HttpUpstreamType::Cluster(cluster)) => {
                Some((cx.non_empty("cluster", cluster)?.into(), timeout))
            }
            None => cx.fail_at("cluster", "is required"),
        }
    })?;
    Some(CallTarget { cluster, timeout, retry: retry(cx, policy)? })
}

/// `Some(None)`: nothing is retried.
fn retry(cx: &mut Cx<'_>, policy: Option<&core::RetryPolicy>) -> Option<Option<Arc<RetryPolicy>>> {
    const WITHOUT_CONDITION: &str = "5xx,gateway-error,connect-failure,reset";
    let Some(policy) = policy else { return Some(None) };
    let conditions = if policy.retry_on.is_empty() { WITHOUT_CONDITION } else { &policy.retry_on };
    let back_off = policy.retry_back_off.as_ref();
    let back_off = back_off.map(|back_off| route::retry_policy::RetryBackOff {
        base_interval: back_off.base_interval,
        max_interval: back_off.max_interval,
    });
    let same = route::RetryPolicy {
        retry_on: conditions.to_owned(),
        num_retries: Some(protobuf::UInt32Value { value: policy.num_retries.as_ref().map_or(1, |most| most.value) }),
        retry_back_off: back_off,
        host_selection_retry_max_attempts: policy.host_selection_retry_max_attempts,
        ..route::RetryPolicy::default()
    };
    Some(retry_policy(cx, Some(&same))?.map(Arc::new))
}

/// A header that is set on each call.
pub(crate) fn header(cx: &mut Cx<'_>, header: &core::HeaderValue) -> Option<HeaderAddition> {
    let option = core::HeaderValueOption {
        header: Some(header.clone()),
        append_action: core::header_value_option::HeaderAppendAction::OverwriteIfExistsOrAdd as i32,
        ..core::HeaderValueOption::default()
    };
    let addition = headers::addition(cx, &option)?;
    Some(HeaderAddition { action: AppendAction::OverwriteIfExistsOrAdd, ..addition })
}
