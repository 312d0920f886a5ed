//! The `proxy_protocol` listener filter.

use std::future::poll_fn;
use std::sync::Arc;

use evenkeel_runtime_config::proxy_protocol::{ProxyProtocol, Tlv};
use evenkeel_upstream::proxy_protocol::Header;
use tokio::net::TcpStream;

use super::inspect::{InspectError, Inspected};
use crate::stats::{proxy_protocol, proxy_protocol_version};
use crate::worker::Worker;

/// Reads the header and decides whether the connection may continue.
pub(super) async fn read(
    worker: &Worker,
    stream: &TcpStream,
    filter: &ProxyProtocol,
    inspected: &mut Inspected,
) -> Result<Option<Header>, InspectError> {
    use proxy_protocol::Counter as Any;
    use proxy_protocol_version::Counter as OfVersion;
    let stats = worker.generation().proxy_protocol_stats(&filter.stat_prefix);
    let header = match poll_fn(|cx| inspected.poll_proxy_header(stream, cx)).await {
        Ok(header) => header,
        Err(error) => {
            if let InspectError::ProxyProtocol(malformed) = &error {
                stats.of(malformed.version).inc(OfVersion::error);
            }
            return Err(error);
        }
    };
    let Some(header) = header else {
        stats.any.inc(if filter.optional { Any::not_found_allowed } else { Any::not_found_disallowed });
        return if filter.optional { Ok(None) } else { Err(InspectError::NoProxyHeader) };
    };
    let stats = stats.of(header.version);
    stats.inc(OfVersion::found);
    if filter.disallowed.contains(&header.version) {
        stats.inc(OfVersion::disallowed);
        return Err(InspectError::DisallowedVersion(header.version.number()));
    }
    Ok(Some(header))
}

/// The TLVs that may be passed on to an upstream; `None` when there are none.
pub(super) fn passed_through(tlvs: Vec<Tlv>, filter: &ProxyProtocol) -> Option<Arc<[Tlv]>> {
    let passed: Arc<[Tlv]> = tlvs.into_iter().filter(|tlv| filter.pass_through.includes(tlv.kind)).collect();
    (!passed.is_empty()).then_some(passed)
}
