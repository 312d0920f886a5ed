//! Definitions of kinds (CustomResourceDefinition): where what a server stores and what is read here differ, before an object is lost by it.

use std::ops::RangeInclusive;

use evenkeel_base::yaml::Node;
use evenkeel_base::{Diagnostic, Diagnostics, Span};

use crate::decode::{Field, Schema, Status};
use crate::resource::{Kind, is_known_in, kind_named};

/// The groups of custom kinds that are read.
const GROUPS: [&str; 6] = [
    "gateway.networking.k8s.io",
    "gateway.networking.x-k8s.io",
    "networking.istio.io",
    "security.istio.io",
    "telemetry.istio.io",
    "extensions.istio.io",
];
/// The annotation of the Gateway API's definitions with their version.
pub const BUNDLE_VERSION: &str = "gateway.networking.k8s.io/bundle-version";
/// The versions of the Gateway API whose objects mean what they mean here.
pub const BUNDLES: RangeInclusive<[u32; 2]> = [1, 1]..=[1, 6];
/// The most fields that a finding lists.
const MAX_FIELDS: usize = 8;
/// What every object has beside what its kind defines.
const OF_ALL_KINDS: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];

/// A kind is defined that is not read.
pub const UNREAD_KIND: &str = "unread-kind";
/// A definition serves no version that is read, or is older than the oldest one.
pub const UNREAD_VERSION: &str = "unread-version";
/// A definition has fields that are not known.
pub const UNREAD_FIELDS: &str = "unread-fields";
/// A definition lacks fields that are read.
pub const ABSENT_FIELDS: &str = "absent-fields";
/// The codes of these findings.
pub const GAPS: [&str; 4] = [UNREAD_KIND, UNREAD_VERSION, UNREAD_FIELDS, ABSENT_FIELDS];

/// Whether the definition of this name (`PLURAL.GROUP`) is one of a group that is read.
pub fn is_of_mesh(name: &str) -> bool {
    name.split_once('.').is_some_and(|(_, group)| GROUPS.contains(&group))
}

/// The differences between a definition and what is read.
pub fn gaps(definition: &Node) -> Diagnostics {
    let mut found = Diagnostics::new();
    let text = |path: &str| definition.at_path(path).and_then(Node::as_str).unwrap_or_default();
    let (group, name) = (text("spec.group"), text("spec.names.kind"));
    if !GROUPS.contains(&group) || name.is_empty() {
        return found;
    }
    let span = definition.span_of_path("spec.names.kind");
    let Some(kind) = kind_named(group, name).filter(|kind| kind.is_supported()) else {
        // Objects of kinds that are known are named, and closed if they protect something.
        if !is_known_in(group, name) {
            let message =
                format!("the kind {name} of `{group}` is defined, and is not read: its objects have no effect");
            let help = "use another kind, or a release that reads it";
            found.push(Diagnostic::warning(UNREAD_KIND, span.clone(), message).with_help(help));
        }
        return found;
    };
    let title = format!("{name} ({group})");
    check_bundle(definition, &title, &mut found);
    let Some((version, schema)) = read_version(definition, kind) else {
        let versions = served(definition).filter_map(|version| version.get("name").and_then(Node::as_str));
        let message = format!(
            "{title} is served as {}, and {} can be read: its objects are not read",
            listed(versions),
            listed(kind.versions().iter().copied())
        );
        let place = definition.span_of_path("spec.versions").clone();
        found.push(Diagnostic::warning(UNREAD_VERSION, place, message).with_help(UPDATE));
        return found;
    };
    let (Some(schema), Schema::Object(fields)) = (schema, kind.schema()) else { return found };
    let mut fields_of = Compared::default();
    fields_of.compare(schema, fields, "");
    fields_of.report(&title, version, &schema.span, &mut found);
    found
}

const UPDATE: &str = "install definitions of a version that is known (docs/install.md)";

/// The versions that a server serves.
fn served(definition: &Node) -> impl Iterator<Item = &Node> {
    let all = definition.at_path("spec.versions").and_then(Node::as_sequence).unwrap_or_default();
    all.iter().filter(|version| version.get("served").is_some_and(|served| served.to_json() == true))
}

/// The version that is read, with its schema: the first of those that are known.
fn read_version(definition: &Node, kind: Kind) -> Option<(&'static str, Option<&Node>)> {
    kind.versions().iter().find_map(|wanted| {
        let is_it = |version: &&Node| version.get("name").and_then(Node::as_str) == Some(wanted);
        let version = served(definition).find(is_it)?;
        Some((*wanted, version.at_path("schema.openAPIV3Schema")))
    })
}

/// Major and minor version of the Gateway API in the value of [`BUNDLE_VERSION`].
pub fn bundle_version(text: &str) -> Option<[u32; 2]> {
    let mut numbers = text.trim_start_matches('v').split(['.', '-']).map(|part| part.parse::<u32>().ok());
    Some([numbers.next()??, numbers.next()??])
}

fn check_bundle(definition: &Node, title: &str, found: &mut Diagnostics) {
    let annotations = definition.get("metadata").and_then(|metadata| metadata.get("annotations"));
    let Some(written) = annotations.and_then(|annotations| annotations.get(BUNDLE_VERSION)) else { return };
    let Some(text) = written.as_str() else { return };
    // A build from sources has no number.
    let Some(version) = bundle_version(text) else { return };
    let oldest = BUNDLES.start();
    if version[0] > 0 && version < *oldest {
        let message = format!(
            "the definition of {title} is of version {text} of the Gateway API, and {}.{} is the oldest one that is supported",
            oldest[0], oldest[1]
        );
        found.push(Diagnostic::warning(UNREAD_VERSION, written.span.clone(), message).with_help(UPDATE));
    }
}

/// The fields by which a schema and a table differ.
#[derive(Default)]
struct Compared {
    unread: Vec<String>,
    absent: Vec<String>,
}

impl Compared {
    fn compare(&mut self, schema: &Node, fields: &[Field], path: &str) {
        let keeps_all = schema.get("x-kubernetes-preserve-unknown-fields").is_some();
        let Some(properties) = schema.get("properties").and_then(Node::as_mapping).filter(|_| !keeps_all) else {
            return;
        };
        let at = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        for property in properties.iter() {
            let is_common = path.is_empty() && OF_ALL_KINDS.contains(&&*property.key);
            match fields.iter().find(|field| *field.name == *property.key) {
                None if is_common => {}
                None => self.unread.push(at(&property.key)),
                Some(field) => {
                    if let Some(schema) = field.schema {
                        self.descend(&property.value, &schema(), &at(&property.key));
                    }
                }
            }
        }
        let has = |field: &&Field| properties.iter().any(|property| *property.key == *field.name);
        let read = fields.iter().filter(|field| field.status == Status::Works);
        self.absent.extend(read.filter(|field| !has(field)).map(|field| at(field.name)));
    }

    fn descend(&mut self, node: &Node, schema: &Schema, path: &str) {
        match schema {
            Schema::Object(fields) => self.compare(node, fields, path),
            Schema::List(item) => {
                if let Some(items) = node.get("items") {
                    self.descend(items, item, &format!("{path}[]"));
                }
            }
            Schema::Map(value) => {
                if let Some(values) = node.get("additionalProperties") {
                    self.descend(values, value, &format!("{path}.*"));
                }
            }
            _ => {}
        }
    }

    fn report(self, title: &str, version: &str, span: &Span, found: &mut Diagnostics) {
        if !self.unread.is_empty() {
            let message = format!(
                "{title} {version} has fields that are not known: {}; an object with one of them is refused",
                some(&self.unread)
            );
            let help = "use a release that knows them, or leave these fields out";
            found.push(Diagnostic::warning(UNREAD_FIELDS, span.clone(), message).with_help(help));
        }
        if !self.absent.is_empty() {
            let message = format!(
                "{title} {version} lacks {}: a server drops these fields, which would be read",
                some(&self.absent)
            );
            let help = "definitions of a newer version, or of the experimental channel, have them";
            found.push(Diagnostic::info(ABSENT_FIELDS, span.clone(), message).with_help(help));
        }
    }
}

fn listed<'t>(all: impl Iterator<Item = &'t str>) -> String {
    let all: Vec<&str> = all.collect();
    if all.is_empty() { "no version".to_owned() } else { all.join(", ") }
}

/// The first fields, and the number of the others.
fn some(fields: &[String]) -> String {
    let named = fields.iter().take(MAX_FIELDS).map(|field| format!("`{field}`")).collect::<Vec<_>>().join(", ");
    match fields.len().checked_sub(MAX_FIELDS).filter(|more| *more > 0) {
        Some(more) => format!("{named} and {more} more"),
        None => named,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        let (documents, found) = evenkeel_base::yaml::parse(&"crd.yaml".into(), text);
        assert!(found.is_empty(), "{found}");
        let gaps = documents.iter().flat_map(|document| gaps(document).into_iter().collect::<Vec<_>>());
        let lines: Vec<String> =
            gaps.map(|gap| format!("{}:{} {}: {}", gap.span.line, gap.span.column, gap.code, gap.message)).collect();
        assert_eq!(lines, expected, "{text}");
    }

    fn definition(group: &str, kind: &str, bundle: &str, versions: &str) -> String {
        format!(
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
             metadata: {{name: x.{group}, annotations: {{gateway.networking.k8s.io/bundle-version: {bundle}}}}}\n\
             spec:\n  group: {group}\n  names: {{kind: {kind}, plural: x}}\n  versions:\n{versions}"
        )
    }

    fn version(name: &str, served: bool, spec: &str) -> String {
        format!(
            "  - {{name: {name}, served: {served}, schema: {{openAPIV3Schema: {{properties: {{spec: {{properties: {{{spec}}}}}}}}}}}}}\n"
        )
    }

    const GATEWAY_API: &str = "gateway.networking.k8s.io";
    const GRANT: &str = "from: {items: {properties: {group: {}, kind: {}, namespace: {}}}}, to: {items: {properties: {group: {}, kind: {}, name: {}}}}";

    #[test]
    fn what_would_be_lost_is_named() {
        let grant = |bundle: &str, versions: &str| definition(GATEWAY_API, "ReferenceGrant", bundle, versions);
        check(&grant("v1.6.0", &version("v1", true, GRANT)), &[]);
        check(&grant("v1.6.0", &(version("v9", true, "") + &version("v1beta1", true, GRANT))), &[]);
        check(
            &grant("v1.0.1", &version("v1", true, GRANT)),
            &[
                "3:103 unread-version: the definition of ReferenceGrant (gateway.networking.k8s.io) is of version v1.0.1 of the Gateway API, and 1.1 is the oldest one that is supported",
            ],
        );
        check(
            &grant("v1.6.0", &(version("v9", true, GRANT) + &version("v1", false, GRANT))),
            &[
                "7:3 unread-version: ReferenceGrant (gateway.networking.k8s.io) is served as v9, and v1, v1beta1 can be read: its objects are not read",
            ],
        );
        check(
            &grant(
                "main",
                &version(
                    "v1",
                    true,
                    "from: {items: {properties: {group: {}, kind: {}, namespace: {}, port: {}}}}, why: {}",
                ),
            ),
            &[
                "8:56 unread-fields: ReferenceGrant (gateway.networking.k8s.io) v1 has fields that are not known: `spec.from[].port`, `spec.why`; an object with one of them is refused",
                "8:56 absent-fields: ReferenceGrant (gateway.networking.k8s.io) v1 lacks `spec.to`: a server drops these fields, which would be read",
            ],
        );
        check(
            &definition("gateway.networking.x-k8s.io", "XBackend", "v1.6.0", &version("v1alpha1", true, "")),
            &[
                "6:11 unread-kind: the kind XBackend of `gateway.networking.x-k8s.io` is defined, and is not read: its objects have no effect",
            ],
        );
        // Objects of these are named themselves, and other groups are not ours.
        check(&definition("networking.istio.io", "EnvoyFilter", "v1", &version("v1alpha3", true, "")), &[]);
        check(&definition("cert-manager.io", "Certificate", "v1", &version("v1", true, "")), &[]);
    }

    /// What a server or a file has in the place of a definition.
    #[test]
    fn broken_definitions_are_passed_over() {
        check("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n", &[]);
        check("spec: []\n", &[]);
        check("spec: {group: gateway.networking.k8s.io, names: 1, versions: x}\n", &[]);
        let no_list = "spec: {group: gateway.networking.k8s.io, names: {kind: HTTPRoute}, versions: x}\n";
        check(
            no_list,
            &[
                "1:68 unread-version: HTTPRoute (gateway.networking.k8s.io) is served as no version, and v1, v1beta1 can be read: its objects are not read",
            ],
        );
    }
}
