//! The values of an installation: those of the chart, files, and `--set`, each over the one before; and their schema.

use evenkeel_base::yaml;
use serde_json::{Map, Value};

use crate::chart::{SCHEMA, VALUES};
use crate::set::{SetError, Setting};
use crate::upgrade;

/// Why values are refused.
#[derive(Debug, thiserror::Error)]
pub enum ValuesError {
    /// A file is no YAML, or no mapping.
    #[error("{file}: {reason}")]
    File {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A `--set` is no assignment.
    #[error("--set {text}: {reason}")]
    Set {
        /// What the user wrote.
        text: String,
        /// What is wrong.
        reason: SetError,
    },
    /// The schema of the chart refuses values; one line for each.
    #[error("values that the chart does not accept:\n{0}")]
    Schema(String),
}

/// Values of the chart.
#[derive(Debug, Clone)]
pub struct Values {
    root: Value,
}

impl Default for Values {
    fn default() -> Self {
        Self { root: mapping("values.yaml", VALUES).unwrap_or_default() }
    }
}

impl Values {
    /// Adds those of a file. Mappings are merged, other values are replaced, and null removes one.
    pub fn merge_file(&mut self, file: &str, text: &str) -> Result<(), ValuesError> {
        let further = mapping(file, text)?;
        merge(&mut self.root, further);
        Ok(())
    }

    /// Adds what a `--set` says: `pilot.autoscaleMin=3,revisionTags={prod,stable}`.
    pub fn set(&mut self, text: &str) -> Result<(), ValuesError> {
        let failed = |reason| ValuesError::Set { text: text.to_owned(), reason };
        for setting in Setting::parse_all(text).map_err(failed)? {
            setting.apply(&mut self.root).map_err(failed)?;
        }
        Ok(())
    }

    /// What differs from the values of the chart, for a file that says the same.
    pub fn changes(&self) -> Value {
        upgrade::changes(&Self::default().root, &self.root)
    }

    /// Sets the revision.
    pub fn set_revision(&mut self, revision: &str) {
        merge(&mut self.root, serde_json::json!({"revision": revision}));
    }

    /// Returns the values if the chart accepts them.
    pub fn checked(&self) -> Result<&Value, ValuesError> {
        let schema: Value = serde_json::from_str(SCHEMA).map_err(|error| ValuesError::Schema(error.to_string()))?;
        let validator = jsonschema::validator_for(&schema).map_err(|error| ValuesError::Schema(error.to_string()))?;
        let found: Vec<String> = validator.iter_errors(&self.root).map(|error| finding(&error)).collect();
        if found.is_empty() { Ok(&self.root) } else { Err(ValuesError::Schema(found.join("\n"))) }
    }
}

fn finding(error: &jsonschema::ValidationError<'_>) -> String {
    let place = error.instance_path().to_string().trim_start_matches('/').replace('/', ".");
    if place.is_empty() { format!("  {error}") } else { format!("  {place}: {error}") }
}

fn mapping(file: &str, text: &str) -> Result<Value, ValuesError> {
    let failed = |reason: String| ValuesError::File { file: file.to_owned(), reason };
    let (nodes, found) = yaml::parse(&file.into(), text);
    if found.has_errors() {
        return Err(failed(found.to_string()));
    }
    let mut nodes = nodes.iter().filter(|node| !node.is_null());
    let root = nodes.next().map_or_else(|| Value::Object(Map::new()), yaml::Node::to_json);
    if !root.is_object() || nodes.next().is_some() {
        return Err(failed("expected one mapping with values".to_owned()));
    }
    Ok(root)
}

/// Merges as Helm does.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                if value.is_null() {
                    into.remove(&name);
                } else {
                    merge(into.entry(name).or_insert(Value::Null), value);
                }
            }
        }
        (into, from) => *into = from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(file: &str, settings: &[&str]) -> Result<Values, ValuesError> {
        let mut values = Values::default();
        values.merge_file("mine.yaml", file)?;
        settings.iter().try_for_each(|setting| values.set(setting))?;
        values.checked()?;
        Ok(values)
    }

    #[test]
    fn later_values_go_before_earlier_ones() {
        let check = |file: &str, settings: &[&str], pointer: &str, expected: Value| {
            let values = with(file, settings).expect("values");
            assert_eq!(values.root.pointer(pointer).cloned().unwrap_or_default(), expected, "{file} {settings:?}");
        };
        check("", &[], "/pilot/autoscaleMin", 2.into());
        check("pilot: {autoscaleMin: 3}", &[], "/pilot/autoscaleMin", 3.into());
        check("pilot: {autoscaleMin: 3}", &["pilot.autoscaleMin=4"], "/pilot/autoscaleMin", 4.into());
        check("pilot: {autoscaleMin: 3}", &[], "/pilot/autoscaleMax", 5.into());
        check("pilot: {resources: {requests: null}}", &[], "/pilot/resources/requests", Value::Null);
        check("", &["meshConfig.accessLogFile=/dev/stdout"], "/meshConfig/accessLogFile", "/dev/stdout".into());
    }

    #[test]
    fn what_differs_gives_the_same_values_again() {
        let values =
            with("pilot: {resources: {requests: null}}", &["pilot.autoscaleMin=3,revisionTags={a,b}"]).expect("values");
        let changes = values.changes();
        assert_eq!(changes["pilot"]["autoscaleMin"], 3);
        let again = with(&changes.to_string(), &[]).expect("values");
        assert_eq!(again.root, values.root);
        assert_eq!(Values::default().changes(), serde_json::json!({}));
    }

    #[test]
    fn what_the_chart_does_not_know_is_refused() {
        let check = |file: &str, settings: &[&str], expected: &str| {
            let error = with(file, settings).expect_err("refused").to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("pilto: {}", &[], "pilto");
        check("", &["pilot.autoscaleMim=1"], "autoscaleMim");
        check("", &["pilot.autoscaleMin=many"], "pilot.autoscaleMin");
        check("", &["global.imagePullPolicy=Sometimes"], "imagePullPolicy");
        check("", &["revision=UPPER"], "revision");
        check("- a", &[], "one mapping");
        check("a: [", &[], "mine.yaml");
        check("", &["pilot"], "--set pilot");
    }
}
