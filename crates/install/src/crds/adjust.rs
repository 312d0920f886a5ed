//! Changes of a schema, each for the fields at a path.

use serde_json::{Value, json};

/// How the schema of a field differs from its table, so that it is that of Istio's definitions. The tables say what has a meaning; what
/// Istio's definitions let pass without one, the validating webhook refuses.
pub(super) struct Demand {
    pub(super) kinds: &'static [&'static str],
    /// The end of the path of the field: `servers[]` is an entry of the list `servers`, `labels{}` a value of the map `labels`.
    pub(super) path: &'static str,
    pub(super) change: Change,
}

/// A change of the schema of a field.
pub(super) enum Change {
    /// These fields have to be there, and no others.
    Required(&'static [&'static str]),
    /// Every text passes.
    AnyText,
    /// A field that has no table is a text.
    Text,
    /// These texts pass as well.
    MoreTexts(&'static [&'static str]),
    /// A list has so many entries.
    Items(Range),
    /// A text has so many characters.
    Length(Range),
    /// A map has so many entries.
    Properties(Range),
    /// A number is between these.
    Bounds { min: Option<i64>, max: Option<i64> },
    /// A number is one of `int32`.
    Int32,
    /// A text is like this.
    Pattern(&'static str),
    /// `null` is the same as no value.
    Nullable,
    /// No two entries of a list have the same text in this field.
    Key(&'static str),
    /// At most one of these fields is there.
    OneOf(&'static [&'static str]),
    /// At most one of these fields is there, even if one of them is `null`.
    AtMostOne(&'static [&'static str]),
    /// An expression of CEL is true (<https://kubernetes.io/docs/reference/using-api/cel/>); otherwise the message says what is wrong.
    Rule { expression: &'static str, message: &'static str },
}

/// How many of something.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
}

/// Changes the schema of an object of a kind.
pub(super) fn adjust(demands: &[Demand], kind: &str, root: &mut Value) {
    let demands: Vec<&Demand> = demands.iter().filter(|demand| demand.kinds.contains(&kind)).collect();
    adjust_field(&demands, "", root);
}

fn adjust_field(demands: &[&Demand], path: &str, schema: &mut Value) {
    for demand in demands.iter().filter(|demand| path.ends_with(demand.path)) {
        demand.change.apply(schema);
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, field) in properties.into_iter().flatten() {
        adjust_field(demands, &format!("{path}.{name}"), field);
    }
    for (keyword, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(entry) = schema.get_mut(keyword) {
            adjust_field(demands, &format!("{path}{mark}"), entry);
        }
    }
}

impl Change {
    fn apply(&self, schema: &mut Value) {
        let Some(fields) = schema.as_object_mut() else { return };
        let mut set = |keyword: &str, value: Option<Value>| match value {
            Some(value) => _ = fields.insert(keyword.to_owned(), value),
            None => _ = fields.remove(keyword),
        };
        match self {
            Self::Required([]) => set("required", None),
            Self::Required(names) => set("required", Some(json!(names))),
            Self::AnyText => set("enum", None),
            Self::Text => {
                set("x-kubernetes-preserve-unknown-fields", None);
                set("type", Some(json!("string")));
            }
            Self::MoreTexts(texts) => {
                let known = fields.get_mut("enum").and_then(Value::as_array_mut);
                known.into_iter().for_each(|known| known.extend(texts.iter().map(|text| json!(text))));
            }
            Self::Items(range) => range.write(schema, "Items"),
            Self::Length(range) => range.write(schema, "Length"),
            Self::Properties(range) => range.write(schema, "Properties"),
            Self::Bounds { min, max } => {
                set("minimum", min.map(Value::from));
                set("maximum", max.map(Value::from));
            }
            Self::Int32 => {
                set("minimum", None);
                set("maximum", None);
                set("format", Some(json!("int32")));
            }
            Self::Pattern(pattern) => set("pattern", Some(json!(pattern))),
            Self::Nullable => set("nullable", Some(json!(true))),
            Self::Key(name) => {
                set("x-kubernetes-list-type", Some(json!("map")));
                set("x-kubernetes-list-map-keys", Some(json!([name])));
            }
            Self::OneOf(names) => {
                let mut choices: Vec<Value> = names.iter().map(|name| json!({"required": [name]})).collect();
                choices.push(json!({"not": {"anyOf": choices}}));
                set("oneOf", Some(json!(choices)));
            }
            Self::AtMostOne(names) => {
                // A sum costs less of an API server's budget than a list.
                let each: Vec<String> = names.iter().map(|name| format!("(has(self.{name}) ? 1 : 0)")).collect();
                let message = format!("set only one of {}", names.join(", "));
                add_rule(schema, &format!("{} <= 1", each.join(" + ")), &message);
            }
            Self::Rule { expression, message } => add_rule(schema, expression, message),
        }
    }
}

impl Range {
    fn write(self, schema: &mut Value, what: &str) {
        for (limit, value) in [("min", self.min), ("max", self.max)] {
            if let Some(value) = value {
                schema[format!("{limit}{what}")] = json!(value);
            }
        }
    }
}

fn add_rule(schema: &mut Value, expression: &str, message: &str) {
    let rule = json!({"rule": expression, "message": message});
    match schema.get_mut("x-kubernetes-validations").and_then(Value::as_array_mut) {
        Some(rules) => rules.push(rule),
        None => schema["x-kubernetes-validations"] = json!([rule]),
    }
}
