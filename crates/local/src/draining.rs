//! How a replica that takes requests leaves without losing one: nobody sends it new ones, then those it has are answered.
//!
//! 1. It is not ready any more, which its Pod object says; the control plane takes its endpoints away.
//! 2. Every proxy that used them has acknowledged that ([`wait_until_unused`]).
//! 3. Its sidecar asks whoever still has a connection to go (`/drain_listeners`), while the program serves as ever; when
//!    nobody is left, or the time is over, the program is told to end ([`drain`]).

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::Method;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout_at};

use crate::client::Call;
use crate::namespace::Namespace;
use crate::programs::CONTROL_DEBUG;

/// How long proxies may take to acknowledge that an endpoint is gone; one that does not answer must not keep it for ever.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two looks.
const POLL_PERIOD: Duration = Duration::from_millis(20);
/// The sidecar's admin port.
const ADMIN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 15000);
/// Asks clients of inbound listeners to go, and goes on accepting.
const DRAIN: &str = "/drain_listeners?inboundonly&graceful&skip_exit";
/// Connections of the listener that takes what is sent to the workload.
const CONNECTIONS: &str = "/stats?filter=_15006.downstream_cx_active";

/// What the control plane says of an address.
#[derive(Debug, Deserialize)]
struct EndpointUse {
    serves: bool,
    behind: Vec<String>,
}

/// Waits until no proxy sends anything to this address any more, for some time at most.
pub async fn wait_until_unused(address: Ipv4Addr) {
    let path = format!("/debug/endpoint?address={address}");
    let unused = async {
        loop {
            let answer = Call::get("localhost", &path).send(None, CONTROL_DEBUG).await;
            let endpoint = answer.ok().and_then(|answer| serde_json::from_str::<EndpointUse>(&answer.body).ok());
            if endpoint.is_some_and(|endpoint| !endpoint.serves && endpoint.behind.is_empty()) {
                return;
            }
            sleep(POLL_PERIOD).await;
        }
    };
    if timeout_at(Instant::now() + ACK_TIMEOUT, unused).await.is_err() {
        tracing::warn!(%address, "not every proxy has confirmed that it removed this endpoint; continuing");
    }
}

/// Waits until nobody has a connection to the workload any more, for `limit` at most.
pub async fn drain(namespace: &Namespace, limit: Duration) {
    let ended = async {
        let told = Call::get("localhost", DRAIN).method(Method::POST).send(Some(namespace), ADMIN).await;
        if let Err(error) = told {
            tracing::warn!(%error, "cannot tell the sidecar to drain");
            return;
        }
        while let Ok(answer) = Call::get("localhost", CONNECTIONS).send(Some(namespace), ADMIN).await {
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
