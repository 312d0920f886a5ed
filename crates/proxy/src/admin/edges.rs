//! `/edges`: the workloads that have communicated through this proxy, and how that was secured; all workers together.

use evenkeel_filters::edges::{Edge, Edges};
use http::StatusCode;

use super::{Admin, Reply, apart};
use crate::edges::{LIFETIME, MAX_EDGES};

pub(super) async fn page(admin: &Admin) -> Reply {
    let pool = admin.shared.state.borrow().pool.clone();
    let (kept, silent_workers) = pool.edges().await;
    let drawing = move |_: &apart::Deadline| {
        let (lists, left_out): (Vec<Vec<Edge>>, Vec<u64>) = kept.into_iter().unzip();
        let page = Edges {
            limit: MAX_EDGES,
            lifetime_s: LIFETIME.as_secs(),
            left_out: left_out.into_iter().sum(),
            silent_workers,
            edges: joined(lists.into_iter().flatten().collect()),
        };
        match serde_json::to_value(&page) {
            Ok(json) => Reply::json(&json),
            Err(error) => Reply::error(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    };
    apart::draw(Box::new(drawing)).await
}

/// The edges of all workers, each once.
fn joined(mut all: Vec<Edge>) -> Vec<Edge> {
    let order = |edge: &Edge| {
        (
            edge.direction.clone(),
            edge.port,
            edge.peer_identity.clone(),
            edge.peer_address.clone(),
            edge.tls.clone(),
            edge.local_identity.clone(),
        )
    };
    all.sort_by_cached_key(order);
    let mut joined: Vec<Edge> = Vec::new();
    for edge in all {
        match joined.last_mut().filter(|last| last.is_same(&edge)) {
            Some(last) => last.add(&edge),
            None => joined.push(edge),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_added_up() {
        let edge = |port, connections| Edge { port, connections, requests: 1, ..Edge::default() };
        let all = joined(vec![edge(80, 1), edge(81, 2), edge(80, 4)]);
        let counts: Vec<(u16, u64, u64)> =
            all.iter().map(|edge| (edge.port, edge.connections, edge.requests)).collect();
        assert_eq!(counts, [(80, 5, 2), (81, 2, 1)]);
    }
}
