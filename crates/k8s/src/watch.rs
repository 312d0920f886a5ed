//! Watches the objects of one selection, and keeps a feed like them.
//!
//! The library lists, watches from there, and lists again when the API server no longer has the changes since. A list replaces
//! everything that the selection had; the feed finds out what has really changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_api::ObjectKey;
use evenkeel_api::istio::MeshConfig;
use evenkeel_api::kubernetes::ConfigMap;
use evenkeel_api::remote::NETWORK_LABEL;
use evenkeel_control::source::feed::ObjectFeed;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::{DynamicResourceScope, PartialObjectMeta};
use kube::runtime::watcher::{self, Config, Event};
use kube::{Client, Error, Resource};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::convert::{Listed, convert};
use crate::localities::Localities;
use crate::reason::reason;
use crate::remote::place::RemotePlace;
use crate::revision::{Declaration, Revisions};
use crate::secret_names::SecretNames;
use crate::watched::{Selection, Use, Watched};

/// How long a failed watch waits at first before it is tried again; it doubles up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_millis(200);
/// See [`MIN_RETRY`].
const MAX_RETRY: Duration = Duration::from_secs(10);
/// How long the API server keeps one request of a watch open, in seconds. A watch without any message for longer is made anew.
const WATCH_SECONDS: u32 = 120;

/// What a watch reports to the one who started it.
#[derive(Debug)]
pub struct Report {
    /// Which watch.
    pub selection: Selection,
    /// Its new state.
    pub state: State,
}

/// The state of a watch.
#[derive(Debug)]
pub enum State {
    /// Everything is listed.
    Synced,
    /// It does not work now, and is tried again.
    Failed(Failure),
}

/// Why a watch does not work now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// RBAC forbids it.
    Forbidden(String),
    /// There is no such kind, or no longer.
    Absent,
    /// Anything else, which passes.
    Passing(String),
}

/// The objects of a selection, where they are put.
#[derive(Debug, Clone)]
pub struct Target {
    /// The feed of all objects.
    pub feed: ObjectFeed,
    /// Where Pods are.
    pub localities: Arc<Mutex<Localities>>,
    /// Which objects are for this control plane.
    pub revisions: Arc<Revisions>,
    /// The namespace of the mesh's settings.
    pub root: Arc<str>,
    /// Which Secrets the objects name.
    pub secret_names: Arc<SecretNames>,
    /// The remote cluster; `None`: the control plane's own.
    pub remote: Option<Arc<RemotePlace>>,
    /// The objects that the selection has put.
    pub held: Arc<Mutex<BTreeSet<ObjectKey>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches until it is dropped.
pub async fn keep(
    client: Client,
    watched: Watched,
    resource: ApiResource,
    target: Target,
    reports: mpsc::Sender<Report>,
) {
    if let Some(remote) = target.remote.as_ref().filter(|_| is_in_network(&watched)) {
        remote.until_network_is_known().await;
    }
    let mut strategy = watcher::InitialListStrategy::StreamingList;
    let mut retry = MIN_RETRY;
    loop {
        let mut events = events(&client, &watched, &resource, strategy.clone());
        let mut listed: Option<Vec<Listed>> = None;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    // A list that only begins may still be refused.
                    if !matches!(event, Event::Init) {
                        retry = MIN_RETRY;
                    }
                    if target.take(&watched, &resource, event, &mut listed) {
                        _ = reports.send(watched.report(State::Synced)).await;
                    }
                }
                // Servers before 1.34 may not have these lists, nor those with an etcd that does not report progress.
                Err(error)
                    if strategy == watcher::InitialListStrategy::StreamingList && is_unsupported_list(&error) =>
                {
                    tracing::debug!(kind = %watched.selection, "the API server does not stream lists");
                    strategy = watcher::InitialListStrategy::ListWatch;
                    break;
                }
                Err(error) => {
                    let failure = failure(&error);
                    let is_forbidden = matches!(failure, Some(Failure::Forbidden(_)));
                    if let Some(failure) = failure {
                        _ = reports.send(watched.report(State::Failed(failure))).await;
                    }
                    tokio::time::sleep(retry).await;
                    retry = (retry * 2).min(MAX_RETRY);
                    // A watch that may go on says nothing of it. A new one lists everything, which shows that it is allowed again.
                    if is_forbidden {
                        break;
                    }
                }
            }
        }
    }
}

/// Whether the objects get the network of their cluster.
fn is_in_network(watched: &Watched) -> bool {
    let kinds = [evenkeel_api::Kind::Pod, evenkeel_api::Kind::EndpointSlice];
    watched.purpose == Use::Object && kinds.iter().any(|kind| kind.as_str() == watched.selection.kind)
}

impl Watched {
    fn report(&self, state: State) -> Report {
        Report { selection: self.selection.clone(), state }
    }
}

/// The events of a selection; metadata only where that is enough.
fn events(
    client: &Client,
    watched: &Watched,
    resource: &ApiResource,
    strategy: watcher::InitialListStrategy,
) -> BoxStream<'static, watcher::Result<Event<Listed>>> {
    let mut config = Config::default().timeout(WATCH_SECONDS);
    config.initial_list_strategy = strategy;
    config.field_selector.clone_from(&watched.selection.fields);
    let namespace = watched.selection.namespace.as_deref();
    if watched.metadata_only {
        let api: Api<PartialObjectMeta<DynamicObject>> = api(client, resource, namespace);
        let listed = |object: PartialObjectMeta<DynamicObject>| Listed { metadata: object.metadata, data: Value::Null };
        watcher::watcher(api, config).map_ok(move |event| map(event, listed)).boxed()
    } else {
        let api: Api<DynamicObject> = api(client, resource, namespace);
        let listed = |object: DynamicObject| Listed { metadata: object.metadata, data: object.data };
        watcher::watcher(api, config).map_ok(move |event| map(event, listed)).boxed()
    }
}

fn api<K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>>(
    client: &Client,
    resource: &ApiResource,
    namespace: Option<&str>,
) -> Api<K> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

fn map<K, L>(event: Event<K>, of: impl FnOnce(K) -> L) -> Event<L> {
    match event {
        Event::Apply(object) => Event::Apply(of(object)),
        Event::Delete(object) => Event::Delete(of(object)),
        Event::InitApply(object) => Event::InitApply(of(object)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}

impl Target {
    /// Takes over an event. Returns whether everything is listed now.
    fn take(
        &self,
        watched: &Watched,
        resource: &ApiResource,
        event: Event<Listed>,
        listed: &mut Option<Vec<Listed>>,
    ) -> bool {
        match event {
            Event::Init => *listed = Some(Vec::new()),
            Event::InitApply(object) => listed.get_or_insert_default().push(object),
            Event::InitDone => {
                self.replace(watched.purpose, resource, listed.take().unwrap_or_default());
                return true;
            }
            Event::Apply(object) => _ = self.put(watched.purpose, resource, object),
            Event::Delete(object) => self.remove(watched.purpose, resource, object),
        }
        false
    }

    /// Replaces everything that the selection had.
    fn replace(&self, purpose: Use, resource: &ApiResource, listed: Vec<Listed>) {
        let names = || listed.iter().filter_map(|object| object.metadata.name.clone()).collect();
        match purpose {
            Use::Locality => lock(&self.localities).retain_nodes(&names()),
            Use::Tag => self.revisions.retain_webhooks(&names(), &self.feed),
            Use::Network if !listed.iter().any(|object| object.metadata.name.as_deref() == Some(&*self.root)) => {
                self.set_network(None);
            }
            Use::Object | Use::Roots | Use::Network | Use::Settings(_) => {}
        }
        let keys: BTreeSet<ObjectKey> =
            listed.into_iter().filter_map(|object| self.put(purpose, resource, object)).collect();
        let removed: Vec<ObjectKey> = lock(&self.held).difference(&keys).cloned().collect();
        removed.iter().for_each(|key| self.remove_key(key));
        if let Some(remote) = self.remote.as_ref().filter(|_| purpose == Use::Network) {
            remote.network_is_known();
        }
    }

    /// Puts an object. Returns its key, if it is an object of the configuration.
    fn put(&self, purpose: Use, resource: &ApiResource, mut listed: Listed) -> Option<ObjectKey> {
        match purpose {
            Use::Locality => {
                let labels = listed.metadata.labels.unwrap_or_default();
                lock(&self.localities).node(&listed.metadata.name.unwrap_or_default(), &labels, &self.feed);
                return None;
            }
            Use::Tag => {
                let declaration = Declaration::Webhook(listed.metadata.name.unwrap_or_default());
                self.revisions.declare(declaration, listed.metadata.labels.as_ref(), &self.feed);
                return None;
            }
            Use::Network => {
                if listed.metadata.name.as_deref() == Some(&*self.root) {
                    self.set_network(listed.metadata.labels.as_ref());
                }
                return None;
            }
            Use::Roots if !keep_roots(&mut listed.data) => {
                self.remove(purpose, resource, listed);
                return None;
            }
            Use::Object | Use::Roots | Use::Settings(_) => {}
        }
        let labels = listed.metadata.labels.clone();
        let (mut json, created) = convert(&resource.api_version, &resource.kind, listed);
        // Held until the Pod is put: its Node must not move in between, nor its cluster into another network.
        let is_pod = resource.group.is_empty() && resource.kind == evenkeel_api::Kind::Pod.as_str();
        let mut localities = is_pod.then(|| lock(&self.localities));
        let placed = match &self.remote {
            Some(remote) => Some(remote.place(&mut json)?),
            None => None,
        };
        let key = match &placed {
            Some(placed) => placed.key.clone(),
            None => ObjectKey::of_json(&json)?,
        };
        if let Use::Settings(layer) = purpose {
            json["metadata"]["annotations"][MeshConfig::SETTINGS_ANNOTATION] = layer.as_str().into();
        }
        if let Some(service) = self.tag_service(&key) {
            self.revisions.declare(service, labels.as_ref(), &self.feed);
        }
        if let Some(localities) = &mut localities {
            localities.place(&key, &mut json);
        }
        lock(&self.held).insert(key.clone());
        self.secret_names.note(&key, &json);
        if let Some(json) = self.revisions.put(&key, json, created, &self.feed) {
            self.feed.put(json, created);
        }
        Some(key)
    }

    /// Takes over the labels of a remote cluster's root namespace, which say which network it is in.
    fn set_network(&self, labels: Option<&BTreeMap<String, String>>) {
        if let Some(remote) = &self.remote {
            // Both change labels of Pods.
            let _localities = lock(&self.localities);
            remote.set_network(labels.and_then(|labels| labels.get(NETWORK_LABEL)), &self.feed);
        }
    }

    /// The Service as what may declare a tag of a revision, if it is in the namespace for that.
    fn tag_service(&self, key: &ObjectKey) -> Option<Declaration> {
        let may_declare =
            self.revisions.selects() && key.kind == evenkeel_api::Kind::Service && key.namespace == self.root;
        may_declare.then(|| Declaration::Service(key.name.to_string()))
    }

    fn remove(&self, purpose: Use, resource: &ApiResource, listed: Listed) {
        if purpose == Use::Tag {
            let declaration = Declaration::Webhook(listed.metadata.name.unwrap_or_default());
            self.revisions.declare(declaration, None, &self.feed);
            return;
        }
        if purpose == Use::Network {
            if listed.metadata.name.as_deref() == Some(&*self.root) {
                self.set_network(None);
            }
            return;
        }
        let (json, _) = convert(&resource.api_version, &resource.kind, listed);
        // Another selection may have the same object.
        let is_own = |key: &ObjectKey| purpose != Use::Roots || lock(&self.held).contains(key);
        let key = ObjectKey::of_json(&json).map(|own| match &self.remote {
            Some(remote) => remote.key(own),
            None => own,
        });
        if let Some(key) = key.filter(|key| purpose != Use::Locality && is_own(key)) {
            self.remove_key(&key);
        }
    }

    fn remove_key(&self, key: &ObjectKey) {
        if key.kind == evenkeel_api::Kind::Pod {
            lock(&self.localities).forget(key);
        }
        if let Some(service) = self.tag_service(key) {
            self.revisions.declare(service, None, &self.feed);
        }
        lock(&self.held).remove(key);
        if let Some(remote) = &self.remote {
            remote.forget(key);
        }
        self.secret_names.forget(key);
        self.revisions.remove(key);
        self.feed.remove(key);
    }

    /// Removes what the selection had and none of the others has.
    pub fn hand_over(&self, others: &[&Self]) {
        let held = std::mem::take(&mut *lock(&self.held));
        let is_others = |key: &ObjectKey| others.iter().any(|other| lock(&other.held).contains(key));
        held.iter().filter(|key| !is_others(key)).for_each(|key| self.remove_key(key));
    }

    /// Removes everything that the selection had.
    pub fn clear(&self) {
        let removed = std::mem::take(&mut *lock(&self.held));
        removed.iter().for_each(|key| self.remove_key(key));
    }
}

/// Leaves nothing of a ConfigMap but its certificates; returns whether it has any. One with settings is of another selection.
fn keep_roots(data: &mut Value) -> bool {
    let is_settings = data.get("data").is_some_and(|data| data.get(MeshConfig::KEY).is_some());
    let maps = ["data", "binaryData"].map(|field| data.get(field).and_then(|map| map.get(ConfigMap::ROOTS)).cloned());
    let roots = ["data", "binaryData"].into_iter().zip(maps).filter_map(|(field, roots)| Some((field, roots?)));
    let reduced: serde_json::Map<String, Value> =
        roots.map(|(field, roots)| (field.to_owned(), serde_json::json!({ (ConfigMap::ROOTS): roots }))).collect();
    let has_roots = !reduced.is_empty() && !is_settings;
    *data = reduced.into();
    has_roots
}

/// Whether a server refuses the way of listing.
fn is_unsupported_list(error: &watcher::Error) -> bool {
    let code = match error {
        watcher::Error::WatchStartFailed(Error::Api(status)) => status.code,
        watcher::Error::WatchError(status) => status.code,
        _ => return false,
    };
    matches!(code, 400 | 422 | 500)
}

/// What an error says; `None`: the changes since the last one are gone, and everything is listed again.
pub fn failure(error: &watcher::Error) -> Option<Failure> {
    let status = match error {
        watcher::Error::InitialListFailed(Error::Api(status))
        | watcher::Error::WatchStartFailed(Error::Api(status)) => Some(status),
        watcher::Error::WatchError(status) => Some(status),
        _ => None,
    };
    match status.map(|status| status.code) {
        Some(403) => Some(Failure::Forbidden(status.map(|status| status.message.clone()).unwrap_or_default())),
        Some(404) => Some(Failure::Absent),
        Some(410) => None,
        _ => Some(Failure::Passing(reason(error))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_config_maps_only_certificates_are_kept() {
        let check = |data: Value, expected: Option<Value>| {
            let mut reduced = data.clone();
            let has_roots = keep_roots(&mut reduced);
            assert_eq!(has_roots.then_some(reduced), expected, "{data}");
        };
        let roots = json!({"data": {"ca.crt": "x"}});
        check(roots.clone(), Some(roots.clone()));
        check(
            json!({"data": {"ca.crt": "x", "other": "y"}, "binaryData": {"z": "eA=="}, "immutable": true}),
            Some(roots),
        );
        let binary = json!({"binaryData": {"ca.crt": "eA=="}});
        check(binary.clone(), Some(binary));
        check(json!({"data": {"other": "y"}}), None);
        check(json!({"data": {"ca.crt": "x", "mesh": ""}}), None);
        check(json!({}), None);
        check(Value::Null, None);
    }
}
