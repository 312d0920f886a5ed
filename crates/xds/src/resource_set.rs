//! The resources that one proxy should hold, as a persistent value. A new version shares unchanged parts with the
//! previous one, and proxies that see nearly the same share nearly everything; a comparison of two sets skips what they
//! share.

use std::sync::{Arc, OnceLock};

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

use crate::{Resource, ResourceType};

/// Everything that one proxy should hold: a value with O(1) `clone`, which is replaced as a whole.
#[derive(Clone, Debug, Default)]
pub struct ResourceSet {
    /// Generation of the snapshot it was computed from; grows.
    pub generation: u64,
    shared: Arc<Types>,
    /// Resources on top of the shared set; each hides the shared one of the same name.
    own: Arc<[(ResourceType, Arc<Resource>)]>,
    /// Merged maps of types with resources on top, made on first use: most sets are replaced before they are read.
    layered: [OnceLock<Box<TypeSet>>; ResourceType::ALL.len()],
}

type Types = [TypeSet; ResourceType::ALL.len()];

/// The resources of one type; `clone` is O(1).
#[derive(Clone, Debug, Default)]
pub(crate) struct TypeSet {
    pub resources: OrdMap<Arc<str>, Arc<Resource>>,
    /// Aliases, each with the sorted names of the resources that have it.
    aliases: OrdMap<Arc<str>, Arc<[Arc<str>]>>,
}

/// A difference between two sets in one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference<'a> {
    /// The type.
    pub kind: ResourceType,
    /// The name.
    pub name: &'a Arc<str>,
    /// The older set's resource of this name.
    pub old: Option<&'a Arc<Resource>>,
    /// The newer set's resource of this name.
    pub new: Option<&'a Arc<Resource>>,
}

impl ResourceSet {
    /// An empty set.
    pub fn new(generation: u64) -> Self {
        Self { generation, ..Self::default() }
    }

    /// A shared set with own resources on top. The two are merged only when they are read.
    pub fn layered(shared: &Self, own: Arc<[(ResourceType, Arc<Resource>)]>) -> Self {
        let mut base = shared.clone();
        base.put_together();
        Self { own, ..base }
    }

    /// Adds a resource, replacing one of the same name.
    pub fn insert(&mut self, kind: ResourceType, resource: Arc<Resource>) {
        self.types_mut()[kind.index()].insert(resource);
    }

    /// Removes a resource.
    pub fn remove(&mut self, kind: ResourceType, name: &str) -> Option<Arc<Resource>> {
        self.types_mut()[kind.index()].remove(name)
    }

    /// Replaces all resources of a type; each is under its own name.
    pub fn replace(&mut self, kind: ResourceType, resources: OrdMap<Arc<str>, Arc<Resource>>) {
        let of = &mut self.types_mut()[kind.index()];
        let before = std::mem::replace(&mut of.resources, resources.clone());
        for difference in differences(kind, &before, &resources) {
            of.note_aliases(difference.old.map(|r| &**r), difference.new.map(|r| &**r));
        }
    }

    /// The resource of that name.
    pub fn get(&self, kind: ResourceType, name: &str) -> Option<&Arc<Resource>> {
        self.type_set(kind).resources.get(name)
    }

    /// All resources of a type, by name.
    pub fn of(&self, kind: ResourceType) -> &OrdMap<Arc<str>, Arc<Resource>> {
        &self.type_set(kind).resources
    }

    pub(crate) fn type_set(&self, kind: ResourceType) -> &TypeSet {
        let shared = &self.shared[kind.index()];
        if !self.own.iter().any(|(of, _)| *of == kind) {
            return shared;
        }
        self.layered[kind.index()].get_or_init(|| {
            let mut whole = shared.clone();
            for (_, resource) in self.own.iter().filter(|(of, _)| *of == kind) {
                whole.insert(resource.clone());
            }
            Box::new(whole)
        })
    }

    fn types_mut(&mut self) -> &mut Types {
        self.put_together();
        Arc::make_mut(&mut self.shared)
    }

    /// Merges the resources on top into the set.
    fn put_together(&mut self) {
        if !self.own.is_empty() {
            self.shared = Arc::new(ResourceType::ALL.map(|kind| self.type_set(kind).clone()));
            self.own = Arc::default();
            self.layered = Default::default();
        }
    }

    /// The resource for a name that a client requests: by its own name, otherwise by an alias (of several resources
    /// with the same alias the first by name), otherwise by the alias or name with the longest `*SUFFIX`. Virtual hosts
    /// are requested as `ROUTE_CONFIGURATION/HOST`, where HOST comes from a request: if there is none with its port,
    /// the one without it.
    pub fn lookup(&self, kind: ResourceType, asked: &str) -> Option<&Arc<Resource>> {
        self.type_set(kind).lookup(kind, asked)
    }

    /// Whether it is the same set or an unchanged clone. Only pointers are compared, so sets with equal content may
    /// count as different.
    pub fn is_same(&self, other: &Self) -> bool {
        let same_layers = Arc::ptr_eq(&self.shared, &other.shared) && Arc::ptr_eq(&self.own, &other.own);
        same_layers || ResourceType::ALL.into_iter().all(|kind| self.of(kind).ptr_eq(other.of(kind)))
    }

    /// The number of resources.
    pub fn len(&self) -> usize {
        ResourceType::ALL.into_iter().map(|kind| self.of(kind).len()).sum()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The differences from an older set, by type and name. The cost depends on the number of differences and not on
    /// the size of the sets, if one was made from the other or both from a third.
    pub fn diff<'a>(&'a self, older: &'a Self) -> impl Iterator<Item = Difference<'a>> {
        ResourceType::ALL.into_iter().flat_map(move |kind| differences(kind, older.of(kind), self.of(kind)))
    }
}

impl TypeSet {
    pub fn insert(&mut self, resource: Arc<Resource>) {
        let before = self.resources.insert(resource.name.clone(), resource.clone());
        self.note_aliases(before.as_deref(), Some(&resource));
    }

    pub fn remove(&mut self, name: &str) -> Option<Arc<Resource>> {
        let before = self.resources.remove(name)?;
        self.note_aliases(Some(&before), None);
        Some(before)
    }

    /// See [`ResourceSet::lookup`].
    pub fn lookup(&self, kind: ResourceType, asked: &str) -> Option<&Arc<Resource>> {
        let by_alias = || {
            let (scope, host) = scope_and_host(kind, asked)?;
            let hosts = [Some(host), without_port(host)];
            let full = |host: &str| if scope.is_empty() { host.to_owned() } else { format!("{scope}/{host}") };
            let exact = hosts.iter().flatten().find_map(|host| self.named(&full(host)));
            let suffixes = |host: &&str| {
                let mut dots = host.match_indices('.').filter_map(|(at, _)| host.get(at..));
                dots.find_map(|suffix| self.named(&full(&format!("*{suffix}"))))
            };
            exact.or_else(|| hosts.iter().flatten().find_map(suffixes)).or_else(|| self.named(&full("*")))
        };
        self.resources.get(asked).or_else(by_alias)
    }

    fn named(&self, name: &str) -> Option<&Arc<Resource>> {
        let by_alias = || self.aliases.get(name)?.first().and_then(|own_name| self.resources.get(own_name));
        self.resources.get(name).or_else(by_alias)
    }

    fn note_aliases(&mut self, before: Option<&Resource>, now: Option<&Resource>) {
        let (before_aliases, now_aliases) = (before.map(Resource::aliases), now.map(Resource::aliases));
        if before_aliases.unwrap_or_default() == now_aliases.unwrap_or_default() {
            return;
        }
        if let Some(before) = before {
            for alias in before.aliases() {
                let others = self.aliases.get(alias).into_iter().flat_map(|names| names.iter());
                let others: Arc<[Arc<str>]> = others.filter(|name| **name != before.name).cloned().collect();
                if others.is_empty() {
                    _ = self.aliases.remove(alias)
                } else {
                    _ = self.aliases.insert(alias.clone(), others)
                }
            }
        }
        if let Some(now) = now {
            for alias in now.aliases() {
                let mut names: Vec<Arc<str>> = self.aliases.get(alias).map(|names| names.to_vec()).unwrap_or_default();
                if let Err(at) = names.binary_search(&now.name) {
                    names.insert(at, now.name.clone());
                    self.aliases.insert(alias.clone(), names.into());
                }
            }
        }
    }
}

/// Splits a requested name into the route configuration, if the type has one, and the host; `None` for types without
/// aliases.
fn scope_and_host(kind: ResourceType, asked: &str) -> Option<(&str, &str)> {
    match kind {
        // Names of route configurations may contain slashes, hosts do not.
        ResourceType::VirtualHost => asked.rsplit_once('/'),
        ResourceType::NameTable => Some(("", asked)),
        _ => None,
    }
}

fn without_port(host: &str) -> Option<&str> {
    host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit())).map(|(host, _)| host)
}

/// The differences of two maps; skips what they share.
pub(crate) fn differences<'a>(
    kind: ResourceType,
    older: &'a OrdMap<Arc<str>, Arc<Resource>>,
    newer: &'a OrdMap<Arc<str>, Arc<Resource>>,
) -> impl Iterator<Item = Difference<'a>> {
    older.diff(newer).map(move |item| match item {
        DiffItem::Add(name, new) => Difference { kind, name, old: None, new: Some(new) },
        DiffItem::Update { old: (name, old), new: (_, new) } => {
            Difference { kind, name, old: Some(old), new: Some(new) }
        }
        DiffItem::Remove(name, old) => Difference { kind, name, old: Some(old), new: None },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Any;

    fn resource(name: &str, content: &str) -> Arc<Resource> {
        Arc::new(Resource::new(name, &Any { type_url: "t/x".into(), value: content.as_bytes().to_vec() }))
    }

    fn short(newer: &ResourceSet, older: &ResourceSet) -> Vec<String> {
        let sign = |d: &Difference<'_>| match (d.old, d.new) {
            (None, Some(_)) => '+',
            (Some(_), None) => '-',
            _ => '~',
        };
        newer.diff(older).map(|d| format!("{} {}{}", d.kind, sign(&d), d.name)).collect()
    }

    #[test]
    fn a_successor_differs_in_what_was_changed() {
        let mut old = ResourceSet::new(1);
        for index in 0..4000 {
            old.insert(ResourceType::Cluster, resource(&format!("c{index:04}"), "1"));
        }
        let mut new = old.clone();
        assert_eq!(short(&new, &old), [""; 0]);
        new.insert(ResourceType::Cluster, resource("c2000", "2"));
        // Setting the same content again is not a change.
        new.insert(ResourceType::Cluster, resource("c3000", "1"));
        new.remove(ResourceType::Cluster, "c0001");
        new.insert(ResourceType::Route, resource("r", "1"));
        assert_eq!(short(&new, &old), ["CDS -c0001", "CDS ~c2000", "RDS +r"]);
        assert_eq!(short(&old, &new), ["CDS +c0001", "CDS ~c2000", "RDS -r"]);
    }

    #[test]
    fn what_lies_on_top_hides_what_is_shared() {
        let cluster = ResourceType::Cluster;
        let mut shared = ResourceSet::new(1);
        for name in ["a", "b"] {
            shared.insert(cluster, resource(name, "shared"));
        }
        shared.insert(ResourceType::Route, resource("r", "shared"));
        let own: Arc<[_]> = [(cluster, resource("b", "own")), (cluster, resource("c", "own"))].into();
        let layered = ResourceSet::layered(&shared, own.clone());
        assert_eq!((layered.len(), shared.len()), (4, 3));
        assert_eq!(short(&layered, &shared), ["CDS ~b", "CDS +c"]);
        assert!(layered.is_same(&ResourceSet::layered(&shared, own.clone())), "made of the same");
        assert!(!layered.is_same(&shared));
        assert!(layered.of(ResourceType::Route).ptr_eq(shared.of(ResourceType::Route)), "nothing of it is its own");
        // A change does not modify the set that it was made from, whether that was read or not.
        let mut changed = ResourceSet::layered(&shared, own.clone());
        changed.remove(cluster, "b");
        changed.insert(cluster, resource("d", "own"));
        assert_eq!(short(&changed, &layered), ["CDS -b", "CDS +d"]);
        assert_eq!(short(&changed, &shared), ["CDS -b", "CDS +c", "CDS +d"]);
        // On top of layers: nothing is lost.
        let twice = ResourceSet::layered(&layered, [(cluster, resource("a", "own"))].into());
        assert_eq!(short(&twice, &layered), ["CDS ~a"]);
    }

    /// Counts how many keys a diff compares: sharing has to make it independent of the size of the sets.
    #[test]
    fn what_is_shared_is_not_looked_at() {
        use std::cmp::Ordering;
        use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
        static COMPARED: AtomicUsize = AtomicUsize::new(0);
        #[derive(Clone, PartialEq, Eq)]
        struct Key(usize);
        impl Ord for Key {
            fn cmp(&self, other: &Self) -> Ordering {
                COMPARED.fetch_add(1, Relaxed);
                self.0.cmp(&other.0)
            }
        }
        impl PartialOrd for Key {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }
        let old: OrdMap<Key, usize> = (0..100_000).map(|index| (Key(index), index)).collect();
        let mut new = old.clone();
        new.insert(Key(50_000), 0);
        new.remove(&Key(70_000));
        COMPARED.store(0, Relaxed);
        assert_eq!(old.diff(&new).count(), 2);
        assert!(COMPARED.load(Relaxed) < 500, "{} keys compared", COMPARED.load(Relaxed));
    }

    #[test]
    fn virtual_hosts_answer_to_their_domains() {
        let mut set = ResourceSet::new(1);
        let add = |set: &mut ResourceSet, name: &str, aliases: &[&str]| {
            let plain = Arc::unwrap_or_clone(resource(name, name));
            let aliases = aliases.iter().map(|alias| Arc::from(*alias));
            set.insert(ResourceType::VirtualHost, Arc::new(plain.with_aliases(aliases)));
        };
        add(&mut set, "80/web.shop.svc", &["80/web", "80/10.0.0.1", "80/[fd00::1]"]);
        add(&mut set, "80/wild", &["80/*.example.com", "80/*.b.example.com"]);
        add(&mut set, "90/any", &["90/*"]);
        let check = |set: &ResourceSet, asked: &str, expected: Option<&str>| {
            let found = set.lookup(ResourceType::VirtualHost, asked).map(|resource| &*resource.name);
            assert_eq!(found, expected, "{asked}");
        };
        check(&set, "80/web.shop.svc", Some("80/web.shop.svc"));
        check(&set, "80/web", Some("80/web.shop.svc"));
        check(&set, "80/web:80", Some("80/web.shop.svc"));
        check(&set, "80/[fd00::1]:80", Some("80/web.shop.svc"));
        check(&set, "80/a.example.com", Some("80/wild"));
        check(&set, "80/a.b.example.com:1", Some("80/wild"));
        check(&set, "80/example.com", None);
        check(&set, "80/other", None);
        check(&set, "90/other", Some("90/any"));
        check(&set, "web", None);
        // Of two with the same domain the first by name has it, in any order of insertion.
        add(&mut set, "80/admin", &["80/web"]);
        check(&set, "80/web", Some("80/admin"));
        set.remove(ResourceType::VirtualHost, "80/admin");
        check(&set, "80/web", Some("80/web.shop.svc"));
        set.remove(ResourceType::VirtualHost, "80/web.shop.svc");
        check(&set, "80/web", None);

        let mut moved = set.clone();
        let plain = Arc::unwrap_or_clone(resource("80/z", "z")).with_aliases([Arc::from("80/*.example.com")]);
        moved.replace(ResourceType::VirtualHost, [(plain.name.clone(), Arc::new(plain))].into_iter().collect());
        check(&moved, "80/a.example.com", Some("80/z"));
        check(&moved, "80/wild", None);
        check(&moved, "90/other", None);
    }
}
