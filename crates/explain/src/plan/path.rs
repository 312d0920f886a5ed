//! The path of a request over several proxies, in the mesh as it is and with a change: what one proxy does with a request
//! depends on how the proxy before it sends the request.

use std::collections::HashMap;
use std::net::SocketAddr;

use evenkeel_filters::explain::query::RecentRequest;

use crate::replay::Replayed;
use crate::world::World;

/// A recent request of one proxy.
#[derive(Debug, Clone)]
pub struct Sampled {
    /// The Pod.
    pub pod: String,
    /// Its namespace.
    pub namespace: String,
    /// The request.
    pub request: RecentRequest,
}

/// What proxies have kept, by the ids of the requests.
pub struct Records<'s>(HashMap<&'s str, Vec<&'s Sampled>>);

/// How a request comes to a proxy with the change.
pub enum Coming {
    /// As it came.
    Same,
    /// As it came; but the proxy that sent it has no record of it, so that it may come otherwise.
    Assumed,
    /// Otherwise: this is the decision about it.
    Otherwise(Box<Replayed>),
    /// It goes elsewhere.
    Gone,
}

impl<'s> Records<'s> {
    /// Sorts the records.
    pub fn new(sampled: &'s [Sampled]) -> Self {
        let mut all: HashMap<&str, Vec<&Sampled>> = HashMap::new();
        sampled.iter().for_each(|own| all.entry(&own.request.id).or_default().push(own));
        Self(all)
    }

    fn of(&self, request: &RecentRequest) -> &[&'s Sampled] {
        self.0.get(&*request.id).map(Vec::as_slice).unwrap_or_default()
    }

    /// The record of the proxy that sent the request to this one.
    fn sender(&self, sample: &Sampled) -> Option<&'s Sampled> {
        let to = sample.request.call.destination?;
        let leads_here = |own: &&&Sampled| {
            let endpoint = own.request.endpoint.as_deref().and_then(|endpoint| endpoint.parse::<SocketAddr>().ok());
            own.request.direction != "inbound" && endpoint == Some(to)
        };
        self.of(&sample.request).iter().find(leads_here).copied()
    }

    /// How a request comes to the proxy of this record with the change.
    pub fn coming(&self, (before, after): (&World, &World), sample: &Sampled) -> Coming {
        if sample.request.direction != "inbound" {
            return Coming::Same;
        }
        let Some(sender) = self.sender(sample) else {
            let source = sample.request.call.source;
            let is_by_proxy = source.is_some_and(|source| after.sends_through_proxy(source.ip()));
            return if is_by_proxy { Coming::Assumed } else { Coming::Same };
        };
        let replay = |world: &World| world.replay(&sender.pod, &sender.namespace, &sender.request);
        let (Some(then), Some(now)) = (replay(before), replay(after)) else { return Coming::Assumed };
        if then.leaves_as(&now) {
            return Coming::Same;
        }
        let path = after.replay_on(&now, &sender.request);
        let here = path.into_iter().find(|replayed| replayed.is_at(&sample.pod, &sample.namespace));
        here.map_or(Coming::Gone, |replayed| Coming::Otherwise(Box::new(replayed)))
    }

    /// The decisions of a later proxy, if the request fails there with the change and not without, or the other way round. A later
    /// proxy that has kept the request tells so itself.
    pub fn later(
        &self,
        (before, after): (&World, &World),
        (from, to): (&Replayed, &Replayed),
        request: &RecentRequest,
    ) -> Option<(Replayed, Replayed)> {
        if from.side == "inbound" || from.fails() || to.fails() {
            return None;
        }
        let has_kept = |next: &Replayed| self.of(request).iter().any(|own| next.is_at(&own.pod, &own.namespace));
        let now = after.replay_on(to, request);
        if now.first().is_some_and(has_kept) {
            return None;
        }
        let then = before.replay_on(from, request);
        if then.iter().any(Replayed::fails) == now.iter().any(Replayed::fails) {
            return None;
        }
        let end = |path: &[Replayed], first: &Replayed| {
            path.iter().find(|replayed| replayed.fails()).or(path.last()).unwrap_or(first).clone()
        };
        Some((end(&then, from), end(&now, to)))
    }
}
