//! The supervisor's side of `evenkeel exec`: hands out a replica's namespaces.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::exec::{Reply, Request, answer, read_request};
use crate::mesh::Replicas;
use crate::replica::Replica;

/// How long a caller may take to say what it wants.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Answers requests, one after the other, until aborted. The socket lies in a directory only its owner may enter.
pub async fn serve(socket: PathBuf, replicas: watch::Receiver<Replicas>) -> io::Result<()> {
    let listener = UnixListener::bind(&socket)?;
    loop {
        let (stream, _) = listener.accept().await?;
        if let Err(error) = serve_one(stream, &replicas).await {
            tracing::debug!(%error, "an exec request was not answered");
        }
    }
}

async fn serve_one(mut stream: UnixStream, replicas: &watch::Receiver<Replicas>) -> io::Result<()> {
    let request = tokio::time::timeout(REQUEST_TIMEOUT, read_request(&mut stream)).await??;
    let present = replicas.borrow().clone();
    match find(&present, &request) {
        Ok(replica) => {
            let (environment, directory) = replica.surroundings.clone();
            answer(stream, &Reply::Replica { environment, directory }, Some(&replica.namespace)).await
        }
        Err(reason) => answer(stream, &Reply::Refused(reason), None).await,
    }
}

/// A pod of that name, or the first one of a workload of that name; in the namespace given, or in the only one that has it.
fn find(replicas: &Replicas, request: &Request) -> Result<Arc<Replica>, String> {
    let named = |replica: &&Arc<Replica>| [&replica.pod.name, &replica.pod.workload].contains(&&request.workload);
    let in_namespace =
        |replica: &&Arc<Replica>| request.namespace.as_ref().is_none_or(|name| *name == replica.pod.namespace);
    let mut found = replicas.values().filter(named).filter(in_namespace);
    let Some(first) = found.next() else {
        let mut known: Vec<String> =
            replicas.values().map(|replica| format!("{} ({})", replica.pod.workload, replica.pod.namespace)).collect();
        known.dedup();
        let place = request.namespace.as_ref().map(|name| format!(" in namespace {name}")).unwrap_or_default();
        return Err(format!("no workload {}{place}; running: {}", request.workload, known.join(", ")));
    };
    match found.find(|other| other.pod.namespace != first.pod.namespace) {
        Some(other) => Err(format!(
            "{} runs in the namespaces {} and {}; say which: --namespace NAME",
            request.workload, first.pod.namespace, other.pod.namespace
        )),
        None => Ok(first.clone()),
    }
}
