//! Hands connections from one process to the next: packed into a parcel by the predecessor, and served by the listener
//! and filter chain with the same address in the successor.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_filters::Hello;
use evenkeel_runtime_config::filter_chain_match::ChainInput;
use evenkeel_runtime_config::listener::Terminal;
use evenkeel_upstream::conn::Buffer;
use evenkeel_upstream::stream::{Portable, Stream};
use tokio::time::Instant;

use super::connection::{Arrival, Counted, Downstream, MovingConnection, Placement, Resumed};
use super::socket::ListenerKey;
use crate::balance::WorkerSlot;
use crate::handover::{Facts, PackedConnection, Parcel};
use crate::tcp::UpstreamHalf;
use crate::worker::Worker;

/// Hands a connection over to the successor. Returns it when the successor is gone.
pub(super) async fn send(
    worker: &Rc<Worker>,
    moving: Box<MovingConnection>,
    placement: &mut Placement,
) -> Option<Box<MovingConnection>> {
    let successor = worker.successor.borrow().clone();
    let room = match &successor {
        Some(successor) => successor.reserve().await.ok(),
        None => None,
    };
    let Some(room) = room else {
        // The successor is gone: other connections need not try.
        worker.hand_over_connections(None);
        return Some(moving);
    };
    // A connection that cannot be packed is lost: dropping it closes it.
    if let Ok(parcel) = parcel(*moving, placement) {
        room.send(parcel);
    }
    // It stops being counted only now: when the count is zero, all connections have been sent.
    placement.slot = None;
    None
}

fn parcel(moving: MovingConnection, placement: &Placement) -> io::Result<Parcel> {
    let MovingConnection { downstream, upstream, .. } = moving;
    let Downstream { stream, input, info, requests, .. } = downstream;
    let listener = ListenerKey::of(&placement.bound);
    let inspects = placement.listener().listener_filters.inspects_http(info.view.local.port());
    let mut bytes = input.bytes().to_vec();
    let mut fds = vec![descriptor(stream)?];
    let tcp = match upstream {
        None => None,
        Some(upstream_half) => {
            let (part, stream, from_upstream) = upstream_half.pack(bytes.len());
            bytes.extend_from_slice(from_upstream.bytes());
            fds.push(descriptor(stream)?);
            Some(part)
        }
    };
    let packed = PackedConnection {
        listener: (&listener).into(),
        connection: Facts::of(&info),
        requests,
        detected: (inspects && tcp.is_none()).then(|| "http/1.1".to_owned()),
        tcp,
    };
    Ok(Parcel { packed: Box::new(packed), fds, bytes })
}

fn descriptor(stream: Stream) -> io::Result<OwnedFd> {
    match stream.into_portable()? {
        Portable::Tcp(stream) => Ok(stream.into()),
        Portable::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// A connection taken over from the predecessor, on its way to a worker.
#[derive(Debug)]
pub(crate) struct Adopted {
    parcel: Parcel,
    slot: WorkerSlot,
}

impl Adopted {
    /// The worker is the one of `slot`.
    pub(crate) fn new(parcel: Parcel, slot: WorkerSlot) -> Self {
        Self { parcel, slot }
    }

    /// The name of the listener that accepts it here, if there is one.
    pub(super) fn listener_name(&self, worker: &Worker) -> Option<Arc<str>> {
        let key = ListenerKey::from(&self.parcel.packed.listener);
        worker.generation().shared.bound.get(&key).map(|bound| Arc::clone(&bound.name))
    }

    /// Continues the connection where the predecessor left off. `None` when no filter chain here matches, which closes
    /// the connection cleanly: it is between two messages, or a TCP stream that is no longer configured.
    pub(super) fn unpack(self, worker: &Rc<Worker>, id: u64) -> Option<Resumed> {
        let Self { parcel: Parcel { packed, fds, bytes }, slot } = self;
        let mut streams = fds.into_iter().map(TcpStream::from);
        let stream = streams.next()?;
        let placement = placement(worker, &packed, &stream, slot)?;
        let detected: Vec<&str> = packed.detected.as_deref().into_iter().collect();
        let mut info = packed.connection.info(id);
        let input = ChainInput {
            destination: info.view.local,
            source: info.view.remote,
            direct_source: info.view.direct_remote,
            server_name: info.view.server_name.as_deref(),
            transport_protocol: if info.view.server_name.is_some() { "tls" } else { "raw_buffer" },
            application_protocols: &detected,
        };
        let chain = Arc::clone(placement.listener().find_filter_chain(&input)?);
        let same_kind = match &chain.terminal {
            Terminal::Http(_) => packed.tcp.is_none(),
            Terminal::Tcp(_) => packed.tcp.is_some(),
        };
        // Filters that follow a connection's data need to see it from the beginning.
        if chain.tls.is_some() || !same_kind || worker.generation().network_filters(&chain).follow_this(&info.view) {
            return None;
        }
        info.hello = if packed.detected.is_some() { Hello::Http("http/1.1") } else { Hello::Other };
        info.listener = Some(Arc::clone(placement.listener()));
        info.chain = Some(chain);
        let since = Instant::from_std(info.accepted);
        let from_client = packed.tcp.as_ref().map_or(bytes.len(), |tcp| tcp.to_upstream.held);
        let (from_client, from_upstream) = bytes.split_at_checked(from_client)?;
        let upstream_half = match &packed.tcp {
            None => None,
            Some(part) => {
                let upstream = Portable::Tcp(streams.next()?).into_stream().ok()?;
                Some(Box::new(UpstreamHalf::unpack(part, upstream, Buffer::with(from_upstream), since)))
            }
        };
        let counted = Counted::moved(worker, &placement, since);
        let downstream = Downstream {
            stream: Portable::Tcp(stream).into_stream().ok()?,
            input: Buffer::with(from_client),
            info: Arc::new(info),
            requests: packed.requests,
            idle_since: None,
            resumed: true,
        };
        Some(Resumed { downstream, arrival: Arrival::Back(upstream_half), placement, counted })
    }
}

/// The listeners of this process that correspond to those of the predecessor.
fn placement(
    worker: &Worker,
    packed: &PackedConnection,
    stream: &TcpStream,
    mut slot: WorkerSlot,
) -> Option<Placement> {
    let generation = worker.generation();
    let key = ListenerKey::from(&packed.listener);
    let bound = generation.shared.bound.get(&key)?.clone();
    let is_tcp = bound.address.socket().is_some();
    let redirected = is_tcp && stream.local_addr().ok()? != packed.connection.local;
    let logical = if redirected && bound.use_original_dst {
        generation.shared.listener_of_destination(packed.connection.local).cloned()
    } else {
        None
    };
    slot.admit(worker.overload.admit_anyway((&bound.name, bound.ignore_global_conn_limit)));
    Some(Placement { slot: Some(slot), bound, logical })
}
