//! Metadata of endpoints and routes: values, and criteria for subsets.

/// `envoy.lb` metadata, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetadataMatch(Vec<(Box<str>, MetadataValue)>);

impl MetadataMatch {
    /// Creates an object from pairs in any order; of equal names the last one counts.
    pub fn new(pairs: impl IntoIterator<Item = (Box<str>, MetadataValue)>) -> Self {
        let mut all = Self::default();
        for (name, value) in pairs {
            match all.0.binary_search_by(|(known, _)| known.cmp(&name)) {
                Ok(place) => all.0[place].1 = value,
                Err(place) => all.0.insert(place, (name, value)),
            }
        }
        all
    }

    /// The union with `over`, whose values take precedence.
    pub fn overlaid(&self, over: &Self) -> Self {
        Self::new(self.0.iter().chain(&over.0).cloned())
    }

    /// The value for a name.
    pub fn get(&self, name: &str) -> Option<&MetadataValue> {
        let place = self.0.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        self.0.get(place).map(|(_, value)| value)
    }

    /// Whether `own` contains all of it, with the same values or with lists that contain them.
    pub fn is_in(&self, own: &Self) -> bool {
        self.0.iter().all(|(name, value)| match own.get(name) {
            Some(MetadataValue::List(list)) if list.contains(value) => true,
            other => other == Some(value),
        })
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &(Box<str>, MetadataValue)> {
        self.0.iter()
    }

    /// Whether it has no names.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A `google.protobuf.Value` that can be compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetadataValue {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, by its bits.
    Number(u64),
    /// A string.
    Text(Box<str>),
    /// A list.
    List(Vec<MetadataValue>),
    /// An object, sorted by name.
    Object(Vec<(Box<str>, MetadataValue)>),
}
