//! Takes a replica out of service without losing a request: proxies stop sending it new ones, then it answers those it has.
//!
//! 1. Its Pod object becomes not ready, and the control plane removes its endpoints.
//! 2. Every proxy that used them acknowledges the removal, and the addresses of Services no longer lead there
//!    ([`wait_until_unused`]).
//! 3. Its sidecar asks clients to close their connections (`/drain_listeners`), while the program keeps serving. When
//!    no connection is left, or after a time limit, the program is told to end ([`drain`]).

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::Method;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::addresses::CONTROL_DEBUG;
use crate::client::Call;
use crate::namespace::Namespace;
use crate::service_rules::Behind;

/// How long proxies may take to acknowledge the removal of an endpoint; a proxy that never answers must not delay it
/// forever.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two checks.
const POLL_PERIOD: Duration = Duration::from_millis(20);
/// Asks clients of inbound listeners to close their connections, and keeps accepting new ones.
const DRAIN: &str = "/drain_listeners?inboundonly&graceful&skip_exit";
/// Connections of the inbound listener.
const CONNECTIONS: &str = "/stats?filter=_15006.downstream_cx_active";

/// The control plane's answer about an endpoint address.
#[derive(Debug, Deserialize)]
struct EndpointUse {
    serves: bool,
    behind: Vec<String>,
}

/// Waits until no proxy uses this address any more, and no Service leads to it, with a time limit.
pub(crate) async fn wait_until_unused(address: Ipv4Addr, mut behind: watch::Receiver<Behind>) {
    let path = format!("/debug/endpoint?address={address}");
    let unused = async {
        loop {
            let answer = Call::get("localhost", &path).send(None, CONTROL_DEBUG).await;
            let endpoint = answer.ok().and_then(|answer| serde_json::from_str::<EndpointUse>(&answer.body).ok());
            if endpoint.is_some_and(|endpoint| !endpoint.serves && endpoint.behind.is_empty()) {
                // The rules are no longer kept when the mesh ends.
                let _ = behind.wait_for(|behind| !behind.contains(&address)).await;
                return;
            }
            sleep(POLL_PERIOD).await;
        }
    };
    if timeout_at(Instant::now() + ACK_TIMEOUT, unused).await.is_err() {
        tracing::warn!(%address, "not every proxy has confirmed that it removed this endpoint; continuing");
    }
}

/// Drains the sidecar, by its admin interface, and waits until the workload has no connections, for `limit` at most.
pub async fn drain(namespace: &Namespace, admin: SocketAddr, limit: Duration) {
    let ended = async {
        let told = Call::get("localhost", DRAIN).method(Method::POST).send(Some(namespace), admin).await;
        if let Err(error) = told {
            tracing::warn!(%error, "cannot tell the sidecar to drain");
            return;
        }
        while let Ok(answer) = Call::get("localhost", CONNECTIONS).send(Some(namespace), admin).await {
            if connections(&answer.body) == 0 {
                return;
            }
            sleep(POLL_PERIOD).await;
        }
    };
    let _ = timeout_at(Instant::now() + limit, ended).await;
}

/// The sum of all lines `NAME: NUMBER`.
fn connections(stats: &str) -> u64 {
    stats.lines().filter_map(|line| line.rsplit_once(": ")?.1.trim().parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_those_of_all_lines() {
        assert_eq!(connections(""), 0);
        assert_eq!(
            connections(
                "listener.0.0.0.0_15006.downstream_cx_active: 3\nlistener.[__]_15006.downstream_cx_active: 4\n"
            ),
            7
        );
    }
}
