//! Asks the control plane at the start what the workload's replicas use, and reports to it from then on. A server that
//! does not implement this service is asked only once.

use std::time::Duration;

use evenkeel_runtime_config::Demand;
use evenkeel_xds::ResourceType;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::google::protobuf::value::Kind;
use evenkeel_xds::scope::scope_service_client::ScopeServiceClient;
use evenkeel_xds::scope::{Names, RecallRequest, RememberRequest, Workload};
use tonic::transport::Channel;

use crate::state::Shared;

/// How long a starting proxy waits for the remembered names; after that it learns them on its own.
const RECALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for the control plane to record the names.
const REMEMBER_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay between a change of the names and the report.
const REMEMBER_AFTER: Duration = Duration::from_millis(500);
/// Interval at which unchanged names are reported again, so that they are not forgotten.
const REPEAT_AFTER: Duration = Duration::from_secs(3600);

/// The workload of the node.
fn workload(node: &Node) -> Workload {
    let text = |name: &str| {
        let value = node.metadata.as_ref().and_then(|metadata| metadata.fields.get(name));
        match value.and_then(|value| value.kind.as_ref()) {
            Some(Kind::StringValue(text)) => text.clone(),
            _ => String::new(),
        }
    };
    Workload { namespace: text("NAMESPACE"), service_account: text("SERVICE_ACCOUNT"), name: text("WORKLOAD_NAME") }
}

/// The names that the workload's replicas use; empty when there is no answer in time.
pub(crate) async fn recall(channel: Channel, node: &Node) -> Vec<Demand> {
    let request = RecallRequest { workload: Some(workload(node)) };
    let mut client = ScopeServiceClient::new(channel);
    match tokio::time::timeout(RECALL_TIMEOUT, client.recall(request)).await {
        Ok(Ok(names)) => demands(&names.into_inner()),
        Ok(Err(status)) => {
            tracing::debug!(%status, "nothing is remembered of what the workload uses");
            Vec::new()
        }
        Err(_) => {
            tracing::info!("the control plane did not say in time what the workload uses; it is learned anew");
            Vec::new()
        }
    }
}

/// Reports the names in use to the control plane, when they change and at intervals, until the future is dropped.
pub(crate) async fn keep_remembering(shared: Shared, channel: Channel, node: Node) {
    let workload = workload(&node);
    let mut told = 0;
    let mut waited = Duration::ZERO;
    loop {
        tokio::time::sleep(REMEMBER_AFTER).await;
        waited += REMEMBER_AFTER;
        let revision = shared.state.borrow().scope.revision;
        if revision == told && waited < REPEAT_AFTER {
            continue;
        }
        let names = names(&shared.state.borrow().used());
        let request = RememberRequest { workload: Some(workload.clone()), names: Some(names) };
        let mut client = ScopeServiceClient::new(channel.clone());
        match tokio::time::timeout(REMEMBER_TIMEOUT, client.remember(request)).await {
            Ok(Ok(_)) => {}
            Ok(Err(status)) if status.code() == tonic::Code::Unimplemented => return,
            Ok(Err(status)) => tracing::debug!(%status, "what the workload uses was not remembered"),
            Err(_) => tracing::debug!("what the workload uses was not remembered in time"),
        }
        (told, waited) = (revision, Duration::ZERO);
    }
}

fn demands(names: &Names) -> Vec<Demand> {
    let of =
        |kind, names: &[String]| -> Vec<Demand> { names.iter().filter_map(|name| Demand::of(kind, name)).collect() };
    [
        of(ResourceType::Listener, &names.listeners),
        of(ResourceType::VirtualHost, &names.virtual_hosts),
        of(ResourceType::Cluster, &names.clusters),
    ]
    .concat()
}

fn names(demands: &[Demand]) -> Names {
    let of = |kind| demands.iter().filter(|d| d.kind() == kind).map(|d| d.name().to_string()).collect();
    Names {
        listeners: of(ResourceType::Listener),
        virtual_hosts: of(ResourceType::VirtualHost),
        clusters: of(ResourceType::Cluster),
        hosts: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_recalled() {
        let used = vec![
            Demand::Listener("10.96.0.1_5432".into()),
            Demand::VirtualHost { table: "80".into(), host: "reviews".into() },
            Demand::Cluster("outbound|443||a.example.com".into()),
        ];
        assert_eq!(demands(&names(&used)), used);
    }
}
