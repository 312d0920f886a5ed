//! Writes objects to an API server, many at a time, and forgets none that failed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_k8s::client::ClusterOptions;
use evenkeel_k8s::cluster::{Cluster, ClusterError};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::error::LabError;

/// The field manager of the lab's objects.
const MANAGER: &str = "evenkeel-lab";
/// Requests at a time; an API server does no more with more.
const REQUESTS: usize = 32;

/// What is to be done to an object.
#[derive(Debug, Clone, Copy)]
enum Action {
    Store,
    Delete,
}

struct Job {
    action: Action,
    object: Value,
    /// The job of the same object before it.
    before: Option<oneshot::Receiver<()>>,
    done: oneshot::Sender<()>,
}

/// The writer. Its thread ends with this value.
#[derive(Debug)]
pub struct Writer {
    jobs: mpsc::UnboundedSender<Job>,
    /// The last job of each object: a later one waits for it.
    last: Mutex<HashMap<String, oneshot::Receiver<()>>>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    open: AtomicUsize,
    failure: Mutex<Option<String>>,
}

impl State {
    fn fail(&self, error: &dyn std::fmt::Display) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| error.to_string());
    }
}

impl Writer {
    /// Starts a thread that writes to the cluster.
    ///
    /// # Errors
    /// There are no more threads.
    pub fn start(options: ClusterOptions) -> Result<Self, LabError> {
        let (jobs, queue) = mpsc::unbounded_channel();
        let state = Arc::new(State::default());
        let own = state.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(LabError::io("starting the writer"))?;
        let work = move || runtime.block_on(write_all(&options, queue, own));
        std::thread::Builder::new()
            .name("writer".to_owned())
            .spawn(work)
            .map_err(LabError::io("starting the writer"))?;
        Ok(Self { jobs, last: Mutex::default(), state })
    }

    /// Stores objects; it does not wait for the API server.
    pub fn store(&self, objects: Vec<Value>) {
        self.put(Action::Store, objects);
    }

    /// Deletes objects; it does not wait for the API server.
    pub fn delete(&self, objects: Vec<Value>) {
        self.put(Action::Delete, objects);
    }

    fn put(&self, action: Action, objects: Vec<Value>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        for object in objects {
            let (done, ended) = oneshot::channel();
            let before = last.insert(key(&object), ended);
            self.state.open.fetch_add(1, Ordering::Relaxed);
            // The thread ends after this value only.
            _ = self.jobs.send(Job { action, object, before, done });
        }
    }

    /// Writes that have not ended.
    pub fn open(&self) -> usize {
        self.state.open.load(Ordering::Relaxed)
    }

    /// Returns the first failure.
    pub fn check(&self) -> Result<(), LabError> {
        match &*self.state.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(failure) => Err(LabError::Usage(format!("writing to the API server: {failure}"))),
            None => Ok(()),
        }
    }
}

/// Names an object among all.
fn key(object: &Value) -> String {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    format!("{}/{}/{}", text("/kind"), text("/metadata/namespace"), text("/metadata/name"))
}

async fn write_all(options: &ClusterOptions, mut queue: mpsc::UnboundedReceiver<Job>, state: Arc<State>) {
    // A client works on the event loop that it was made on.
    let cluster = match Cluster::of(options).await {
        Ok(cluster) => cluster,
        Err(error) => return state.fail(&error),
    };
    let places = Arc::new(Semaphore::new(REQUESTS));
    while let Some(job) = queue.recv().await {
        let (cluster, state, places) = (cluster.clone(), state.clone(), places.clone());
        tokio::spawn(async move {
            if let Some(before) = job.before {
                // An error means that it has ended, too.
                _ = before.await;
            }
            // The semaphore is never closed.
            let _place = places.acquire().await;
            if let Err(error) = write(&cluster, job.action, &job.object).await {
                state.fail(&error);
            }
            state.open.fetch_sub(1, Ordering::Relaxed);
            _ = job.done.send(());
        });
    }
}

async fn write(cluster: &Cluster, action: Action, object: &Value) -> Result<(), ClusterError> {
    match action {
        Action::Store => cluster.store(object, MANAGER).await,
        Action::Delete => cluster.delete(object).await.map(drop),
    }
}
