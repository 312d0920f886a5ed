//! The TCP proxy: connects to a host of a cluster, and relays bytes in both directions.

pub(crate) mod relay;
mod reports;
mod tunnel;
mod upstream;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_filters::format::Record;
use evenkeel_filters::network::Close;
use evenkeel_filters::peer_metadata::DOWNSTREAM;
use evenkeel_filters::{ConnectionInfo, NetworkFilters, ResponseFlags};
use evenkeel_runtime_config::listener::{FilterChain, Listener, TcpProxy};
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_upstream::conn::deadline::after;
use evenkeel_upstream::stream::Stream;

use crate::access_log::Lines;
use crate::edges::Traffic;
use crate::handover::Half;
use crate::http::Failure;
use crate::listener::filtered::{self, Filtered};
use crate::listener::{Downstream, MovingConnection};
use crate::observers::{self, Observer};
use crate::stats::tcp::{Counter, Gauge};
use crate::worker::{Directive, Registration, TcpStats, Worker};
use evenkeel_upstream::turn;
use relay::{End, Ending, Relay, Relayed, Remainder};
use reports::Reports;
pub(crate) use upstream::{FirstByte, UpstreamHalf, UpstreamSide};
use upstream::{Outcome, Upstream};

/// Serves a connection to its end. `upstream_side`: the upstream side, if it was connected while the client was silent. Returns the
/// connection if it is handed over. The future keeps what it holds for the connection's whole life, and its arguments twice: large
/// arguments are boxed, and so are calls that end early.
pub(crate) async fn serve(
    worker: &Rc<Worker>,
    mut downstream: Box<Downstream>,
    (listener, proxy): (Arc<Listener>, Arc<TcpProxy>),
    (filters, upstream_side): (Rc<NetworkFilters>, Option<Box<UpstreamSide>>),
    registration: &Rc<Registration>,
) -> Option<Box<MovingConnection>> {
    let stats = worker.generation().tcp_stats(&proxy.stat_prefix);
    let _counted = Counted::new(&stats);
    let mut upstream_side = match upstream_side {
        Some(upstream_side) => upstream_side,
        None => match Box::pin(admit(worker, filters, &mut downstream.info)).await {
            Ok(connection) => {
                *downstream = downstream.filtered(connection);
                Box::pin(UpstreamSide::connect(worker, &downstream.info, &proxy)).await
            }
            Err(close) => UpstreamSide::refused(worker, &close, (&downstream.info.view, &downstream.stream), &proxy),
        },
    };
    if let Some(peer) = downstream.stream.layer::<Filtered>().and_then(|filtered| filtered.connection().peer()) {
        upstream_side.outcome.stream.set_object(DOWNSTREAM, peer);
    }
    let reports = Reports::of(worker, &downstream.info);
    if let Some(reports) = &reports {
        reports.opened(&upstream_side.outcome);
    }
    let ended = relay(&mut downstream, &mut upstream_side, &proxy, &stats, registration, reports.as_ref()).await;
    if let Some((to_up, to_down)) = ended
        && let UpstreamSide { outcome, upstream: Some((Upstream::Connection(connection), _)), .. } = *upstream_side
    {
        let upstream = Some(Box::new(UpstreamHalf { outcome, stream: connection.stream, to_up, to_down }));
        return Some(Box::new(MovingConnection { downstream: *downstream, upstream, to: Directive::HandOver }));
    }
    end_filters(&mut downstream, &mut upstream_side.outcome);
    if let Some(reports) = &reports {
        reports.closed(&upstream_side.outcome);
    }
    end(worker, &downstream, (&listener, &proxy), &stats, &upstream_side.outcome);
    None
}

/// Calls the chain's filters, as [`filtered::admit`] does; most of them decide at once.
async fn admit(
    worker: &Rc<Worker>,
    filters: Rc<NetworkFilters>,
    info: &mut Arc<ConnectionInfo>,
) -> Result<Option<Rc<filtered::Connection>>, Close> {
    if !filters.are_immediate() {
        return filtered::admit(worker, filters, info).await;
    }
    if let Err(close) = filtered::admit_at_once(worker, &filters, info) {
        filtered::delay_close(&close).await;
        return Err(close);
    }
    Ok(None)
}

/// Continues a connection that was handed over by another process, or whose hand-over failed.
pub(crate) async fn resume(
    worker: &Rc<Worker>,
    mut downstream: Box<Downstream>,
    (listener, proxy): (Arc<Listener>, Arc<TcpProxy>),
    mut upstream: Box<UpstreamHalf>,
    registration: &Rc<Registration>,
) -> Option<Box<MovingConnection>> {
    let stats = worker.generation().tcp_stats(&proxy.stat_prefix);
    let _counted = Counted::resumed(&stats);
    registration.set_travels(true);
    let UpstreamHalf { outcome, stream, to_up, to_down } = &mut *upstream;
    let from_client = Remainder { buffer: std::mem::take(&mut downstream.input), half: *to_up };
    let from_upstream = Remainder { buffer: std::mem::take(&mut to_down.buffer), half: to_down.half };
    let reports = Reports::of(worker, &downstream.info);
    let mut relay = Relay::resume(&mut downstream.stream, from_client, stream, from_upstream);
    if let Some(reports) = &reports {
        reports.resumed(Relayed { received: relay.upstream_bytes(), sent: relay.downstream_bytes() });
    }
    if run(&mut relay, &proxy, &stats, outcome, registration, reports.as_ref()).await {
        let rest = relay.part();
        (downstream.input, *to_up, *to_down) = (rest.0.buffer, rest.0.half, rest.1);
        return Some(Box::new(MovingConnection {
            downstream: *downstream,
            upstream: Some(upstream),
            to: Directive::HandOver,
        }));
    }
    if let Some(reports) = &reports {
        reports.closed(outcome);
    }
    end(worker, &downstream, (&listener, &proxy), &stats, outcome);
    None
}

/// Ends the connection's filters, and takes over the data that they report about it.
fn end_filters(downstream: &mut Downstream, outcome: &mut Outcome) {
    if let Some(filtered) = downstream.stream.layer::<Filtered>() {
        let connection = Rc::clone(filtered.connection());
        connection.complete();
        connection.leave(&mut downstream.info);
        if let Some(close) = connection.closed() {
            outcome.closed_by(close);
        }
    }
    if let Some(metadata) = &downstream.info.view.metadata {
        outcome.stream.metadata.clone_from(metadata);
    }
}

/// Shows a connection that has ended to all observers. The listener's log lines come before the proxy's own.
fn end(
    worker: &Worker,
    downstream: &Downstream,
    (listener, proxy): (&Listener, &TcpProxy),
    stats: &TcpStats,
    outcome: &Outcome,
) {
    let own = worker.edges.of_client(&downstream.info);
    let logs = listener.access_logs.iter().chain(&proxy.access_logs);
    outcome.record(&downstream.info, |end| {
        observers::show(
            end,
            &mut [
                &mut Counts { stats, counter: outcome.counter },
                &mut Traffic {
                    edges: &worker.edges,
                    client: own.as_deref(),
                    server: outcome.edge.as_deref(),
                    is_request: false,
                },
                &mut Lines { log: &worker.log, logs },
            ],
        );
    });
}

/// The TCP proxy's statistics of ended connections.
struct Counts<'c> {
    stats: &'c TcpStats,
    /// The counter for having no upstream, if the failure has one.
    counter: Option<Counter>,
}

impl Observer for Counts<'_> {
    fn ended(&mut self, end: &Record<'_>) {
        if let Some(counter) = self.counter {
            self.stats.inc(counter);
        }
        self.stats.add(Counter::downstream_cx_rx_bytes_total, end.stream.bytes_received);
        self.stats.add(Counter::downstream_cx_tx_bytes_total, end.stream.bytes_sent);
    }
}

/// Whether the chain's filters admit a connection, as far as they can decide that before there is one.
pub(crate) fn admits(worker: &Rc<Worker>, chain: &Arc<FilterChain>, view: &ConnectionView) -> bool {
    let filters = worker.generation().network_filters(chain);
    filters.are_immediate() && filters.admit(view, &**worker, turn::now().into_std()).1.is_ok()
}

/// Relays until the connection ends, if it has an upstream. `Some`: it is handed over, with this left to do.
async fn relay(
    downstream: &mut Downstream,
    upstream_side: &mut UpstreamSide,
    proxy: &TcpProxy,
    stats: &TcpStats,
    registration: &Registration,
    reports: Option<&Reports>,
) -> Option<(Half, Remainder)> {
    let UpstreamSide { outcome, upstream, input } = upstream_side;
    let (upstream, _) = upstream.as_mut()?;
    registration.set_travels(matches!(downstream.stream, Stream::Tcp(_)) && upstream.travels());
    let (from_client, from_upstream) = (std::mem::take(&mut downstream.input), std::mem::take(input));
    match upstream {
        Upstream::Connection(connection) => {
            let mut relay = Relay::new(&mut downstream.stream, from_client, &mut connection.stream, from_upstream);
            if !run(&mut relay, proxy, stats, outcome, registration, reports).await {
                return None;
            }
            let (to_up, to_down) = relay.part();
            downstream.input = to_up.buffer;
            Some((to_up.half, to_down))
        }
        Upstream::Tunnel(tunnel) => {
            let mut relay = Relay::new(&mut downstream.stream, from_client, &mut **tunnel, from_upstream);
            // The shared connection is not handed over, and neither is a stream of it.
            _ = run(&mut relay, proxy, stats, outcome, registration, reports).await;
            outcome.stream.tunnel_trailers = tunnel.take_trailers();
            None
        }
    }
}

/// Relays until the connection ends, or is to be handed over: `true`.
async fn run<U: End>(
    relay: &mut Relay<'_, U>,
    proxy: &TcpProxy,
    stats: &TcpStats,
    outcome: &mut Outcome,
    registration: &Registration,
    reports: Option<&Reports>,
) -> bool {
    let until = after(outcome.started(), proxy.max_downstream_connection_duration);
    let progress = Cell::default();
    let relayed = relay.run(proxy.idle_timeout, until, registration, &progress);
    let ending = match reports {
        Some(reports) => reports.during(outcome, &progress, relayed).await,
        None => relayed.await,
    };
    (outcome.stream.bytes_received, outcome.stream.bytes_sent) = (relay.upstream_bytes(), relay.downstream_bytes());
    outcome.cut_off = matches!(ending, Ending::Failed | Ending::UpstreamReset | Ending::Cut);
    match ending {
        Ending::Leaves => {
            if let Some(reports) = reports {
                reports.left(outcome);
            }
            return true;
        }
        Ending::Closed | Ending::Failed => {}
        Ending::UpstreamReset => outcome.fail(&Failure::UpstreamReset),
        Ending::Cut => outcome.stream.termination = "connection_cut".into(),
        Ending::Idle => {
            // Envoy has no flag for this.
            stats.inc(Counter::idle_timeout);
        }
        Ending::Expired => {
            stats.inc(Counter::max_downstream_connection_duration);
            outcome.stream.flags |= ResponseFlags::DURATION_TIMEOUT;
        }
    }
    false
}

/// Counts a connection as long as it lives.
struct Counted(Rc<TcpStats>);

impl Counted {
    fn new(stats: &Rc<TcpStats>) -> Self {
        stats.inc(Counter::downstream_cx_total);
        Self::resumed(stats)
    }

    /// A connection that another worker or process has counted in the totals.
    fn resumed(stats: &Rc<TcpStats>) -> Self {
        stats.shift(Gauge::downstream_cx_active, 1);
        Self(Rc::clone(stats))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.shift(Gauge::downstream_cx_active, -1);
    }
}
