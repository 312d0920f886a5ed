//! Custom resource definitions of Istio's kinds, made of the tables of fields by which the kinds are read, and of what Istio's definitions
//! demand of a field beyond its type (`demands.rs`). The API server holds them with the control plane down, too. What is a mistake only
//! beside other objects is left to the validating webhook.

mod adjust;
mod demands;

use std::fmt::Write as _;

use evenkeel_api::Kind;
use evenkeel_api::decode::{Field, Schema};
use serde_json::{Map, Value, json};

use demands::DEMANDS;

/// Annotation of a definition: the version of the program that it comes from.
pub const VERSION_ANNOTATION: &str = "evenkeel.dev/version";

/// What the table of fields does not say about a kind.
struct Names {
    kind: &'static str,
    group: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    /// Columns of `kubectl get`: a name and the path of its field.
    columns: &'static [[&'static str; 2]],
}

const NETWORKING: &str = "networking.istio.io";
const SECURITY: &str = "security.istio.io";

const NAMES: &[Names] = &[
    Names {
        kind: "DestinationRule",
        group: NETWORKING,
        plural: "destinationrules",
        short: &["dr"],
        columns: &[["Host", ".spec.host"]],
    },
    Names { kind: "Gateway", group: NETWORKING, plural: "gateways", short: &["gw"], columns: &[] },
    Names { kind: "ProxyConfig", group: NETWORKING, plural: "proxyconfigs", short: &[], columns: &[] },
    Names {
        kind: "ServiceEntry",
        group: NETWORKING,
        plural: "serviceentries",
        short: &["se"],
        columns: &[["Hosts", ".spec.hosts"], ["Location", ".spec.location"], ["Resolution", ".spec.resolution"]],
    },
    Names { kind: "Sidecar", group: NETWORKING, plural: "sidecars", short: &[], columns: &[] },
    Names {
        kind: "VirtualService",
        group: NETWORKING,
        plural: "virtualservices",
        short: &["vs"],
        columns: &[["Gateways", ".spec.gateways"], ["Hosts", ".spec.hosts"]],
    },
    Names {
        kind: "WorkloadEntry",
        group: NETWORKING,
        plural: "workloadentries",
        short: &["we"],
        columns: &[["Address", ".spec.address"]],
    },
    Names { kind: "WorkloadGroup", group: NETWORKING, plural: "workloadgroups", short: &["wg"], columns: &[] },
    Names {
        kind: "AuthorizationPolicy",
        group: SECURITY,
        plural: "authorizationpolicies",
        short: &["ap"],
        columns: &[["Action", ".spec.action"]],
    },
    Names {
        kind: "PeerAuthentication",
        group: SECURITY,
        plural: "peerauthentications",
        short: &["pa"],
        columns: &[["Mode", ".spec.mtls.mode"]],
    },
    Names {
        kind: "RequestAuthentication",
        group: SECURITY,
        plural: "requestauthentications",
        short: &["ra"],
        columns: &[],
    },
    Names {
        kind: "Telemetry",
        group: "telemetry.istio.io",
        plural: "telemetries",
        short: &["telemetry"],
        columns: &[],
    },
];

/// A kind that is not read. Its objects can be stored, so that the control plane can close what they would have protected.
struct Unread {
    names: Names,
    version: &'static str,
    /// Fields of `spec` that are checked as in kinds that are read: a name, and the kind that has it too.
    shared: &'static [(&'static str, Kind)],
    /// Fields of `spec` that are texts.
    texts: &'static [&'static str],
    /// Fields of `spec` with any fields.
    any: &'static [&'static str],
}

const EXTENSIONS: &str = "extensions.istio.io";

const UNREAD: &[Unread] = &[
    Unread {
        names: Names { kind: "EnvoyFilter", group: NETWORKING, plural: "envoyfilters", short: &[], columns: &[] },
        version: "v1alpha3",
        shared: &[("workloadSelector", Kind::Sidecar), ("targetRefs", Kind::AuthorizationPolicy)],
        texts: &[],
        any: &[],
    },
    Unread {
        names: Names { kind: "WasmPlugin", group: EXTENSIONS, plural: "wasmplugins", short: &[], columns: &[] },
        version: "v1alpha1",
        shared: &[
            ("selector", Kind::AuthorizationPolicy),
            ("targetRef", Kind::AuthorizationPolicy),
            ("targetRefs", Kind::AuthorizationPolicy),
        ],
        texts: &["url", "sha256", "pluginName", "imagePullSecret"],
        any: &[],
    },
    Unread {
        names: Names {
            kind: "TrafficExtension",
            group: EXTENSIONS,
            plural: "trafficextensions",
            short: &[],
            columns: &[],
        },
        version: "v1alpha1",
        shared: &[("selector", Kind::AuthorizationPolicy), ("targetRefs", Kind::AuthorizationPolicy)],
        texts: &[],
        any: &["wasm", "lua"],
    },
];

/// Kinds without which Istio's definitions refuse an object that has no `spec`.
const NEEDS_SPEC: [&str; 5] = ["ServiceEntry", "WorkloadEntry", "WorkloadGroup", "WasmPlugin", "TrafficExtension"];

/// Returns the definitions of all kinds.
pub fn definitions() -> Vec<Value> {
    let read = NAMES.iter().filter_map(|names| {
        let kind = Kind::ALL.iter().find(|kind| kind.as_str() == names.kind && kind.group() == names.group)?;
        Some(definition(names, kind.versions(), &object_schema(names.kind, kind.schema())))
    });
    let unread = UNREAD.iter().map(|unread| definition(&unread.names, &[unread.version], &unread_schema(unread)));
    read.chain(unread).collect()
}

/// Returns the template of the chart that has them.
pub fn template() -> String {
    let mut text =
        String::from("{{- /* Made by the program: evenkeel crds. */ -}}\n{{- if .Values.base.enableCRDTemplates }}\n");
    for definition in definitions() {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default();
        let json = serde_json::to_string_pretty(&definition).unwrap_or_default();
        _ = writeln!(text, "{{{{- if not (has \"{name}\" .Values.base.excludedCRDs) }}}}\n---\n{json}\n{{{{- end }}}}");
    }
    text + "{{- end }}\n"
}

fn definition(names: &Names, versions: &[&str], schema: &Value) -> Value {
    let singular = names.kind.to_lowercase();
    let mut columns: Vec<Value> =
        names.columns.iter().map(|[name, path]| json!({"name": name, "type": "string", "jsonPath": path})).collect();
    columns.push(json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}));
    let version = |(place, name): (usize, &&str)| {
        json!({
            "name": name,
            "served": true,
            "storage": place == 0,
            "additionalPrinterColumns": columns,
            "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": schema},
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{}.{}", names.plural, names.group),
            "labels": {"app": "istio-pilot", "chart": "istio", "app.kubernetes.io/part-of": "istio"},
            "annotations": {"helm.sh/resource-policy": "keep", VERSION_ANNOTATION: env!("CARGO_PKG_VERSION")},
        },
        "spec": {
            "group": names.group,
            "scope": "Namespaced",
            "names": {
                "kind": names.kind,
                "listKind": format!("{}List", names.kind),
                "plural": names.plural,
                "singular": singular,
                "shortNames": names.short,
                "categories": ["istio-io", names.group.replace('.', "-")],
            },
            "versions": versions.iter().enumerate().map(version).collect::<Vec<_>>(),
        },
    })
}

/// The schema of a whole object. `apiVersion`, `kind` and `metadata` are the API server's.
fn object_schema(kind: &str, schema: Schema) -> Value {
    let mut root = structural(&schema);
    root["properties"]["status"] = unread();
    adjust::adjust(DEMANDS, kind, &mut root);
    require_spec(kind, &mut root);
    root
}

/// The schema of an object of a kind that is not read: what of it is like other kinds, and everything else.
fn unread_schema(unread_kind: &Unread) -> Value {
    let shared = unread_kind.shared.iter().map(|(name, kind)| {
        let like = structural(&kind.schema());
        (
            (*name).to_owned(),
            like.pointer(&format!("/properties/spec/properties/{name}")).cloned().unwrap_or_else(unread),
        )
    });
    let texts = unread_kind.texts.iter().map(|name| ((*name).to_owned(), json!({"type": "string"})));
    // Rules see no field without a type.
    let any_object = || json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let any = unread_kind.any.iter().map(|name| ((*name).to_owned(), any_object()));
    let fields: Map<String, Value> = shared.chain(texts).chain(any).collect();
    let mut spec = json!({"type": "object", "properties": fields});
    spec["x-kubernetes-preserve-unknown-fields"] = json!(true);
    let mut root = json!({"type": "object", "properties": {"spec": spec, "status": unread()}});
    adjust::adjust(DEMANDS, unread_kind.names.kind, &mut root);
    require_spec(unread_kind.names.kind, &mut root);
    root
}

fn require_spec(kind: &str, root: &mut Value) {
    let Some(fields) = root.as_object_mut() else { return };
    fields.remove("required");
    if NEEDS_SPEC.contains(&kind) {
        fields.insert("required".to_owned(), json!(["spec"]));
    }
}

/// A value that is stored as it is.
fn unread() -> Value {
    json!({"x-kubernetes-preserve-unknown-fields": true})
}

fn structural(schema: &Schema) -> Value {
    match schema {
        Schema::String(_) => json!({"type": "string"}),
        Schema::Integer { min, max } => bounded(*min, *max),
        Schema::Number => json!({"type": "number"}),
        Schema::Boolean => json!({"type": "boolean"}),
        Schema::IntOrString => json!({"x-kubernetes-int-or-string": true}),
        Schema::Choice(values) => json!({"type": "string", "enum": values}),
        Schema::List(item) => json!({"type": "array", "items": structural(item)}),
        Schema::Map(value) => json!({"type": "object", "additionalProperties": structural(value)}),
        Schema::Object(fields) => mapping(fields),
    }
}

fn bounded(min: i64, max: i64) -> Value {
    let mut schema = json!({"type": "integer"});
    if min > i64::MIN {
        schema["minimum"] = min.into();
    }
    if max < i64::MAX {
        schema["maximum"] = max.into();
    }
    schema
}

fn mapping(fields: &[Field]) -> Value {
    // A field that does not work yet is stored as it is: its finding names it.
    let of = |field: &Field| field.schema.map_or_else(unread, |schema| structural(&schema()));
    let properties: Map<String, Value> = fields.iter().map(|field| (field.name.to_owned(), of(field))).collect();
    let required: Vec<&str> = fields.iter().filter(|field| (field.required)()).map(|field| field.name).collect();
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A demand for a field that is nowhere would be lost in silence.
    #[test]
    fn every_demand_is_for_a_field() {
        let (definitions, mut lost) = (definitions(), Vec::new());
        for (place, demand) in DEMANDS.iter().enumerate() {
            for kind in demand.kinds {
                let of_kind = definitions.iter().find(|definition| definition["spec"]["names"]["kind"] == *kind);
                let schema = of_kind.map(|of_kind| &of_kind["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
                let is_found = schema.is_some_and(|schema| has_path(schema, "", demand.path));
                if !is_found {
                    lost.push(format!("{place}: {kind} has no field {:?}", demand.path));
                }
            }
        }
        assert!(lost.is_empty(), "{}", lost.join("\n"));
    }

    fn has_path(schema: &Value, path: &str, end: &str) -> bool {
        let below = |entry: &Value, mark: String| has_path(entry, &format!("{path}{mark}"), end);
        let mut properties = schema["properties"].as_object().into_iter().flatten();
        path.ends_with(end)
            || properties.any(|(name, field)| below(field, format!(".{name}")))
            || schema.get("items").is_some_and(|entry| below(entry, "[]".to_owned()))
            || schema.get("additionalProperties").is_some_and(|entry| below(entry, "{}".to_owned()))
    }
}
