//! The supervisor's side of `evenkeel exec`, `logs` and `restart`: finds the matching replicas, and hands out their
//! containers' namespaces.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::replica::match_name;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::exec::{ContainerName, Failing, Purpose, ReplicaInfo, Reply, Request, answer, read_request};
use crate::pods::LastExit;
use crate::replica::{Replica, Replicas};

/// How long a client may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of waiting orders.
const MAX_WAITING_ORDERS: usize = 16;
/// How long a request to settle waits for gateways; who wants to wait longer asks again.
const GATEWAY_WAIT: Duration = Duration::from_secs(1);
/// Pause between two looks at the gateways.
const GATEWAY_PAUSE: Duration = Duration::from_millis(10);
/// Pause after an accept that failed for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Workloads whose replicas are to be replaced, as (namespace, name).
#[derive(Debug)]
pub struct Restart {
    /// The workloads.
    pub workloads: BTreeSet<(String, String)>,
    /// Receives the outcome.
    pub done: oneshot::Sender<Result<(), String>>,
}

/// What the mesh is to do.
#[derive(Debug)]
pub enum Order {
    /// Replace replicas.
    Restart(Restart),
    /// Follow the files as they are now; receives the gateways, as (namespace, name), that have ports on this machine.
    Settle(oneshot::Sender<BTreeSet<(String, String)>>),
}

/// A channel for orders.
pub fn orders() -> (mpsc::Sender<Order>, mpsc::Receiver<Order>) {
    mpsc::channel(MAX_WAITING_ORDERS)
}

/// Answers requests until aborted. The socket is in a directory that only its owner may enter.
pub async fn serve(
    socket: PathBuf,
    replicas: watch::Receiver<Replicas>,
    orders: mpsc::Sender<Order>,
) -> io::Result<()> {
    let listener = UnixListener::bind(&socket)?;
    loop {
        let mut stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a request");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(Ok(request)) = tokio::time::timeout(REQUEST_TIMEOUT, read_request(&mut stream)).await else { continue };
        let (replicas, orders) = (replicas.clone(), orders.clone());
        // Other requests must not wait for a restart.
        tokio::spawn(async move {
            let answered = match request.purpose {
                Purpose::Settle => answer(stream, &settle(&replicas, &orders).await, None).await,
                purpose => {
                    let meant = matching_replicas(&replicas.borrow().clone(), &request);
                    serve_one(stream, (purpose, request.container), meant, orders).await
                }
            };
            if let Err(error) = answered {
                tracing::debug!(%error, "a request was not answered");
            }
        });
    }
}

/// Has the files followed, then waits for the gateways.
async fn settle(replicas: &watch::Receiver<Replicas>, orders: &mpsc::Sender<Order>) -> Reply {
    let stopping = || Reply::Refused("the mesh is stopping".to_owned());
    let (done, waited) = oneshot::channel();
    if orders.send(Order::Settle(done)).await.is_err() {
        return stopping();
    }
    let Ok(gateways) = waited.await else { return stopping() };
    let end = Instant::now() + GATEWAY_WAIT;
    loop {
        let ready: BTreeSet<(String, String)> = {
            let (present, now) = (replicas.borrow(), Instant::now());
            // One that keeps ending is a fault of its own.
            let ready = present.values().filter(|replica| replica.is_ready() || !replica.failing(now).is_empty());
            ready.map(|replica| (replica.pod.namespace.clone(), replica.pod.workload.clone())).collect()
        };
        let waiting: Vec<String> =
            gateways.difference(&ready).map(|(namespace, name)| format!("{namespace}/{name}")).collect();
        if waiting.is_empty() || Instant::now() >= end {
            return Reply::Settled(waiting);
        }
        tokio::time::sleep(GATEWAY_PAUSE).await;
    }
}

async fn serve_one(
    stream: UnixStream,
    (purpose, container): (Purpose, ContainerName),
    meant: Result<Vec<Arc<Replica>>, String>,
    orders: mpsc::Sender<Order>,
) -> io::Result<()> {
    let found = match meant {
        Ok(found) => found,
        Err(reason) => return answer(stream, &Reply::Refused(reason), None).await,
    };
    match (purpose, found.first()) {
        (Purpose::Enter, Some(replica)) => {
            let (container, surroundings) = match container {
                ContainerName::Application => (&replica.containers.program, &replica.surroundings.program),
                ContainerName::Proxy => (&replica.containers.proxy, &replica.surroundings.proxy),
            };
            let (environment, directory) = surroundings.clone();
            answer(
                stream,
                &Reply::Replica { environment, directory, privileges: container.privileges },
                Some(container),
            )
            .await
        }
        (Purpose::Restart, Some(_)) => answer(stream, &restart(&found, &orders).await, None).await,
        (Purpose::List | Purpose::Settle, _) | (_, None) => {
            let now = Instant::now();
            let named = |replica: &Arc<Replica>| ReplicaInfo {
                namespace: replica.pod.namespace.clone(),
                workload: replica.pod.workload.clone(),
                pod: replica.pod.name.clone(),
                failing: replica.failing(now).into_iter().map(|part| failing(part, now)).collect(),
            };
            answer(stream, &Reply::Replicas(found.iter().map(named).collect()), None).await
        }
    }
}

fn failing(part: LastExit, now: Instant) -> Failing {
    let seconds_ago = now.saturating_duration_since(part.end.at).as_secs();
    let LastExit { part, restarts, runs, end } = part;
    Failing { part: part.to_owned(), runs, restarts, last_end: end.reason, seconds_ago }
}

async fn restart(found: &[Arc<Replica>], orders: &mpsc::Sender<Order>) -> Reply {
    let key = |replica: &Arc<Replica>| (replica.pod.namespace.clone(), replica.pod.workload.clone());
    let workloads: BTreeSet<(String, String)> = found.iter().map(key).collect();
    let names = workloads.iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
    let (done, waited) = oneshot::channel();
    if orders.send(Order::Restart(Restart { workloads, done })).await.is_err() {
        return Reply::Refused("the mesh is stopping".to_owned());
    }
    match waited.await {
        Ok(Ok(())) => Reply::Restarted(names),
        Ok(Err(reason)) => Reply::Refused(reason),
        Err(_) => Reply::Refused("the mesh is stopping".to_owned()),
    }
}

/// The replicas that match a name best, in the given namespace or in the only one that has any; all replicas for an
/// empty name.
fn matching_replicas(replicas: &Replicas, request: &Request) -> Result<Vec<Arc<Replica>>, String> {
    let in_namespace =
        |replica: &&Arc<Replica>| request.namespace.as_ref().is_none_or(|name| *name == replica.pod.namespace);
    let candidates = || replicas.values().filter(in_namespace);
    if request.workload.is_empty() && request.purpose == Purpose::List {
        return Ok(candidates().cloned().collect());
    }
    let fits = |replica: &Arc<Replica>| {
        let pod = &replica.pod;
        match_name(&request.workload, &pod.name, &pod.namespace, &pod.workload)
    };
    let best = candidates().filter_map(fits).max();
    let found: Vec<Arc<Replica>> = candidates().filter(|r| best.is_some() && fits(r) == best).cloned().collect();
    let Some(first) = found.first() else {
        let mut known: Vec<String> =
            replicas.values().map(|replica| format!("{} ({})", replica.pod.workload, replica.pod.namespace)).collect();
        known.dedup();
        let place = request.namespace.as_ref().map(|name| format!(" in namespace {name}")).unwrap_or_default();
        return Err(format!("no workload {}{place}; running: {}", request.workload, known.join(", ")));
    };
    let names = |of: fn(&Replica) -> &String| found.iter().map(|r| of(r).as_str()).collect::<BTreeSet<_>>();
    let (namespaces, workloads) = (names(|r| &r.pod.namespace), names(|r| &r.pod.workload));
    let list = |names: &BTreeSet<&str>| names.iter().copied().collect::<Vec<_>>().join(" and ");
    if namespaces.len() > 1 {
        let known = list(&namespaces);
        return Err(format!("{} runs in the namespaces {known}; say which: --namespace NAME", request.workload));
    }
    if workloads.len() > 1 {
        return Err(format!("{} may be {}; say which", request.workload, list(&workloads)));
    }
    // All are replicas of one workload in the order of their names; some callers use the first one.
    debug_assert!(found.iter().all(|replica| replica.pod.workload == first.pod.workload));
    Ok(found)
}
