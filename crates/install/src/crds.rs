//! Custom resource definitions of Istio's kinds, made of the tables of fields by which the kinds are read. What is a mistake only in
//! context (a duration of zero, two fields that exclude each other) is left to the validating webhook.

use std::fmt::Write as _;

use evenkeel_api::Kind;
use evenkeel_api::decode::{Field, Schema};
use serde_json::{Map, Value, json};

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

/// Kinds that are not read. Their objects can be stored, so that the control plane can close what they would have protected.
const UNREAD: &[(Names, &str)] = &[
    (Names { kind: "EnvoyFilter", group: NETWORKING, plural: "envoyfilters", short: &[], columns: &[] }, "v1alpha3"),
    (
        Names { kind: "WasmPlugin", group: "extensions.istio.io", plural: "wasmplugins", short: &[], columns: &[] },
        "v1alpha1",
    ),
    (
        Names {
            kind: "TrafficExtension",
            group: "extensions.istio.io",
            plural: "trafficextensions",
            short: &[],
            columns: &[],
        },
        "v1alpha1",
    ),
];

/// How the schema of a field differs from its table, so that it is that of Istio's definitions. The tables say what has a meaning; what
/// Istio's definitions let pass without one, the validating webhook refuses.
struct Adjustment {
    kind: &'static str,
    /// The end of the path of the field: `servers[]` is an entry of the list `servers`.
    path: &'static str,
    change: Change,
}

enum Change {
    /// These fields have to be there, and no others.
    Required(&'static [&'static str]),
    /// Every text passes.
    AnyText,
    /// These texts pass as well.
    MoreTexts(&'static [&'static str]),
}

const fn requires(kind: &'static str, path: &'static str, fields: &'static [&'static str]) -> Adjustment {
    Adjustment { kind, path, change: Change::Required(fields) }
}

const OLD_TLS: Change = Change::MoreTexts(&["TLSV1_0", "TLSV1_1"]);

const ADJUSTMENTS: &[Adjustment] = &[
    requires("DestinationRule", "distribute[]", &[]),
    requires("DestinationRule", "failover[]", &[]),
    requires("DestinationRule", "portLevelSettings[]", &[]),
    requires("DestinationRule", "portLevelSettings[].port", &[]),
    Adjustment { kind: "DestinationRule", path: "tunnel.protocol", change: Change::AnyText },
    requires("Gateway", "servers[]", &["hosts", "port"]),
    Adjustment { kind: "Gateway", path: "tls.maxProtocolVersion", change: OLD_TLS },
    Adjustment { kind: "Gateway", path: "tls.minProtocolVersion", change: OLD_TLS },
    requires("ServiceEntry", ".spec", &["hosts"]),
    requires("Sidecar", "egress[]", &["hosts"]),
    requires("Sidecar", "egress[].port", &[]),
    requires("Sidecar", "ingress[].port", &[]),
    requires("Sidecar", "egressProxy.port", &[]),
    Adjustment { kind: "Sidecar", path: "tls.maxProtocolVersion", change: OLD_TLS },
    Adjustment { kind: "Sidecar", path: "tls.minProtocolVersion", change: OLD_TLS },
    requires("VirtualService", "delegate", &[]),
    requires("VirtualService", "mirror.port", &[]),
    requires("VirtualService", "destination.port", &[]),
    requires("VirtualService", "uriRegexRewrite", &[]),
    requires("VirtualService", "tls[]", &["match"]),
    requires("VirtualService", "tls[].match[]", &["sniHosts"]),
    requires("WorkloadGroup", "probe.grpc", &[]),
    requires("WorkloadGroup", "httpHeaders[]", &[]),
    Adjustment { kind: "WorkloadGroup", path: "httpGet.scheme", change: Change::AnyText },
    requires("AuthorizationPolicy", "from[]", &[]),
    requires("AuthorizationPolicy", "to[]", &[]),
    requires("RequestAuthentication", "jwtRules[]", &[]),
];

/// Kinds without which Istio's definitions refuse an object that has no `spec`.
const NEEDS_SPEC: [&str; 5] = ["ServiceEntry", "WorkloadEntry", "WorkloadGroup", "WasmPlugin", "TrafficExtension"];

fn adjust(kind: &str, path: &str, schema: &mut Value) {
    for adjustment in ADJUSTMENTS.iter().filter(|row| row.kind == kind && path.ends_with(row.path)) {
        let Some(fields) = schema.as_object_mut() else { continue };
        match adjustment.change {
            Change::Required([]) => _ = fields.remove("required"),
            Change::Required(names) => _ = fields.insert("required".to_owned(), json!(names)),
            Change::AnyText => _ = fields.remove("enum"),
            Change::MoreTexts(texts) => {
                let known = fields.get_mut("enum").and_then(Value::as_array_mut);
                known.into_iter().for_each(|known| known.extend(texts.iter().map(|text| json!(text))));
            }
        }
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, field) in properties.into_iter().flatten() {
        adjust(kind, &format!("{path}.{name}"), field);
    }
    if let Some(items) = schema.get_mut("items") {
        adjust(kind, &format!("{path}[]"), items);
    }
}

/// Returns the definitions of all kinds.
pub fn definitions() -> Vec<Value> {
    let read = NAMES.iter().filter_map(|names| {
        let kind = Kind::ALL.iter().find(|kind| kind.as_str() == names.kind && kind.group() == names.group)?;
        Some(definition(names, kind.versions(), &object_schema(names.kind, kind.schema())))
    });
    let unread = UNREAD.iter().map(|(names, version)| {
        let mut any = json!({"type": "object", "properties": {"spec": unread(), "status": unread()}});
        require_spec(names.kind, &mut any);
        definition(names, &[version], &any)
    });
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
    adjust(kind, "", &mut root);
    require_spec(kind, &mut root);
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
