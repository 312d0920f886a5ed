//! What the workload's replicas use, asked of the control plane at the start, and told to it from then on. A server that
//! keeps no such memory is asked once.

use std::time::Duration;

use evenkeel_runtime_config::Demand;
use evenkeel_xds::ResourceType;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::google::protobuf::value::Kind;
use evenkeel_xds::scope::scope_service_client::ScopeServiceClient;
use evenkeel_xds::scope::{Names, RecallRequest, RememberRequest, Workload};
use tonic::transport::Channel;

use crate::state::Shared;

/// How long a proxy that starts waits for what is remembered; then it learns by itself.
const RECALL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the control plane may take to note something.
const REMEMBER_TIMEOUT: Duration = Duration::from_secs(5);
/// What is used is told this long after it changed.
const REMEMBER_AFTER: Duration = Duration::from_millis(500);
/// And this often when it does not, so that it is not forgotten.
const REPEAT_AFTER: Duration = Duration::from_secs(3600);

/// Whose proxy a node is.
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

/// What the workload's replicas use; nothing when there is no answer in time.
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

/// Tells the control plane what is used, whenever it changes and now and then, until the future is dropped.
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
