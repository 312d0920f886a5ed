//! Shares: how the time of a request divides among the proxies on its way, the applications and the network between them.

use evenkeel_filters::explain::query::{PhaseKind, RecentRequest};

/// Tolerance of clocks when records of two proxies are compared, in microseconds.
const SKEW_US: u64 = 20_000;

/// A part of a request's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The number of the record in which it is.
    pub hop: usize,
    /// What was waited for.
    pub kind: Part,
    /// Microseconds.
    pub micros: u64,
}

/// What a share is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A phase at one proxy. [`PhaseKind::Endpoint`]: the application, without the requests that it made itself.
    Phase(PhaseKind),
    /// Between a client's proxy and the server's, which took less time by its own account.
    Between,
}

/// A record, and the Pod of its proxy.
#[derive(Debug, Clone, Copy)]
pub struct Recorded<'r> {
    pub pod: &'r str,
    pub request: &'r RecentRequest,
}

impl Recorded<'_> {
    fn is_inbound(&self) -> bool {
        self.request.direction == "inbound"
    }

    fn spent(&self, kind: PhaseKind) -> u64 {
        self.request.phases.iter().filter(|phase| phase.kind == kind).map(|phase| phase.duration_us).sum()
    }

    /// Whether the other record is of a request within this one.
    fn contains(&self, other: &Self) -> bool {
        let (own, other) = (self.request, other.request);
        let end = |request: &RecentRequest| request.started_us.saturating_add(request.duration_us);
        other.started_us.saturating_add(SKEW_US) >= own.started_us
            && end(other) <= end(own).saturating_add(SKEW_US)
            && other.duration_us <= own.duration_us.saturating_add(SKEW_US)
    }
}

/// Divides the time. Records are in the order in which the proxies received the request.
pub fn shares(records: &[Recorded<'_>]) -> Vec<Share> {
    let mut outer: Vec<Option<usize>> = vec![None; records.len()];
    let mut all = Vec::new();
    for (hop, record) in records.iter().enumerate() {
        let mut inner_us = 0;
        for (at, inner) in records.iter().enumerate().skip(hop + 1) {
            let is_next = record.is_inbound() != inner.is_inbound()
                && (record.is_inbound() == (record.pod == inner.pod))
                && record.contains(inner);
            let Some(outer) = outer.get_mut(at).filter(|outer| is_next && outer.is_none()) else { continue };
            *outer = Some(hop);
            inner_us += inner.request.duration_us;
            // A try has one server; an application makes many requests.
            if !record.is_inbound() {
                break;
            }
        }
        let client = outer.get(hop).copied().flatten().and_then(|at| records.get(at));
        let client = client.filter(|client| !client.is_inbound());
        for phase in &record.request.phases {
            let mut micros = phase.duration_us;
            // A proxy that is slow because its own client is: that one's share has it.
            if matches!(phase.kind, PhaseKind::ClientReads | PhaseKind::RequestBody) {
                micros = micros.saturating_sub(client.map_or(0, |client| client.spent(phase.kind)));
            }
            let mut kind = Part::Phase(phase.kind);
            let is_of_server = matches!(phase.kind, PhaseKind::Endpoint | PhaseKind::ResponseBody);
            if is_of_server && inner_us > 0 {
                let within = inner_us.min(micros);
                (micros, inner_us) = (micros - within, inner_us - within);
                if !record.is_inbound() {
                    kind = Part::Between;
                }
            }
            all.push(Share { hop, kind, micros });
        }
    }
    all
}

/// The greatest share.
pub fn greatest(records: &[Recorded<'_>]) -> Option<Share> {
    // Of equal ones the innermost.
    shares(records).into_iter().max_by_key(|share| share.micros)
}

/// The greatest share, without the tries before the last.
pub fn greatest_of_last_try(records: &[Recorded<'_>]) -> Option<Share> {
    let is_earlier = |share: &Share| share.kind == Part::Phase(PhaseKind::EarlierTries);
    shares(records).into_iter().filter(|share| !is_earlier(share)).max_by_key(|share| share.micros)
}

#[cfg(test)]
mod tests {
    use evenkeel_filters::explain::query::Phase;

    use super::*;

    /// `DIRECTION START DURATION KIND=MILLIS…`, in milliseconds.
    fn record(text: &str) -> RecentRequest {
        let words: Vec<&str> = text.split(' ').collect();
        let micros = |text: &str| text.parse::<u64>().expect("a number") * 1000;
        let kind = |name: &str| match name {
            "endpoint" => PhaseKind::Endpoint,
            "pool" => PhaseKind::Pool,
            "reads" => PhaseKind::ClientReads,
            _ => PhaseKind::Proxy,
        };
        let phases = words[3..].iter().filter_map(|word| word.split_once('=')).map(|(name, millis)| Phase {
            kind: kind(name),
            duration_us: micros(millis),
            ..Phase::default()
        });
        RecentRequest {
            direction: words[0].to_owned(),
            started_us: 1_000_000 + micros(words[1]),
            duration_us: micros(words[2]),
            phases: phases.collect(),
            ..RecentRequest::default()
        }
    }

    fn check(hops: &[(&str, &str)], expected: Option<(usize, Part, u64)>) {
        let requests: Vec<RecentRequest> = hops.iter().map(|(_, text)| record(text)).collect();
        let records: Vec<Recorded<'_>> =
            hops.iter().zip(&requests).map(|((pod, _), request)| Recorded { pod, request }).collect();
        let found = greatest(&records).map(|share| (share.hop, share.kind, share.micros / 1000));
        assert_eq!(found, expected, "{hops:?}");
    }

    #[test]
    fn the_greatest_share_is_found() {
        let endpoint = Part::Phase(PhaseKind::Endpoint);
        check(&[], None);
        check(&[("web", "outbound 0 830 endpoint=820")], Some((0, endpoint, 820)));
        // The server's proxy says that it was the application.
        let client = ("web", "outbound 0 830 pool=3 endpoint=825");
        check(&[client, ("info", "inbound 5 815 endpoint=812")], Some((1, endpoint, 812)));
        // It says that it had the request for a short time only.
        check(&[client, ("info", "inbound 800 20 endpoint=18")], Some((0, Part::Between, 805)));
        check(
            &[("web", "outbound 0 830 pool=500 endpoint=330"), ("info", "inbound 500 320 endpoint=320")],
            Some((0, Part::Phase(PhaseKind::Pool), 500)),
        );
        // The client's proxy does not read because its client does not.
        let slow = ("web", "outbound 0 900 endpoint=100 reads=790");
        check(
            &[slow, ("info", "inbound 2 890 endpoint=80 reads=800")],
            Some((0, Part::Phase(PhaseKind::ClientReads), 790)),
        );
        // The application in the middle waits for another.
        let middle = [("gateway", "outbound 0 900 endpoint=900"), ("web", "inbound 1 895 endpoint=895")];
        let inner = [("web", "outbound 10 850 endpoint=850"), ("info", "inbound 12 840 endpoint=840")];
        check(&[middle, inner].concat(), Some((3, endpoint, 840)));
    }
}
