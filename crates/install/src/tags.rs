//! Revision tags: stable names of revisions, each a MutatingWebhookConfiguration `istio-revision-tag-NAME` that calls the revision's
//! control plane.

use serde_json::{Value, json};

/// Label with a tag's name.
pub const TAG_LABEL: &str = "istio.io/tag";
/// Label with a revision's name.
pub const REVISION_LABEL: &str = "istio.io/rev";
/// Label that injectors and tags have: `app: sidecar-injector`.
pub const INJECTORS: &str = "app=sidecar-injector";

/// Why there is no such tag.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// No control plane has the revision.
    #[error(
        "no control plane has the revision `{0}`: there is no MutatingWebhookConfiguration with the label istio.io/rev={0}"
    )]
    NoRevision(String),
    /// The name cannot be one.
    #[error("`{0}` cannot be a tag: lower-case letters, digits and `-`")]
    Name(String),
}

/// A tag as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Tag {
    /// Its name.
    pub tag: String,
    /// The revision that it names.
    pub revision: String,
    /// Namespaces that use it.
    pub namespaces: Vec<String>,
}

fn label<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["labels"][name].as_str()
}

/// Makes a tag of the injector of a revision. `injectors`: all MutatingWebhookConfigurations of injectors.
pub fn tag(name: &str, revision: &str, injectors: &[Value]) -> Result<Value, TagError> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 40 || !name.chars().all(is_name) || name.starts_with('-') || name.ends_with('-')
    {
        return Err(TagError::Name(name.to_owned()));
    }
    let is_it = |object: &&Value| label(object, REVISION_LABEL) == Some(revision) && label(object, TAG_LABEL).is_none();
    let injector = injectors.iter().find(is_it).ok_or_else(|| TagError::NoRevision(revision.to_owned()))?;
    let webhooks = injector["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let first = webhooks.first().ok_or_else(|| TagError::NoRevision(revision.to_owned()))?;
    let webhooks: Vec<Value> = selectors(name, first).into_iter().map(|selector| selector.webhook(first)).collect();
    Ok(json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {
            "name": format!("istio-revision-tag-{name}"),
            "labels": {
                "app": "sidecar-injector",
                "app.kubernetes.io/part-of": "istio",
                "app.kubernetes.io/managed-by": crate::MANAGER,
                TAG_LABEL: name,
                REVISION_LABEL: revision,
            },
        },
        "webhooks": webhooks,
    }))
}

/// Which Pods a webhook is called for.
struct Selector {
    name: &'static str,
    namespaces: Vec<Value>,
    pods: Vec<Value>,
}

impl Selector {
    /// The webhook of the revision with these selectors. The control plane writes the roots.
    fn webhook(self, of_revision: &Value) -> Value {
        let mut webhook = of_revision.clone();
        webhook["name"] = self.name.into();
        webhook["namespaceSelector"] = json!({"matchExpressions": self.namespaces});
        webhook["objectSelector"] = json!({"matchExpressions": self.pods});
        if let Some(client) = webhook["clientConfig"].as_object_mut() {
            client.remove("caBundle");
        }
        webhook
    }
}

fn selectors(name: &str, of_revision: &Value) -> Vec<Selector> {
    let rule = |key: &str, operator: &str, values: &[&str]| match values {
        [] => json!({"key": key, "operator": operator}),
        values => json!({"key": key, "operator": operator, "values": values}),
    };
    let absent = |key: &str| rule(key, "DoesNotExist", &[]);
    // Namespaces that the revision leaves out: those of the system, and its own.
    let of_revision = of_revision.pointer("/namespaceSelector/matchExpressions").and_then(Value::as_array);
    let left_out = of_revision.into_iter().flatten().find(|rule| rule["key"] == "kubernetes.io/metadata.name").cloned();
    let wants = || rule("sidecar.istio.io/inject", "NotIn", &["false"]);
    let namespaces = |rules: Vec<Value>| rules.into_iter().chain(left_out.clone()).collect::<Vec<_>>();
    let mut all = vec![
        Selector {
            name: "rev.namespace.sidecar-injector.istio.io",
            namespaces: namespaces(vec![rule(REVISION_LABEL, "In", &[name]), absent("istio-injection")]),
            pods: vec![wants()],
        },
        Selector {
            name: "rev.object.sidecar-injector.istio.io",
            namespaces: namespaces(vec![absent(REVISION_LABEL), absent("istio-injection")]),
            pods: vec![wants(), rule(REVISION_LABEL, "In", &[name])],
        },
    ];
    if name == "default" {
        all.push(Selector {
            name: "namespace.sidecar-injector.istio.io",
            namespaces: namespaces(vec![rule("istio-injection", "In", &["enabled"])]),
            pods: vec![wants()],
        });
        all.push(Selector {
            name: "object.sidecar-injector.istio.io",
            namespaces: namespaces(vec![absent("istio-injection"), absent(REVISION_LABEL)]),
            pods: vec![rule("sidecar.istio.io/inject", "In", &["true"]), absent(REVISION_LABEL)],
        });
    }
    all
}

/// Lists tags, with the namespaces that use them.
pub fn list(injectors: &[Value], namespaces: &[Value]) -> Vec<Tag> {
    let of = |tag: &str| {
        let users = namespaces.iter().filter(|namespace| {
            label(namespace, REVISION_LABEL) == Some(tag)
                || (tag == "default" && label(namespace, "istio-injection") == Some("enabled"))
        });
        users.map(|namespace| namespace["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let tag = |object: &Value| {
        let tag = label(object, TAG_LABEL)?;
        let revision = label(object, REVISION_LABEL).unwrap_or_default().to_owned();
        Some(Tag { tag: tag.to_owned(), revision, namespaces: of(tag) })
    };
    let mut tags: Vec<Tag> = injectors.iter().filter_map(tag).collect();
    tags.sort_by(|a, b| a.tag.cmp(&b.tag));
    tags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Release, Values};

    fn injectors(settings: &[&str]) -> Vec<Value> {
        let mut values = Values::default();
        settings.iter().for_each(|setting| values.set(setting).expect("a setting"));
        let namespace = "istio-system".to_owned();
        let release = Release { namespace, manager: crate::MANAGER.to_owned(), is_first: true, values };
        let objects = release.render().expect("objects").objects;
        objects.into_iter().filter(|object| object["kind"] == "MutatingWebhookConfiguration").collect()
    }

    #[test]
    fn a_tag_is_what_the_chart_makes_of_it() {
        for name in ["prod", "default"] {
            let setting = format!("revision=canary,revisionTags={{{name}}}");
            let all = injectors(&[&setting]);
            let chart = all.iter().find(|object| label(object, TAG_LABEL).is_some()).expect("the chart's tag");
            let generated = tag(name, "canary", &all).expect("a tag");
            assert_eq!(generated["webhooks"], chart["webhooks"], "{name}");
            assert_eq!(generated["metadata"]["name"], chart["metadata"]["name"]);
            for label in [TAG_LABEL, REVISION_LABEL, "app"] {
                assert_eq!(generated["metadata"]["labels"][label], chart["metadata"]["labels"][label]);
            }
        }
    }

    #[test]
    fn what_cannot_be_a_tag_is_refused() {
        let check = |name: &str, revision: &str, expected: TagError| {
            assert_eq!(tag(name, revision, &injectors(&[])), Err(expected));
        };
        check("prod", "absent", TagError::NoRevision("absent".to_owned()));
        check("Prod", "default", TagError::Name("Prod".to_owned()));
        check("", "default", TagError::Name(String::new()));
        check("-a", "default", TagError::Name("-a".to_owned()));
    }

    #[test]
    fn tags_are_listed_with_their_namespaces() {
        let all = injectors(&["revision=canary,revisionTags={prod,default}"]);
        let namespace = |name: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}});
        let namespaces = [
            namespace("a", json!({"istio.io/rev": "prod"})),
            namespace("b", json!({"istio-injection": "enabled"})),
            namespace("c", json!({"istio.io/rev": "canary"})),
        ];
        let found: Vec<_> = list(&all, &namespaces).into_iter().map(|tag| (tag.tag, tag.namespaces)).collect();
        assert_eq!(found, [("default".to_owned(), vec!["b".to_owned()]), ("prod".to_owned(), vec!["a".to_owned()])]);
    }
}
