//! Findings about objects of kinds without a status of ours, such as Services: Events, each finding once.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use evenkeel_base::{Diagnostic, Severity};
use evenkeel_model::Status;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, ObjectMeta, PostParams};
use kube::{Api, Client};

use super::resources::Resource;

/// Maximum length of an Event's message, in bytes (Kubernetes' own limit).
const MAX_MESSAGE_BYTES: usize = 1024;
/// Maximum length of the part of an Event's name that is the object's, in bytes.
const MAX_NAME_BYTES: usize = 200;

/// Reports what is wrong with an object, unless that has been reported.
pub(super) async fn report(
    client: &Client,
    manager: &str,
    object: &DynamicObject,
    resource: &Resource,
    status: &Status,
) -> Result<(), kube::Error> {
    // Events about an object without a namespace are in `default`.
    let namespace = object.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    for finding in status.findings.iter().filter(|finding| finding.severity > Severity::Info) {
        let event = event(manager, object, resource, finding, &namespace);
        match events.create(&PostParams::default(), &event).await {
            // Its name is that of the finding: it has been reported, maybe by another process.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            answer => _ = answer?,
        }
    }
    Ok(())
}

fn event(manager: &str, object: &DynamicObject, resource: &Resource, finding: &Diagnostic, namespace: &str) -> Event {
    let ObjectMeta { name, uid, resource_version, .. } = object.metadata.clone();
    let mut hash = DefaultHasher::new();
    (&uid, finding.code, &finding.message).hash(&mut hash);
    let short = name.clone().unwrap_or_default();
    let short = short.get(..short.floor_char_boundary(MAX_NAME_BYTES)).unwrap_or_default();
    let now = Time(Timestamp::now());
    let message = match &finding.help {
        Some(help) => format!("{} ({help})", finding.message),
        None => finding.message.clone(),
    };
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{short}.{:016x}", hash.finish())),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(resource.api.api_version.clone()),
            kind: Some(resource.api.kind.clone()),
            namespace: object.metadata.namespace.clone(),
            name,
            uid,
            resource_version,
            field_path: None,
        },
        type_: Some("Warning".to_owned()),
        reason: Some(reason(finding.code)),
        message: Some(message.get(..message.floor_char_boundary(MAX_MESSAGE_BYTES)).unwrap_or_default().to_owned()),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        count: Some(1),
        source: Some(EventSource { component: Some(manager.to_owned()), host: None }),
        ..Event::default()
    }
}

/// A finding's code as Kubernetes writes reasons: `missing-service` is `MissingService`.
fn reason(code: &str) -> String {
    let upper = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
    };
    code.split('-').map(upper).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_in_camel_case() {
        let check = |code: &str, expected: &str| assert_eq!(reason(code), expected);
        check("missing-service", "MissingService");
        check("merged", "Merged");
        check("", "");
    }
}
