//! Notices of changes of a folder's values.

use std::io::{self, ErrorKind};
use std::time::Duration;

use evenkeel_store::{Changed, Watch};
use futures_util::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::objects::{KEY, folder_selector};
use super::worker::Worker;

/// How long the first list may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A change of Secrets or ConfigMaps.
enum Notice {
    /// The value of this key was put, touched or removed.
    Key(Option<String>),
    /// Everything is listed.
    Listed,
}

/// Ends the watch.
struct Watching(AbortHandle);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) fn start(
    worker: &Worker,
    client: Client,
    namespace: &str,
    folder: &str,
    changed: Box<dyn Fn(Changed<'_>) + Send + Sync>,
) -> io::Result<Watch> {
    let config = watcher::Config::default().labels(&folder_selector(folder));
    // Of values only the keys are of interest here.
    let secrets: Api<PartialObjectMeta<Secret>> = Api::namespaced(client.clone(), namespace);
    let maps: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(client, namespace);
    let (secrets, maps) = (notices(watcher(secrets, config.clone())), notices(watcher(maps, config)));
    let prefix = format!("{folder}/");
    let (listed, both_listed) = oneshot::channel();
    let task = worker.spawn(async move {
        let mut notices = stream::select(secrets, maps);
        let (mut lists, mut listed) = (0, Some(listed));
        while let Some(notice) = notices.next().await {
            match notice {
                Notice::Key(Some(key)) => {
                    if let Some(name) = key.strip_prefix(&prefix) {
                        changed(Changed::Name(name));
                    }
                }
                Notice::Key(None) => {}
                Notice::Listed => {
                    lists += 1;
                    match listed.take_if(|_| lists == 2) {
                        Some(listed) => _ = listed.send(()),
                        // The connection was lost, and changes may be missing.
                        None if lists > 2 => changed(Changed::Any),
                        None => {}
                    }
                }
            }
        }
    });
    let watching = Watching(task.abort_handle());
    match worker.call(async move { tokio::time::timeout(TIMEOUT, both_listed).await })? {
        Ok(Ok(())) => Ok(Watch::new(watching)),
        _ => Err(io::Error::new(ErrorKind::TimedOut, format!("the folder `{folder}` cannot be watched"))),
    }
}

fn notices<K>(
    events: impl Stream<Item = Result<Event<PartialObjectMeta<K>>, watcher::Error>> + Send + 'static,
) -> impl Stream<Item = Notice> + Send + Unpin
where
    K: Send + 'static,
{
    let notice = |event: Result<Event<PartialObjectMeta<K>>, watcher::Error>| async move {
        match event {
            Ok(Event::Apply(object) | Event::Delete(object)) => {
                Some(Notice::Key(object.metadata.annotations.and_then(|mut all| all.remove(KEY))))
            }
            Ok(Event::InitDone) => Some(Notice::Listed),
            Ok(Event::Init | Event::InitApply(_)) => None,
            Err(error) => {
                tracing::debug!(%error, "a watch of stored values is begun again");
                // The watcher tries again at once; the API server may be down.
                tokio::time::sleep(Duration::from_secs(1)).await;
                None
            }
        }
    };
    Box::pin(events.filter_map(notice))
}
