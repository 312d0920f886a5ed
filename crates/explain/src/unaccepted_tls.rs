//! TLS that a client's sidecar begins and the workload's proxy does not take off.

use evenkeel_filters::explain::Trace;

use crate::answer::{Hop, Outcome, Verdict};
use crate::arrival::{Arrival, Side};

/// Why a handshake fails, before any policy judges the call.
pub const NO_CERTIFICATE: &str = "the workload's TLS is mutual, and that of its client has no certificate of the mesh";
/// Where TLS ends that nobody has taken off.
pub const PROGRAM_GETS_TLS: &str = "the program gets TLS: the call succeeds only if it speaks TLS itself";

/// What TLS that a client's sidecar has begun comes to at a workload's proxy that does not take it off.
pub enum UnacceptedTls {
    /// It has no certificate of the mesh (a DestinationRule with SIMPLE): the proxy refuses it.
    Refused,
    /// The proxy passes it on to the program.
    PassedOn,
}

/// Whether the filter chain of a workload's proxy does not take off the TLS in which a call arrives.
pub fn of(side: Side, arrival: &Arrival, trace: &Trace) -> Option<UnacceptedTls> {
    let (Some(chain), Some(tls), Side::Inbound) = (&trace.chain, &arrival.tls, side) else { return None };
    match &chain.tls {
        None => Some(UnacceptedTls::PassedOn),
        Some(own) => (own.is_mutual() && tls.identity.is_none()).then_some(UnacceptedTls::Refused),
    }
}

/// Notes it of a proxy on the way of a call.
pub fn judge(side: Side, arrival: &Arrival, trace: &Trace, hop: &mut Hop) {
    match of(side, arrival, trace) {
        Some(UnacceptedTls::Refused) => {
            hop.policies.clear();
            let (outcome, reason) = (Outcome::Reset, NO_CERTIFICATE.to_owned());
            hop.verdict = Verdict { outcome, reason, ..Verdict::default() };
        }
        Some(UnacceptedTls::PassedOn) if hop.verdict.outcome == Outcome::Forward => {
            hop.notes.push(PROGRAM_GETS_TLS.to_owned());
        }
        _ => {}
    }
}
