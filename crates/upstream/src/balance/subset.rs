//! Subsets: requests with metadata match criteria go to the hosts that have that metadata (`lb_subset_config`).

use std::rc::Rc;

use evenkeel_runtime_config::cluster::{SelectorFallback, SubsetConfig, SubsetFallback, SubsetSelector};
use evenkeel_runtime_config::metadata::{MetadataMatch, MetadataValue};

use super::balancer::{Making, Picked, SubsetOutcome};
use super::levels::Levels;
use crate::host::Host;
use crate::random::Random;
use crate::target::Target;

/// A cluster's hosts, grouped by their metadata.
#[derive(Debug)]
pub(super) struct Subsets {
    config: std::sync::Arc<SubsetConfig>,
    /// Sorted by `criteria`.
    subsets: Vec<Subset>,
    any: Option<Levels>,
    default: Option<Levels>,
}

#[derive(Debug)]
struct Subset {
    /// Sorted by name.
    criteria: Criteria,
    members: Members,
}

type Criteria = Vec<(Box<str>, MetadataValue)>;

#[derive(Debug)]
enum Members {
    Levels(Levels),
    /// `single_host_per_subset`: picked whatever its health.
    Single(Rc<Host>),
}

/// A request's criteria, or those of them that a selector names.
#[derive(Debug, Clone, Copy)]
struct RequestCriteria<'a> {
    criteria: &'a MetadataMatch,
    keys: Option<&'a [Box<str>]>,
}

impl<'a> RequestCriteria<'a> {
    fn iter(self) -> impl Iterator<Item = &'a (Box<str>, MetadataValue)> {
        self.criteria.iter().filter(move |(name, _)| self.keys.is_none_or(|keys| keys.contains(name)))
    }

    fn names(self) -> impl Iterator<Item = &'a str> {
        self.iter().map(|(name, _)| &**name)
    }
}

impl Subsets {
    /// Divides the hosts into subsets.
    pub fn new(hosts: &[Rc<Host>], config: &std::sync::Arc<SubsetConfig>, making: Making<'_>) -> Self {
        let levels = |hosts: &[Rc<Host>]| Levels::new(hosts, making, config.locality_weight_aware);
        let falls_back =
            |wanted: &SelectorFallback| config.selectors.iter().any(|s| s.fallback.as_ref() == Some(wanted));
        let any = config.fallback == SubsetFallback::Any || config.panic_mode_any || falls_back(&SelectorFallback::Any);
        let default = config.fallback == SubsetFallback::Default || falls_back(&SelectorFallback::Default);
        let of_default: Vec<_> =
            hosts.iter().filter(|host| has_all(host, &config.default_subset, config.list_as_any)).cloned().collect();
        Self {
            subsets: divide(hosts, config, making),
            any: any.then(|| levels(hosts)),
            default: default.then(|| levels(&of_default)),
            config: config.clone(),
        }
    }

    /// Number of subsets.
    pub fn len(&self) -> usize {
        self.subsets.len()
    }

    /// Picks a host of the subset that the request asks for, or of the fallback if there is none.
    pub fn pick(&self, target: &Target<'_>, random: &Random) -> Picked<'_> {
        let named = target.metadata_match.map(|criteria| RequestCriteria { criteria, keys: None });
        let mut wanted = named.map(|wanted| self.without_redundant(wanted));
        // A fallback to fewer keys may itself fall back; each selector is tried at most once.
        for _ in 0..=self.config.selectors.len() {
            let Some(named) = wanted else { break };
            if let Some(subset) = self.find(named) {
                return Picked { subset: SubsetOutcome::Selected, ..subset.pick(target, random) };
            }
            match self.selector(named).and_then(|selector| selector.fallback.as_ref()) {
                None => break,
                Some(SelectorFallback::None) => return Picked::default(),
                Some(SelectorFallback::Any) => return pick_from(self.any.as_ref(), target, random),
                Some(SelectorFallback::Default) => return pick_from(self.default.as_ref(), target, random),
                Some(SelectorFallback::Keys(keys)) => {
                    wanted = Some(self.without_redundant(RequestCriteria { keys: Some(keys), ..named }));
                }
            }
        }
        self.fall_back(target, random)
    }

    fn fall_back(&self, target: &Target<'_>, random: &Random) -> Picked<'_> {
        let fallback = match self.config.fallback {
            SubsetFallback::None => return Picked::default(),
            SubsetFallback::Any => self.any.as_ref(),
            SubsetFallback::Default => self.default.as_ref(),
        };
        let picked = pick_from(fallback, target, random);
        if picked.host.is_some() {
            return Picked { subset: SubsetOutcome::Fallback, ..picked };
        }
        let any = self.any.as_ref().filter(|_| self.config.panic_mode_any);
        let picked = pick_from(any, target, random);
        let subset = if picked.host.is_some() { SubsetOutcome::FallbackPanic } else { SubsetOutcome::None };
        Picked { subset, ..picked }
    }

    /// With `allow_redundant_keys`, only the keys of the first selector whose keys are all present count.
    fn without_redundant<'a>(&'a self, wanted: RequestCriteria<'a>) -> RequestCriteria<'a> {
        if !self.config.allow_redundant_keys {
            return wanted;
        }
        let covers =
            |selector: &&SubsetSelector| selector.keys.iter().all(|key| wanted.names().any(|name| name == &**key));
        let selector = self.config.selectors.iter().find(covers);
        selector.map_or(wanted, |selector| RequestCriteria { keys: Some(&selector.keys), ..wanted })
    }

    fn find(&self, wanted: RequestCriteria<'_>) -> Option<&Members> {
        let place = self.subsets.binary_search_by(|subset| subset.criteria.iter().cmp(wanted.iter())).ok()?;
        self.subsets.get(place).map(|subset| &subset.members)
    }

    /// The selector with exactly these keys.
    fn selector(&self, wanted: RequestCriteria<'_>) -> Option<&SubsetSelector> {
        self.config.selectors.iter().find(|selector| selector.keys.iter().map(|key| &**key).eq(wanted.names()))
    }
}

impl Members {
    fn pick(&self, target: &Target<'_>, random: &Random) -> Picked<'_> {
        match self {
            Self::Levels(levels) => levels.pick(target, random),
            Self::Single(host) => Picked { host: Some(host), ..Picked::default() },
        }
    }
}

fn pick_from<'a>(levels: Option<&'a Levels>, target: &Target<'_>, random: &Random) -> Picked<'a> {
    levels.map(|levels| levels.pick(target, random)).unwrap_or_default()
}

/// One subset per selector and combination of values found in hosts.
fn divide(hosts: &[Rc<Host>], config: &SubsetConfig, making: Making<'_>) -> Vec<Subset> {
    let mut found: Vec<(Criteria, bool, Vec<Rc<Host>>)> = Vec::new();
    for selector in &config.selectors {
        for host in hosts {
            for criteria in combinations(host, selector, config.list_as_any) {
                match found.binary_search_by(|(known, _, _)| known.cmp(&criteria)) {
                    Ok(place) => found[place].2.push(host.clone()),
                    Err(place) => found.insert(place, (criteria, selector.single_host, vec![host.clone()])),
                }
            }
        }
    }
    let subset = |(criteria, single, hosts): (Criteria, bool, Vec<Rc<Host>>)| {
        let first = hosts.iter().min_by_key(|host| host.endpoint().priority).filter(|_| single);
        let members = match first {
            Some(host) => Members::Single(host.clone()),
            None => Members::Levels(Levels::new(&hosts, making, config.locality_weight_aware)),
        };
        Subset { criteria, members }
    };
    found.into_iter().map(subset).collect()
}

/// The combinations of values that a host has for a selector's keys: one, more when a list stands for any of its
/// values, none when a key is missing.
fn combinations(host: &Host, selector: &SubsetSelector, list_as_any: bool) -> Vec<Criteria> {
    let endpoint = host.endpoint();
    let mut all: Vec<Criteria> = vec![Vec::new()];
    for key in &selector.keys {
        let Some(value) = endpoint.lb_metadata.get(key) else { return Vec::new() };
        let values = match value {
            MetadataValue::List(values) if list_as_any => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        all = all
            .iter()
            .flat_map(|begun| {
                values.iter().map(|value| {
                    let mut longer = begun.clone();
                    longer.push((key.clone(), value.clone()));
                    longer
                })
            })
            .collect();
    }
    all.retain(|criteria| !criteria.is_empty());
    all
}

fn has_all(host: &Host, wanted: &MetadataMatch, list_as_any: bool) -> bool {
    let endpoint = host.endpoint();
    wanted.iter().all(|(name, value)| match endpoint.lb_metadata.get(name) {
        Some(MetadataValue::List(values)) if list_as_any => values.contains(value),
        own => own == Some(value),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::super::HostSet;
    use super::super::fixture::{cluster, host_with};
    use super::*;

    fn text(text: &str) -> MetadataValue {
        MetadataValue::Text(text.into())
    }

    fn criteria(pairs: &[(&str, &str)]) -> MetadataMatch {
        MetadataMatch::new(pairs.iter().map(|(name, value)| ((*name).into(), text(value))))
    }

    fn selector(keys: &[&str], fallback: Option<SelectorFallback>) -> SubsetSelector {
        SubsetSelector { keys: keys.iter().map(|key| (*key).into()).collect(), single_host: false, fallback }
    }

    fn config(selectors: Vec<SubsetSelector>, fallback: SubsetFallback) -> SubsetConfig {
        SubsetConfig { selectors, fallback, default_subset: criteria(&[("version", "1")]), ..SubsetConfig::default() }
    }

    /// Ports of the hosts picked. Hosts 1 and 2 are version 1 (2 in stage test), 3 is version 2, 4 has a list of stages.
    fn picked(config: SubsetConfig, wanted: &[(&str, &str)]) -> Vec<u16> {
        let hosts = vec![
            host_with(1, |e| e.lb_metadata = criteria(&[("version", "1"), ("stage", "prod")])),
            host_with(2, |e| e.lb_metadata = criteria(&[("version", "1"), ("stage", "test")])),
            host_with(3, |e| e.lb_metadata = criteria(&[("version", "2"), ("stage", "prod")])),
            host_with(4, |e| {
                let stages = MetadataValue::List(vec![text("prod"), text("canary")]);
                e.lb_metadata = MetadataMatch::new([("stage".into(), stages), ("version".into(), text("3"))]);
            }),
        ];
        let (random, tables) = (Random::seeded(9), Arc::default());
        let cluster = evenkeel_runtime_config::Cluster { subsets: Some(Arc::new(config)), ..cluster(&hosts) };
        let set = HostSet::new(hosts, Making { config: &cluster, random: &random, tables: &tables, zones: None });
        let metadata = criteria(wanted);
        let target = Target { metadata_match: (!wanted.is_empty()).then_some(&metadata), ..Target::default() };
        let ports = (0..40).filter_map(|_| set.pick(&target, &random).host.and_then(|host| host.socket_addr()));
        ports.map(|address| address.port()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    #[test]
    fn requests_go_to_the_subset_they_name() {
        let both = || vec![selector(&["stage", "version"], None), selector(&["version"], None)];
        let check = |config: SubsetConfig, wanted: &[(&str, &str)], expected: &[u16]| {
            assert_eq!(picked(config, wanted), expected, "{wanted:?}");
        };
        check(config(both(), SubsetFallback::None), &[("version", "1")], &[1, 2]);
        check(config(both(), SubsetFallback::None), &[("version", "1"), ("stage", "test")], &[2]);
        check(config(both(), SubsetFallback::None), &[("version", "9")], &[]);
        check(config(both(), SubsetFallback::None), &[("stage", "prod")], &[]);
        check(config(both(), SubsetFallback::None), &[], &[]);
        check(config(both(), SubsetFallback::Any), &[("version", "9")], &[1, 2, 3, 4]);
        check(config(both(), SubsetFallback::Any), &[], &[1, 2, 3, 4]);
        check(config(both(), SubsetFallback::Default), &[("stage", "prod")], &[1, 2]);
        let redundant = SubsetConfig { allow_redundant_keys: true, ..config(both(), SubsetFallback::None) };
        check(redundant, &[("version", "2"), ("zone", "a")], &[3]);
        let single = SubsetSelector { single_host: true, ..selector(&["version"], None) };
        check(config(vec![single], SubsetFallback::None), &[("version", "1")], &[1]);
    }

    #[test]
    fn a_selector_has_its_own_fallback() {
        let check = |fallback, expected: &[u16]| {
            let selectors = vec![selector(&["stage", "version"], Some(fallback)), selector(&["version"], None)];
            assert_eq!(picked(config(selectors, SubsetFallback::Any), &[("stage", "x"), ("version", "2")]), expected);
        };
        check(SelectorFallback::None, &[]);
        check(SelectorFallback::Any, &[1, 2, 3, 4]);
        check(SelectorFallback::Default, &[1, 2]);
        check(SelectorFallback::Keys(vec!["version".into()]), &[3]);
    }

    #[test]
    fn lists_stand_for_any_of_their_values() {
        let with = |list_as_any| {
            let config = SubsetConfig { list_as_any, ..config(vec![selector(&["stage"], None)], SubsetFallback::None) };
            (picked(config.clone(), &[("stage", "prod")]), picked(config, &[("stage", "canary")]))
        };
        assert_eq!(with(true), (vec![1, 3, 4], vec![4]));
        assert_eq!(with(false), (vec![1, 3], vec![]));
    }

    #[test]
    fn panic_takes_any_host_when_the_fallback_has_none() {
        let nothing = criteria(&[("version", "9")]);
        let config = |panic_mode_any| SubsetConfig {
            panic_mode_any,
            default_subset: nothing.clone(),
            ..config(vec![selector(&["version"], None)], SubsetFallback::Default)
        };
        assert_eq!(picked(config(false), &[("version", "8")]), [] as [u16; 0]);
        assert_eq!(picked(config(true), &[("version", "8")]), [1, 2, 3, 4]);
    }
}
