//! The webhook configurations of a revision: the leader writes into them the roots by which the API server verifies the control
//! plane, and lets the validating webhook refuse once it is known to answer. `evenkeel install` and Helm leave these fields alone.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::stream::{self, Stream, StreamExt as _};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::lease::Leadership;
use crate::reason::reason;

/// Field manager of what is written here.
pub const MANAGER: &str = "evenkeel-webhooks";
/// Label of configurations and objects of a revision.
const REVISION: &str = "istio.io/rev";
/// How often it is looked whether something is to be written although no configuration has changed: the validating webhook may
/// answer now.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How long one look may take.
const TIMEOUT: Duration = Duration::from_secs(30);
const GROUP: &str = "admissionregistration.k8s.io";
const KINDS: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// Keeps the webhook configurations of a revision up to date.
pub struct WebhookConfigurations {
    client: Client,
    revision: String,
    leadership: Leadership,
    roots: watch::Receiver<Arc<str>>,
    /// Whether the last look failed, which has been logged.
    is_failing: bool,
}

impl fmt::Debug for WebhookConfigurations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookConfigurations").field("revision", &self.revision).finish_non_exhaustive()
    }
}

/// The policy of a webhook whose server cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailurePolicy {
    /// As it is.
    Unchanged,
    /// Refuse.
    Fail,
}

impl WebhookConfigurations {
    /// Of the configurations with the label `istio.io/rev: REVISION`. `roots`: PEM; nothing happens before there are any.
    pub fn new(client: Client, revision: &str, leadership: Leadership, roots: watch::Receiver<Arc<str>>) -> Self {
        Self { client, revision: revision.to_owned(), leadership, roots, is_failing: false }
    }

    /// Keeps them for ever.
    pub async fn run(mut self) {
        loop {
            self.leadership.begins().await;
            let (mut held, mut events) = (Held::default(), self.events());
            while self.leadership.leads(Instant::now()) {
                let roots = self.roots.borrow_and_update().clone();
                if !roots.is_empty() {
                    let looked = tokio::time::timeout(TIMEOUT, self.look(&roots, &held)).await;
                    let failure = match looked {
                        Ok(looked) => looked.err().map(|error| reason(&error)),
                        Err(_) => Some("the API server has not answered in time".to_owned()),
                    };
                    self.note(failure);
                }
                tokio::select! {
                    Ok(()) = self.roots.changed() => {}
                    Some(Change { kind, event }) = events.next() => match event {
                        Ok(event) => held.take(kind, event),
                        Err(error) => {
                            self.note(Some(error.to_string()));
                            tokio::time::sleep(LOOK_INTERVAL).await;
                        }
                    },
                    () = tokio::time::sleep(LOOK_INTERVAL) => {}
                }
            }
        }
    }

    /// What happens to the configurations of this revision.
    fn events(&self) -> impl Stream<Item = Change> + Unpin + use<> {
        let config = watcher::Config::default().labels(&format!("{REVISION}={}", self.revision));
        let of_kind = |kind| watcher::watcher(self.api(kind), config.clone()).map(move |event| Change { kind, event });
        stream::select_all(KINDS.map(|kind| of_kind(kind).boxed()))
    }

    fn note(&mut self, failure: Option<String>) {
        let was_failing = std::mem::replace(&mut self.is_failing, failure.is_some());
        if let Some(reason) = failure.filter(|_| !was_failing) {
            tracing::warn!(
                reason,
                "the webhooks' configurations are not brought up to date; tried again until they are"
            );
        }
    }

    async fn look(&self, roots: &str, held: &Held) -> Result<(), kube::Error> {
        let bundle = BASE64_STANDARD.encode(roots);
        for (Key { kind, .. }, configuration) in &held.configurations {
            let api = self.api(kind);
            let desired = |policy| Desired { kind, bundle: &bundle, policy };
            self.write(&api, configuration, desired(FailurePolicy::Unchanged)).await?;
            if *kind == KINDS[1] && ignores(configuration) && self.refuses().await? {
                self.write(&api, configuration, desired(FailurePolicy::Fail)).await?;
                tracing::info!(
                    configuration = configuration.metadata.name,
                    "the validating webhook answers; it may refuse now"
                );
            }
        }
        Ok(())
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1", kind));
        Api::all_with(self.client.clone(), &resource)
    }

    /// Writes what a configuration lacks, and nothing if it lacks nothing.
    async fn write(
        &self,
        api: &Api<DynamicObject>,
        current: &DynamicObject,
        desired: Desired<'_>,
    ) -> Result<(), kube::Error> {
        let Some(patch) = patch(current, desired) else { return Ok(()) };
        let name = current.metadata.name.as_deref().unwrap_or_default();
        api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(patch)).await?;
        tracing::info!(configuration = name, "the webhook configuration is brought up to date");
        Ok(())
    }

    /// Whether the API server asks the webhook and follows it: a Gateway that has no meaning is refused in a dry run.
    async fn refuses(&self) -> Result<bool, kube::Error> {
        let kind = GroupVersionKind::gvk("networking.istio.io", "v1", "Gateway");
        let api: Api<DynamicObject> = Api::default_namespaced_with(self.client.clone(), &ApiResource::from_gvk(&kind));
        let mut gateway = DynamicObject::new("evenkeel-validation-probe", &ApiResource::from_gvk(&kind));
        gateway.metadata.labels = Some([(REVISION.to_owned(), self.revision.clone())].into());
        // No server has a port 0; the definition's own rules accept the object.
        gateway.data =
            json!({"spec": {"servers": [{"hosts": ["*"], "port": {"number": 0, "name": "http", "protocol": "HTTP"}}]}});
        match api.create(&PostParams { dry_run: true, ..PostParams::default() }, &gateway).await {
            Ok(_) => Ok(false),
            Err(kube::Error::Api(status)) => {
                let denied =
                    status.message.contains("denied the request") && status.message.contains("admission webhook");
                if !denied && status.code != 404 {
                    tracing::debug!(reason = status.message, "the validating webhook is not known to answer yet");
                }
                Ok(denied)
            }
            Err(error) => Err(error),
        }
    }
}

/// An event of one kind.
struct Change {
    kind: &'static str,
    event: Result<Event<DynamicObject>, watcher::Error>,
}

/// Names a configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    kind: &'static str,
    name: String,
}

/// The configurations as they are.
#[derive(Debug, Default)]
struct Held {
    configurations: BTreeMap<Key, DynamicObject>,
}

impl Held {
    fn take(&mut self, kind: &'static str, event: Event<DynamicObject>) {
        let key = |object: &DynamicObject| Key { kind, name: object.metadata.name.clone().unwrap_or_default() };
        match event {
            Event::Init => self.configurations.retain(|key, _| key.kind != kind),
            Event::InitApply(object) | Event::Apply(object) => _ = self.configurations.insert(key(&object), object),
            Event::Delete(object) => _ = self.configurations.remove(&key(&object)),
            Event::InitDone => {}
        }
    }
}

/// What the webhooks of a configuration should have.
#[derive(Debug, Clone, Copy)]
struct Desired<'a> {
    kind: &'a str,
    /// The roots, PEM in Base64.
    bundle: &'a str,
    policy: FailurePolicy,
}

fn webhooks(configuration: &DynamicObject) -> &[Value] {
    configuration.data["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Whether a webhook that does not answer is passed over.
fn ignores(configuration: &DynamicObject) -> bool {
    webhooks(configuration).iter().any(|webhook| webhook["failurePolicy"] == "Ignore")
}

/// What is to be applied; `None`: nothing. Who applies owns what it applied before, so a policy that was set here stays in it.
fn patch(current: &DynamicObject, desired: Desired<'_>) -> Option<Value> {
    let own = current.metadata.managed_fields.iter().flatten().any(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| fields.0.to_string()).unwrap_or_default();
        entry.manager.as_deref() == Some(MANAGER) && fields.contains("f:failurePolicy")
    });
    let fails = own || desired.policy == FailurePolicy::Fail;
    let differs = |webhook: &Value| {
        webhook["clientConfig"]["caBundle"] != desired.bundle
            || (desired.policy == FailurePolicy::Fail && webhook["failurePolicy"] != "Fail")
    };
    if !webhooks(current).iter().any(differs) {
        return None;
    }
    let entry = |webhook: &Value| {
        let mut entry = json!({"name": webhook["name"], "clientConfig": {"caBundle": desired.bundle}});
        if fails {
            entry["failurePolicy"] = json!("Fail");
        }
        entry
    };
    Some(json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": desired.kind,
        "metadata": {"name": current.metadata.name},
        "webhooks": webhooks(current).iter().map(entry).collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_written() {
        let check = |webhook: Value, policy: FailurePolicy, expected: Option<Value>| {
            let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
                "metadata": {"name": "a"}, "webhooks": [webhook]});
            let object: DynamicObject = serde_json::from_value(object).expect("an object");
            let found = patch(&object, Desired { kind: "ValidatingWebhookConfiguration", bundle: "cm9vdA==", policy })
                .map(|patch| patch["webhooks"][0].clone());
            assert_eq!(found, expected);
        };
        let named = |bundle: &str, policy: &str| json!({"name": "v", "clientConfig": {"caBundle": bundle}, "failurePolicy": policy});
        let bundle = json!({"name": "v", "clientConfig": {"caBundle": "cm9vdA=="}});
        check(named("cm9vdA==", "Ignore"), FailurePolicy::Unchanged, None);
        check(named("b2xk", "Ignore"), FailurePolicy::Unchanged, Some(bundle.clone()));
        check(json!({"name": "v", "clientConfig": {}}), FailurePolicy::Unchanged, Some(bundle));
        check(named("cm9vdA==", "Fail"), FailurePolicy::Fail, None);
        check(named("cm9vdA==", "Ignore"), FailurePolicy::Fail, Some(named("cm9vdA==", "Fail")));
    }
}
