//! The phases of a request, in order, whatever its client and its upstream speak:
//!
//! 0. **admit**: do the overload manager and the listener's limits allow it?
//! 1. **decide** ([`super::decide`]): normalize → identify peer → match route → request filters → pick cluster; and again after a
//!    **hold** ([`super::hold`]), when the route or the cluster has to be requested from the control plane first;
//! 2. **forward** ([`super::forward`], [`super::exchange`]): pick host → upstream connection → send, and again if the retry policy says so;
//! 3. **respond** ([`super::respond`]): response filters → head → body and trailers, while the rest of the request is sent;
//!    or **reply** ([`super::reply`]): a local reply;
//! 4. **end** ([`super::log`]): statistics and access log.
//!
//! The client's side is a [`super::downstream::Downstream`], the other a [`super::upstream::Upstream`]; everything between them is
//! independent of the protocol.

use evenkeel_filters::ResponseFlags;
use evenkeel_filters::decide::Tunnel;
use evenkeel_runtime_config::overload::Action;

use super::active_stream::ActiveStream;
use super::decide::Plan;
use super::failure::Failure;
use super::hops::count_hop;
use super::reply::Reply;
use crate::overload::{Exhausted, Permit};
use crate::recent::captured;

impl ActiveStream<'_> {
    /// True when the connection may carry another request.
    pub(super) async fn run(&mut self) -> bool {
        self.begin();
        let admitted = self
            .admit()
            .and_then(|admission| count_hop(self.conn.own_hops(), &mut self.request.head.headers).map(|()| admission));
        let _admission = match admitted {
            Ok(admission) => admission,
            Err(refused) => {
                let next = self.reply(Reply::from(&refused), None).await;
                self.end();
                return next;
            }
        };
        // The generation lives as long as the request, and with it every route and cluster that is borrowed below.
        let mut generation = self.conn.worker.generation();
        let next = loop {
            let plan = self.decide(&generation.shared.config).await;
            if let Plan::Hold(demand) = plan {
                Box::pin(self.hold(demand)).await;
                generation = self.conn.worker.generation();
                continue;
            }
            break match plan {
                Plan::Reply(reply, levels) => self.reply(reply, levels).await,
                // Boxed: keeps the future of a connection between two requests small.
                Plan::Forward(forward) => Box::pin(self.forward(&forward)).await,
                Plan::Hold(_) => continue,
            };
        };
        self.end();
        next
    }

    fn begin(&mut self) {
        self.conn.begin_request();
        self.request.stream.protocol = Some(self.request.head.version.as_str());
        self.under_way = true;
        let recent = &self.conn.worker.recent;
        let started = self.request.started();
        if recent.is_due(started) && recent.takes(&self.conn.info, started) {
            let received = captured(&self.request.head, self.conn.info.view.tls, false);
            self.request.notes().received = Some(received);
        }
    }

    /// Admits the request, unless the overload manager or a limit of the listener refuses it.
    fn admit(&self) -> Result<Option<Permit>, Failure> {
        let conn = self.conn;
        let stopped = conn.worker.overload.is_on(Action::StopAcceptingRequests, &conn.worker.random);
        let admitted = if stopped { Err(Exhausted) } else { conn.registration.admit_request() };
        admitted.map_err(|Exhausted| Failure::Overload)
    }

    /// Whether the request ended before both sides had sent all they had to.
    pub(super) fn was_cut_off(&self) -> bool {
        let request = &*self.request;
        // A client that asks for a tunnel has more to send than the head: a refused tunnel counts as cut off.
        let in_vain = match request.tunnel {
            Some(Tunnel::Upgrade(_)) => request.stream.status != 101,
            Some(Tunnel::Connect) | None => request.head.method() == b"CONNECT" && request.stream.status >= 300,
        };
        let broken = request.stream.flags.contains(ResponseFlags::DOWNSTREAM_PROTOCOL_ERROR);
        !self.response_ended || !self.down.received_all() || in_vain || broken
    }

    /// Replies to a request whose head is invalid or incomplete.
    pub(super) async fn refuse(&mut self, failure: &Failure) -> bool {
        self.begin();
        if matches!(failure, Failure::Head(_) | Failure::ClientGone) && !failure.flags().is_empty() {
            self.request.forget_head();
        }
        let next = self.reply(Reply::from(failure), None).await;
        self.end();
        next
    }
}

/// Ends and logs a request whose task is dropped: this proxy has closed its connection.
impl Drop for ActiveStream<'_> {
    fn drop(&mut self) {
        if self.under_way {
            self.request.stream.flags |= ResponseFlags::DOWNSTREAM_CONNECTION_TERMINATION;
            self.request.stream.details = "downstream_local_disconnect".into();
            self.end();
        }
    }
}
