//! Reports the workload's health to the control plane: requests of the type `istio.v1.HealthInformation` on an xDS stream, as
//! Istio's agent sends them.

use evenkeel_tls::SecretStore;
use evenkeel_xds::client::connection::Service;
use evenkeel_xds::client::{Backoff, ClientRequest, Connection};
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use evenkeel_xds::pb::google::rpc::Status;
use evenkeel_xds::type_url;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Health;
use crate::options::Options;
use crate::trust::ControlPlaneRoots;
use crate::{channel, node_message};

/// Reports what `health` says, the last of it again on each new stream, until the future is dropped.
pub(super) async fn run(
    options: &Options,
    (secrets, roots): (&SecretStore, &ControlPlaneRoots),
    mut health: watch::Receiver<Option<Health>>,
) {
    let node = match node_message(options) {
        Ok(node) => node,
        Err(error) => return tracing::error!(%error, "the health of the workload cannot be reported"),
    };
    let mut backoff = Backoff::new(Backoff::BASE, Backoff::MAX, u64::from(std::process::id()));
    // A stream is opened when there is something to report. The sender lives as long as this.
    while health.wait_for(Option::is_some).await.is_ok() {
        let ended = stream(options, (secrets, roots), &node, &mut health, &mut backoff).await;
        tracing::info!(error = %ended, "the stream of health reports ended; connecting again");
        sleep(backoff.next_wait()).await;
    }
}

/// Reports on one stream until it ends.
async fn stream(
    options: &Options,
    (secrets, roots): (&SecretStore, &ControlPlaneRoots),
    node: &Node,
    health: &mut watch::Receiver<Option<Health>>,
    backoff: &mut Backoff,
) -> anyhow::Error {
    let said = health.borrow_and_update().clone();
    let first = request(Some(node.clone()), said.as_ref());
    let opened = async {
        let channel = channel::connect(options, roots, Some(secrets)).await?;
        anyhow::Ok(Connection::open(channel, Service::Aggregated, first).await?)
    };
    let mut connection = match opened.await {
        Ok(connection) => connection,
        Err(error) => return error,
    };
    loop {
        tokio::select! {
            // The control plane answers nothing; it may end the stream.
            answer = connection.next() => match answer {
                Ok(_) => backoff.reset(),
                Err(error) => return error.into(),
            },
            Ok(()) = health.changed() => {
                let said = health.borrow_and_update().clone();
                if let Err(error) = connection.send(request(None, said.as_ref())).await {
                    return error.into();
                }
                backoff.reset();
            }
        }
    }
}

fn request(node: Option<Node>, health: Option<&Health>) -> ClientRequest {
    let message = match health {
        Some(Err(message)) => Some(message.clone()),
        _ => None,
    };
    ClientRequest::Delta(DeltaDiscoveryRequest {
        node,
        type_url: type_url::HEALTH_INFORMATION.to_owned(),
        error_detail: message.map(|message| Status {
            code: tonic::Code::Internal.into(),
            message,
            ..Status::default()
        }),
        ..DeltaDiscoveryRequest::default()
    })
}
