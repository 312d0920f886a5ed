//! Requests that come back to the proxy that forwards them, by a configuration whose destination is a listener of its own. Each time they
//! arrive on a connection that the proxy itself has made ([`evenkeel_upstream::own`]), and a header counts how often that was: many
//! requests share a connection between proxies, so the connection cannot.

use evenkeel_http::Headers;
use evenkeel_upstream::own::MAX_HOPS;

use super::failure::Failure;

/// How often a request has come back. Heeded only on the proxy's own connections, where no client can have set it unseen.
pub(crate) const HOPS: &[u8] = b"x-evenkeel-hops";

/// Counts a request on a connection of the proxy's own; fails if it has come back too often. `of_connection`: how often the connection
/// has come back, zero if the proxy has not made it.
pub(super) fn count_hop(of_connection: u8, headers: &mut Headers) -> Result<(), Failure> {
    if of_connection == 0 {
        return Ok(());
    }
    let before = headers.find(HOPS).map_or(0, number);
    let hops = of_connection.max(before.saturating_add(1));
    if hops > MAX_HOPS {
        return Err(Failure::Loop);
    }
    headers.set_name(HOPS, itoa::Buffer::new().format(hops).as_bytes());
    Ok(())
}

/// A number of hops; one that cannot be read has come back too often.
fn number(text: &[u8]) -> u8 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(MAX_HOPS)
}
