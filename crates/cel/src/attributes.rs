//! The attributes that expressions may name: Envoy's.

/// The roots, and the fields of each. Without any, the root is a value of its own, such as a map.
const TABLE: [(&str, &[&str]); 11] = [
    (
        "request",
        &[
            "path",
            "url_path",
            "host",
            "scheme",
            "method",
            "headers",
            "referer",
            "useragent",
            "time",
            "id",
            "protocol",
            "query",
            "duration",
            "size",
            "total_size",
        ],
    ),
    (
        "response",
        &[
            "code",
            "code_details",
            "flags",
            "grpc_status",
            "headers",
            "trailers",
            "size",
            "total_size",
            "backend_latency",
        ],
    ),
    (
        "connection",
        &[
            "mtls",
            "requested_server_name",
            "tls_version",
            "subject_local_certificate",
            "subject_peer_certificate",
            "dns_san_local_certificate",
            "dns_san_peer_certificate",
            "uri_san_local_certificate",
            "uri_san_peer_certificate",
            "sha256_peer_certificate_digest",
            "id",
            "termination_details",
            "transport_failure_reason",
        ],
    ),
    (
        "upstream",
        &[
            "address",
            "port",
            "local_address",
            "tls_version",
            "subject_local_certificate",
            "subject_peer_certificate",
            "dns_san_local_certificate",
            "dns_san_peer_certificate",
            "uri_san_local_certificate",
            "uri_san_peer_certificate",
            "sha256_peer_certificate_digest",
            "transport_failure_reason",
            "request_attempt_count",
        ],
    ),
    ("source", &["address", "port"]),
    ("destination", &["address", "port"]),
    ("metadata", &["filter_metadata"]),
    ("filter_state", &[]),
    ("node", &["id", "cluster"]),
    ("xds", &["node", "cluster_name", "route_name", "filter_chain_name", "listener_direction"]),
    ("listener_direction", &[]),
];

/// The root of this name, as the table has it.
pub(crate) fn root(name: &str) -> Option<&'static str> {
    TABLE.iter().map(|(root, _)| *root).find(|root| *root == name)
}

/// The fields of a root; empty if it has none, or is none.
pub fn fields(root: &str) -> &'static [&'static str] {
    TABLE.iter().find(|(name, _)| *name == root).map_or(&[], |(_, fields)| fields)
}

/// The names of all roots.
pub(crate) fn roots() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(root, _)| *root)
}
