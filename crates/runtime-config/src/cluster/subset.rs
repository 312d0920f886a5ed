//! Subsets of a cluster's hosts, and the metadata that selects them.

use crate::metadata::MetadataMatch;

/// `LbSubsetConfig`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubsetConfig {
    /// Keys by which hosts are divided.
    pub selectors: Vec<SubsetSelector>,
    /// Fallback for requests without a matching subset.
    pub fallback: SubsetFallback,
    /// Metadata of the hosts of [`SubsetFallback::Default`].
    pub default_subset: MetadataMatch,
    /// Locality weights apply within subsets, too.
    pub locality_weight_aware: bool,
    /// Pick any host if the fallback has none.
    pub panic_mode_any: bool,
    /// A host whose metadata value is a list belongs to the subset of each of its values.
    pub list_as_any: bool,
    /// Metadata of a request that no selector names is ignored.
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
    /// Metadata keys that a host and a request must have, sorted by name.
    pub keys: Vec<Box<str>>,
    /// Each subset has one host, picked whatever its health.
    pub single_host: bool,
    /// Fallback for requests with these keys that match no subset; `None`: the cluster's.
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
    /// Select by these keys only.
    Keys(Vec<Box<str>>),
}
