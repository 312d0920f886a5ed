//! The reader of messages against Go's `protojson`, the reader of istiod: random messages of Envoy's API, in all spellings.
//! Both read the same, except what a row of [`SPELLINGS`] gives a reason for.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use evenkeel_base::yaml;
use evenkeel_testkit::{Random, cases, go_reference, workspace};
use evenkeel_xds::json::read_message;
use evenkeel_xds::{Schema, type_url};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage as _, Value};
use serde_json::json;

/// Where random messages begin.
const TYPES: [&str; 9] = [
    "envoy.config.bootstrap.v3.Bootstrap",
    "envoy.config.cluster.v3.Cluster",
    "envoy.config.listener.v3.Listener",
    "envoy.config.route.v3.RouteConfiguration",
    "envoy.config.endpoint.v3.ClusterLoadAssignment",
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
    "envoy.extensions.transport_sockets.tls.v3.Secret",
    "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
];
/// What an `Any` may have.
const OF_ANY: [&str; 4] = [
    "envoy.extensions.filters.http.router.v3.Router",
    "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
    "google.protobuf.Duration",
    "google.protobuf.UInt32Value",
];
/// Deeper messages have no messages.
const MAX_DEPTH: usize = 5;

/// Which fields a spelling is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Bool,
    Integer,
    Unsigned,
    Float,
    Text,
    Bytes,
    Enum,
    Duration,
    Wrapper,
    Struct,
    Value,
    Any,
    Message,
    List,
    Map,
    /// Every field with a single value.
    Single,
    /// The whole message: the text is a further field.
    Beside,
}

/// What the readers say of a spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// Both read the same.
    Same,
    /// Both refuse it.
    Refused,
    /// Only ours reads it, for this reason.
    Ours(&'static str),
    /// Only Go's reads it, for this reason.
    Gos(&'static str),
}
use Verdict::*;

const LENIENT: Verdict = Ours("Envoy's reader takes it, and ours stands for Envoy's");
const TWICE: Verdict = Ours("Envoy's reader takes the last one, and ours warns");

/// Spellings other than the usual ones; `V` stands for a usual value.
const SPELLINGS: &[(Of, &str, Verdict)] = &[
    (Of::Bool, "\"true\"", LENIENT),
    (Of::Bool, "1", Refused),
    (Of::Bool, "\"yes\"", Refused),
    (Of::Integer, "\"7\"", Same),
    (Of::Integer, "7.0", Same),
    (Of::Integer, "70e-1", Same),
    (Of::Integer, "\"7.0\"", Same),
    (Of::Integer, "\"7e0\"", Same),
    (Of::Integer, "\" 7\"", Refused),
    (Of::Integer, "\"\"", Refused),
    (Of::Integer, "1.5", Refused),
    (Of::Integer, "true", Refused),
    (Of::Integer, "99999999999999999999", Refused),
    (Of::Integer, "\"+7\"", LENIENT),
    (Of::Integer, "\"07\"", LENIENT),
    (Of::Integer, "\"0x7\"", LENIENT),
    (Of::Integer, "010", Ours("it is YAML, and an octal number to Envoy's reader and to Kubernetes")),
    (Of::Integer, "\"NaN\"", Refused),
    (Of::Unsigned, "-1", Refused),
    (Of::Unsigned, "-0", Same),
    (Of::Float, "\"1.5\"", Same),
    (Of::Float, "\"NaN\"", Same),
    (Of::Float, "\"-Infinity\"", Same),
    (Of::Float, "\"inf\"", LENIENT),
    (Of::Float, "\"nan\"", LENIENT),
    (Of::Float, "1e999", LENIENT),
    (Of::Float, "\"1.5 \"", Refused),
    (Of::Float, "\"\"", Refused),
    (Of::Text, "\"\\u00e9\\n\"", Same),
    (Of::Text, "5", Refused),
    (Of::Text, "true", Refused),
    (Of::Text, "1.5", LENIENT),
    (Of::Text, "{}", Refused),
    (Of::Bytes, "\"YQ\"", Same),
    (Of::Bytes, "\"_-8=\"", Same),
    (Of::Bytes, "\"Y\"", Refused),
    (Of::Bytes, "\"Y Q=\"", Refused),
    (Of::Bytes, "5", Refused),
    (Of::Enum, "0", Same),
    (Of::Enum, "0.0", Same),
    (Of::Enum, "\"0\"", LENIENT),
    (Of::Enum, "987654", Gos("no value has this number; Envoy's validation refuses it")),
    (Of::Enum, "\"NO_SUCH_VALUE\"", Refused),
    (Of::Enum, "true", Refused),
    (Of::Duration, "{\"seconds\": 5}", LENIENT),
    (Of::Duration, "\"-1.5s\"", Same),
    (Of::Duration, "\"1.123456789s\"", Same),
    (Of::Duration, "\"1.1234567891s\"", Refused),
    (Of::Duration, "\"315576000001s\"", Refused),
    (Of::Duration, "5", Refused),
    (Of::Duration, "\"5\"", Refused),
    (Of::Duration, "\"5m\"", Refused),
    (Of::Duration, "\"1m5s\"", Refused),
    (Of::Duration, "\"s\"", Refused),
    (Of::Duration, "\" 5s\"", Refused),
    (Of::Wrapper, "{\"value\": V}", LENIENT),
    (Of::Wrapper, "[]", Refused),
    (Of::Struct, "{\"a\": {\"b\": [1, null, true, \"x\"]}}", Same),
    (Of::Struct, "[]", Refused),
    (Of::Value, "null", Same),
    (Of::Value, "[1, {}]", Same),
    (Of::Any, "{}", Same),
    (Of::Any, "{\"@type\": \"type.googleapis.com/no.such.Type\"}", Refused),
    (Of::Any, "{\"a\": 1}", Refused),
    (Of::Any, "{\"@type\": \"type.googleapis.com/google.protobuf.Duration\", \"value\": \"3s\"}", Same),
    (Of::Message, "5", Refused),
    (Of::Message, "\"\"", Refused),
    (Of::Message, "{}", Same),
    (Of::Single, "null", Same),
    (Of::List, "null", Same),
    (Of::List, "V", LENIENT),
    (Of::List, "[[V]]", LENIENT),
    (Of::List, "[null]", Refused),
    (Of::Map, "null", Same),
    (Of::Map, "[]", Refused),
    (Of::Beside, "\"noSuchField\": 1", Refused),
    (Of::Beside, "\"@type\": \"x\"", Refused),
];

/// Writes a random message.
struct Writer<'r> {
    random: &'r mut Random,
    /// The spelling to be used once.
    spelling: Option<(Of, &'static str)>,
    used: bool,
}

impl Writer<'_> {
    fn message(&mut self, descriptor: &MessageDescriptor, depth: usize) -> String {
        match descriptor.full_name() {
            "google.protobuf.Any" => return self.any(descriptor, depth),
            name if name.starts_with("google.protobuf.") => return self.well_known(descriptor),
            _ => {}
        }
        format!("{{{}}}", self.fields(descriptor, depth).join(", "))
    }

    /// A few fields, at most one of each choice.
    fn fields(&mut self, descriptor: &MessageDescriptor, depth: usize) -> Vec<String> {
        let all: Vec<FieldDescriptor> = descriptor.fields().collect();
        let (mut chosen, mut fields) = (Vec::new(), Vec::new());
        for _ in 0..if depth == 0 { 6 } else { 3 } {
            if all.is_empty() {
                break;
            }
            let field = &all[self.random.below(all.len())];
            let choice =
                field.containing_oneof().map_or_else(|| field.name().to_owned(), |oneof| oneof.full_name().to_owned());
            if chosen.contains(&choice) || (depth >= MAX_DEPTH && is_deep(field)) {
                continue;
            }
            chosen.push(choice);
            let name = if self.random.once_in(2) { field.name() } else { field.json_name() }.to_owned();
            let value = self.field(field, depth);
            fields.push(format!("\"{name}\": {value}"));
        }
        if let Some((Of::Beside, text)) = self.spelling
            && !self.used
            && self.random.once_in(2)
        {
            self.used = true;
            fields.push(text.to_owned());
        }
        fields
    }

    /// The spelling, if it is for such a field.
    fn special(&mut self, of: &[Of], usual: &str) -> Option<String> {
        let (_, text) = self.spelling.filter(|(wanted, _)| of.contains(wanted) && !self.used)?;
        self.used = true;
        Some(text.replace('V', usual))
    }

    fn field(&mut self, field: &FieldDescriptor, depth: usize) -> String {
        if field.is_map() {
            let Kind::Message(entry) = field.kind() else { unreachable!("a map has entries") };
            let key = match entry.map_entry_key_field().kind() {
                Kind::String => "k",
                Kind::Bool => "true",
                _ => "5",
            };
            if let Some(text) = self.special(&[Of::Map], "") {
                return text;
            }
            return format!("{{\"{key}\": {}}}", self.value(&entry.map_entry_value_field().kind(), depth));
        }
        if !field.is_list() {
            // For these, nothing is a value.
            let is_value = matches!(field.kind(), Kind::Message(of) if of.full_name() == "google.protobuf.Value");
            let nothing = if is_value { None } else { self.special(&[Of::Single], "") };
            return nothing.unwrap_or_else(|| self.value(&field.kind(), depth));
        }
        // Of a list's list nobody knows whose it is, if its values may be lists.
        let is_plain = !matches!(field.kind(), Kind::Message(of) if of.full_name().starts_with("google.protobuf."));
        let is_for_list = matches!(self.spelling, Some((Of::List, _))) && !self.used && is_plain;
        let count = if is_for_list { 1 } else { self.random.below(3) };
        let values: Vec<String> = (0..count).map(|_| self.value(&field.kind(), depth)).collect();
        let usual = format!("[{}]", values.join(", "));
        match values.first().filter(|_| is_for_list) {
            Some(first) => self.special(&[Of::List], first).unwrap_or(usual),
            None => usual,
        }
    }

    fn value(&mut self, kind: &Kind, depth: usize) -> String {
        let (of, usual): (&[Of], String) = match kind {
            Kind::Bool => (&[Of::Bool], "true".to_owned()),
            Kind::Uint32 | Kind::Uint64 | Kind::Fixed32 | Kind::Fixed64 => {
                (&[Of::Integer, Of::Unsigned], self.random.below(70_000).to_string())
            }
            Kind::Float | Kind::Double => (&[Of::Float], format!("{}.5", self.random.below(100))),
            Kind::String => (&[Of::Text], "\"x y\"".to_owned()),
            Kind::Bytes => (&[Of::Bytes], "\"YWI=\"".to_owned()),
            Kind::Enum(of) => {
                let values: Vec<_> = of.values().collect();
                (&[Of::Enum], format!("\"{}\"", values[self.random.below(values.len())].name()))
            }
            Kind::Message(of) => {
                let is_plain = !of.full_name().starts_with("google.protobuf.");
                let special = if is_plain { self.special(&[Of::Message], "") } else { None };
                return special.unwrap_or_else(|| self.message(of, depth + 1));
            }
            _ => (&[Of::Integer], format!("-{}", self.random.below(1_000))),
        };
        self.special(of, &usual).unwrap_or(usual)
    }

    fn any(&mut self, _: &MessageDescriptor, depth: usize) -> String {
        if let Some(text) = self.special(&[Of::Any], "") {
            return text;
        }
        let name = self.random.pick(&OF_ANY);
        let inner = Schema::acquire().message(name).expect("a type of the schema");
        let fields = if name.starts_with("google.protobuf.") {
            vec![format!("\"value\": {}", self.well_known(&inner))]
        } else {
            self.fields(&inner, depth + 1)
        };
        let kind = format!("\"@type\": \"type.googleapis.com/{name}\"");
        format!("{{{}}}", [vec![kind], fields].concat().join(", "))
    }

    fn well_known(&mut self, descriptor: &MessageDescriptor) -> String {
        let usual = match descriptor.name() {
            "Duration" => format!("\"{}.25s\"", self.random.below(100)),
            "Timestamp" => "\"2026-01-31T12:00:00.5Z\"".to_owned(),
            "Struct" => "{\"a\": 1, \"b\": [true, null]}".to_owned(),
            "Value" => "\"x\"".to_owned(),
            "ListValue" => "[1]".to_owned(),
            "Empty" => "{}".to_owned(),
            name if name.ends_with("Value") => {
                let value = descriptor.get_field_by_name("value").expect("a wrapper");
                let usual = self.value(&value.kind(), MAX_DEPTH);
                return self.special(&[Of::Wrapper], &usual).unwrap_or(usual);
            }
            name => panic!("no text for {name}"),
        };
        let of = match descriptor.name() {
            "Duration" => Of::Duration,
            "Struct" => Of::Struct,
            "Value" => Of::Value,
            _ => return usual,
        };
        self.special(&[of], &usual).unwrap_or(usual)
    }
}

fn is_deep(field: &FieldDescriptor) -> bool {
    matches!(field.kind(), Kind::Message(of) if !of.full_name().starts_with("google.protobuf."))
}

/// What ours reads, in the canonical form.
fn ours(descriptor: &MessageDescriptor, text: &str) -> Result<String, String> {
    let (documents, mut found) = yaml::parse_as_envoy(&"m.json".into(), text);
    let Some(node) = documents.first() else { return Err(found.to_string()) };
    let (message, more) = read_message(&Schema::acquire(), descriptor, node);
    found.extend(more);
    match message {
        Some(message) if !found.has_errors() => Ok(canonical(&message)),
        _ => Err(found.to_string()),
    }
}

/// Its fields in order, also of what is packed; a number that is none equals itself.
fn canonical(message: &DynamicMessage) -> String {
    if let Some((name, inner)) = unpacked(message) {
        return format!("{name} {}", canonical(&inner));
    }
    let fields = message.fields().map(|(field, value)| format!("{}: {}", field.number(), text_of(value)));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
}

/// What an `Any` has.
fn unpacked(message: &DynamicMessage) -> Option<(String, DynamicMessage)> {
    let of = |name: &str| message.get_field_by_name(name).map(|value| value.into_owned());
    match (message.descriptor().full_name(), of("type_url"), of("value")) {
        ("google.protobuf.Any", Some(Value::String(url)), Some(Value::Bytes(bytes))) if !url.is_empty() => {
            let descriptor = Schema::acquire().message(type_url::message_name(&url)).expect("a type of the schema");
            Some((url, DynamicMessage::decode(descriptor, bytes).expect("a message")))
        }
        _ => None,
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Message(message) => canonical(message),
        Value::List(values) => format!("[{}]", values.iter().map(text_of).collect::<Vec<_>>().join(", ")),
        Value::Map(entries) => {
            let entries: BTreeMap<String, String> =
                entries.iter().map(|(key, value)| (format!("{key:?}"), text_of(value))).collect();
            format!("{entries:?}")
        }
        value => format!("{value:?}"),
    }
}

fn gos(descriptor: &MessageDescriptor, answer: &serde_json::Value) -> Result<String, String> {
    if let Some(error) = answer["error"].as_str() {
        return Err(error.to_owned());
    }
    let encoded = BASE64_STANDARD.decode(answer["encoded"].as_str().unwrap_or_default()).expect("base64");
    Ok(canonical(&DynamicMessage::decode(descriptor.clone(), &*encoded).expect("a message")))
}

/// Asks both readers about these texts, and reports where they do not say what is expected.
fn compare(texts: &[(&'static str, String, Verdict, String)]) {
    let schema = Schema::acquire();
    let questions: Vec<_> = texts.iter().map(|(kind, text, ..)| json!({"type": kind, "json": text})).collect();
    let descriptors = workspace::root().join("crates/envoy-api/protos/envoy.bin");
    let answers = go_reference::ask("protojson-reference", &[&descriptors], &questions);
    let mut wrong: BTreeMap<&str, String> = BTreeMap::new();
    for ((kind, text, expected, spelling), answer) in texts.iter().zip(&answers) {
        let descriptor = schema.message(kind).expect("a type of the schema");
        let (ours, gos) = (ours(&descriptor, text), gos(&descriptor, answer));
        let holds = match (expected, &ours, &gos) {
            (Same, Ok(ours), Ok(gos)) => ours == gos,
            (Refused, Err(_), Err(_)) | (Ours(_), Ok(_), Err(_)) | (Gos(_), Err(_), Ok(_)) => true,
            _ => false,
        };
        if !holds {
            let report = || format!("expected {expected:?}\n  {kind} {text}\n  ours: {ours:?}\n  Go's: {gos:?}");
            wrong.entry(spelling).or_insert_with(report);
        }
    }
    let report: String = wrong.iter().map(|(spelling, report)| format!("{spelling}: {report}\n")).collect();
    assert!(wrong.is_empty(), "{} spellings are read otherwise:\n{report}", wrong.len());
}

#[test]
fn messages_are_read_as_by_go() {
    let schema = Schema::acquire();
    let mut random = Random::new(7);
    let mut texts = Vec::new();
    for _ in 0..cases(2_000, 40_000) {
        let kind = random.pick(&TYPES);
        let descriptor = schema.message(kind).expect("a type of the schema");
        let text = Writer { random: &mut random, spelling: None, used: false }.message(&descriptor, 0);
        texts.push((kind, text, Same, "usual".to_owned()));
    }
    compare(&texts);
}

#[test]
fn spellings_are_read_as_by_go_but_for_reasons() {
    let schema = Schema::acquire();
    let mut random = Random::new(8);
    let mut texts = Vec::new();
    for &(of, spelling, verdict) in SPELLINGS {
        let (mut used, wanted) = (0, cases(12, 200));
        for _ in 0..50 * wanted {
            let kind = random.pick(&TYPES);
            let descriptor = schema.message(kind).expect("a type of the schema");
            let mut writer = Writer { random: &mut random, spelling: Some((of, spelling)), used: false };
            let text = writer.message(&descriptor, 0);
            if writer.used {
                texts.push((kind, text, verdict, format!("{of:?} {spelling}")));
                used += 1;
            }
            if used == wanted {
                break;
            }
        }
        assert!(used > 0, "{of:?} {spelling}: no message has such a field");
    }
    compare(&texts);
}

/// Names that occur twice, and fields that exclude each other.
#[test]
fn fields_that_are_given_twice() {
    let cluster = "envoy.config.cluster.v3.Cluster";
    let rows = [
        ("{\"name\": \"a\", \"name\": \"b\"}", TWICE),
        ("{\"altStatName\": \"a\", \"alt_stat_name\": \"b\"}", TWICE),
        ("{\"type\": 0, \"clusterType\": {\"name\": \"a\"}}", Refused),
        ("{\"type\": 0, \"cluster_type\": null}", Same),
        ("{\"lbPolicy\": \"round_robin\"}", LENIENT),
        ("{\"typed_extension_protocol_options\": {\"a\": {}, \"a\": {}}}", TWICE),
        ("{\"name\": \"a\",}", Ours("it is YAML")),
        ("{name: a}", Ours("it is YAML")),
        ("{\"name\": \"a\"} x", Refused),
        ("", Refused),
        ("[]", Refused),
        ("null", Refused),
    ];
    compare(&rows.map(|(text, verdict)| (cluster, text.to_owned(), verdict, text.to_owned())));
}
