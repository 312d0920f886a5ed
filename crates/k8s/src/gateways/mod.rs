//! Gateways are deployed from Gateway objects, as by Istio: a Deployment, a Service and a service account for each, applied by the
//! leader among the control planes of a revision.
//!
//! ```text
//!  Gateways, their classes and parameters ──► blueprint (objects) ──► with parameters ──► reconcile: server-side apply of what is
//!  ListenerSets, what was deployed (if somebody changes it)                                ours, deletion of what is ours no more
//! ```
//!
//! What is deployed belongs to its Gateway (`ownerReferences`): Kubernetes deletes it with the Gateway.

mod listener_sets;
mod objects;
mod parameters;
mod reconcile;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_api::gateway_api::GROUP;
use futures_util::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::json;

use crate::lease::Leadership;
use crate::reason::reason;
use crate::status::StatusQueue;
pub use objects::GATEWAY_NAME;
use reconcile::{CLASS_DEFAULTS, Reconciler};

/// The field manager of what is deployed, and of the condition of Gateways that says so.
pub const MANAGER: &str = "evenkeel-gateways";
/// How often it is looked whether this process still leads.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How soon a Gateway is tried again that could not be deployed, and the kinds that are not served.
const RETRY: Duration = Duration::from_secs(10);
/// How long the watches pause after an error of one of them. The library pauses all of them together, and that of a kind which is not
/// served fails each time.
const PAUSE: Duration = Duration::from_secs(1);

/// Pauses of the same length.
struct Pauses;

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(PAUSE)
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {}
}
/// The classes that istiod creates, and ours.
const CLASSES: [&str; 2] = ["istio", "evenkeel"];

/// Whose Gateways are deployed.
#[derive(Debug, Clone)]
pub struct DeploymentOptions {
    /// The namespace with the parameters of classes.
    pub root: String,
    /// The revision of this control plane: `default`, or a name.
    pub revision: String,
}

/// Deploys Gateways while this process leads.
pub struct GatewayDeployments {
    client: Client,
    leadership: Leadership,
    options: DeploymentOptions,
    statuses: StatusQueue,
}

impl fmt::Debug for GatewayDeployments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayDeployments").field("options", &self.options).finish_non_exhaustive()
    }
}

impl GatewayDeployments {
    /// Creates the controller. `statuses`: where those of Gateways are written from, which follow what becomes of their deployment.
    pub fn new(client: Client, leadership: Leadership, options: DeploymentOptions, statuses: StatusQueue) -> Self {
        Self { client, leadership, options, statuses }
    }

    /// Deploys for ever.
    pub async fn run(mut self) {
        loop {
            self.leadership.begins().await;
            tokio::select! {
                () = self.lead() => {}
                () = ends(&self.leadership) => {}
            }
        }
    }

    async fn lead(&self) {
        let (gateways, classes) = (kind("Gateway"), kind("GatewayClass"));
        // The definitions of the kinds may come later.
        while let Err(error) = self.all(&gateways).list_metadata(&ListParams::default().limit(1)).await {
            tracing::debug!(reason = reason(&error), "Gateways are not deployed: they cannot be read");
            tokio::time::sleep(RETRY).await;
        }
        self.create_classes(&classes).await;
        let ours = || watcher::Config::default().labels(GATEWAY_NAME);
        let controller = Controller::new_with(self.all(&gateways), watcher::Config::default(), gateways.clone());
        let (store, again) = (controller.store(), gateways.clone());
        let everything = move || all_of(&store, &again);
        let for_class = everything.clone();
        // A ListenerSet may have had another parent, which only Gateways that take some can be.
        let (sets, open) = (kind("ListenerSet"), controller.store());
        let for_sets = move || listener_sets::gateways_with_some(&open, &kind("Gateway"));
        let defaults = Api::<ConfigMap>::namespaced(self.client.clone(), &self.options.root);
        let reconciler = Reconciler::new(self.client.clone(), self.options.clone(), self.statuses.clone());
        controller
            .trigger_backoff(Pauses)
            .owns(Api::<Deployment>::all(self.client.clone()), ours())
            .owns(Api::<Service>::all(self.client.clone()), ours())
            .owns(Api::<ServiceAccount>::all(self.client.clone()), ours())
            .owns(Api::<HorizontalPodAutoscaler>::all(self.client.clone()), ours())
            .owns(Api::<PodDisruptionBudget>::all(self.client.clone()), ours())
            .watches_with(self.all(&sets), sets, watcher::Config::default(), move |_| for_sets())
            .watches_with(self.all(&classes), classes, watcher::Config::default(), move |_| for_class())
            .watches(defaults, watcher::Config::default().labels(CLASS_DEFAULTS), move |_| everything())
            .run(
                |gateway, reconciler| async move { reconciler.reconcile(&gateway).await },
                |gateway, error, _| {
                    let gateway = gateway.metadata.name.as_deref();
                    tracing::warn!(gateway, reason = reason(error), "the Gateway is deployed later");
                    Action::requeue(RETRY)
                },
                Arc::new(reconciler),
            )
            .for_each(|_| std::future::ready(()))
            .await;
    }

    fn all(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), resource)
    }

    /// Creates the classes that need no object, for those who look for one.
    async fn create_classes(&self, resource: &ApiResource) {
        for name in CLASSES {
            let Some(controller) = evenkeel_api::gateway_api::GatewayClass::built_in(name) else { continue };
            let class = DynamicObject::new(name, resource).data(json!({
                "spec": {"controllerName": controller, "description": "Gateways of Evenkeel, deployed for each object"},
            }));
            match self
                .all(resource)
                .create(&PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }, &class)
                .await
            {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                Err(error) => tracing::warn!(name, reason = reason(&error), "the GatewayClass is not created"),
            }
        }
    }
}

fn kind(name: &str) -> ApiResource {
    let plural = match name {
        "GatewayClass" => "gatewayclasses",
        "ListenerSet" => "listenersets",
        _ => "gateways",
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1", name), plural)
}

/// All Gateways that are known.
fn all_of(store: &Store<DynamicObject>, resource: &ApiResource) -> Vec<ObjectRef<DynamicObject>> {
    store.state().iter().map(|gateway| ObjectRef::from_obj_with(&**gateway, resource.clone())).collect()
}

/// Completes when this process does not lead any more.
async fn ends(leadership: &Leadership) {
    while leadership.leads(Instant::now()) {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}
