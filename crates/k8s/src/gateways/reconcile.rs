//! Makes what is deployed for a Gateway what it should be, and says on the Gateway if that is not possible.

use std::time::Duration;

use evenkeel_api::gateway_api::{GROUP, GatewayClass};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, ObjectMeta, Patch, PatchParams,
};
use kube::runtime::controller::Action;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::listener_sets;
use super::objects::{Blueprint, GATEWAY_NAME, is_deployed};
use super::parameters::{self, Overlays};
use super::{DeploymentOptions, MANAGER};
use crate::deployed::{DEPLOYED, INVALID_PARAMETERS};
use crate::ownership::Ownership;
use crate::status::StatusQueue;

/// Istio's label of a ConfigMap with the parameters of a class: the class.
pub(super) const CLASS_DEFAULTS: &str = "gateway.istio.io/defaults-for-class";
/// How soon the parameters of a Gateway are read again: they are in any ConfigMap of its namespace, which are not watched.
const PARAMETERS_INTERVAL: Duration = Duration::from_secs(30);
/// What is deployed.
const KINDS: [DeployedKind; 5] = [
    DeployedKind { group: "", version: "v1", kind: "ServiceAccount" },
    DeployedKind { group: "", version: "v1", kind: "Service" },
    DEPLOYMENT,
    DeployedKind { group: "autoscaling", version: "v2", kind: "HorizontalPodAutoscaler" },
    DeployedKind { group: "policy", version: "v1", kind: "PodDisruptionBudget" },
];
const DEPLOYMENT: DeployedKind = DeployedKind { group: "apps", version: "v1", kind: "Deployment" };

/// A kind of what is deployed.
#[derive(Debug, Clone, Copy)]
struct DeployedKind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
}

/// Deploys one Gateway at a time.
pub(super) struct Reconciler {
    client: Client,
    options: DeploymentOptions,
    ownership: Ownership,
    statuses: StatusQueue,
}

/// What is said on a Gateway about its deployment.
enum Report {
    /// Nothing: it is not deployed here.
    Nothing,
    /// It is deployed.
    Deployed,
    /// It is not, or not as a whole.
    Refused(Refusal),
}

/// Why a Gateway is not deployed, or not as a whole.
struct Refusal {
    reason: &'static str,
    message: String,
}

impl Reconciler {
    pub(super) fn new(client: Client, options: DeploymentOptions, statuses: StatusQueue) -> Self {
        let ownership = Ownership::new(client.clone(), &options.revision);
        Self { client, options, ownership, statuses }
    }

    /// Deploys a Gateway, or removes what was deployed for it.
    pub(super) async fn reconcile(&self, gateway: &DynamicObject) -> Result<Action, kube::Error> {
        let spec = gateway.data.get("spec").unwrap_or(&Value::Null);
        if gateway.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let Some(controller) = self.controller(spec).await?.filter(|name| GatewayClass::is_ours(name)) else {
            return self.leave(gateway).await;
        };
        if !self.ownership.is_own(&gateway.metadata).await? {
            // Another control plane deploys it, and takes over what is there.
            return Ok(Action::await_change());
        }
        let blueprint = Blueprint::of(gateway, &controller, &self.options.revision);
        let Some(mut blueprint) = blueprint.filter(|_| is_deployed(spec)) else { return self.leave(gateway).await };
        blueprint.add_listeners(listener_sets::listeners(&self.client, gateway).await?);
        let refusal = self.deploy(gateway, &blueprint).await?;
        self.report(gateway, refusal.map_or(Report::Deployed, Report::Refused)).await?;
        let has_parameters = !spec["infrastructure"]["parametersRef"].is_null();
        Ok(if has_parameters { Action::requeue(PARAMETERS_INTERVAL) } else { Action::await_change() })
    }

    /// Removes what was deployed for a Gateway that is not deployed any more.
    async fn leave(&self, gateway: &DynamicObject) -> Result<Action, kube::Error> {
        self.prune(gateway, &[]).await?;
        self.report(gateway, Report::Nothing).await?;
        Ok(Action::await_change())
    }

    /// Applies what is ours. Returns what is in the way.
    async fn deploy(&self, gateway: &DynamicObject, blueprint: &Blueprint) -> Result<Option<Refusal>, kube::Error> {
        let overlays = match self.overlays(gateway).await? {
            Ok(overlays) => overlays,
            Err(message) => return Ok(Some(Refusal { reason: INVALID_PARAMETERS, message })),
        };
        let deployments = self.api(DEPLOYMENT, &blueprint.namespace);
        let existing = deployments.get_opt(&blueprint.name).await?.filter(|object| is_owned(object, gateway));
        let selector = existing.as_ref().and_then(|object| object.data.pointer("/spec/selector/matchLabels"));
        let objects = match parameters::objects(blueprint, &overlays, selector.and_then(Value::as_object)) {
            Ok(objects) => objects,
            Err(message) => return Ok(Some(Refusal { reason: INVALID_PARAMETERS, message })),
        };
        let mut refusal = None;
        for object in &objects {
            refusal = self.apply(gateway, object).await?.or(refusal);
        }
        self.prune(gateway, &objects).await?;
        Ok(refusal)
    }

    /// Applies an object, unless there is one that is not ours.
    async fn apply(&self, gateway: &DynamicObject, object: &Value) -> Result<Option<Refusal>, kube::Error> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (kind, name) = (text("/kind"), text("/metadata/name"));
        let Some(of_kind) = KINDS.into_iter().find(|own| own.kind == kind) else { return Ok(None) };
        let api = self.api(of_kind, text("/metadata/namespace"));
        let mut patch = object.clone();
        if let Some(existing) = api.get_metadata_opt(name).await? {
            if !owns(&existing.metadata, gateway) {
                let message =
                    format!("there is a {kind} `{name}` that does not belong to this Gateway; it is left alone");
                return Ok(Some(Refusal { reason: "NotOwned", message }));
            }
            // If it becomes somebody else's in between, the API server refuses this.
            patch["metadata"]["uid"] = json!(existing.metadata.uid);
        }
        match api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(patch)).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
                let message = format!("the API server refuses the {kind} `{name}`: {}", status.message);
                tracing::warn!(message, "a Gateway is not deployed");
                Ok(Some(Refusal { reason: "Refused", message }))
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes what belongs to a Gateway and is not among these objects.
    async fn prune(&self, gateway: &DynamicObject, objects: &[Value]) -> Result<(), kube::Error> {
        let (namespace, name) = place(&gateway.metadata);
        let selected = ListParams::default().labels(&format!("{GATEWAY_NAME}={name}"));
        for of_kind in KINDS {
            let api = self.api(of_kind, namespace);
            for existing in api.list_metadata(&selected).await?.items {
                let own = existing.metadata.name.as_deref().unwrap_or_default();
                let is_wanted =
                    objects.iter().any(|object| object["kind"] == of_kind.kind && object["metadata"]["name"] == own);
                if !is_wanted && owns(&existing.metadata, gateway) {
                    // One that is gone is as it should be.
                    let deleted = api.delete(own, &DeleteParams::background()).await;
                    deleted.map(drop).or_else(|error| if is_not_found(&error) { Ok(()) } else { Err(error) })?;
                }
            }
        }
        Ok(())
    }

    /// The controller of a Gateway's class.
    async fn controller(&self, spec: &Value) -> Result<Option<String>, kube::Error> {
        let Some(class) = spec["gatewayClassName"].as_str() else { return Ok(None) };
        let resource = super::kind("GatewayClass");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let written = api.get_opt(class).await?;
        let written = written.and_then(|class| class.data["spec"]["controllerName"].as_str().map(str::to_owned));
        Ok(written.or_else(|| GatewayClass::built_in(class).map(str::to_owned)))
    }

    /// The parameters of a Gateway's class, and then its own; or why they cannot be read.
    async fn overlays(&self, gateway: &DynamicObject) -> Result<Result<Overlays, String>, kube::Error> {
        let spec = &gateway.data["spec"];
        let class = spec["gatewayClassName"].as_str().unwrap_or_default();
        let defaults: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.options.root);
        let of_class = ListParams::default().labels(&format!("{CLASS_DEFAULTS}={class}"));
        let mut of_class = defaults.list(&of_class).await?.items;
        of_class.sort_by_key(|map| map.metadata.creation_timestamp.clone());
        let mut overlays: Overlays = of_class.into_iter().take(1).filter_map(|map| map.data).collect();
        let reference = &spec["infrastructure"]["parametersRef"];
        if reference.is_null() {
            return Ok(Ok(overlays));
        }
        let text = |name: &str| reference[name].as_str().unwrap_or_default();
        if (text("group"), text("kind")) != ("", "ConfigMap") {
            return Ok(Err(format!("parameters are in a ConfigMap, not in a {} of `{}`", text("kind"), text("group"))));
        }
        let own: Api<ConfigMap> = Api::namespaced(self.client.clone(), place(&gateway.metadata).0);
        let Some(map) = own.get_opt(text("name")).await? else {
            return Ok(Err(format!("there is no ConfigMap `{}` with parameters", text("name"))));
        };
        overlays.extend(map.data);
        Ok(Ok(overlays))
    }

    /// Says on the Gateway whether it is deployed, unless it says so.
    async fn report(&self, gateway: &DynamicObject, report: Report) -> Result<(), kube::Error> {
        let all = gateway.data["status"]["conditions"].as_array();
        let before = all.into_iter().flatten().find(|condition| condition["type"] == DEPLOYED);
        let conditions = match report {
            Report::Nothing => None,
            Report::Deployed => Some(condition(gateway, before, None)),
            Report::Refused(refusal) => Some(condition(gateway, before, Some(&refusal))),
        };
        if before == conditions.as_ref() {
            return Ok(());
        }
        let patch = json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": "Gateway",
            "metadata": {"name": gateway.metadata.name, "uid": gateway.metadata.uid},
            "status": {"conditions": conditions.into_iter().collect::<Vec<_>>()},
        });
        let (namespace, name) = place(&gateway.metadata);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &super::kind("Gateway"));
        let patched = api.patch_status(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(patch)).await;
        patched.map(drop).or_else(|error| if is_not_found(&error) { Ok(()) } else { Err(error) })?;
        self.statuses.gateway_pending(namespace, name);
        Ok(())
    }

    fn api(&self, of_kind: DeployedKind, namespace: &str) -> Api<DynamicObject> {
        let DeployedKind { group, version, kind } = of_kind;
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }
}

fn condition(gateway: &DynamicObject, before: Option<&Value>, refusal: Option<&Refusal>) -> Value {
    let status = if refusal.is_none() { "True" } else { "False" };
    let since = before.filter(|before| before["status"] == status);
    let since = since.and_then(|before| before["lastTransitionTime"].as_str().map(str::to_owned));
    let now = || Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        "type": DEPLOYED,
        "status": status,
        "reason": refusal.map_or("Deployed", |refusal| refusal.reason),
        "message": refusal.map_or("its Deployment and its Service are applied", |refusal| refusal.message.as_str()),
        "lastTransitionTime": since.unwrap_or_else(now),
        "observedGeneration": gateway.metadata.generation,
    })
}

/// Namespace and name.
fn place(metadata: &ObjectMeta) -> (&str, &str) {
    (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

fn is_owned(object: &DynamicObject, gateway: &DynamicObject) -> bool {
    owns(&object.metadata, gateway)
}

/// Whether an object belongs to a Gateway.
fn owns(metadata: &ObjectMeta, gateway: &DynamicObject) -> bool {
    let owners = metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| Some(&owner.uid) == gateway.metadata.uid.as_ref())
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found())
}
