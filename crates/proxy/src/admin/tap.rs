//! `/tap`: requests that have ended since a reader's last page. Whoever fetches a page begins to read, for some seconds.

use std::time::Instant;

use http::StatusCode;

use super::apart::{self, Drawing};
use super::{Admin, Query, Reply};

pub(super) fn page(admin: &Admin, query: &Query) -> Result<Drawing, Reply> {
    let since = query.get("since").map(str::parse::<u64>).transpose();
    let since = since.map_err(|error| Reply::error(StatusCode::BAD_REQUEST, format!("since: {error}\n")))?;
    let pool = admin.shared.state.borrow().pool.clone();
    Ok(Box::new(move |_: &apart::Deadline| match serde_json::to_value(pool.tap().read(since, Instant::now())) {
        Ok(json) => Reply::json(&json),
        Err(error) => Reply::error(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }))
}
