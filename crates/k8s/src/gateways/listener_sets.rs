//! Listeners that ListenerSets add to a Gateway: its Service needs their ports, too.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::{Selector, SelectorExt as _};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client};
use serde_json::Value;

use evenkeel_api::gateway_api::GROUP;

/// The ListenerSets that are read in one go.
const PAGE: u32 = 500;
/// The label that every namespace has in Kubernetes, with its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Which namespaces' ListenerSets a Gateway takes.
#[derive(Debug, Clone, PartialEq)]
enum Taken {
    None,
    Same,
    All,
    Selector(Selector),
}

/// The Gateways that take some ListenerSets.
pub(super) fn gateways_with_some(
    store: &Store<DynamicObject>,
    resource: &ApiResource,
) -> Vec<ObjectRef<DynamicObject>> {
    let gateways = store.state();
    let open = gateways.iter().filter(|gateway| taken(&gateway.data["spec"]) != Taken::None);
    open.map(|gateway| ObjectRef::from_obj_with(&**gateway, resource.clone())).collect()
}

fn taken(spec: &Value) -> Taken {
    let namespaces = &spec["allowedListeners"]["namespaces"];
    match namespaces["from"].as_str() {
        Some("All") => Taken::All,
        Some("Same") => Taken::Same,
        Some("Selector") => {
            let written = serde_json::from_value::<LabelSelector>(namespaces["selector"].clone()).ok();
            // A selector that cannot be read selects nothing.
            written.and_then(|written| Selector::try_from(written).ok()).map_or(Taken::None, Taken::Selector)
        }
        _ => Taken::None,
    }
}

/// The listeners of the ListenerSets that a Gateway takes, those of older ones first.
pub(super) async fn listeners(client: &Client, gateway: &DynamicObject) -> Result<Vec<Value>, kube::Error> {
    let taken = taken(&gateway.data["spec"]);
    if taken == Taken::None {
        return Ok(Vec::new());
    }
    let mut sets = all(client).await?;
    sets.retain(|set| is_parent(set, gateway));
    sets.sort_by_key(|set| {
        let metadata = &set.metadata;
        (metadata.creation_timestamp.clone(), metadata.namespace.clone(), metadata.name.clone())
    });
    let mut listeners = Vec::new();
    for set in sets {
        if is_taken(client, &taken, &set, gateway).await? {
            listeners.extend(set.data["spec"]["listeners"].as_array().cloned().unwrap_or_default());
        }
    }
    Ok(listeners)
}

/// All ListenerSets; none where the kind is not defined.
async fn all(client: &Client) -> Result<Vec<DynamicObject>, kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &super::kind("ListenerSet"));
    let (mut all, mut parameters) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let page = match api.list(&parameters).await {
            Ok(page) => page,
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// Whether a ListenerSet names a Gateway.
fn is_parent(set: &DynamicObject, gateway: &DynamicObject) -> bool {
    let parent = &set.data["spec"]["parentRef"];
    let text = |name: &str| parent[name].as_str();
    let namespace = text("namespace").or(set.metadata.namespace.as_deref());
    text("group").unwrap_or(GROUP) == GROUP
        && text("kind").unwrap_or("Gateway") == "Gateway"
        && text("name") == gateway.metadata.name.as_deref()
        && namespace == gateway.metadata.namespace.as_deref()
}

async fn is_taken(
    client: &Client,
    taken: &Taken,
    set: &DynamicObject,
    gateway: &DynamicObject,
) -> Result<bool, kube::Error> {
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    match taken {
        Taken::None => Ok(false),
        Taken::Same => Ok(set.metadata.namespace == gateway.metadata.namespace),
        Taken::All => Ok(true),
        Taken::Selector(selector) => {
            let found = Api::<Namespace>::all(client.clone()).get_opt(namespace).await?;
            let mut labels = found.and_then(|found| found.metadata.labels).unwrap_or_default();
            labels.entry(NAMESPACE_NAME.to_owned()).or_insert_with(|| namespace.to_owned());
            Ok(selector.matches(&labels))
        }
    }
}
