//! The reader of MeshConfig against Go's `protojson`, the reader of istiod: each field, in all spellings of its kind.
//! Both read the same, except what a row of [`SPELLINGS`] gives a reason for.

use std::collections::BTreeMap;

use evenkeel_api::decode::{Decode as _, Field, Schema, Status};
use evenkeel_api::istio::MeshConfig;
use evenkeel_testkit::{go_reference, workspace};
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::json;

/// The definitions of Istio's settings (`scripts/mesh-schema`).
const DESCRIPTORS: &str = "crates/api/tests/it/mesh_config.bin";
const MESSAGE: &str = "istio.mesh.v1alpha1.MeshConfig";

/// Which fields a spelling is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Bool,
    Integer,
    Unsigned,
    Float,
    Text,
    Enum,
    Duration,
    Message,
    List,
    Map,
    /// Every field with a single value.
    Single,
}

/// What the readers say of a spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Both read what the usual spelling says.
    Same,
    /// Both read what the absence of the field says.
    Absent,
    /// Both refuse it.
    Refused,
    /// Only ours reads it, for this reason.
    Ours(&'static str),
}
use Verdict::*;

const AS_GOS_DURATION: Verdict = Ours("istiod reads durations as Go's time.ParseDuration does");

/// Spellings other than the usual ones; `<V>` stands for a usual value, `<N>` for its number in an enumeration.
const SPELLINGS: &[(Of, &str, Verdict)] = &[
    (Of::Bool, "\"<V>\"", Refused),
    (Of::Bool, "1", Refused),
    (Of::Bool, "\"yes\"", Refused),
    (Of::Integer, "\"<V>\"", Same),
    (Of::Integer, "<V>.0", Same),
    (Of::Integer, "<V>0e-1", Same),
    (Of::Integer, "\"<V>.0\"", Same),
    (Of::Integer, "\" <V>\"", Refused),
    (Of::Integer, "\"\"", Refused),
    (Of::Integer, "<V>.5", Refused),
    (Of::Integer, "true", Refused),
    (Of::Integer, "99999999999999999999", Refused),
    (Of::Unsigned, "-1", Refused),
    (Of::Float, "\"<V>\"", Same),
    (Of::Float, "<V>0e-1", Same),
    (Of::Float, "true", Refused),
    (Of::Float, "\"\"", Refused),
    (Of::Text, "5", Refused),
    (Of::Text, "true", Refused),
    (Of::Text, "{}", Refused),
    (Of::Text, "[]", Refused),
    (Of::Enum, "<N>", Same),
    (Of::Enum, "\"NO_SUCH_VALUE\"", Refused),
    (Of::Enum, "true", Refused),
    (Of::Duration, "\"7.000s\"", Same),
    (Of::Duration, "5", Refused),
    (Of::Duration, "\"5\"", Refused),
    (Of::Duration, "\"s\"", Refused),
    (Of::Duration, "\" 5s\"", Refused),
    (Of::Duration, "\"1.1234567891s\"", AS_GOS_DURATION),
    (Of::Duration, "\"1m5s\"", AS_GOS_DURATION),
    (Of::Message, "5", Refused),
    (Of::Message, "\"\"", Refused),
    (Of::Message, "[]", Refused),
    (Of::Single, "null", Absent),
    (Of::List, "null", Absent),
    (Of::List, "[]", Absent),
    (Of::List, "<V>", Refused),
    (Of::List, "[null]", Refused),
    (Of::Map, "null", Absent),
    (Of::Map, "{}", Absent),
    (Of::Map, "[]", Refused),
];

/// Usual values of texts; a field takes the first that ours accepts there.
const TEXTS: &[&str] = &[
    "a",
    "503",
    "5xx",
    "P-256",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "a.example:80",
    "Exists",
    "In",
    "HTTP",
    "a.example",
    "/a/b",
    "10.0.0.0/8",
    "http://a.example/b",
    "~",
];

/// Values without which ours refuses the message with this path, beside the fields that must be there.
const SIBLINGS: &[(&str, &str, &str)] = &[
    (".ca", "address", "\"127.0.0.1:9000\""),
    (".defaultConfig.readinessProbe", "tcpSocket", "{\"port\": 80}"),
    (".outboundTrafficPolicy", "mode", "\"ALLOW_ANY_DYNAMIC_DNS\""),
    (".localityLbSetting.distribute", "to", "{\"a\": 100}"),
    (".discoverySelectors.matchExpressions", "values", "[\"a\"]"),
    (".serviceEntryVisibility.policies.matchingRules.namespaceSelector.matchExpressions", "values", "[\"a\"]"),
    (".extensionProviders.opentelemetry.http", "path", "\"/a\""),
];

/// Fields of types that MeshConfig shares with other kinds, where Istio has others. Go's reader refuses them here.
const NOT_ISTIOS: &[&str] = &[
    ".outboundTrafficPolicy.egressProxy",
    ".extensionProviders.zipkin.accessToken",
    ".extensionProviders.lightstep.enable64bitTraceId",
    ".extensionProviders.lightstep.path",
    ".extensionProviders.lightstep.traceContextOption",
    ".extensionProviders.lightstep.timeout",
    ".extensionProviders.lightstep.headers",
    ".extensionProviders.datadog.enable64bitTraceId",
    ".extensionProviders.datadog.path",
    ".extensionProviders.datadog.traceContextOption",
    ".extensionProviders.datadog.timeout",
    ".extensionProviders.datadog.headers",
    ".extensionProviders.datadog.accessToken",
    ".extensionProviders.skywalking.maxTagLength",
    ".extensionProviders.skywalking.enable64bitTraceId",
    ".extensionProviders.skywalking.path",
    ".extensionProviders.skywalking.traceContextOption",
    ".extensionProviders.skywalking.timeout",
    ".extensionProviders.skywalking.headers",
    ".extensionProviders.envoyTcpAls.additionalRequestHeadersToLog",
    ".extensionProviders.envoyTcpAls.additionalResponseHeadersToLog",
    ".extensionProviders.envoyTcpAls.additionalResponseTrailersToLog",
    ".extensionProviders.envoyOtelAls.filterStateObjectsToLog",
];

/// Fields that ours refuses with every value, for a reason that it gives.
const REFUSED: &[&str] = &[
    ".ca.tlsSettings.caCrl",
    ".ca.tlsSettings.credentialName",
    ".ca.tlsSettings.insecureSkipVerify",
    ".outboundTrafficPolicy.tls.credentialName",
];

/// Usual values of fields that take no other.
const VALUES: &[(&str, &str)] = &[
    (".ca", "{\"address\": \"127.0.0.1:9000\"}"),
    (".defaultConfig.readinessProbe", "{\"tcpSocket\": {\"port\": 80}}"),
    (".discoverySelectors.matchExpressions", "[{\"key\": \"a\", \"operator\": \"Exists\"}]"),
    (".extensionProviders.opentelemetry.http", "{\"path\": \"/a\"}"),
    (".localityLbSetting.distribute", "[{\"from\": \"a\", \"to\": {\"a\": 100}}]"),
    (".localityLbSetting.distribute.to", "{\"a\": 100}"),
    (".localityLbSetting.failover", "[{\"from\": \"a\", \"to\": \"b\"}]"),
    (
        ".serviceEntryVisibility.policies.matchingRules.namespaceSelector.matchExpressions",
        "[{\"key\": \"a\", \"operator\": \"Exists\"}]",
    ),
    (".zoneAwareLbSetting.failover", "[{\"from\": \"a\", \"to\": \"b\"}]"),
    (".defaultConfig.tracing.customTags", "{\"a\": {\"literal\": {\"value\": \"a\"}}}"),
];

/// A field of the settings that works, and where it is.
struct Place {
    path: String,
    field: FieldDescriptor,
    /// The text up to the message that it is in, and after it.
    around: [String; 2],
    /// What the message has besides, if the field is no other of a choice.
    siblings: Vec<(String, String)>,
    /// A value of its schema.
    example: String,
}

impl Place {
    /// The settings with this value of the field, or without it.
    fn settings(&self, value: Option<&str>) -> String {
        let of = |(name, value): &(String, String)| format!("\"{name}\": {value}");
        let siblings = self.siblings.iter().filter(|(name, _)| name != self.field.json_name() && self.goes_with(name));
        let field = value.map(|value| (self.field.json_name().to_owned(), value.to_owned()));
        let fields: Vec<String> = field.iter().map(of).chain(siblings.map(of)).collect();
        let [before, after] = &self.around;
        format!("{before}{{{}}}{after}", fields.join(", "))
    }

    /// Whether both can be there.
    fn goes_with(&self, sibling: &str) -> bool {
        let choice = self.field.containing_oneof();
        choice.is_none_or(|choice| choice.fields().all(|of| of.json_name() != sibling))
    }

    /// The kinds of spellings that it has, and its usual values.
    fn kinds(&self) -> (&'static [Of], Vec<String>) {
        if self.field.is_map() {
            return (&[Of::Map], texts().map(|text| format!("{{\"a\": {text}}}")).collect());
        }
        let (of, values) = kinds_of(&self.field.kind());
        if self.field.is_list() {
            (&[Of::List], values.into_iter().map(|value| format!("[{value}]")).collect())
        } else {
            (of, values)
        }
    }
}

fn texts() -> impl Iterator<Item = String> {
    TEXTS.iter().map(|text| format!("\"{text}\""))
}

fn kinds_of(kind: &Kind) -> (&'static [Of], Vec<String>) {
    match kind {
        Kind::Bool => (&[Of::Bool, Of::Single], vec!["true".to_owned()]),
        Kind::Uint32 | Kind::Uint64 => (
            &[Of::Integer, Of::Unsigned, Of::Single],
            vec!["7".to_owned(), "15001".to_owned(), "15006".to_owned(), "503".to_owned()],
        ),
        Kind::Int32 | Kind::Int64 => (&[Of::Integer, Of::Single], vec!["7".to_owned()]),
        Kind::Float | Kind::Double => (&[Of::Float, Of::Single], vec!["7".to_owned(), "0.5".to_owned()]),
        Kind::Enum(of) => (&[Of::Enum, Of::Single], of.values().map(|value| format!("\"{}\"", value.name())).collect()),
        Kind::Message(of) => match of.full_name() {
            "google.protobuf.Duration" => (&[Of::Duration, Of::Single], vec!["\"7s\"".to_owned()]),
            name if name.starts_with("google.protobuf.") && name.ends_with("Value") => {
                kinds_of(&of.get_field_by_name("value").expect("a wrapper").kind())
            }
            _ => (&[Of::Message, Of::Single], vec!["{}".to_owned()]),
        },
        _ => (&[Of::Text, Of::Single], texts().collect()),
    }
}

/// All places of a message with this schema.
fn places(descriptor: &MessageDescriptor, schema: &Schema, path: &str, around: &[String; 2], found: &mut Vec<Place>) {
    let Schema::Object(fields) = schema else { return };
    let named: Vec<_> = SIBLINGS.iter().filter(|(of, ..)| *of == path).collect();
    let is_named = |field: &Field| named.iter().any(|(_, name, _)| *name == field.name);
    let required = fields.iter().filter(|field| (field.required)() && !is_named(field));
    let required = required.map(|field| (field.name.to_owned(), example_of(field)));
    let named = named.iter().map(|(_, name, value)| ((*name).to_owned(), (*value).to_owned()));
    let siblings: Vec<_> = required.chain(named).collect();
    for field in fields.iter().filter(|field| field.status == Status::Works) {
        let path = format!("{path}.{}", field.name);
        let of = descriptor.fields().find(|of| of.json_name() == field.name);
        let Some(of) = of else {
            assert!(NOT_ISTIOS.contains(&&*path), "{path} is no field of {}", descriptor.full_name());
            continue;
        };
        let place = Place {
            path: path.clone(),
            field: of.clone(),
            around: around.clone(),
            siblings: siblings.clone(),
            example: example_of(field),
        };
        if let (Kind::Message(inner), Some(schema), false) = (of.kind(), field.schema, of.is_map()) {
            let (before, after) =
                place.settings(Some("@")).split_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("a value");
            match schema() {
                Schema::List(schema) => places(&inner, &schema, &path, &[before + "[", format!("]{after}")], found),
                schema => places(&inner, &schema, &path, &[before, after], found),
            }
        }
        found.push(place);
    }
}

/// A value that a required field may have.
fn example_of(field: &Field) -> String {
    fn of(schema: &Schema) -> String {
        match schema {
            Schema::String(_) => "\"a\"".to_owned(),
            Schema::Integer { min, .. } => min.max(&1).to_string(),
            Schema::Number | Schema::IntOrString => "1".to_owned(),
            Schema::Boolean => "true".to_owned(),
            Schema::Choice(values) => format!("\"{}\"", values[0]),
            Schema::List(item) => format!("[{}]", of(item)),
            Schema::Map(value) => format!("{{\"a\": {}}}", of(value)),
            Schema::Object(fields) => {
                let required = fields.iter().filter(|field| (field.required)());
                let fields: Vec<String> =
                    required.map(|field| format!("\"{}\": {}", field.name, example_of(field))).collect();
                format!("{{{}}}", fields.join(", "))
            }
        }
    }
    of(&field.schema.expect("it works")())
}

/// What ours reads.
fn ours(settings: &str) -> Result<MeshConfig, String> {
    let text = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata: {{mesh: '{settings}'}}\n"
    );
    let (objects, found) = evenkeel_api::load(&[("mesh.yaml".into(), text.into())]);
    if found.has_errors() {
        return Err(found.to_string());
    }
    let (config, found) = objects.first().and_then(MeshConfig::of_object).ok_or("no settings")?;
    if found.has_errors() { Err(found.to_string()) } else { Ok(config) }
}

/// What Go's reader reads of each, encoded.
fn gos(settings: &[String]) -> Vec<Result<String, String>> {
    let questions: Vec<_> = settings.iter().map(|text| json!({"type": MESSAGE, "json": text})).collect();
    let answers = go_reference::ask("protojson-reference", &[&workspace::root().join(DESCRIPTORS)], &questions);
    let read = |answer: &serde_json::Value| match answer["error"].as_str() {
        Some(error) => Err(error.to_owned()),
        None => Ok(answer["encoded"].as_str().unwrap_or_default().to_owned()),
    };
    answers.iter().map(read).collect()
}

/// A place's usual spelling, and another.
struct Row<'p> {
    place: &'p Place,
    spelling: &'static (Of, &'static str, Verdict),
    text: String,
    usual: String,
    absent: String,
}

impl Row<'_> {
    /// What is wrong, if anything is.
    fn check(&self, gos: &BTreeMap<&str, &Result<String, String>>) -> Option<String> {
        let gos_of = |text: &str| gos[text].clone();
        let (our, go) = (ours(&self.text), gos_of(&self.text));
        let reads_as = |other: &str| our.is_ok() && our == ours(other) && go.is_ok() && go == gos_of(other);
        let holds = match self.spelling.2 {
            Same => reads_as(&self.usual),
            // Where ours needs a value, its absence is refused, too.
            Absent => {
                reads_as(&self.absent) || (our.is_err() && ours(&self.absent).is_err() && go == gos_of(&self.absent))
            }
            Refused => our.is_err() && go.is_err(),
            Ours(_) => our.is_ok() && go.is_err(),
        };
        let sides = [our.map(|_| "read"), go.map(|_| "read")];
        (!holds).then(|| {
            format!("expected {:?} of {}\n  ours: {:?}\n  Go's: {:?}", self.spelling.2, self.text, sides[0], sides[1])
        })
    }
}

/// All spellings of a place, or why there are none. Of an enumeration each value is one.
fn rows(place: &Place) -> Result<Vec<Row<'_>>, String> {
    let (of, values) = place.kinds();
    let own = VALUES.iter().find(|(path, _)| *path == place.path).map_or(&*place.example, |(_, value)| value);
    let mut usual: Vec<&str> = values.iter().map(String::as_str).chain(Some(own)).collect();
    usual.retain(|value| ours(&place.settings(Some(value))).is_ok());
    if !of.contains(&Of::Enum) {
        usual.truncate(1);
    }
    if usual.is_empty() {
        let error = ours(&place.settings(Some(own))).err();
        return Err(format!("{}: no usual value is read: {error:?}", place.path));
    }
    Ok(usual.into_iter().flat_map(|usual| spellings(place, of, usual)).collect())
}

fn spellings<'p>(place: &'p Place, of: &'static [Of], usual: &str) -> impl Iterator<Item = Row<'p>> {
    let bare = usual.trim_matches(['[', ']', '"']).to_owned();
    let number = number_of(&place.field, &bare).unwrap_or_default();
    let usual = place.settings(Some(usual));
    SPELLINGS.iter().filter(|(kind, ..)| of.contains(kind)).map(move |spelling| Row {
        place,
        spelling,
        text: place.settings(Some(&spelling.1.replace("<V>", &bare).replace("<N>", &number))),
        usual: usual.clone(),
        absent: place.settings(None),
    })
}

fn number_of(field: &FieldDescriptor, name: &str) -> Option<String> {
    let Kind::Enum(of) = field.kind() else { return None };
    Some(of.get_value_by_name(name)?.number().to_string())
}

#[test]
fn settings_are_read_as_by_go() {
    let bytes = std::fs::read(workspace::root().join(DESCRIPTORS)).expect("the descriptors");
    let pool = DescriptorPool::decode(&*bytes).expect("descriptors");
    let descriptor = pool.get_message_by_name(MESSAGE).expect("the settings");
    let mut found = Vec::new();
    places(&descriptor, &MeshConfig::schema(), "", &[String::new(), String::new()], &mut found);
    let mut wrong = Vec::new();
    let mut all = Vec::new();
    for place in &found {
        match rows(place) {
            Ok(rows) => all.extend(rows),
            Err(_) if REFUSED.contains(&&*place.path) => {}
            Err(error) => wrong.push(error),
        }
    }
    let texts: Vec<String> = all.iter().flat_map(|row| [&row.text, &row.usual, &row.absent]).cloned().collect();
    let answers = gos(&texts);
    let answers: BTreeMap<&str, &Result<String, String>> = texts.iter().map(String::as_str).zip(&answers).collect();
    wrong.extend(
        all.iter().filter_map(|row| Some(format!("{} {}: {}", row.place.path, row.spelling.1, row.check(&answers)?))),
    );
    assert!(wrong.is_empty(), "{} of {} rows are read otherwise:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}
