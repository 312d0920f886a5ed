//! Sampling: decides which requests are traced. The decision is made where a request enters the mesh, and `x-request-id`
//! carries it on: the first digit of the UUID's third group, which is 4 for a random UUID, says why the request is traced.

use evenkeel_http::{HeaderId, Headers};
use evenkeel_runtime_config::tracing::{Sampling, Tracing};

/// Length of a UUID.
const UUID_BYTES: usize = 36;
/// The position of the digit that says why the request is traced.
const REASON_AT: usize = 14;
/// A client's name for its request, by which it asks for a trace.
const CLIENT_TRACE_ID: &[u8] = b"x-client-trace-id";

/// Why a request is traced, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// The request is not traced.
    NotTraceable,
    /// The request is part of the sample.
    Sampling,
    /// A service requires tracing (`x-envoy-force-trace`).
    ServiceForced,
    /// The client requires tracing (`x-client-trace-id`).
    ClientForced,
}

impl Reason {
    /// In a UUID.
    fn digit(self) -> u8 {
        match self {
            Self::NotTraceable => b'4',
            Self::Sampling => b'9',
            Self::ServiceForced => b'a',
            Self::ClientForced => b'b',
        }
    }

    fn of(id: &[u8]) -> Self {
        match id.get(REASON_AT) {
            Some(b'9') if id.len() == UUID_BYTES => Self::Sampling,
            Some(b'a') if id.len() == UUID_BYTES => Self::ServiceForced,
            Some(b'b') if id.len() == UUID_BYTES => Self::ClientForced,
            _ => Self::NotTraceable,
        }
    }
}

/// Decides about a request, and writes the decision into its `x-request-id` unless `pack` is off. `route`: its route's own
/// settings. `random`: decides whether a client gets the trace that it asks for.
pub(super) fn decide(
    headers: &mut Headers,
    config: &Tracing,
    (route, pack): (Option<&Sampling>, bool),
    random: impl Fn() -> u64,
) -> Reason {
    let sampling = route.unwrap_or(&config.sampling);
    if !config.use_request_id {
        let sampled = sampling.random.covers(&random) && sampling.overall.covers(&random);
        return if sampled { Reason::Sampling } else { Reason::NotTraceable };
    }
    let id = headers.get(HeaderId::RequestId);
    // All proxies on the path use the same number, so that they agree.
    let Some((id, number)) = id.and_then(|id| Some((id, number_of(id)?))) else { return Reason::NotTraceable };
    // An id that gets no decision has none either.
    let known = if pack { Reason::of(id) } else { Reason::NotTraceable };
    let reason = match known {
        Reason::NotTraceable if headers.find(CLIENT_TRACE_ID).is_some() && sampling.client.covers(&random) => {
            Reason::ClientForced
        }
        Reason::NotTraceable if headers.contains(HeaderId::EnvoyForceTrace) => Reason::ServiceForced,
        Reason::NotTraceable if sampling.random.covers(|| number) => Reason::Sampling,
        known => known,
    };
    let reason = if sampling.overall.covers(|| number) { reason } else { Reason::NotTraceable };
    if pack && reason != known {
        write(headers, reason);
    }
    reason
}

/// A client that is not trusted has chosen `x-request-id`, but not whether the request is traced.
pub fn clear_reason(headers: &mut Headers) {
    if headers.get(HeaderId::RequestId).is_some_and(|id| id.len() == UUID_BYTES) {
        write(headers, Reason::NotTraceable);
    }
}

fn write(headers: &mut Headers, reason: Reason) {
    let Some(id) = headers.get(HeaderId::RequestId) else { return };
    let Ok(mut id) = <[u8; UUID_BYTES]>::try_from(id) else { return };
    if id[REASON_AT] != reason.digit() {
        id[REASON_AT] = reason.digit();
        headers.set(HeaderId::RequestId, &id);
    }
}

/// A number between 0 and 9999 from the UUID's first group; `None` if that is not hexadecimal.
fn number_of(id: &[u8]) -> Option<u64> {
    let group = std::str::from_utf8(id.get(..8)?).ok()?;
    u32::from_str_radix(group, 16).ok().map(|number| u64::from(number % 10_000))
}
