//! Subsets of a cluster's hosts, and the metadata that chooses them.

/// `LbSubsetConfig`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubsetConfig {
    /// Keys that divide hosts.
    pub selectors: Vec<SubsetSelector>,
    /// For requests that name no subset.
    pub fallback: SubsetFallback,
    /// Metadata of the hosts of [`SubsetFallback::Default`].
    pub default_subset: MetadataMatch,
    /// Within subsets, too, localities have their weights.
    pub locality_weight_aware: bool,
    /// Any host when the fallback has none.
    pub panic_mode_any: bool,
    /// A host whose metadata is a list is in the subset of each of its values.
    pub list_as_any: bool,
    /// Metadata of a request that no selector names is left aside.
    pub allow_redundant_keys: bool,
}

/// `LbSubsetFallbackPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SubsetFallback {
    /// No host.
    #[default]
    None,
    /// Any host.
    Any,
    /// A host of the default subset.
    Default,
}

/// `LbSubsetSelector`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubsetSelector {
    /// Metadata a host and a request must have, by name.
    pub keys: Vec<Box<str>>,
    /// Each subset has one host, used whatever its health.
    pub single_host: bool,
    /// For requests with these keys that no subset fits; `None`: the cluster's.
    pub fallback: Option<SelectorFallback>,
}

/// `LbSubsetSelectorFallbackPolicy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SelectorFallback {
    /// No host.
    None,
    /// Any host.
    Any,
    /// A host of the default subset.
    Default,
    /// As if the request had these keys only.
    Keys(Vec<Box<str>>),
}

/// Names and values of `envoy.lb` metadata, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetadataMatch(Vec<(Box<str>, MetadataValue)>);

impl MetadataMatch {
    /// Of any order; of equal names the last holds.
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

    /// These, and those of `over`, which hold where both have a name.
    pub fn overlaid(&self, over: &Self) -> Self {
        Self::new(self.0.iter().chain(&over.0).cloned())
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&MetadataValue> {
        let place = self.0.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        self.0.get(place).map(|(_, value)| value)
    }

    /// Whether all of it is in `own`, with the same values, or with lists that hold them.
    pub fn is_in(&self, own: &Self) -> bool {
        self.0.iter().all(|(name, value)| match own.get(name) {
            Some(MetadataValue::List(list)) if list.contains(value) => true,
            other => other == Some(value),
        })
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = &(Box<str>, MetadataValue)> {
        self.0.iter()
    }

    /// Nothing is named.
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
    /// An object, by name.
    Object(Vec<(Box<str>, MetadataValue)>),
}
