//! Serves a connection from accept to its end: original destination, logical listener, filter chain, terminal filter; and
//! its moves to other workers and processes.

use std::future::ready;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_filters::network::Close;
use evenkeel_filters::{ConnectionInfo, NetworkFilters};
use evenkeel_runtime_config::listener::{Listener, Terminal};
use evenkeel_runtime_config::{Config, HttpConnectionManager};
use evenkeel_upstream::turn;
use tokio::net::TcpStream;

use super::adopt::{self, Adopted};
use super::connection::{Arrival, Counted, Downstream, Placement, Resumed, Terminating};
use super::establish::establish;
use super::moving::{self, Moved};
use super::original_dst::original_destination;
use super::{filtered, log};
use crate::balance::WorkerSlot;
use crate::stats::{listener, worker as worker_stats};
use crate::worker::{Delivery, Directive, HoldError, Registration, Worker};
use crate::{http, tcp};

/// Both ends of a connection to a Unix socket, where addresses of IP are expected.
pub(super) const UNNAMED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A connection being served by a filter chain.
struct Served<'w> {
    terminating: Terminating<'w>,
    placement: Placement,
    counted: Counted,
}

/// An accepted connection on its way to its worker.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) stream: std::net::TcpStream,
    pub(super) peer: SocketAddr,
    /// The listener that accepted it.
    pub(super) bound: Arc<Listener>,
    pub(super) slot: WorkerSlot,
}

impl Delivery for Accepted {
    fn serve(self: Box<Self>, worker: &Rc<Worker>) {
        serve(worker, *self);
    }
}

impl Delivery for Moved {
    fn serve(self: Box<Self>, worker: &Rc<Worker>) {
        worker.stats.inc(worker_stats::Counter::downstream_cx_moved_in);
        let registration = worker.register(self.listener_name());
        resume(worker, registration, move |worker| self.unpack(worker));
    }
}

impl Delivery for Adopted {
    fn serve(self: Box<Self>, worker: &Rc<Worker>) {
        let id = worker.next_id();
        let registration = worker.register(&self.listener_name(worker).unwrap_or_default());
        resume(worker, registration, move |worker| self.unpack(worker, id));
    }
}

/// Serves a newly accepted connection in a new task.
pub(super) fn serve(worker: &Rc<Worker>, connection: Accepted) {
    worker.stats.inc(worker_stats::Counter::downstream_cx_total);
    let id = worker.next_id();
    let (of, registration) = (Rc::clone(worker), worker.register(&connection.bound.name));
    let entry = Rc::clone(&registration);
    worker.start(&entry, async move {
        if let Some(mut served) = Box::pin(accepted(&of, connection, id, &registration)).await {
            served.serve_to_end(&of, &registration).await;
        }
    });
}

/// Continues a connection with a known filter chain in a new task.
fn resume<F>(worker: &Rc<Worker>, registration: Rc<Registration>, unpack: F)
where
    F: FnOnce(&Rc<Worker>) -> Option<Resumed> + 'static,
{
    let (of, entry) = (Rc::clone(worker), Rc::clone(&registration));
    worker.start(&entry, async move {
        let Some(Resumed { downstream, arrival, placement, counted }) = unpack(&of) else { return };
        let mut served = Served::new(&of, downstream, arrival, (placement, counted), &registration);
        served.serve_to_end(&of, &registration).await;
    });
}

/// Establishes a newly accepted connection up to its filter chain. Box this future: it is large, and it completes
/// before the long part of the connection's life begins.
async fn accepted<'w>(
    worker: &'w Rc<Worker>,
    accepted: Accepted,
    id: u64,
    registration: &'w Rc<Registration>,
) -> Option<Served<'w>> {
    let Destination { address: destination, direct, redirected } = destination(&accepted)?;
    let Accepted { stream, peer, bound, slot } = accepted;
    let logical = if redirected && bound.use_original_dst {
        listener_of_destination(worker, &bound, destination).await
    } else {
        None
    };
    let placement = Placement { slot: Some(slot), bound, logical };
    let counted = Counted::new(worker, &placement);
    let stream = TcpStream::from_std(stream).ok()?;
    let listener = Arc::clone(placement.listener());
    let mut info = ConnectionInfo::new(id, counted.since.into_std(), peer, destination);
    info.direct_local = direct;
    info.listener = Some(Arc::clone(&listener));
    let (downstream, upstream_side) = establish(worker, stream, info, listener, &counted).await?;
    worker.edges.accepted(&downstream.info, turn::now());
    Some(Served::new(worker, downstream, Arrival::New(upstream_side), (placement, counted), registration))
}

/// The listener for an original destination. If it has not been requested from the control plane yet, this waits for
/// the answer.
async fn listener_of_destination(worker: &Worker, bound: &Listener, destination: SocketAddr) -> Option<Arc<Listener>> {
    let missing = |config: &Config| config.unanswered_listeners(destination);
    let generation = worker.generation();
    if generation.shared.config.by_name && !missing(&generation.shared.config).is_empty() {
        let stats = generation.connection_stats(&bound.address);
        stats.listener.inc(listener::Counter::on_demand_attempt);
        let held = Box::pin(worker.hold(missing)).await;
        let found = worker.generation().shared.listener_of_destination(destination).is_some();
        stats.listener.inc(match held {
            Ok(()) if found => listener::Counter::on_demand_success,
            Ok(()) => listener::Counter::on_demand_missing,
            Err(HoldError::TimedOut) => listener::Counter::on_demand_timeout,
            Err(HoldError::Overflow) => listener::Counter::on_demand_overflow,
        });
    }
    let found = worker.generation().shared.listener_of_destination(destination).cloned();
    found.inspect(|listener| listener.mark_used())
}

impl<'w> Served<'w> {
    fn new(
        worker: &'w Rc<Worker>,
        downstream: Downstream,
        arrival: Arrival,
        (placement, counted): (Placement, Counted),
        registration: &'w Rc<Registration>,
    ) -> Self {
        Self { terminating: terminal(worker, downstream, arrival, &placement, registration), placement, counted }
    }

    /// Serves the connection until it ends or has moved to another worker or process.
    async fn serve_to_end(&mut self, worker: &'w Rc<Worker>, registration: &'w Rc<Registration>) {
        while let Some(moving) = self.terminating.as_mut().await {
            let back = match moving.to {
                Directive::MoveTo(to, cause) => moving::send(worker, (to, cause), moving, &mut self.placement),
                _ => Box::pin(adopt::send(worker, moving, &mut self.placement)).await,
            };
            let Some(back) = back else {
                self.counted.moved_away = true;
                return;
            };
            registration.forget_order();
            self.terminating =
                terminal(worker, back.downstream, Arrival::Back(back.upstream), &self.placement, registration);
        }
    }
}

/// Passes a connection to the terminal filter of its filter chain.
fn terminal<'w>(
    worker: &'w Rc<Worker>,
    downstream: Downstream,
    arrival: Arrival,
    placement: &Placement,
    registration: &'w Rc<Registration>,
) -> Terminating<'w> {
    let listener = placement.listener();
    let Some(chain) = downstream.info.chain.clone() else { return Box::pin(ready(None)) };
    registration.served_by(&chain, listener.direction);
    if let Some(limit) = worker.overload.request_limit(&listener.name) {
        registration.limit_requests(limit);
    }
    let filters = worker.generation().network_filters(&chain);
    match &chain.terminal {
        Terminal::Http(hcm) => {
            let hcm = Arc::clone(hcm);
            http_terminal(worker, downstream, (Arc::clone(listener), hcm, filters), registration)
        }
        Terminal::Tcp(proxy) => {
            let configured = (Arc::clone(listener), Arc::clone(proxy));
            let downstream = Box::new(downstream);
            match arrival {
                Arrival::New(upstream_side) => {
                    Box::pin(tcp::serve(worker, downstream, configured, (filters, upstream_side), registration))
                }
                Arrival::Back(None) => {
                    Box::pin(tcp::serve(worker, downstream, configured, (filters, None), registration))
                }
                Arrival::Back(Some(upstream_half)) => {
                    Box::pin(tcp::resume(worker, downstream, configured, upstream_half, registration))
                }
            }
        }
    }
}

/// Passes a connection to its HTTP connection manager, if its network filters admit it.
fn http_terminal<'w>(
    worker: &'w Rc<Worker>,
    mut downstream: Downstream,
    (listener, hcm, filters): (Arc<Listener>, Arc<HttpConnectionManager>, Rc<NetworkFilters>),
    registration: &'w Rc<Registration>,
) -> Terminating<'w> {
    if downstream.resumed || filters.is_empty() {
        return http::serve(worker, downstream, hcm, registration);
    }
    if !filters.are_immediate() {
        return Box::pin(async move {
            match filtered::admit(worker, filters, &mut downstream.info).await {
                Ok(connection) => http::serve(worker, downstream.filtered(connection), hcm, registration).await,
                Err(close) => {
                    close_refused(worker, &listener, &downstream, &close);
                    None
                }
            }
        });
    }
    match filtered::admit_at_once(worker, &filters, &mut downstream.info) {
        Ok(()) => http::serve(worker, downstream, hcm, registration),
        Err(close) => Box::pin(async move {
            filtered::delay_close(&close).await;
            close_refused(worker, &listener, &downstream, &close);
            None
        }),
    }
}

fn close_refused(worker: &Worker, listener: &Listener, downstream: &Downstream, close: &Close) {
    if close.reset {
        downstream.stream.reset_on_close();
    }
    log::refused(worker, listener, &downstream.info, close);
}

/// The address the client connected to.
struct Destination {
    address: SocketAddr,
    /// The socket's own.
    direct: SocketAddr,
    /// Whether a redirect changed it.
    redirected: bool,
}

fn destination(accepted: &Accepted) -> Option<Destination> {
    if accepted.bound.address.socket().is_none() {
        return Some(Destination { address: UNNAMED, direct: UNNAMED, redirected: false });
    }
    let local = accepted.stream.local_addr().ok()?;
    let original =
        if accepted.bound.listener_filters.original_dst { original_destination(&accepted.stream, local) } else { None };
    let redirected = original.is_some_and(|original| original != local);
    Some(Destination { address: original.unwrap_or(local), direct: local, redirected })
}
