//! The objects that are written: without those that say the same twice, with names of their own, and read again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_api::Object;
use evenkeel_base::{Diagnostic, Diagnostics, Span};
use serde_json::{Map, Value, json};

use super::actions::Grant;

/// The version of the kinds that are stable.
const STABLE: &str = "gateway.networking.k8s.io/v1";
/// The most hosts of a route, its most parents, its most rules, and the most conditions of one rule.
const MAX_HOSTS: usize = 16;
const MAX_PARENTS: usize = 32;
const MAX_RULES: usize = 16;
const MAX_MATCHES: usize = 64;
/// The most conditions of an HTTPRoute.
const MAX_ALL_MATCHES: usize = 128;

/// A route.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RouteDocument {
    pub(super) kind: &'static str,
    pub(super) namespace: Arc<str>,
    pub(super) name: String,
    /// References to parents.
    pub(super) parents: Vec<Value>,
    pub(super) hostnames: Vec<String>,
    pub(super) rules: Vec<Map<String, Value>>,
    /// The object that it replaces, for the mistake of a route that is not valid.
    pub(super) origin: Span,
}

/// A grant: references from one namespace to a kind of another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct GrantKey {
    namespace: Arc<str>,
    from: Arc<str>,
    kind: &'static str,
}

/// All objects so far.
#[derive(Debug, Default)]
pub(super) struct Documents {
    /// Kind, namespace and name of what is there.
    names: BTreeSet<(String, Arc<str>, String)>,
    routes: Vec<RouteDocument>,
    others: Vec<Value>,
    /// The names of what may be referred to.
    grants: BTreeMap<GrantKey, BTreeSet<Arc<str>>>,
}

impl Documents {
    /// None yet, beside these objects.
    pub(super) fn of(objects: &[&Object]) -> Self {
        let name =
            |object: &&Object| (object.kind().as_str().to_owned(), object.namespace.clone(), object.name.to_string());
        Self { names: objects.iter().map(name).collect(), ..Self::default() }
    }

    /// Adds routes.
    pub(super) fn extend(&mut self, written: Routes) {
        for route in written.routes {
            self.route(route);
        }
        for grant in written.grants {
            let key = GrantKey { namespace: grant.namespace, from: grant.from_namespace, kind: "Service" };
            self.grants.entry(key).or_default().insert(grant.service);
        }
    }

    /// Adds a route: as further parents, or further hosts, of one that says the same otherwise.
    pub(super) fn route(&mut self, mut new: RouteDocument) {
        for known in &mut self.routes {
            let is_same = known.kind == new.kind && known.namespace == new.namespace && known.rules == new.rules;
            if is_same && known.origin == new.origin && known.hostnames == new.hostnames {
                known.parents.extend(
                    new.parents.into_iter().filter(|parent| !known.parents.contains(parent)).collect::<Vec<_>>(),
                );
                return;
            }
            if is_same && known.parents == new.parents && !known.hostnames.is_empty() && !new.hostnames.is_empty() {
                let further: Vec<String> =
                    new.hostnames.into_iter().filter(|host| !known.hostnames.contains(host)).collect();
                known.hostnames.extend(further);
                return;
            }
        }
        new.name = self.free_name(new.kind, &new.namespace, &new.name);
        self.routes.push(new);
    }

    /// Adds another object.
    pub(super) fn object(&mut self, document: Value) {
        self.others.push(document);
    }

    /// Lets a Gateway of a namespace use a Secret of another.
    pub(super) fn grant_secret(&mut self, from: &Arc<str>, namespace: &Arc<str>, secret: &Arc<str>) {
        let key = GrantKey { namespace: namespace.clone(), from: from.clone(), kind: "Secret" };
        self.grants.entry(key).or_default().insert(secret.clone());
    }

    /// A name that nothing of this kind has.
    pub(super) fn free_name(&mut self, kind: &str, namespace: &Arc<str>, wanted: &str) -> String {
        let key = |name: &str| (kind.to_owned(), namespace.clone(), name.to_owned());
        let numbered = (2..).map(|number| format!("{wanted}-{number}"));
        let name = std::iter::once(wanted.to_owned()).chain(numbered).find(|name| !self.names.contains(&key(name)));
        let name = name.unwrap_or_else(|| wanted.to_owned());
        self.names.insert(key(&name));
        name
    }

    /// The objects as they are written. One with a mistake is left out, and a finding.
    pub(super) fn checked(mut self, found: &mut Diagnostics) -> Checked {
        let routes: Vec<RouteDocument> = std::mem::take(&mut self.routes);
        let mut all = std::mem::take(&mut self.others);
        for route in routes {
            for part in parts(route) {
                let name = if part.is_first {
                    part.route.name.clone()
                } else {
                    self.free_name(part.route.kind, &part.route.namespace, &part.route.name)
                };
                all.push(part.route.json(&name));
            }
        }
        all.extend(std::mem::take(&mut self.grants).into_iter().map(|(key, names)| grant(key, &names)));
        let count = all.len();
        all.retain(|document| {
            let text = document.to_string();
            let (_, mistakes) = evenkeel_api::load(&[("written.yaml".into(), text.into())]);
            let Some(mistake) = mistakes.iter().find(|mistake| mistake.severity == evenkeel_base::Severity::Error)
            else {
                return true;
            };
            let message =
                format!("{} {} is left out: {}", document["kind"], document["metadata"]["name"], mistake.message);
            found
                .push(Diagnostic::error("no-equal", Span::default(), message).with_help("keep what it was to replace"));
            false
        });
        Checked { is_whole: all.len() == count, documents: all }
    }
}

/// Objects that can be applied.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) documents: Vec<Value>,
    /// None was left out.
    pub(super) is_whole: bool,
}

/// Routes, and what they may refer to.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Routes {
    pub(super) routes: Vec<RouteDocument>,
    pub(super) grants: BTreeSet<Grant>,
}

/// A part of a route that is too long for one object.
struct Part {
    route: RouteDocument,
    is_first: bool,
}

fn parts(route: RouteDocument) -> Vec<Part> {
    let hosts = chunks(&route.hostnames, MAX_HOSTS);
    let parents = chunks(&route.parents, MAX_PARENTS);
    let rules = rule_chunks(route.rules.iter().flat_map(short_rules).collect());
    let mut all: Vec<Part> = Vec::new();
    for rules in rules {
        for parents in &parents {
            for hosts in &hosts {
                let (parents, hostnames, rules) = (parents.clone(), hosts.clone(), rules.clone());
                let is_first = all.is_empty();
                all.push(Part { route: RouteDocument { parents, hostnames, rules, ..route.clone() }, is_first });
            }
        }
    }
    all
}

/// At least one chunk.
fn chunks<T: Clone>(all: &[T], len: usize) -> Vec<Vec<T>> {
    if all.is_empty() { vec![Vec::new()] } else { all.chunks(len).map(<[T]>::to_vec).collect() }
}

/// A rule with too many conditions as several.
fn short_rules(rule: &Map<String, Value>) -> Vec<Map<String, Value>> {
    match rule.get("matches").and_then(Value::as_array) {
        Some(matches) if matches.len() > MAX_MATCHES => {
            let part = |matches: &[Value]| {
                let mut part = rule.clone();
                part.insert("matches".to_owned(), matches.into());
                part
            };
            matches.chunks(MAX_MATCHES).map(part).collect()
        }
        _ => vec![rule.clone()],
    }
}

fn rule_chunks(rules: Vec<Map<String, Value>>) -> Vec<Vec<Map<String, Value>>> {
    let matches = |rule: &Map<String, Value>| rule.get("matches").and_then(Value::as_array).map_or(1, Vec::len);
    let mut all: Vec<Vec<Map<String, Value>>> = vec![Vec::new()];
    for rule in rules {
        let Some(last) = all.last_mut() else { continue };
        let count: usize = last.iter().map(matches).sum();
        if last.len() == MAX_RULES || count + matches(&rule) > MAX_ALL_MATCHES {
            all.push(vec![rule]);
        } else {
            last.push(rule);
        }
    }
    all
}

impl RouteDocument {
    fn json(self, name: &str) -> Value {
        let mut spec = Map::new();
        spec.insert("parentRefs".to_owned(), self.parents.into());
        if !self.hostnames.is_empty() {
            spec.insert("hostnames".to_owned(), self.hostnames.into());
        }
        spec.insert("rules".to_owned(), self.rules.into_iter().map(Value::Object).collect());
        object(self.kind, &self.namespace, name, spec.into())
    }
}

/// An object of the Gateway API.
pub(super) fn object(kind: &str, namespace: &str, name: &str, spec: Value) -> Value {
    let version = match kind {
        "ReferenceGrant" => "gateway.networking.k8s.io/v1beta1",

        _ => STABLE,
    };
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

fn grant(key: GrantKey, names: &BTreeSet<Arc<str>>) -> Value {
    let GrantKey { namespace, from, kind } = key;
    let kinds: &[&str] =
        if kind == "Secret" { &["Gateway"] } else { &["HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute"] };
    let from_kind =
        |from_kind: &&str| json!({"group": "gateway.networking.k8s.io", "kind": from_kind, "namespace": &*from});
    let to = names.iter().map(|name| json!({"group": "", "kind": kind, "name": &**name}));
    let spec = json!({"from": kinds.iter().map(from_kind).collect::<Vec<_>>(), "to": to.collect::<Vec<_>>()});
    object("ReferenceGrant", &namespace, &format!("{}s-for-{from}", kind.to_ascii_lowercase()), spec)
}
