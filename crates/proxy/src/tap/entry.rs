//! The data of the page `/tap`.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A request that has ended. Values of secret headers and parameters are redacted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TappedRequest {
    /// When it began, in microseconds since 1970.
    pub started_us: u64,
    /// `inbound`, `outbound`, or empty where the listener does not say.
    pub direction: String,
    /// `:method`.
    pub method: String,
    /// `:authority`.
    pub authority: String,
    /// `:path` without the query.
    pub path: String,
    /// The query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// Names and values of the headers, as the route has left them.
    pub headers: Vec<(String, String)>,
    /// Its `x-request-id`.
    pub id: String,
    /// The status that was sent; 0: none.
    pub status: u16,
    /// Envoy's response flags, separated by commas.
    pub flags: String,
    /// Envoy's response code details.
    pub details: String,
    /// From its first byte to its end, in microseconds.
    pub duration_us: u64,
    /// The client's address.
    pub source: Option<SocketAddr>,
    /// The client's identity: the first URI in its certificate.
    pub source_identity: Option<String>,
    /// The identity that this proxy showed to the client.
    pub destination_identity: Option<String>,
    /// The route's name.
    pub route: Option<String>,
    /// The cluster.
    pub cluster: Option<String>,
    /// The endpoint of the last try.
    pub upstream: Option<String>,
    /// Tries.
    pub attempts: u32,
    /// Bytes of its body.
    pub bytes_received: u64,
    /// Bytes of the response's body.
    pub bytes_sent: u64,
}

impl TappedRequest {
    /// An estimate of its size in memory, in bytes.
    pub(super) fn size(&self) -> usize {
        let header = |(name, value): &(String, String)| size_of::<(String, String)>() + name.len() + value.len();
        let texts = [&self.method, &self.authority, &self.path, &self.id, &self.flags, &self.details];
        let others = [&self.query, &self.source_identity, &self.destination_identity, &self.route, &self.cluster];
        size_of::<Self>()
            + self.headers.iter().map(header).sum::<usize>()
            + texts.iter().map(|text| text.len()).sum::<usize>()
            + others.iter().filter_map(|text| text.as_deref()).map(str::len).sum::<usize>()
    }
}

/// The response of a proxy at `/tap`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TapPage {
    /// The value of `since` for the next page.
    pub next: u64,
    /// Requests after `since` that made room for later ones before this reader fetched them.
    pub dropped: u64,
    /// Requests ended that the proxy did not number: nobody had fetched a page for some time, or it has restarted.
    pub interrupted: bool,
    /// The requests, in the order in which they ended.
    pub requests: Vec<TappedRequest>,
}
