//! A connection on its way from one process to the next: made up into a parcel there, served by the listener and filter chain
//! of the same address here.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::listener::{ChainInput, Terminal};
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_upstream::conn::Buffer;
use evenkeel_upstream::stream::{Portable, Stream};
use tokio::time::Instant;

use super::serve::{Arrival, Counted, Downstream, Leaving, Placement, Served};
use super::socket::ListenerKey;
use crate::balance::Seat;
use crate::handover::{Parcel, Travelling};
use crate::tcp::UpstreamHalf;
use crate::worker::{Registration, Worker};

/// Gives a connection to the process that takes over. Gives it back when that process is gone.
pub(super) async fn send(
    worker: &Rc<Worker>,
    leaving: Box<Leaving>,
    placement: &mut Placement,
) -> Option<Box<Leaving>> {
    let successor = worker.successor.borrow().clone();
    let room = match &successor {
        Some(successor) => successor.reserve().await.ok(),
        None => None,
    };
    let Some(room) = room else {
        // Nobody is there: the others need not try.
        worker.give_away(None);
        return Some(leaving);
    };
    // What cannot be taken apart is lost, and closed by that.
    if let Ok(parcel) = parcel(*leaving, placement) {
        room.send(parcel);
    }
    // Only now does it stop counting: when none is left, all have been sent.
    placement.seat = None;
    None
}

fn parcel(leaving: Leaving, placement: &Placement) -> io::Result<Parcel> {
    let Leaving { downstream, upstream, .. } = leaving;
    let Downstream { stream, input, view, since, requests, .. } = downstream;
    let listener = ListenerKey::of(&placement.bound);
    let inspects = placement.listener().listener_filters.inspects_http(view.local.port());
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
    let travelling = Travelling {
        listener: listener.address,
        listener_name: listener.name().map(str::to_owned),
        direct_remote: view.direct_remote,
        remote: view.remote,
        local: view.local,
        age_ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
        requests,
        detected: (inspects && tcp.is_none()).then(|| "http/1.1".to_owned()),
        tcp,
    };
    Ok(Parcel { travelling: Box::new(travelling), fds, bytes })
}

fn descriptor(stream: Stream) -> io::Result<OwnedFd> {
    match stream.into_portable()? {
        Portable::Tcp(stream) => Ok(stream.into()),
        Portable::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Goes on with a connection where the other process left off; `None` when no filter chain here takes it, which closes it in
/// order: it is between two messages, or a stream that nobody configures any more.
pub(crate) fn adopted<'w>(
    worker: &'w Rc<Worker>,
    parcel: Parcel,
    seat: Seat,
    id: u64,
    registration: &'w Rc<Registration>,
) -> Option<Served<'w>> {
    let Parcel { travelling, fds, bytes } = parcel;
    let mut streams = fds.into_iter().map(TcpStream::from);
    let stream = streams.next()?;
    let placement = placement(worker, &travelling, &stream, seat)?;
    let detected: Vec<&str> = travelling.detected.as_deref().into_iter().collect();
    let input = ChainInput {
        destination: travelling.local,
        source: travelling.remote,
        direct_source: travelling.direct_remote,
        server_name: None,
        transport_protocol: "raw_buffer",
        application_protocols: &detected,
    };
    let chain = Arc::clone(placement.listener().find_filter_chain(&input)?);
    let same_kind = match &chain.terminal {
        Terminal::Http(_) => travelling.tcp.is_none(),
        Terminal::Tcp(_) => travelling.tcp.is_some(),
    };
    // Filters that follow a connection have to know it from its beginning.
    if chain.tls.is_some() || !same_kind || worker.generation().network_filters(worker, &chain).follow() {
        return None;
    }
    let since = before(travelling.age());
    let from_client = travelling.tcp.as_ref().map_or(bytes.len(), |tcp| tcp.to_upstream.held);
    let (from_client, from_upstream) = bytes.split_at_checked(from_client)?;
    let upstream_half = match &travelling.tcp {
        None => None,
        Some(part) => {
            let upstream = Portable::Tcp(streams.next()?).into_stream().ok()?;
            Some(Box::new(UpstreamHalf::unpack(part, upstream, Buffer::with(from_upstream), since)))
        }
    };
    let counted = Counted::moved(worker, &placement, since);
    let view = ConnectionView {
        direct_remote: travelling.direct_remote,
        ..ConnectionView::plaintext(travelling.remote, travelling.local)
    };
    let downstream = Downstream {
        stream: Portable::Tcp(stream).into_stream().ok()?,
        input: Buffer::with(from_client),
        peer_text: view.remote.ip().to_canonical().to_string().into(),
        view,
        chain,
        id,
        since,
        requests: travelling.requests,
        idle_since: None,
        resumed: true,
    };
    Some(Served::new(worker, downstream, Arrival::Back(upstream_half), (placement, counted), registration))
}

/// The name of the listener that takes it, as far as it has one here.
pub(crate) fn taken_by(worker: &Worker, parcel: &Parcel) -> Option<Arc<str>> {
    let Travelling { listener, listener_name, .. } = &*parcel.travelling;
    let key = ListenerKey::new(*listener, listener_name.as_deref());
    worker.generation().shared.bound.get(&key).map(|bound| Arc::clone(&bound.name))
}

/// The listeners of this process's configuration that the other one's are the same as.
fn placement(worker: &Worker, travelling: &Travelling, stream: &TcpStream, mut seat: Seat) -> Option<Placement> {
    let generation = worker.generation();
    let key = ListenerKey::new(travelling.listener, travelling.listener_name.as_deref());
    let bound = generation.shared.bound.get(&key)?.clone();
    let redirected = stream.local_addr().ok()? != travelling.local;
    let logical = match redirected && bound.use_original_dst {
        true => generation.shared.listener_of_destination(travelling.local).cloned(),
        false => None,
    };
    seat.admit(worker.overload.admit_anyway(&bound.name));
    Some(Placement { seat: Some(seat), bound, logical })
}

/// The moment so long ago; as early as the clock goes, for one before its beginning.
fn before(age: Duration) -> Instant {
    let now = Instant::now();
    now.checked_sub(age).unwrap_or(now)
}
