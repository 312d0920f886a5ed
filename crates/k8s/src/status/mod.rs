//! Statuses of objects, written into the objects by the leader among the control planes of a revision.
//!
//! ```text
//!  configuration ──► StatusQueue (what each object's status is now) ──► StatusWriter, while it leads:
//!                     read the object ─► document: is anything different? ─► server-side apply, or an Event
//! ```

mod document;
mod events;
pub mod gateway_api;
mod queue;
mod resources;
mod supported_version;

use std::time::{Duration, Instant};

use evenkeel_api::gateway_api::GROUP;
use evenkeel_base::ObjectRef;
use evenkeel_model::{GatewayApiStatus, Status};
use futures_util::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::lease::Leadership;
use crate::ownership::Ownership;
pub use queue::StatusQueue;
use queue::{Outcome, Pending};
use resources::{Resource, Resources};

/// How long statuses are collected before they are written: a change of one object often changes others.
const BATCH_TIME: Duration = Duration::from_millis(300);
/// How long a status waits that could not be written.
const RETRY_TIME: Duration = Duration::from_secs(2);
/// Maximum number of statuses that are written at a time.
const MAX_WRITES: usize = 8;
/// How long the API server may take for one object.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often the writer looks whether it still leads.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// What the groups of Istio's kinds end with.
const ISTIO: &str = ".istio.io";

/// Writes the statuses of a queue while this process leads.
pub struct StatusWriter {
    client: Client,
    queue: StatusQueue,
    leadership: Leadership,
    resources: Resources,
    /// The field manager: of another name for each revision.
    manager: String,
    ownership: Ownership,
}

impl std::fmt::Debug for StatusWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StatusWriter").field("manager", &self.manager).finish_non_exhaustive()
    }
}

impl StatusWriter {
    /// Creates a writer that applies as the field manager `manager` while `leadership` says so, to what the revision answers for.
    pub fn new(queue: StatusQueue, leadership: Leadership, manager: &str, ownership: Ownership) -> Self {
        let client = ownership.client().clone();
        let resources = Resources::new(client.clone());
        Self { client, queue, leadership, resources, manager: manager.to_owned(), ownership }
    }

    /// Writes for ever.
    pub async fn run(mut self) {
        loop {
            self.leadership.begins().await;
            // What the last leader has written is found there: only what differs is written.
            self.queue.all_pending();
            while self.leadership.leads(Instant::now()) {
                tokio::select! {
                    () = self.queue.pending() => {}
                    () = tokio::time::sleep(LOOK_INTERVAL) => continue,
                }
                tokio::time::sleep(BATCH_TIME).await;
                self.write_all(self.queue.take()).await;
            }
        }
    }

    async fn write_all(&self, all: Vec<Pending>) {
        let one = async |pending: Pending| {
            let outcome = match tokio::time::timeout(TIMEOUT, self.write(&pending.object, &pending.status)).await {
                Ok(outcome) => outcome,
                Err(_) => Outcome::Retry,
            };
            (pending.object, outcome)
        };
        let outcomes: Vec<_> = futures_util::stream::iter(all).map(one).buffer_unordered(MAX_WRITES).collect().await;
        if self.queue.note(outcomes) {
            tokio::time::sleep(RETRY_TIME).await;
        }
    }

    async fn write(&self, object: &ObjectRef, status: &Status) -> Outcome {
        if !self.leadership.leads(Instant::now()) {
            return Outcome::Retry;
        }
        let written = match self.resources.find(object).await {
            Ok(Some(resource)) => self.write_to(&resource, object, status).await,
            // Its kind has been removed.
            Ok(None) => return Outcome::Gone,
            Err(error) => Err(error),
        };
        match written {
            Ok(outcome) => outcome,
            Err(error) => failed(object, &error),
        }
    }

    async fn write_to(&self, resource: &Resource, object: &ObjectRef, status: &Status) -> Result<Outcome, kube::Error> {
        let api: Api<DynamicObject> = match &*object.namespace {
            "" => Api::all_with(self.client.clone(), &resource.api),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource.api),
        };
        let Some(current) = api.get_opt(&object.name).await? else { return Ok(Outcome::Gone) };
        if !self.ownership.is_own(&current.metadata).await? {
            // Another revision writes it.
            return Ok(Outcome::Done);
        }
        // The status of a later generation comes by itself; an older one must not take its place.
        if status.observed_generation.zip(current.metadata.generation).is_some_and(|(own, now)| own < now) {
            return Ok(Outcome::Done);
        }
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let before = current.data.get("status");
        let document = match object.group {
            GROUP => self.gateway_api(&current, status, &now).await?,
            group if group.ends_with(ISTIO) && resource.has_status => document::istio(before, status, &now),
            // The status of a Service or a Pod is Kubernetes' own.
            _ => {
                events::report(&self.client, &self.manager, &current, resource, status).await?;
                return Ok(Outcome::Done);
            }
        };
        let Some(document) = document else { return Ok(Outcome::Done) };
        let patch = json!({
            "apiVersion": resource.api.api_version,
            "kind": resource.api.kind,
            // If anybody writes in between, the API server refuses this, and their conditions are read anew.
            "metadata": {"name": &*object.name, "resourceVersion": current.metadata.resource_version},
            "status": document,
        });
        let parameters = PatchParams::apply(&self.manager).force();
        api.patch_status(&object.name, &parameters, &Patch::Apply(patch)).await?;
        Ok(Outcome::Done)
    }

    /// The status of an object of the Gateway API. One that is not served here any more has none of ours.
    async fn gateway_api(
        &self,
        current: &DynamicObject,
        status: &Status,
        now: &str,
    ) -> Result<Option<Value>, kube::Error> {
        let before = current.data.get("status");
        let stamp = gateway_api::Stamp { generation: status.observed_generation, now: Some(now) };
        match status.gateway_api.as_deref() {
            Some(GatewayApiStatus::Class(class)) => {
                let mut class = class.clone();
                class.conditions.push(supported_version::condition(&self.client).await?);
                Ok(gateway_api::document(before, &GatewayApiStatus::Class(class), stamp))
            }
            Some(status) => Ok(gateway_api::document(before, status, stamp)),
            None => {
                let managers = current.metadata.managed_fields.iter().flatten();
                let mut own = managers.filter(|of| of.manager.as_deref() == Some(&self.manager));
                Ok(own.any(|of| of.subresource.as_deref() == Some("status")).then(|| json!({})))
            }
        }
    }
}

fn failed(object: &ObjectRef, error: &kube::Error) -> Outcome {
    match error {
        kube::Error::Api(status) if status.is_conflict() => Outcome::Retry,
        kube::Error::Api(status) if status.is_not_found() => Outcome::Gone,
        kube::Error::Api(status) if status.code == 403 => {
            tracing::warn!(%object, reason = status.message, "the control plane may not write this status");
            Outcome::Refused
        }
        kube::Error::Api(status) if matches!(status.code, 400 | 413 | 422) => {
            tracing::error!(%object, reason = status.message, "the API server refuses this status");
            Outcome::Refused
        }
        error => {
            tracing::debug!(%object, %error, "a status is written later");
            Outcome::Retry
        }
    }
}
