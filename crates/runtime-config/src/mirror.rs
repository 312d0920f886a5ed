//! Mirrors: copies of requests, sent to another cluster.

use std::sync::Arc;

use crate::header_edits::HeaderMutation;

/// `RequestMirrorPolicy`: a copy of a request is sent to this cluster, and its response is discarded.
#[derive(Debug)]
pub struct MirrorPolicy {
    /// The cluster.
    pub cluster: MirrorCluster,
    /// Share of requests, in millionths (`runtime_fraction`). All policies of one request use the same random number.
    pub fraction_ppm: u32,
    /// Copies have `-shadow` appended to the host in `:authority`, before the port.
    pub appends_suffix: bool,
    /// `:authority` of copies, replacing the request's.
    pub host: Option<Box<str>>,
    /// Edits of copies' headers, in order.
    pub edits: Vec<HeaderMutation>,
    /// Copies of traced requests are traced (`trace_sampled`).
    pub traced: bool,
}

/// How a mirror's cluster is named.
#[derive(Debug)]
pub enum MirrorCluster {
    /// By this name.
    Named(Arc<str>),
    /// By the name in this request header (lower case). A request without it is not mirrored.
    Header(Box<str>),
}
