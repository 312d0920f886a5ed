//! `/requests`: the recent requests that the workers keep, the latest first.

use std::sync::Arc;

use evenkeel_filters::explain::query::{RecentRequest, RecentRequests};
use http::StatusCode;

use super::{Admin, Query, Reply, apart};

pub(super) async fn page(admin: &Admin, query: &Query) -> Reply {
    let pool = admin.shared.state.borrow().pool.clone();
    let limit = admin.options.recent.limit;
    let wanted = query.get("id").map(str::to_owned);
    let (kept, silent_workers) = pool.recent_requests().await;
    let throttling = admin.throttling.borrow().clone();
    let drawing = move |_: &apart::Deadline| {
        let mut requests = latest_first(&kept, wanted.as_deref());
        for request in &mut requests {
            request.throttled_us = throttling.within(request.started_us, request.duration_us);
        }
        let page = RecentRequests { limit, silent_workers, requests };
        match serde_json::to_value(&page) {
            Ok(json) => Reply::json(&json),
            Err(error) => Reply::error(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    };
    apart::draw(Box::new(drawing)).await
}

/// Returns the requests whose id starts with `id`, the latest first.
fn latest_first(kept: &[Arc<RecentRequest>], id: Option<&str>) -> Vec<RecentRequest> {
    let is_wanted = |request: &&Arc<RecentRequest>| id.is_none_or(|id| request.id.starts_with(id));
    let mut requests: Vec<RecentRequest> = kept.iter().filter(is_wanted).map(|request| (**request).clone()).collect();
    requests.sort_by_key(|request| std::cmp::Reverse(request.started_us));
    requests
}
