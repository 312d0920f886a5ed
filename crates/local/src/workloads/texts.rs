//! The texts of ConfigMaps and Secrets, for variables and files of programs.

use std::collections::BTreeMap;

use evenkeel_api::{Kind, Object, Resource};

/// Name to bytes.
pub type Texts = BTreeMap<String, Vec<u8>>;

/// All ConfigMaps and Secrets.
#[derive(Debug, Default)]
pub(super) struct AllTexts {
    by_name: BTreeMap<(Kind, String, String), Texts>,
}

impl AllTexts {
    /// Collects them from the objects.
    pub fn of(objects: &[Object]) -> Self {
        let texts = |object: &Object| {
            let texts: Texts = match &object.resource {
                Resource::ConfigMap(map) => {
                    let text = map.data.iter().map(|(name, text)| (name.clone(), text.value.clone().into_bytes()));
                    text.chain(map.binary_data.iter().map(|(name, bytes)| (name.clone(), bytes.0.clone()))).collect()
                }
                Resource::Secret(secret) => {
                    let bytes = secret.data.iter().map(|(name, bytes)| (name.clone(), bytes.0.clone()));
                    let text =
                        secret.string_data.iter().map(|(name, text)| (name.clone(), text.0.clone().into_bytes()));
                    bytes.chain(text).collect()
                }
                _ => return None,
            };
            Some(((object.kind(), object.namespace.to_string(), object.name.to_string()), texts))
        };
        Self { by_name: objects.iter().filter_map(texts).collect() }
    }

    /// The texts of one object.
    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Texts> {
        self.by_name.get(&(kind, namespace.to_owned(), name.to_owned()))
    }
}
