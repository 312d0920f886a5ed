//! Names of mesh hosts and their addresses, with the short forms a pod's search path allows.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::normal::normal;
use super::{Answers, Authority};

/// The workload's namespace and cluster domain, which decide what short names mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchDomain {
    /// Namespace of the workload.
    pub namespace: String,
    /// DNS suffix of the cluster, e.g. `cluster.local`.
    pub cluster_domain: String,
}

/// The value of a name of the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// A host with these addresses.
    Addresses(Arc<[IpAddr]>),
    /// An alias of this host, which is looked up in turn.
    AliasOf(Arc<str>),
}

/// A Service of type ExternalName whose host has no address in the mesh (`NameTable.Alias`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AliasEntry {
    /// Fully qualified name without a trailing dot.
    pub host: String,
    /// The host that it is another name of.
    pub target: String,
    /// The Service's name.
    pub short_name: String,
    /// The Service's namespace.
    pub namespace: String,
}

/// One host of the name table (`istio.networking.nds.v1.NameTable.NameInfo`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEntry {
    /// Fully qualified name without a trailing dot; `*.suffix` for wildcard hosts.
    pub host: String,
    /// Addresses: the service's virtual address, or those of its endpoints when headless.
    pub ips: Vec<IpAddr>,
    /// Service name, when the host is a cluster service.
    pub short_name: String,
    /// Namespace, when the host is a cluster service.
    pub namespace: String,
}

/// All names a workload can resolve within the mesh.
#[derive(Debug, Default)]
pub struct Table {
    exact: HashMap<Box<str>, Known>,
    wildcard: HashMap<Box<str>, Known>,
    cluster_domain: Box<str>,
    /// With learned scope: the names that have been requested.
    answers: Option<Answers>,
    /// Whether the control plane has sent a table, even an empty one.
    sent: bool,
    /// The records of the cluster's own name server; `None`: there is another one, which knows more.
    authority: Option<Authority>,
}

impl Table {
    /// Makes a table from names that were requested one by one.
    pub fn learned(answers: Answers, cluster_domain: &str) -> Self {
        Self { answers: Some(answers), cluster_domain: cluster_domain.to_ascii_lowercase().into(), ..Self::default() }
    }

    /// Whether the answer for this name is known, even if the name does not exist.
    pub fn knows(&self, name: &str) -> bool {
        self.answers.as_ref().is_none_or(|answers| answers.contains_key(&*normal(name)))
    }

    /// Builds the table as a workload at `search` sees it. Cluster services are also known as `name.ns` and
    /// `name.ns.svc`, and as `name` within their own namespace; a host written out in full wins over a short form.
    pub fn new(hosts: impl IntoIterator<Item = HostEntry>, search: &SearchDomain) -> Self {
        Self::with_aliases(hosts, [], search)
    }

    /// Like [`Table::new`], with further names of hosts.
    pub fn with_aliases(
        hosts: impl IntoIterator<Item = HostEntry>,
        aliases: impl IntoIterator<Item = AliasEntry>,
        search: &SearchDomain,
    ) -> Self {
        let mut short = Vec::new();
        let cluster_domain = search.cluster_domain.to_ascii_lowercase().into();
        let mut table = Self { cluster_domain, sent: true, ..Self::default() };
        for entry in hosts {
            let known = Known::Addresses(entry.ips.into());
            short_forms(&entry.short_name, &entry.namespace, search, &known, &mut short);
            let host = normal(&entry.host);
            match host.strip_prefix("*.") {
                Some(suffix) => table.wildcard.insert(suffix.into(), known),
                None => table.exact.insert(host.into(), known),
            };
        }
        for entry in aliases {
            let known = Known::AliasOf(normal(&entry.target).into());
            short_forms(&entry.short_name, &entry.namespace, search, &known, &mut short);
            table.exact.entry(normal(&entry.host).into()).or_insert(known);
        }
        for (name, known) in short {
            table.exact.entry(name.into()).or_insert(known);
        }
        table
    }

    /// Makes it the table of the cluster's own name server: names below the cluster's domain that it does not have do not exist.
    #[must_use]
    pub fn with_authority(self, authority: Authority) -> Self {
        Self { authority: Some(authority), ..self }
    }

    /// The records of the cluster's own name server.
    pub(super) fn authority(&self) -> Option<&Authority> {
        self.authority.as_ref()
    }

    /// Returns the value of a name (any case, with or without a trailing dot): exact, else the most specific wildcard.
    pub fn lookup(&self, name: &str) -> Option<Known> {
        let name = normal(name);
        if let Some(answers) = &self.answers {
            return answers.get(&*name).cloned().flatten();
        }
        if let Some(known) = self.exact.get(name.as_str()) {
            return Some(known.clone());
        }
        let mut rest = name.as_str();
        while let Some((_, suffix)) = rest.split_once('.') {
            if let Some(known) = self.wildcard.get(suffix) {
                return Some(known.clone());
            }
            rest = suffix;
        }
        None
    }

    /// Whether the name is below the cluster's domain, which only the cluster's name server knows.
    pub fn owns(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        match name.strip_suffix(&*self.cluster_domain) {
            Some(rest) => !self.cluster_domain.is_empty() && (rest.is_empty() || rest.ends_with('.')),
            None => false,
        }
    }

    /// Number of names, short forms included.
    pub fn len(&self) -> usize {
        self.exact.len() + self.wildcard.len() + self.answers.as_ref().map_or(0, Answers::len)
    }

    /// No names at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the control plane still has to send its names. With learned scope it sends none by itself.
    pub fn awaits_names(&self) -> bool {
        self.answers.is_none() && !self.sent
    }
}

/// Adds the forms by which a cluster service is found through the search path.
fn short_forms(name: &str, namespace: &str, search: &SearchDomain, known: &Known, to: &mut Vec<(String, Known)>) {
    if name.is_empty() || namespace.is_empty() {
        return;
    }
    let (name, namespace) = (name.to_ascii_lowercase(), namespace.to_ascii_lowercase());
    if namespace == search.namespace {
        to.push((name.clone(), known.clone()));
    }
    to.push((format!("{name}.{namespace}"), known.clone()));
    to.push((format!("{name}.{namespace}.svc"), known.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(host: &str, ip: &str, short_name: &str, namespace: &str) -> HostEntry {
        HostEntry {
            host: host.into(),
            ips: vec![ip.parse().expect("an address")],
            short_name: short_name.into(),
            namespace: namespace.into(),
        }
    }

    fn table() -> Table {
        let search = SearchDomain { namespace: "shop".into(), cluster_domain: "cluster.local".into() };
        let alias = AliasEntry {
            host: "far.shop.svc.cluster.local".into(),
            target: "Far.example.net.".into(),
            short_name: "far".into(),
            namespace: "shop".into(),
        };
        Table::with_aliases(
            [
                entry("cart.shop.svc.cluster.local", "10.96.0.1", "cart", "shop"),
                entry("cart.other.svc.cluster.local", "10.96.0.2", "cart", "other"),
                entry("*.example.com", "10.96.0.3", "", ""),
                entry("*.api.example.com", "10.96.0.4", "", ""),
                entry("Www.Example.org.", "10.96.0.5", "", ""),
            ],
            [alias],
            &search,
        )
    }

    #[test]
    fn lookup_follows_the_search_path() {
        let check = |name: &str, expected: Option<&str>| {
            let found = table().lookup(name).map(|known| match known {
                Known::Addresses(ips) => ips[0].to_string(),
                Known::AliasOf(target) => target.to_string(),
            });
            assert_eq!(found.as_deref(), expected, "{name}");
        };
        check("cart", Some("10.96.0.1"));
        check("CART.", Some("10.96.0.1"));
        check("cart.shop", Some("10.96.0.1"));
        check("cart.other", Some("10.96.0.2"));
        check("cart.other.svc", Some("10.96.0.2"));
        check("cart.other.svc.cluster.local.", Some("10.96.0.2"));
        check("a.example.com", Some("10.96.0.3"));
        check("a.b.example.com", Some("10.96.0.3"));
        check("a.api.example.com", Some("10.96.0.4"));
        check("example.com", None);
        check("www.example.org", Some("10.96.0.5"));
        check("far", Some("far.example.net"));
        check("far.shop.svc.cluster.local", Some("far.example.net"));
        check("shop", None);
        check("", None);
        check(".", None);
    }

    #[test]
    fn names_are_awaited_until_there_is_a_table_be_it_empty() {
        let search = SearchDomain { namespace: "shop".into(), cluster_domain: "cluster.local".into() };
        assert!(Table::default().awaits_names());
        assert!(!Table::new([], &search).awaits_names() && Table::new([], &search).is_empty());
        assert!(!table().awaits_names());
        assert!(!Table::learned(Answers::new(), "cluster.local").awaits_names());
    }

    #[test]
    fn owns_only_the_cluster_domain() {
        let check = |name: &str, expected: bool| assert_eq!(table().owns(name), expected, "{name}");
        check("nope.shop.svc.cluster.local.", true);
        check("cluster.local", true);
        check("notcluster.local", false);
        check("example.com", false);
    }
}
