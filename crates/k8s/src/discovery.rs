//! Which of the watched kinds a server has, and in which version.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use tokio::sync::Notify;

use crate::watched::Watched;

/// The group of the resources that define kinds.
/// How long after a failure the definitions are watched again.
const RETRY: Duration = Duration::from_secs(10);
const DEFINITIONS: &str = "apiextensions.k8s.io/v1";

/// Whether a server has a kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Presence {
    /// It serves it, with this resource.
    Served(ApiResource),
    /// It has a definition of it, and serves none of the versions that can be read; perhaps it has only just started.
    Defined,
    /// It does not say that it has it, nor that it has not.
    Unknown,
    /// It may not say whether it has a definition of it, and serves nothing of its group.
    Hidden,
    /// It does not have it.
    Absent,
}

/// The names of definitions of kinds, with the versions of these objects.
pub type DefinitionVersions = BTreeMap<String, Option<String>>;

/// The names of all definitions of kinds, by a watch, so that they are not listed each time.
#[derive(Debug, Default)]
pub struct Definitions {
    /// `None`: they have not been listed yet. What changes while the watch is interrupted comes as events after it.
    names: Mutex<Option<DefinitionVersions>>,
    changed: Notify,
}

impl Definitions {
    /// Waits until a definition has changed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The names; `None`: they are not known.
    pub fn names(&self) -> Option<BTreeSet<String>> {
        self.versions().map(|versions| versions.into_keys().collect())
    }

    /// The names with the versions of the objects; `None`: they are not known.
    pub fn versions(&self) -> Option<DefinitionVersions> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Option<DefinitionVersions>)) {
        change(&mut self.names.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Follows the definitions, and notes each change.
    pub async fn follow(self: Arc<Self>, client: Client) {
        let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, &definitions());
        let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
        let mut listed = DefinitionVersions::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    listed.extend(object.metadata.name.map(|name| (name, object.metadata.resource_version)));
                }
                Ok(Event::InitDone) => self.change(|names| *names = Some(std::mem::take(&mut listed))),
                Ok(Event::Apply(object)) => self.change(|names| {
                    let entry = object.metadata.name.map(|name| (name, object.metadata.resource_version));
                    if let (Some(names), Some((name, version))) = (names, entry) {
                        names.insert(name, version);
                    }
                }),
                Ok(Event::Delete(object)) => self.change(|names| {
                    if let (Some(names), Some(name)) = (names, &object.metadata.name) {
                        names.remove(name);
                    }
                }),
                Err(error) => {
                    tracing::debug!(%error, "definitions of kinds are not watched");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            self.changed.notify_one();
        }
    }
}

/// Asks the server about all that is wanted. Definitions are listed only before the watch has them.
pub async fn discover(
    client: &Client,
    wanted: &[Watched],
    definitions: &Definitions,
) -> kube::Result<Vec<(Watched, Presence)>> {
    let groups = client.list_api_groups().await?.groups;
    let groups: BTreeMap<&str, Vec<&str>> = groups
        .iter()
        .map(|group| (&*group.name, group.versions.iter().map(|version| &*version.version).collect()))
        .collect();
    let mut resources = BTreeMap::new();
    let needed: BTreeSet<(&str, &str)> = wanted
        .iter()
        .flat_map(|watched| watched.versions.iter().map(|version| (watched.selection.group, *version)))
        .filter(|(group, version)| group.is_empty() || groups.get(group).is_some_and(|served| served.contains(version)))
        .collect();
    for (group, version) in needed {
        let list = match group {
            "" => client.list_core_api_resources(version).await?,
            _ => client.list_api_group_resources(&format!("{group}/{version}")).await?,
        };
        resources.insert((group, version), list);
    }
    // Asked last: a definition that comes meanwhile is not taken for one that is absent.
    let defined = match definitions.names() {
        Some(known) => Some(known),
        None => defined(client).await?,
    };
    let presence = |watched: &Watched| {
        let group = watched.selection.group;
        let found = |version: &&'static str| resource(watched, group, version, resources.get(&(group, *version))?);
        match (watched.versions.iter().find_map(found), &defined) {
            (Some(resource), _) => Presence::Served(resource),
            (None, None) if watched.is_istios_own() && !groups.contains_key(group) => Presence::Hidden,
            (None, None) => Presence::Unknown,
            (None, Some(_)) if !watched.is_custom() => Presence::Unknown,
            (None, Some(defined)) if defined.contains(&watched.definition()) => Presence::Defined,
            (None, Some(_)) => Presence::Absent,
        }
    };
    Ok(wanted.iter().map(|watched| (watched.clone(), presence(watched))).collect())
}

/// The resource of the definitions of kinds.
pub fn definitions() -> ApiResource {
    ApiResource {
        group: "apiextensions.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: DEFINITIONS.to_owned(),
        kind: "CustomResourceDefinition".to_owned(),
        plural: "customresourcedefinitions".to_owned(),
    }
}

/// The names of all definitions of kinds; `None`: RBAC forbids to list them.
async fn defined(client: &Client) -> kube::Result<Option<BTreeSet<String>>> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &definitions());
    match api.list_metadata(&ListParams::default()).await {
        Ok(list) => Ok(Some(list.items.into_iter().filter_map(|object| object.metadata.name).collect())),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        Err(error) => Err(error),
    }
}

impl Watched {
    /// Whether a CustomResourceDefinition defines the kind.
    pub fn is_custom(&self) -> bool {
        let group = self.selection.group;
        group.ends_with("istio.io") || group == "gateway.networking.k8s.io"
    }

    /// Whether the kind is of a group without which there is no mesh of Istio's.
    fn is_istios_own(&self) -> bool {
        matches!(self.selection.group, "networking.istio.io" | "security.istio.io")
    }

    /// The name of the CustomResourceDefinition: the kind's plural and its group.
    fn definition(&self) -> String {
        let kind = self.selection.kind.to_ascii_lowercase();
        let plural = match kind.strip_suffix('y').filter(|stem| !stem.ends_with('a')) {
            Some(stem) => format!("{stem}ies"),
            None if kind.ends_with("ss") => format!("{kind}es"),
            None => format!("{kind}s"),
        };
        format!("{plural}.{}", self.selection.group)
    }
}

/// The resource of a kind among those of a version, if it can be watched.
fn resource(watched: &Watched, group: &str, version: &str, list: &APIResourceList) -> Option<ApiResource> {
    let is_it = |name: &str, kind: &str, verbs: &[String]| {
        kind == watched.selection.kind && !name.contains('/') && verbs.iter().any(|verb| verb == "watch")
    };
    let found = list.resources.iter().find(|found| is_it(&found.name, &found.kind, &found.verbs))?;
    Some(ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
        kind: found.kind.clone(),
        plural: found.name.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watched::{Scope, watched};

    #[test]
    fn definitions_have_the_names_of_istio_and_of_the_gateway_api() {
        let names: Vec<String> = watched(&Scope::all("istio-system"))
            .iter()
            .filter(|watched| watched.is_custom())
            .map(Watched::definition)
            .collect();
        for expected in [
            "gateways.networking.istio.io",
            "serviceentries.networking.istio.io",
            "workloadentries.networking.istio.io",
            "proxyconfigs.networking.istio.io",
            "authorizationpolicies.security.istio.io",
            "envoyfilters.networking.istio.io",
            "wasmplugins.extensions.istio.io",
        ] {
            assert!(names.iter().any(|name| name == expected), "{expected}: {names:?}");
        }
    }
}
