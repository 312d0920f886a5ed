//! The language of `--set`, which is Helm's: `a.b=1,list={x,y},entries[0].name=z`.

use serde_json::{Map, Value};

/// The greatest index of a list.
const MAX_INDEX: usize = 1024;

/// Why a text is no assignment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// There is no `=`.
    #[error("expected NAME=VALUE")]
    NoValue,
    /// A part of the name is empty, or its index is none.
    #[error("`{0}` is no name of a value: expected a.b or a.b[0].c")]
    Name(String),
    /// The name goes into a value that has no such part.
    #[error("`{0}` is below a value that is no mapping and no list")]
    Below(String),
}

/// One assignment.
#[derive(Debug, PartialEq)]
pub(crate) struct Setting {
    path: Vec<Step>,
    value: Value,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Name(String),
    Index(usize),
}

impl Setting {
    /// Reads assignments that commas separate. A backslash takes away the meaning of the character after it.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, SetError> {
        split(text, ',').iter().map(|part| Self::parse(part)).collect()
    }

    fn parse(text: &str) -> Result<Self, SetError> {
        let parts = split_once(text, '=').ok_or(SetError::NoValue)?;
        let steps: Result<Vec<_>, _> = split(&parts.name, '.').iter().map(|part| steps(part)).collect();
        Ok(Self { path: steps?.concat(), value: value(&parts.value) })
    }

    /// Writes the value into the others.
    pub fn apply(self, root: &mut Value) -> Result<(), SetError> {
        let mut place = root;
        for step in &self.path {
            place = match step {
                Step::Name(name) => {
                    if place.is_null() {
                        *place = Value::Object(Map::new());
                    }
                    let fields = place.as_object_mut().ok_or_else(|| SetError::Below(name.clone()))?;
                    fields.entry(name.clone()).or_insert(Value::Null)
                }
                Step::Index(index) => {
                    if place.is_null() {
                        *place = Value::Array(Vec::new());
                    }
                    let list = place.as_array_mut().ok_or_else(|| SetError::Below(index.to_string()))?;
                    if list.len() <= *index {
                        list.resize(index + 1, Value::Null);
                    }
                    &mut list[*index]
                }
            };
        }
        *place = self.value;
        Ok(())
    }
}

/// A part of a name: `a`, or `a[0][1]`.
fn steps(part: &str) -> Result<Vec<Step>, SetError> {
    let wrong = || SetError::Name(part.to_owned());
    let mut pieces = part.split('[');
    let name = pieces.next().filter(|name| !name.is_empty()).ok_or_else(wrong)?;
    let index = |piece: &str| {
        let number = piece.strip_suffix(']').and_then(|number| number.parse().ok());
        number.filter(|index| *index <= MAX_INDEX).map(Step::Index).ok_or_else(wrong)
    };
    let name = Step::Name(unescaped(name));
    std::iter::once(Ok(name)).chain(pieces.map(index)).collect()
}

/// A value with the type that Helm gives it.
fn value(text: &str) -> Value {
    if let Some(list) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        let entries = if list.is_empty() { Vec::new() } else { split(list, ',') };
        return Value::Array(entries.iter().map(|entry| value(entry)).collect());
    }
    match text {
        "null" => Value::Null,
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        // A number with a zero in front is a name, such as a version.
        _ if text == "0" || !text.starts_with('0') => {
            text.parse::<i64>().map_or_else(|_| unescaped(text).into(), Value::from)
        }
        _ => unescaped(text).into(),
    }
}

/// An assignment as text.
struct Assignment {
    name: String,
    value: String,
}

fn split_once(text: &str, at: char) -> Option<Assignment> {
    let place = positions(text, at).next()?;
    Some(Assignment { name: text[..place].to_owned(), value: text[place + at.len_utf8()..].to_owned() })
}

/// Splits outside of braces.
fn split(text: &str, at: char) -> Vec<String> {
    let mut parts = Vec::new();
    let mut start = 0;
    for place in positions(text, at) {
        parts.push(text[start..place].to_owned());
        start = place + at.len_utf8();
    }
    parts.push(text[start..].to_owned());
    parts
}

/// Where a character stands that no backslash precedes and no braces enclose.
fn positions(text: &str, wanted: char) -> impl Iterator<Item = usize> {
    let (mut escaped, mut depth) = (false, 0_usize);
    text.char_indices().filter_map(move |(place, found)| {
        let counts = !escaped && depth == 0 && found == wanted;
        match found {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        counts.then_some(place)
    })
}

fn unescaped(text: &str) -> String {
    let mut escaped = false;
    let plain = text.chars().filter(|found| {
        escaped = *found == '\\' && !escaped;
        !escaped
    });
    plain.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn means_what_helm_means() {
        let check = |text: &str, expected: Result<Value, SetError>| {
            let found = Setting::parse_all(text).and_then(|settings| {
                let mut root = json!({"x": 1});
                settings.into_iter().try_for_each(|setting| setting.apply(&mut root))?;
                root.as_object_mut().map(|fields| fields.remove("x"));
                Ok(root)
            });
            assert_eq!(found, expected, "{text}");
        };
        check("a=1", Ok(json!({"a": 1})));
        check("a.b=1,a.c=two", Ok(json!({"a": {"b": 1, "c": "two"}})));
        check("a={x,1,true}", Ok(json!({"a": ["x", 1, true]})));
        check("a={}", Ok(json!({"a": []})));
        check("a[1].b=c", Ok(json!({"a": [null, {"b": "c"}]})));
        check(r"a.b\.c/d=e\,f", Ok(json!({"a": {"b.c/d": "e,f"}})));
        check("a=", Ok(json!({"a": ""})));
        check("a=null", Ok(json!({"a": null})));
        check("a=007", Ok(json!({"a": "007"})));
        check("a=0", Ok(json!({"a": 0})));
        check("a=b=c", Ok(json!({"a": "b=c"})));
        check("a", Err(SetError::NoValue));
        check(".a=1", Err(SetError::Name(String::new())));
        check("a[x]=1", Err(SetError::Name("a[x]".to_owned())));
        check("a[99999]=1", Err(SetError::Name("a[99999]".to_owned())));
        check("x.y=1", Err(SetError::Below("y".to_owned())));
    }
}
