//! Recent requests that failed or were slow, from the proxies' pages `/requests`.

use evenkeel_admin::dashboard::{Note, Request, Requests};
use evenkeel_filters::explain::cause::{Cause, VIA_UPSTREAM, has_failed, of_failure};
use evenkeel_filters::explain::query::{RecentRequest, RecentRequests};
use futures_util::StreamExt as _;
use futures_util::stream;

use crate::node::NodeKey;
use crate::source::{ProxyRole, ReplicaStatus, Source};

/// The page.
const PAGE: &str = "/requests";
/// Proxies that are read at a time.
const AT_A_TIME: usize = 8;
/// Maximum number of requests in each list.
const MAX_REQUESTS: usize = 100;
/// A phase that takes less time, in microseconds, is no reason.
const SLOW_US: u64 = 10_000;

/// Reads the requests that all proxies keep, or those of one node.
pub(crate) async fn requests(source: &dyn Source, node: Option<&str>) -> Requests {
    let replicas = source.replicas();
    let is_meant = |replica: &&ReplicaStatus| {
        replica.proxy != ProxyRole::None && node.is_none_or(|node| NodeKey::of(replica).to_string() == node)
    };
    let pending: Vec<_> =
        replicas.iter().filter(is_meant).map(|replica| async move { (replica, read(source, replica).await) }).collect();
    let pages: Vec<_> = stream::iter(pending).buffer_unordered(AT_A_TIME).collect().await;
    let mut all = Requests::default();
    for (replica, page) in pages {
        match page {
            Ok(requests) => {
                let shown = requests.iter().map(|request| shown(replica, request));
                let (failed, others): (Vec<_>, Vec<_>) = shown.partition(is_failure);
                all.failed.extend(failed);
                all.slow.extend(others);
                keep_first(&mut all);
            }
            Err(message) => all.notes.push(Note { subject: replica.key.to_string(), message }),
        }
    }
    all
}

async fn read(source: &dyn Source, replica: &ReplicaStatus) -> Result<Vec<RecentRequest>, String> {
    let body = source.proxy_page(&replica.key, PAGE).await?;
    let page: RecentRequests = serde_json::from_slice(&body).map_err(|_| "its proxy keeps no requests".to_owned())?;
    match page.limit {
        0 => Err("keeps no requests: it runs with --recent-requests 0".to_owned()),
        _ => Ok(page.requests),
    }
}

fn keep_first(all: &mut Requests) {
    all.failed.sort_by_key(|request| std::cmp::Reverse(request.started_ms));
    all.slow.sort_by_key(|request| std::cmp::Reverse(request.duration_us));
    all.failed.truncate(MAX_REQUESTS);
    all.slow.truncate(MAX_REQUESTS);
}

/// Whether a request failed. Nothing was sent: the client has gone, or the connection broke.
fn is_failure(request: &Request) -> bool {
    request.status == 0 || request.status >= 400 || !request.flags.is_empty()
}

fn shown(replica: &ReplicaStatus, request: &RecentRequest) -> Request {
    let head = request.call.request.clone().unwrap_or_default();
    let (reason, details) = (reason(request), Some(&*request.details).filter(|details| *details != VIA_UPSTREAM));
    let causes = [&*reason, details.unwrap_or_default(), &request.transport_failure];
    let causes: Vec<&str> = causes.into_iter().filter(|cause| !cause.is_empty()).collect();
    Request {
        proxy: replica.key.to_string(),
        node: NodeKey::of(replica).to_string(),
        direction: request.direction.clone(),
        id: request.id.clone(),
        started_ms: request.started_us / 1000,
        method: head.method,
        authority: head.authority,
        path: head.path,
        status: request.status,
        flags: request.flags.trim_matches('-').to_owned(),
        cause: causes.join(": "),
        cluster: request.cluster.clone().unwrap_or_default(),
        route: request.route.clone().unwrap_or_default(),
        duration_us: request.duration_us,
    }
}

/// Why the request failed, or what took longest, as `evenkeel why` says of this proxy's record.
fn reason(request: &RecentRequest) -> String {
    if has_failed(request) {
        let cause = of_failure(request);
        return if cause == Cause::Other { String::new() } else { cause.title().to_owned() };
    }
    let longest = request.phases.iter().max_by_key(|phase| phase.duration_us);
    let longest = longest.filter(|phase| phase.duration_us >= SLOW_US);
    longest
        .map(|phase| format!("{} ({} ms)", Cause::Slow(phase.kind).title(), phase.duration_us / 1000))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use evenkeel_filters::explain::query::{Phase, PhaseKind};

    use super::*;

    #[test]
    fn the_latest_failures_and_the_slowest_others_are_kept() {
        let request = |n: u64| Request { started_ms: n, duration_us: n, ..Request::default() };
        let many: Vec<Request> = (0..300).map(request).collect();
        let mut all = Requests { failed: many.clone(), slow: many, notes: Vec::new() };
        keep_first(&mut all);
        assert_eq!((all.failed.len(), all.slow.len()), (MAX_REQUESTS, MAX_REQUESTS));
        assert_eq!((all.failed[0].started_ms, all.slow[0].duration_us), (299, 299));
    }

    #[test]
    fn reasons_are_those_of_why() {
        let phase = |kind, duration_us| Phase { kind, duration_us, ..Phase::default() };
        let slow = |micros| RecentRequest {
            status: 200,
            details: VIA_UPSTREAM.into(),
            phases: vec![phase(PhaseKind::Pool, micros / 2), phase(PhaseKind::Endpoint, micros)],
            ..RecentRequest::default()
        };
        let check = |request: RecentRequest, expected: &str| assert_eq!(reason(&request), expected, "{request:?}");
        check(slow(812_500), "slow: the application (812 ms)");
        check(slow(900), "");
        let failed = RecentRequest { status: 503, flags: "UO".into(), ..slow(900) };
        check(RecentRequest { details: "overflow".into(), ..failed }, "a circuit breaker is open");
    }

    #[test]
    fn failures_are_told_by_status_and_flags() {
        let check = |status: u16, flags: &str, expected: bool| {
            let request = Request { status, flags: flags.into(), ..Request::default() };
            assert_eq!(is_failure(&request), expected, "{status} {flags}");
        };
        check(200, "", false);
        check(304, "", false);
        check(404, "NR", true);
        check(503, "UF", true);
        check(0, "DC", true);
        check(200, "DC", true);
    }
}
