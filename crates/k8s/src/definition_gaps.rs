//! Where the definitions of a cluster and what is read differ (`evenkeel_api::definition`), found again when a definition changes.

use std::collections::BTreeMap;

use evenkeel_api::definition;
use evenkeel_base::yaml::Node;
use evenkeel_base::{Diagnostics, Severity, Span};
use kube::Client;
use kube::api::{Api, DynamicObject};

use crate::discovery::{self, DefinitionVersions};

/// The reference of a definition, for findings.
const REFERENCE: &str = "kubernetes/CustomResourceDefinition.apiextensions.k8s.io";

/// The findings about definitions.
#[derive(Debug, Default)]
pub struct DefinitionGaps {
    /// By name: the version of the object that was looked at, and what was found.
    found: BTreeMap<String, (Option<String>, Diagnostics)>,
}

impl DefinitionGaps {
    /// Looks at the definitions that have changed. One that cannot be read now is looked at again the next time.
    pub async fn follow(&mut self, client: &Client, versions: &DefinitionVersions) {
        self.found.retain(|name, _| versions.contains_key(name));
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &discovery::definitions());
        for (name, version) in versions.iter().filter(|(name, _)| definition::is_of_mesh(name)) {
            if self.found.get(name).is_some_and(|(seen, _)| seen == version) {
                continue;
            }
            match api.get_opt(name).await {
                Ok(Some(object)) => {
                    let found = serde_json::to_value(&object).map(|json| gaps(name, &json)).unwrap_or_default();
                    self.found.insert(name.clone(), (version.clone(), found));
                }
                Ok(None) => _ = self.found.remove(name),
                Err(error) => tracing::debug!(%error, name, "a definition is not read"),
            }
        }
    }

    /// All findings.
    pub fn findings(&self) -> Diagnostics {
        self.found.values().flat_map(|(_, found)| found.clone()).collect()
    }
}

/// The findings about a definition; what newer definitions would add is not one of a running mesh.
fn gaps(name: &str, json: &serde_json::Value) -> Diagnostics {
    let place = Span::of_object(format!("{REFERENCE}/{name}"));
    definition::gaps(&Node::from_json(json, &place)).into_iter().filter(|gap| gap.severity > Severity::Info).collect()
}
