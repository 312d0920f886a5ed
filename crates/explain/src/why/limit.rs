//! The limit that was reached, by its name in Istio's API, and where it is written.

use evenkeel_filters::explain::cause::Cause;
use evenkeel_filters::explain::query::{CircuitBreaker, PhaseKind};

use super::Side;
use crate::place::Source;
use crate::world::World;

/// A limit of a DestinationRule.
pub struct Limit {
    /// The field, such as `maxConnections`.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// Where it is written; none: it is a default.
    pub source: Option<Source>,
}

/// The breaker that was open, or that made the request wait.
pub fn breaker(side: &Side, cause: Cause) -> Option<CircuitBreaker> {
    match cause {
        Cause::CircuitBreaker => side.request.failed_tries.iter().rev().find_map(|failed| failed.full),
        Cause::Slow(PhaseKind::Pool) => Some(CircuitBreaker::Connections),
        _ => None,
    }
}

/// The fields of a DestinationRule's `connectionPool` for a breaker: the first that is written counts.
pub fn fields(breaker: CircuitBreaker) -> &'static [&'static str] {
    match breaker {
        CircuitBreaker::Connections | CircuitBreaker::Pools => &["maxConnections"],
        CircuitBreaker::PendingRequests => &["http1MaxPendingRequests"],
        CircuitBreaker::Requests => &["http2MaxRequests"],
        CircuitBreaker::Retries => &["maxRetries"],
    }
}

/// The limit that was reached, as it is written.
pub fn of(world: &World, side: &Side, cause: Cause) -> Option<Limit> {
    let fields = fields(breaker(side, cause)?);
    let cluster = side.request.cluster.as_deref()?;
    let mut parts = cluster.split('|');
    let (_, _, subset, host) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let workload = world.find(&side.proxy.pod, Some(&side.proxy.namespace)).ok();
    let effective = world.effective(host, workload.as_deref()).ok()?;
    let of_subset = format!("subset {subset}");
    let find = |section: &str| {
        let mut own = effective.settings.iter().filter(|setting| setting.section == section);
        own.find_map(|setting| {
            let field = fields.iter().find(|field| setting.field.ends_with(**field))?;
            let source = Some(setting.source.clone()?);
            Some(Limit { field, value: setting.value.clone(), source })
        })
    };
    find(&of_subset).or_else(|| find("destinationRule"))
}
