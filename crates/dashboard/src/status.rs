//! Whether the configuration is live, from the control plane's pages.

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_admin::dashboard::{Note, Status};
use evenkeel_admin::diagnostics::{self, Finding};
use evenkeel_admin::syncz::{self, Proxy, State, Syncz};
use serde::de::DeserializeOwned;

use crate::source::Source;

/// Maximum number of findings shown.
const MAX_FINDINGS: usize = 500;

/// Since when the control plane cannot be read.
#[derive(Debug, Default)]
pub(crate) struct Reachability(Mutex<Option<u64>>);

impl Reachability {
    /// Notes whether it could be read now; returns since when it cannot, in milliseconds since 1970.
    fn note(&self, is_reachable: bool) -> Option<u64> {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if is_reachable {
            *since = None;
        } else {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            since.get_or_insert(u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        }
        *since
    }
}

/// The page.
pub(crate) async fn status(source: &dyn Source, reachability: &Reachability) -> Status {
    let read = async { Ok::<_, String>((syncz(source).await?, findings(source).await?)) };
    match read.await {
        Ok((page, findings)) => {
            reachability.note(true);
            Status { findings, ..of_syncz(&page) }
        }
        Err(reason) => {
            let unreachable_since_ms = reachability.note(false);
            Status { unreachable: Some(reason), unreachable_since_ms, ..Status::default() }
        }
    }
}

/// The streams of proxies, as the control plane sees them.
pub(crate) async fn syncz(source: &dyn Source) -> Result<Syncz, String> {
    read(source, syncz::PATH).await
}

/// The findings about the configuration, the worst first.
pub(crate) async fn findings(source: &dyn Source) -> Result<Vec<Finding>, String> {
    let page: diagnostics::Page = read(source, diagnostics::PATH).await?;
    let mut findings = page.diagnostics;
    let rank = |finding: &Finding| match &*finding.severity {
        "error" => 0,
        "warning" => 1,
        _ => 2,
    };
    findings.sort_by_key(rank);
    findings.truncate(MAX_FINDINGS);
    Ok(findings)
}

/// A page of the control plane.
pub(crate) async fn read<T: DeserializeOwned>(source: &dyn Source, path: &str) -> Result<T, String> {
    let body = source.control_page(path).await?;
    serde_json::from_slice(&body).map_err(|error| format!("{path}: {error}"))
}

fn of_syncz(page: &Syncz) -> Status {
    let proxies: Vec<&Proxy> = page.proxies.iter().filter(|stream| stream.is_proxy()).collect();
    let types = || proxies.iter().flat_map(|proxy| &proxy.types);
    let late = proxies.iter().filter(|proxy| !proxy.live || proxy.refused().next().is_some());
    let slowest = |of: syncz::Quantile| proxies.iter().filter_map(|proxy| proxy.slowest(of)).reduce(f64::max);
    Status {
        generation: page.generation,
        live: proxies.iter().filter(|proxy| proxy.live).count(),
        proxies: proxies.len(),
        late: late.map(|proxy| Note { subject: proxy.name().to_owned(), message: why_late(proxy) }).collect(),
        age_p50_ms: slowest(|ages| ages.p50),
        age_p99_ms: slowest(|ages| ages.p99),
        pushes: types().map(|status| status.pushes).sum(),
        rejects: types().map(|status| status.rejects).sum(),
        in_flight: types().filter(|status| status.in_flight_version.is_some()).count(),
        not_ready: page.not_ready.clone(),
        ..Status::default()
    }
}

/// Why a proxy does not run the newest configuration.
fn why_late(proxy: &Proxy) -> String {
    let refusals: Vec<String> = proxy.refused().map(|refusal| format!("refuses {refusal}")).collect();
    if !refusals.is_empty() {
        return refusals.join("; ");
    }
    let waiting = proxy.types.iter().filter(|status| status.state == State::Stale).map(|status| {
        let since = status.waiting_ms.map(|ms| format!(" for {}", syncz::milliseconds(ms as f64)));
        format!("has not answered {}{}", status.kind, since.unwrap_or_default())
    });
    let waiting: Vec<String> = waiting.collect();
    if waiting.is_empty() { format!("runs generation {}", proxy.settled_generation) } else { waiting.join(", ") }
}

#[cfg(test)]
mod tests {
    use evenkeel_admin::syncz::{Nack, NackedResource, TypeStatus};

    use super::*;

    #[test]
    fn a_proxy_that_is_late_has_a_reason() {
        let check = |status: TypeStatus, expected: &str| {
            let types = vec![TypeStatus { kind: "LDS".into(), ..status }];
            let proxy = Proxy { proxy: "sidecar~10.0.0.1~web-0.shop~x".into(), types, ..Proxy::default() };
            let status = of_syncz(&Syncz { generation: 7, proxies: vec![proxy], ..Syncz::default() });
            let expected = Note { subject: "web-0.shop".into(), message: expected.into() };
            assert_eq!((status.live, status.proxies, status.late), (0, 1, vec![expected]));
        };
        check(
            TypeStatus { state: State::Stale, waiting_ms: Some(1500), ..TypeStatus::default() },
            "has not answered LDS for 1500 ms",
        );
        check(TypeStatus { state: State::Synced, ..TypeStatus::default() }, "runs generation 0");
        let origin = Some("gateway.yaml:3:1".into());
        let nack = Nack {
            message: "no".into(),
            resources: vec![NackedResource { name: "a".into(), origin, times: 1 }],
            ..Nack::default()
        };
        check(
            TypeStatus { state: State::Nacked, nack: Some(nack), ..TypeStatus::default() },
            "refuses LDS a (from gateway.yaml:3:1): no",
        );
    }

    #[test]
    fn an_outage_has_a_beginning() {
        let reachability = Reachability::default();
        let since = reachability.note(false);
        assert!(since.is_some() && reachability.note(false) == since);
        assert_eq!(reachability.note(true), None);
    }
}
