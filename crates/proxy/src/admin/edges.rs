//! `/edges`: the workloads that have communicated through this proxy, and how that was secured; all workers together.

use http::StatusCode;

use super::{Admin, Reply, apart};

pub(super) async fn page(admin: &Admin) -> Reply {
    let pool = admin.shared.state.borrow().pool.clone();
    let drawing = move |_: &apart::Deadline| match serde_json::to_value(pool.edges()) {
        Ok(json) => Reply::json(&json),
        Err(error) => Reply::error(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    };
    apart::draw(Box::new(drawing)).await
}
