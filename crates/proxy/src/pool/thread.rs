//! A worker's thread: its runtime, its inbox, and its housekeeping.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::address::ListenAddress;
use evenkeel_runtime_config::{FastMap, Listener};
use evenkeel_upstream::conn::{burst, deadline, hangup};
use evenkeel_upstream::turn;
use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::MissedTickBehavior;

use crate::listener::accept::accept;
use crate::listener::socket::ListenerKey;
use crate::memory;
use crate::udp;
use crate::worker::{Message, Seed, Worker};

/// Interval of housekeeping: flushing logs, sweeping idle upstream connections, closing drained connections whose time
/// is up.
const HOUSEKEEPING: Duration = evenkeel_upstream::SWEEP_INTERVAL;

/// Starts a worker's thread.
pub(super) fn spawn(seed: Seed, inbox: mpsc::Receiver<Message>) -> io::Result<std::thread::JoinHandle<()>> {
    let (started, start) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(format!("worker-{}", seed.index)).spawn(move || {
        // A runtime for non-`Send` tasks has to be built on its own thread.
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.on_thread_unpark(burst::worker_woke);
        match builder.enable_io().enable_time().build_local(LocalOptions::default()) {
            Ok(runtime) => {
                _ = started.send(Ok(()));
                runtime.block_on(run(seed, inbox));
            }
            Err(error) => _ = started.send(Err(error)),
        }
    })?;
    start.recv().unwrap_or_else(|_| Err(io::Error::other("the worker's thread ended at once")))?;
    Ok(thread)
}

async fn run(seed: Seed, mut inbox: mpsc::Receiver<Message>) {
    let worker = Worker::new(seed);
    let housekeeping = spawn_local(housekeeping(Rc::clone(&worker)));
    spawn_local(burst::run());
    spawn_local(hangup::run());
    let mut accepting: FastMap<ListenerKey, Vec<oneshot::Sender<Option<Arc<Listener>>>>> = FastMap::default();
    while let Some(message) = inbox.recv().await {
        match message {
            Message::Configure(generation) => worker.configure(generation),
            Message::Listen(listener, socket) => {
                let (stop, stopped) = oneshot::channel();
                accepting.entry(listener.clone()).or_default().push(stop);
                if let ListenAddress::Datagram(_) = listener.address {
                    turn::spawn(udp::serve(Rc::clone(&worker), listener, socket, stopped));
                } else {
                    spawn_local(accept(Rc::clone(&worker), listener, OwnedFd::from(socket).into(), stopped));
                }
            }
            Message::Unlisten(listener) => {
                // A configuration without it may be the next message.
                let bound = worker.generation().shared.bound.get(&listener).cloned();
                accepting.remove(&listener).into_iter().flatten().for_each(|stop| _ = stop.send(bound.clone()));
            }
            Message::Release(listener) => _ = accepting.remove(&listener),
            Message::GiveAway(to) => worker.hand_over_connections(to),
            Message::Clusters(answer) => _ = answer.send(worker.upstreams.snapshot()),
            Message::Cluster(name, answer) => _ = answer.send(worker.upstreams.snapshot_of(&name)),
            Message::RecentRequests(answer) => _ = answer.send(worker.recent.kept()),
            Message::Deliver(delivery) => delivery.serve(&worker),
            Message::LoadTransfer(shed) => worker.shed(&shed),
            Message::Level(level) => worker.level(&level),
            Message::Drain(scope) => worker.drain(scope),
            Message::Stop => break,
        }
    }
    housekeeping.abort();
    worker.end_connections().await;
    tokio::join!(worker.reporters.finish(&*worker), worker.end_logs());
    worker.upstreams.close_idle();
    worker.log.borrow_mut().flush();
}

/// Runs the housekeeping once a second.
async fn housekeeping(worker: Rc<Worker>) {
    let mut ticks = tokio::time::interval(HOUSEKEEPING);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut shrinks = worker.overload.shrinks();
    loop {
        let now = ticks.tick().await;
        deadline::tick(now);
        hangup::tick();
        worker.log.borrow_mut().tick(now.into_std());
        worker.reporters.tick(now.into_std(), &*worker);
        worker.upstreams.sweep(now);
        worker.publish_memory();
        worker.tap.end_without_reader(now.into_std());
        evenkeel_upstream::h2::trim();
        memory::collect_if_asked();
        if std::mem::replace(&mut shrinks, worker.overload.shrinks()) != worker.overload.shrinks() {
            worker.upstreams.close_idle();
            memory::collect();
        }
        worker.generation().forget_unused();
        worker.cut_expired(now);
    }
}
