//! Values as objects: one Secret or ConfigMap each, whose name is derived from the key.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use evenkeel_store::{Readers, Version};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

/// Annotation with the key.
pub(super) const KEY: &str = "evenkeel.dev/key";
/// Annotation with the time of the last put or touch, in nanoseconds since 1970.
const MODIFIED: &str = "evenkeel.dev/modified";
/// Label with a hash of the folder that a key is in.
const FOLDER: &str = "evenkeel.dev/folder";
/// Label of all stored values.
const STATE: &str = "evenkeel.dev/state";
/// The entry of an object with the value.
const VALUE: &str = "value";
/// The field manager.
const MANAGER: &str = "evenkeel-store";
/// Maximum length of the readable part of a name, in bytes.
const MAX_READABLE_BYTES: usize = 200;

/// A value with the readers that it has.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) value: Vec<u8>,
    pub(super) readers: Readers,
}

/// The objects of a namespace.
#[derive(Debug, Clone)]
pub(super) struct Objects {
    secrets: Api<Secret>,
    maps: Api<ConfigMap>,
}

/// The name of a key's object: what is readable of the key, and a hash that makes it unique.
pub(super) fn name(key: &str) -> String {
    let readable = key.chars().map(|c| match c {
        'a'..='z' | '0'..='9' => c,
        'A'..='Z' => c.to_ascii_lowercase(),
        _ => '-',
    });
    let readable: String = readable.take(MAX_READABLE_BYTES).collect();
    format!("evenkeel-{}-{}", readable.trim_matches('-'), hash(key))
}

/// The label selector of the values in a folder.
pub(super) fn folder_selector(folder: &str) -> String {
    format!("{FOLDER}={}", hash(folder))
}

fn hash(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn nanos(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

fn io_error(error: kube::Error) -> io::Error {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            let text = format!("{}: the control plane's Role lacks this", status.message);
            io::Error::new(ErrorKind::PermissionDenied, text)
        }
        kube::Error::Api(status) => io::Error::other(status.message.clone()),
        error => io::Error::other(error),
    }
}

/// Whether there was an object, of an answer that may be 404.
fn was_there<T>(answer: Result<T, kube::Error>) -> io::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
        Err(error) => Err(io_error(error)),
    }
}

fn version(metadata: &ObjectMeta) -> Version {
    let modified = metadata.annotations.as_ref().and_then(|all| all.get(MODIFIED)?.parse().ok());
    let number = metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
    Version { modified: UNIX_EPOCH + Duration::from_nanos(modified.unwrap_or(0)), further: [number.unwrap_or(0), 0] }
}

impl Objects {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self { secrets: Api::namespaced(client.clone(), namespace), maps: Api::namespaced(client, namespace) }
    }

    pub(super) async fn get(&self, key: &str) -> io::Result<Option<Stored>> {
        let name = name(key);
        if let Some(mut secret) = self.secrets.get_opt(&name).await.map_err(io_error)? {
            let value = secret.data.as_mut().and_then(|data| data.remove(VALUE)).unwrap_or_default();
            return Ok(Some(Stored { value: value.0, readers: Readers::Owner }));
        }
        let map = self.maps.get_opt(&name).await.map_err(io_error)?;
        let value = map.map(|map| map.binary_data.and_then(|mut data| data.remove(VALUE)).unwrap_or_default());
        Ok(value.map(|value| Stored { value: value.0, readers: Readers::All }))
    }

    /// The version of a value, or of the latest value in a folder.
    pub(super) async fn version(&self, key: &str) -> io::Result<Option<Version>> {
        let name = name(key);
        if let Some(object) = self.secrets.get_metadata_opt(&name).await.map_err(io_error)? {
            return Ok(Some(version(&object.metadata)));
        }
        if let Some(object) = self.maps.get_metadata_opt(&name).await.map_err(io_error)? {
            return Ok(Some(version(&object.metadata)));
        }
        let below = format!("{key}/");
        let all = self.all(STATE).await?;
        let versions = all.iter().filter(|(key, _)| key.starts_with(&below)).map(|(_, metadata)| version(metadata));
        Ok(versions.max_by_key(|version| version.further[0]))
    }

    pub(super) async fn put(&self, key: &str, value: &[u8], readers: Readers) -> io::Result<()> {
        let name = name(key);
        let folder = key.rsplit_once('/').map_or("", |(folder, _)| folder);
        let metadata = json!({
            "name": name,
            "labels": {STATE: "true", FOLDER: hash(folder), "app.kubernetes.io/managed-by": "evenkeel"},
            "annotations": {KEY: key, MODIFIED: nanos(SystemTime::now())},
        });
        let data = json!({VALUE: BASE64_STANDARD.encode(value)});
        let parameters = PatchParams::apply(MANAGER).force();
        let mut object = json!({"apiVersion": "v1", "metadata": metadata});
        match readers {
            Readers::Owner => {
                object["kind"] = json!("Secret");
                object["data"] = data;
                self.secrets.patch(&name, &parameters, &Patch::Apply(object)).await.map_err(io_error)?;
                was_there(self.maps.delete(&name, &DeleteParams::default()).await)?;
            }
            Readers::All => {
                object["kind"] = json!("ConfigMap");
                object["binaryData"] = data;
                self.maps.patch(&name, &parameters, &Patch::Apply(object)).await.map_err(io_error)?;
                was_there(self.secrets.delete(&name, &DeleteParams::default()).await)?;
            }
        }
        Ok(())
    }

    pub(super) async fn touch(&self, key: &str) -> io::Result<()> {
        let name = name(key);
        let touched = json!({"metadata": {"annotations": {MODIFIED: nanos(SystemTime::now())}}});
        let (parameters, patch) =
            (PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }, Patch::Merge(touched));
        let is_there = was_there(self.secrets.patch_metadata(&name, &parameters, &patch).await)?
            || was_there(self.maps.patch_metadata(&name, &parameters, &patch).await)?;
        if is_there { Ok(()) } else { Err(io::Error::new(ErrorKind::NotFound, format!("there is no value `{key}`"))) }
    }

    pub(super) async fn remove(&self, key: &str) -> io::Result<bool> {
        let (name, parameters) = (name(key), DeleteParams::default());
        let secret = was_there(self.secrets.delete(&name, &parameters).await)?;
        let map = was_there(self.maps.delete(&name, &parameters).await)?;
        Ok(secret || map)
    }

    pub(super) async fn remove_folder(&self, folder: &str) -> io::Result<()> {
        let below = format!("{folder}/");
        for key in self.all(STATE).await?.keys().filter(|key| key.starts_with(&below)) {
            self.remove(key).await?;
        }
        Ok(())
    }

    pub(super) async fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let below = format!("{folder}/");
        let all = self.all(&folder_selector(folder)).await?;
        Ok(all.keys().filter_map(|key| key.strip_prefix(&below)).map(str::to_owned).collect())
    }

    /// The keys of the objects that a label selector selects, with their metadata.
    async fn all(&self, selector: &str) -> io::Result<BTreeMap<String, ObjectMeta>> {
        let parameters = ListParams::default().labels(selector);
        let secrets = self.secrets.list_metadata(&parameters).await.map_err(io_error)?;
        let maps = self.maps.list_metadata(&parameters).await.map_err(io_error)?;
        let metadata = secrets.items.into_iter().map(|o| o.metadata).chain(maps.items.into_iter().map(|o| o.metadata));
        let keyed = |metadata: ObjectMeta| Some((metadata.annotations.as_ref()?.get(KEY)?.clone(), metadata));
        Ok(metadata.filter_map(keyed).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_a_name_of_its_own_that_kubernetes_allows() {
        let long = "x".repeat(500);
        let keys = ["a", "A", "a/b", "a-b", "a.b", "jwks/a.json", "ä/ü", "--", &long, &format!("{long}/a")];
        let names: std::collections::BTreeSet<_> = keys.iter().map(|key| name(key)).collect();
        assert_eq!(names.len(), keys.len(), "{names:?}");
        for name in names {
            assert!(name.len() <= 253, "{name}");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{name}");
        }
        assert!(name("jwks/a.json").starts_with("evenkeel-jwks-a-json-"));
    }
}
