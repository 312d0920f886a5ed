//! The first phase: deciding what to do with a request ([`evenkeel_filters::decide`]), and the proxy's part in that.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_filters::decide::{self, Answer, Arrival, Filtered, Levels, Matched, Outcome, Parts, Stream, Visitor};
use evenkeel_runtime_config::route::{ForwardAction, WeightedCluster};
use evenkeel_runtime_config::{Config, Demand};
use evenkeel_upstream::Cluster;

use super::active_stream::ActiveStream;
use super::affinity::Affinity;
use super::edits::Edits;
use super::failure::Failure;
use super::record::record;
use super::reply::Reply;
use super::websocket;
use crate::stats::http::Counter;

/// The decision about a request.
pub(super) enum Plan<'c> {
    Forward(Box<Forward<'c>>),
    Reply(Reply, Option<Levels<'c>>),
    /// Hold it until the control plane has answered this demand.
    Hold(Demand),
}

/// The destination of a request.
pub(super) type Forward<'c> = decide::Forward<'c, Destination<'c>>;

/// A cluster, and what selects a host in it.
pub(super) struct Destination<'c> {
    pub(super) cluster: Rc<Cluster>,
    pub(super) affinity: Affinity<'c>,
}

impl<'l> ActiveStream<'l> {
    /// Decides about the request. What needs no upstream becomes a reply.
    pub(super) async fn decide<'c>(&mut self, config: &'c Config) -> Plan<'c>
    where
        'l: 'c,
    {
        let conn = self.conn;
        let arrival = Arrival {
            config,
            manager: &conn.hcm,
            connection: &conn.info.view,
            peer_text: conn.peer_text(),
            services: &*conn.worker,
        };
        match decide::decide(arrival, self).await {
            Outcome::Forward(forward) => Plan::Forward(forward),
            Outcome::Answer(answer, levels) => {
                if let (Answer::NoRouteTable, Some(tracer)) = (&answer, &conn.manager.tracer) {
                    self.trace(tracer, None);
                }
                Plan::Reply(self.answered(answer), levels)
            }
            Outcome::Hold(demand) => Plan::Hold(demand),
        }
    }

    /// Creates the reply for an answer. Counts it, unless it is a failure, which has a separate counter.
    fn answered(&self, answer: Answer<'_, Reply>) -> Reply {
        let stats = &self.conn.manager.http;
        let counter = match &answer {
            Answer::Redirect { .. } => Some(Counter::rq_redirect),
            Answer::Direct { .. } => Some(Counter::rq_direct_response),
            // Without a route, Envoy counts that as well.
            Answer::UpgradeRefused if self.request.stream.route_name.is_none() => Some(Counter::no_route),
            _ => None,
        };
        if let Some(counter) = counter {
            stats.inc(counter);
        }
        let closes =
            matches!(answer, Answer::NoRouteTable | Answer::NoRoute) && self.request.head.method() == b"CONNECT";
        let mut reply = reply(answer);
        reply.close |= closes;
        reply
    }
}

/// The reply for an answer.
fn reply(answer: Answer<'_, Reply>) -> Reply {
    let (status, details) = (answer.status().unwrap_or_default(), answer.details().unwrap_or_default());
    match answer {
        Answer::NotAPath => Reply::from(&Failure::NotAPath),
        Answer::BadPath => Reply::from(&Failure::Path),
        Answer::NoRouteTable | Answer::NoRoute => Reply::from(&Failure::NoRoute),
        Answer::UpgradeRefused => Reply::from(&Failure::UpgradeRefused),
        Answer::NoCluster(status) => Reply::from(&Failure::NoCluster(status)),
        Answer::PathRedirect(location) | Answer::TlsRedirect(location) | Answer::Redirect { location, .. } => {
            Reply::redirect(status, location, details)
        }
        Answer::Direct { status, body } => Reply::direct(status, body),
        Answer::Filter(reply) => reply,
    }
}

impl<'c, 'l: 'c> Visitor<'c> for ActiveStream<'l> {
    fn upgrade_by_connect(&mut self) {
        if let Some(decide::Tunnel::Upgrade(protocol)) = &self.request.tunnel
            && protocol == b"websocket"
        {
            websocket::add_key(&mut self.request.head.headers, &self.conn.worker.random);
        }
    }

    #[inline]
    fn chosen(&mut self, matched: Option<&Matched<'c>>) {
        self.request.stream.route_name = matched.map(|matched| Arc::clone(&matched.route.name));
        if let Some(tracer) = &self.conn.manager.tracer {
            self.trace(tracer, matched.map(|matched| matched.route));
        }
    }

    fn edit_request(&mut self, levels: Levels<'c>) {
        let values = record(self.conn, self.request, |record| levels.request_values(record));
        levels.edit_request(&mut self.request.head.headers, values);
    }
}

impl<'c, 'l: 'c> Stream<'c> for ActiveStream<'l> {
    type Cluster = Destination<'c>;
    type Reply = Reply;

    #[inline]
    fn parts(&mut self) -> Parts<'_> {
        let request = &mut *self.request;
        Parts {
            head: &mut request.head,
            info: &mut request.info,
            tunnel: &mut request.tunnel,
            grpc: &mut request.grpc,
            made_grpc: request.stream.made_grpc,
            client: &mut request.stream.client,
            drawn: &mut request.random,
            metadata: &request.stream.metadata,
            may_be_held: !request.hold_failed,
        }
    }

    async fn filter(&mut self, client: SocketAddr, matched: Option<Matched<'c>>) -> Filtered<Self::Reply> {
        // Boxed: few requests wait for a filter or collect their bodies, and the others should not reserve memory for it.
        match self.ask(client, matched) {
            Ok(decided) => decided,
            Err(waits) => Box::pin(self.ask_after(waits, client, matched)).await,
        }
    }

    fn cluster(&mut self, action: &'c ForwardAction, entry: &'c WeightedCluster) -> Option<Destination<'c>> {
        let cluster = self.conn.worker.upstreams.cluster(&entry.cluster)?;
        self.request.stream.cluster_name = Some(Arc::clone(&entry.cluster));
        let (service, before) = (&cluster.config().service, &mut self.request.stream.service);
        // Without metrics of Istio there is none: nothing is copied or freed then.
        if service.is_some() || before.is_some() {
            before.clone_from(service);
        }
        if let Some(trace) = &mut self.request.trace {
            trace.forwarded(&cluster.config().stat_name);
        }
        let affinity = Affinity::new(action, entry, &cluster, self.request, &self.conn.info.view);
        Some(Destination { cluster, affinity })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_sent_as_they_are_decided() {
        let body: Arc<[u8]> = Arc::from(*b"hello");
        for answer in [
            Answer::NotAPath,
            Answer::BadPath,
            Answer::PathRedirect(b"/".to_vec()),
            Answer::NoRouteTable,
            Answer::NoRoute,
            Answer::TlsRedirect(b"https://a/".to_vec()),
            Answer::Redirect { status: 308, location: b"/".to_vec() },
            Answer::Direct { status: 418, body: &body },
            Answer::UpgradeRefused,
            Answer::NoCluster(503),
        ] {
            let (status, details) = (answer.status(), answer.details());
            let reply = reply(answer);
            assert_eq!((Some(reply.status), Some(&*reply.details)), (status, details));
        }
    }
}
