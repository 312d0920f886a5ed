//! `/explain`: what this proxy would do with a call now. The proxy's own code decides over the configuration that its workers
//! run, on a separate thread; no request is sent.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_filters::explain::Explainer;
use evenkeel_filters::explain::query::{EndpointState, ProxyDecision, QueriedCall, decide};
use evenkeel_upstream::ClusterSnapshot;
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;

use super::{Admin, Reply, apart};
use crate::endpoint_state::endpoint_state;

/// Maximum size of a question, in bytes: the longest head that a proxy accepts, and room for its JSON form.
const MAX_QUESTION_BYTES: usize = 512 * 1024;
/// How long a client may take to send it.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of endpoints in the answer.
const MAX_ENDPOINTS: usize = 100;

pub(super) async fn page(admin: &Admin, body: Incoming) -> Reply {
    match answer(admin, body).await {
        Ok(decision) => match serde_json::to_value(&decision) {
            Ok(json) => Reply::json(&json),
            Err(error) => Reply::error(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        },
        Err(refusal) => refusal,
    }
}

async fn answer(admin: &Admin, body: Incoming) -> Result<ProxyDecision, Reply> {
    let refused = |reason: String| Reply::error(StatusCode::BAD_REQUEST, format!("{reason}\n"));
    let collected = tokio::time::timeout(QUESTION_TIMEOUT, Limited::new(body, MAX_QUESTION_BYTES).collect()).await;
    let bytes = match collected {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) => return Err(refused(format!("the call: {error}; at most {MAX_QUESTION_BYTES} bytes"))),
        Err(_) => return Err(refused("the call did not arrive in time".to_owned())),
    };
    if bytes.is_empty() {
        return Err(refused("use POST with the call as a JSON object; `evenkeel explain --proxy` does so".to_owned()));
    }
    let call: QueriedCall =
        serde_json::from_slice(&bytes).map_err(|error| refused(format!("the call is not as expected: {error}")))?;
    let (config, pool) = {
        let state = admin.shared.state.borrow();
        (state.config.clone(), state.pool.clone())
    };
    let generation = config.generation;
    let decision = apart::run(move |_| decide(&mut Explainer::default(), &config, &call)).await?;
    let (snapshots, silent_workers) = match &decision.cluster {
        Some(cluster) => pool.cluster(Arc::from(cluster.as_str())).await,
        None => (Vec::new(), 0),
    };
    Ok(ProxyDecision { decision, endpoint_states: endpoints(snapshots), generation, silent_workers })
}

/// Each endpoint, over all workers, which agree about its health.
fn endpoints(snapshots: Vec<ClusterSnapshot>) -> Vec<EndpointState> {
    let mut all: Vec<EndpointState> = Vec::new();
    for host in snapshots.into_iter().flat_map(|cluster| cluster.hosts) {
        match all.iter_mut().find(|known| *known.address == *host.address) {
            Some(known) => known.active_requests += host.rq_active,
            None => all.push(endpoint_state(&host)),
        }
        if all.len() >= MAX_ENDPOINTS {
            break;
        }
    }
    all
}
