//! Per-route configuration of HTTP filters, looked up by the filters' names (`typed_per_filter_config`).

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// A filter's compiled configuration for a route. Each filter has its own type.
pub trait PerRoute: Any + Debug + Send + Sync {}

impl<T: Any + Debug + Send + Sync> PerRoute for T {}

/// The configuration of one level (table, virtual host, route, weighted cluster) for the filters of one name.
#[derive(Debug, Clone)]
pub struct FilterOverride {
    /// The filters' name in the connection manager.
    pub filter: Arc<str>,
    /// The filters are disabled. Otherwise they are enabled, even if the connection manager disables them.
    pub disabled: bool,
    /// Configuration; `None`: only enables or disables.
    pub config: Option<Arc<dyn PerRoute>>,
}

/// The overrides of a level and those around it, most specific first. Most levels have none.
#[derive(Debug, Clone, Default)]
pub struct FilterOverrides(Option<Arc<[FilterOverride]>>);

impl FilterOverrides {
    /// `own`, followed by what the level inherits from `outer`.
    pub fn new(own: Vec<FilterOverride>, outer: &Self) -> Self {
        if own.is_empty() {
            outer.clone()
        } else {
            Self(Some(own.into_iter().chain(outer.as_slice().iter().cloned()).collect()))
        }
    }

    fn as_slice(&self) -> &[FilterOverride] {
        self.0.as_deref().unwrap_or_default()
    }
}

/// All overrides for one request: of its weighted cluster, route, virtual host and route table.
#[derive(Debug, Clone, Copy, Default)]
pub struct RouteFilters<'r>([&'r [FilterOverride]; 3]);

impl<'r> RouteFilters<'r> {
    /// `cluster`: those of the entry of the route's weighted clusters that was chosen.
    pub fn new(table: &'r FilterOverrides, route: &'r FilterOverrides, cluster: Option<&'r FilterOverrides>) -> Self {
        // The route's overrides include its virtual host's. The table's are separate, since a virtual host may arrive
        // without its table.
        Self([cluster.map(FilterOverrides::as_slice).unwrap_or_default(), route.as_slice(), table.as_slice()])
    }

    /// The overrides of one level and those around it.
    pub fn of(level: &'r FilterOverrides) -> Self {
        Self([&[], level.as_slice(), &[]])
    }

    /// Whether there are no overrides.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|level| level.is_empty())
    }

    /// Whether the filters of this name are disabled; `None`: the connection manager's setting applies.
    pub fn disabled(&self, filter: &str) -> Option<bool> {
        self.told(filter).next().map(|level| level.disabled)
    }

    /// The most specific configuration for the filters of this name; `None` if it is of another type.
    pub fn most_specific<T: Any>(&self, filter: &str) -> Option<&'r T> {
        let config = self.told(filter).find_map(|level| level.config.as_deref())?;
        (config as &dyn Any).downcast_ref()
    }

    /// All configurations for the filters of this name, most specific first.
    pub fn all<T: Any>(&self, filter: &str) -> impl Iterator<Item = &'r T> {
        let configs = self.told(filter).filter_map(|level| level.config.as_deref());
        configs.filter_map(|config| (config as &dyn Any).downcast_ref())
    }

    fn told(&self, filter: &str) -> impl Iterator<Item = &'r FilterOverride> {
        self.0.into_iter().flatten().filter(move |level| *level.filter == *filter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(filter: &str, disabled: bool, config: Option<u32>) -> FilterOverride {
        let config = config.map(|config| Arc::new(config) as Arc<dyn PerRoute>);
        FilterOverride { filter: filter.into(), disabled, config }
    }

    #[test]
    fn the_most_specific_level_decides_for_each_filter_by_its_name() {
        let table = FilterOverrides::new(vec![says("a", false, Some(1)), says("c", true, None)], &Default::default());
        let host =
            FilterOverrides::new(vec![says("a", false, Some(2)), says("b", false, Some(3))], &Default::default());
        let route = FilterOverrides::new(vec![says("b", true, None), says("c", false, None)], &host);
        let cluster = FilterOverrides::new(vec![says("d", false, Some(4))], &Default::default());
        let filters = RouteFilters([cluster.as_slice(), route.as_slice(), table.as_slice()]);
        for (name, disabled, config, all) in [
            ("a", Some(false), Some(2), vec![2, 1]),
            // The disabled flag and the configuration may come from two levels.
            ("b", Some(true), Some(3), vec![3]),
            ("c", Some(false), None, vec![]),
            ("d", Some(false), Some(4), vec![4]),
            ("e", None, None, vec![]),
        ] {
            assert_eq!(filters.disabled(name), disabled, "{name}");
            assert_eq!(filters.most_specific::<u32>(name).copied(), config, "{name}");
            assert_eq!(filters.all::<u32>(name).copied().collect::<Vec<_>>(), all, "{name}");
        }
        assert_eq!(filters.most_specific::<String>("a"), None, "another filter's configuration");
        assert!(!filters.is_empty() && RouteFilters::default().is_empty());
    }
}
