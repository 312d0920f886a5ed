//! Dynamic metadata: data that HTTP filters set about a request, for policies, routes and logs, by the filters' names.

use std::sync::Arc;

use crate::metadata::MetadataValue;
use crate::string_match::StringMatcher;

/// The names and values of an object, by name.
pub type Fields = Vec<(Box<str>, MetadataValue)>;

/// The data of one filter. Shared: a filter that sets the same for many requests creates it once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterMetadata {
    filter: Box<str>,
    /// An object.
    fields: MetadataValue,
}

impl FilterMetadata {
    /// Fields under a filter's name; of equal names the last holds.
    pub fn new(filter: &str, fields: &[(Box<str>, MetadataValue)]) -> Self {
        let mut metadata =
            Self { filter: filter.into(), fields: MetadataValue::Object(Vec::with_capacity(fields.len())) };
        metadata.merge(fields);
        metadata
    }

    fn merge(&mut self, fields: &[(Box<str>, MetadataValue)]) {
        let MetadataValue::Object(all) = &mut self.fields else { return };
        for (name, value) in fields {
            match all.binary_search_by(|(known, _)| known.cmp(name)) {
                Ok(at) => all[at].1 = value.clone(),
                Err(at) => all.insert(at, (name.clone(), value.clone())),
            }
        }
    }
}

/// Dynamic metadata of one request. Most requests have none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DynamicMetadata(Vec<Arc<FilterMetadata>>);

impl DynamicMetadata {
    /// Adds fields under a filter's name; of equal names the last holds.
    pub fn merge(&mut self, filter: &str, fields: &[(Box<str>, MetadataValue)]) {
        match self.of_filter(filter) {
            Some(known) => Arc::make_mut(known).merge(fields),
            None => self.0.push(Arc::new(FilterMetadata::new(filter, fields))),
        }
    }

    /// Like [`DynamicMetadata::merge`], without a copy if the filter has set nothing yet.
    pub fn share(&mut self, metadata: &Arc<FilterMetadata>) {
        match (self.of_filter(&metadata.filter), &metadata.fields) {
            (Some(known), MetadataValue::Object(fields)) => Arc::make_mut(known).merge(fields),
            (Some(_), _) => {}
            (None, _) => self.0.push(Arc::clone(metadata)),
        }
    }

    fn of_filter(&mut self, filter: &str) -> Option<&mut Arc<FilterMetadata>> {
        self.0.iter_mut().find(|known| *known.filter == *filter)
    }

    /// The value at the end of `path`, below a filter's name.
    pub fn get(&self, filter: &str, path: &[Box<str>]) -> Option<&MetadataValue> {
        let mut value = self.0.iter().find(|known| *known.filter == *filter).map(|known| &known.fields)?;
        for key in path {
            let MetadataValue::Object(fields) = value else { return None };
            value = &fields.iter().find(|(known, _)| known == key)?.1;
        }
        Some(value)
    }

    /// Returns the data of each filter, by the filters' names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[(Box<str>, MetadataValue)])> {
        self.0.iter().filter_map(|metadata| match &metadata.fields {
            MetadataValue::Object(fields) => Some((&*metadata.filter, &**fields)),
            _ => None,
        })
    }

    /// Whether no filter has set any.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// `envoy.type.matcher.v3.MetadataMatcher`.
#[derive(Debug, Clone)]
pub struct MetadataMatcher {
    /// The filter's name.
    pub filter: Box<str>,
    /// Keys, from the outermost object in.
    pub path: Vec<Box<str>>,
    /// The condition on the value.
    pub value: ValueMatcher,
    /// The match is inverted.
    pub invert: bool,
}

/// `envoy.type.matcher.v3.ValueMatcher`. No kind but `Present(false)` matches a value that is absent.
#[derive(Debug, Clone)]
pub enum ValueMatcher {
    /// `null`.
    Null,
    /// This number.
    Number(f64),
    /// A number within `[start, end)`.
    Range {
        /** First value inside. */
        start: f64,
        /** First value beyond. */
        end: f64,
    },
    /// A string.
    String(StringMatcher),
    /// `true` or `false`.
    Bool(bool),
    /// There is a value (`true`), or none (`false`).
    Present(bool),
    /// A list with an element that matches.
    OneOf(Box<ValueMatcher>),
    /// One of these has to match.
    Or(Vec<ValueMatcher>),
}

impl MetadataMatcher {
    /// Whether the metadata matches.
    pub fn matches(&self, metadata: Option<&DynamicMetadata>) -> bool {
        let value = metadata.and_then(|metadata| metadata.get(&self.filter, &self.path));
        self.value.matches(value) != self.invert
    }
}

impl ValueMatcher {
    fn matches(&self, value: Option<&MetadataValue>) -> bool {
        match (self, value) {
            (Self::Present(present), value) => value.is_some() == *present,
            (Self::Or(any), value) => any.iter().any(|matcher| matcher.matches(value)),
            (Self::Null, Some(MetadataValue::Null)) => true,
            (Self::Number(wanted), Some(MetadataValue::Number(bits))) => f64::from_bits(*bits) == *wanted,
            (Self::Range { start, end }, Some(MetadataValue::Number(bits))) => {
                (*start..*end).contains(&f64::from_bits(*bits))
            }
            (Self::String(matcher), Some(MetadataValue::Text(text))) => matcher.matches(text.as_bytes()),
            (Self::Bool(wanted), Some(MetadataValue::Bool(value))) => value == wanted,
            (Self::OneOf(matcher), Some(MetadataValue::List(values))) => {
                values.iter().any(|value| matcher.matches(Some(value)))
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> MetadataValue {
        MetadataValue::Text(text.into())
    }

    #[test]
    fn matchers_look_at_one_value() {
        let mut metadata = DynamicMetadata::default();
        assert!(metadata.is_empty());
        metadata.merge("f", &[("b".into(), MetadataValue::Bool(true)), ("a".into(), text("old"))]);
        let inner = MetadataValue::Object(vec![("n".into(), MetadataValue::Number(2.5_f64.to_bits()))]);
        metadata.merge("f", &[("a".into(), text("new")), ("o".into(), inner), ("z".into(), MetadataValue::Null)]);
        metadata.merge("g", &[("l".into(), MetadataValue::List(vec![text("x"), text("y")]))]);
        let exact = |text: &str| {
            ValueMatcher::String(StringMatcher::Exact { value: text.as_bytes().into(), ignore_case: false })
        };
        let shared = Arc::new(FilterMetadata::new("s", &[("a".into(), text("one")), ("b".into(), text("one"))]));
        metadata.share(&shared);
        metadata.share(&Arc::new(FilterMetadata::new("s", &[("b".into(), text("two"))])));
        assert_eq!(*shared, FilterMetadata::new("s", &[("b".into(), text("one")), ("a".into(), text("one"))]));
        for (filter, path, value, expected) in [
            ("s", &["a"][..], exact("one"), true),
            ("s", &["b"], exact("two"), true),
            ("f", &["a"], exact("new"), true),
            ("f", &["a"], exact("old"), false),
            ("f", &["b"], ValueMatcher::Bool(true), true),
            ("f", &["o", "n"], ValueMatcher::Range { start: 2.5, end: 3.0 }, true),
            ("f", &["o", "n"], ValueMatcher::Range { start: 2.0, end: 2.5 }, false),
            ("f", &["o", "n"], ValueMatcher::Number(2.5), true),
            ("f", &["o", "m"], ValueMatcher::Present(false), true),
            ("f", &["a", "n"], ValueMatcher::Present(true), false),
            ("f", &["z"], ValueMatcher::Null, true),
            ("f", &["y"], ValueMatcher::Null, false),
            ("f", &[], ValueMatcher::Present(true), true),
            ("g", &["l"], ValueMatcher::OneOf(Box::new(exact("y"))), true),
            ("g", &["l"], exact("y"), false),
            ("g", &["l"], ValueMatcher::Or(vec![exact("y"), ValueMatcher::Present(true)]), true),
            ("h", &["l"], ValueMatcher::Present(true), false),
        ] {
            let path: Vec<_> = path.iter().map(|key| Box::from(*key)).collect();
            let text = format!("{filter} {path:?} {value:?}");
            let matcher = MetadataMatcher { filter: filter.into(), path, value, invert: false };
            assert_eq!(matcher.matches(Some(&metadata)), expected, "{text}");
            let inverted = MetadataMatcher { invert: true, ..matcher };
            assert_eq!(inverted.matches(Some(&metadata)), !expected, "{text}");
        }
        let present = ValueMatcher::Present(true);
        assert!(!MetadataMatcher { filter: "f".into(), path: vec![], value: present, invert: false }.matches(None));
    }
}
