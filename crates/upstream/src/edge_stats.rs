//! Statistics of the traffic between two workloads. Connections keep a writer of their series, so that a request costs a few
//! additions and no search.

evenkeel_stats::layout! {
    /// The traffic between this proxy and one peer over connections that are secured alike.
    pub mod edge {
        counters {
            /// Connections.
            connections,
            /// Connections that were refused before they carried anything.
            refused,
            /// HTTP requests.
            requests,
            /// Bytes from client to server.
            bytes_received,
            /// Bytes from server to client.
            bytes_sent,
            /// When it was last used: milliseconds since the start.
            last_used_ms,
        }
        gauges {}
        histograms {}
        statuses None
    }
}
