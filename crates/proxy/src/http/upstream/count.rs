//! Counts the tries and the end of a request on their cluster and host.

use std::rc::Rc;

use evenkeel_base::grpc::http_of_status;
use evenkeel_upstream::cluster_stats as cluster;
use evenkeel_upstream::{Cluster, Host, Outcome};

use super::Upstream;
use crate::http::failure::Failure;
use crate::http::grpc;
use crate::http::request::Request;

/// Counts a try that was reset, before or after its response began. Shared connections count their own ends.
pub(in crate::http) fn count_reset(cluster: &Cluster, up: &Upstream, failure: &Failure) {
    let row = failure.row();
    let counter = match up.codec() {
        Upstream::Http1(_) | Upstream::Filtered(_) => row.http1_reset,
        Upstream::Http2(_) => row.http2_reset,
    };
    if let Some(counter) = counter {
        cluster.stats().inc(counter);
    }
}

/// Counts what went wrong with a try, whether or not there is another. `outcome`: what that tells of the host.
pub(in crate::http) fn count_failed_try(
    cluster: &Cluster,
    host: Option<&Rc<Host>>,
    failure: &Failure,
    outcome: Option<Outcome>,
) {
    if let Some(counter) = failure.row().cluster_counter {
        cluster.stats().inc(counter);
    }
    if let Some(host) = host {
        host.count_failure(outcome == Some(Outcome::TimedOut));
    }
}

/// Counts a request that ended without a response.
pub(in crate::http) fn count_failure(cluster: &Cluster, failure: &Failure) {
    let stats = cluster.stats();
    if failure.status() != 0 {
        stats.status(failure.status());
        stats.inc(cluster::Counter::upstream_rq_completed);
    }
}

/// Counts a response. Its host counts the gRPC status in head or trailers instead, if there is one.
pub(in crate::http) fn count_response(request: &Request, cluster: &Cluster, host: Option<&Rc<Host>>) {
    let status = request.response.status;
    if let Some(host) = host {
        let grpc = grpc::status(request).filter(|_| request.calls_grpc());
        host.count_response(grpc.map_or(status, http_of_status));
    }
    cluster.count_status(status);
}
