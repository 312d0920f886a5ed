//! Proxies that follow a translator's reports of its changes, as in the control plane: from these alone each ends with the
//! resources that it should have.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use evenkeel_model::Snapshot;
use evenkeel_translate::{Changed, ClassId, Holding, Joined, Mismatch, ProxyView, Translator};
use evenkeel_xds::{Cause, ResourceSet, ResourceType};

/// A translator and those that joined it.
pub struct Fleet {
    translator: Translator,
    proxies: HashMap<Arc<ProxyView>, Holding>,
    classes: HashMap<ClassId, Arc<ResourceSet>>,
}

/// What one proxy was to hold and is to hold, where that differs.
pub struct Difference {
    pub view: Arc<ProxyView>,
    pub before: Arc<ResourceSet>,
    pub now: Arc<ResourceSet>,
}

/// What was made: units, parts of what several of them give to, and resources by type.
#[derive(Debug, PartialEq, Eq)]
pub struct Work {
    pub units: u64,
    pub parts: u64,
    pub resources: BTreeMap<&'static str, u64>,
}

impl Work {
    /// What was made since; of the types only those of which anything was.
    pub fn since(&self, before: &Self) -> Self {
        let resources = self.resources.iter().map(|(kind, count)| (*kind, count - before.resources[kind]));
        Self {
            units: self.units - before.units,
            parts: self.parts - before.parts,
            resources: resources.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

impl Fleet {
    pub fn new(snapshot: Arc<Snapshot>, cause: Cause) -> Self {
        Self { translator: Translator::new(snapshot, cause), proxies: HashMap::new(), classes: HashMap::new() }
    }

    pub fn units_made(&self) -> u64 {
        self.translator.units_made()
    }

    /// What was made so far.
    pub fn work(&self) -> Work {
        let of = |kind: ResourceType| (kind.short_name(), self.translator.resources_made(kind));
        Work {
            units: self.translator.units_made(),
            parts: self.translator.parts_made(),
            resources: ResourceType::ALL.map(of).into(),
        }
    }

    pub fn proxies_looked_up(&self) -> u64 {
        self.translator.proxies_looked_up()
    }

    pub fn snapshot(&self) -> &Arc<Snapshot> {
        self.translator.snapshot()
    }

    pub fn join(&mut self, view: &ProxyView) -> Arc<ResourceSet> {
        let joined = self.translator.join(Arc::new(view.clone()));
        let set = joined.set();
        let Joined { view, holding, shared } = joined;
        self.classes.entry(holding.class).or_insert(shared);
        self.proxies.insert(view, holding);
        set
    }

    pub fn leave(&mut self, view: &ProxyView) {
        self.translator.leave(view);
        self.proxies.remove(view);
    }

    /// What a proxy that joined holds.
    pub fn set_of(&self, view: &ProxyView) -> Option<Arc<ResourceSet>> {
        let holding = self.proxies.get(view)?;
        Some(holding.over(&self.classes[&holding.class]))
    }

    /// The allocation that names a proxy that joined.
    pub fn view_of(&self, view: &ProxyView) -> Option<Arc<ProxyView>> {
        Some(self.translator.joined(view)?.view)
    }

    pub fn update(&mut self, snapshot: Arc<Snapshot>, cause: Cause) -> Vec<Difference> {
        let changed = self.translator.update(snapshot, cause);
        self.follow(changed)
    }

    pub fn rebuild(&mut self, snapshot: Arc<Snapshot>) -> Vec<Difference> {
        let changed = self.translator.rebuild(snapshot);
        assert_eq!(changed.proxies.len(), self.proxies.len(), "nobody keeps the old");
        self.follow(changed)
    }

    pub fn verify(&mut self) -> Vec<Mismatch> {
        let (mismatches, healed) = self.translator.verify();
        self.follow(healed);
        mismatches
    }

    fn follow(&mut self, changed: Changed) -> Vec<Difference> {
        let before: HashMap<Arc<ProxyView>, Arc<ResourceSet>> =
            self.proxies.keys().filter_map(|view| Some((view.clone(), self.set_of(view)?))).collect();
        let mut touched: HashMap<Arc<ProxyView>, bool> = HashMap::new();
        for change in changed.classes {
            let of = self.proxies.iter().filter(|(_, holding)| holding.class == change.class);
            touched.extend(of.map(|(view, _)| (view.clone(), true)));
            assert!(!change.touched.is_empty(), "{:?}: nothing changed", change.class);
            self.classes.insert(change.class, change.shared);
        }
        for change in changed.proxies {
            let Joined { view, holding, shared } = change.now;
            touched.insert(view.clone(), !change.touched.is_empty());
            self.classes.insert(holding.class, shared);
            self.proxies.insert(view, holding);
        }
        let mut told = Vec::new();
        for (view, before) in before {
            let now = self.set_of(&view).expect("it stays");
            let known = self.translator.joined(&view).expect("it joined").set();
            assert!(now.diff(&known).next().is_none() && now.generation == known.generation, "{}", view.pod);
            let differs = now.diff(&before).next().is_some();
            assert_eq!(differs, touched.get(&view).copied().unwrap_or_default(), "{}: is it told?", view.pod);
            assert!(differs || now.generation >= before.generation, "{}", view.pod);
            if differs {
                told.push(Difference { view, before, now });
            }
        }
        told
    }
}
