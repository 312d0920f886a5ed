//! An object: the properties that all kinds have, and its content.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use evenkeel_base::{Diagnostic, ObjectRef, SourceId, Span, Spanned};

use crate::object_meta::OwnerReference;
use crate::{Kind, Resource};

/// One object.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace; `default` if none is given, empty for kinds without.
    pub namespace: Arc<str>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations, each with its place.
    pub annotations: BTreeMap<String, Spanned<String>>,
    /// The objects that made it.
    pub owners: Vec<OwnerReference>,
    /// It is about to end (`deletionTimestamp`).
    pub ends: bool,
    /// Its content.
    pub resource: Resource,
    /// Where its name was written; for an object of an API server, its reference.
    pub origin: Span,
    /// Where it comes from.
    pub source: SourceId,
    /// The generation of its content (`metadata.generation`), if it comes from an API server.
    pub generation: Option<i64>,
    /// The hash of its text and of its first line's number, without what follows it. 0 if it was not read from a file.
    pub(crate) text: u64,
    /// Why the document was refused, if this object is only a stand-in for it.
    pub refused: Option<Arc<Refusal>>,
}

impl Object {
    /// Whether both have the same text in the same place, so that all positions in them are the same too.
    pub fn same_as_written(&self, other: &Self) -> bool {
        self.text == other.text && self.origin == other.origin && self == other
    }

    /// Whether both have the same content, wherever and however it is written.
    pub fn says_the_same(&self, other: &Self) -> bool {
        (&self.name, &self.namespace, &self.labels, &self.annotations, &self.owners, &self.resource)
            == (&other.name, &other.namespace, &other.labels, &other.annotations, &other.owners, &other.resource)
            && self.refused == other.refused
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.resource.kind()
    }

    /// Its key, which is unique among all objects.
    pub fn key(&self) -> ObjectKey {
        ObjectKey { kind: self.kind(), namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// Its reference, for messages.
    pub fn reference(&self) -> ObjectRef {
        let own = self.key().at(&self.source);
        match self.unsupported() {
            None => own,
            Some(unsupported) => {
                let (group, kind) = (unsupported.group, unsupported.kind);
                ObjectRef { group, kind, name: self.written_name().into(), ..own }
            }
        }
    }

    /// The object that it stands in for, if that is of a kind that is not supported.
    pub fn unsupported(&self) -> Option<&Unsupported> {
        self.refused.as_ref()?.unsupported.as_ref()
    }

    /// Its name in the document. A stand-in for an object of another kind has that kind before its own name.
    fn written_name(&self) -> &str {
        let prefix = self.unsupported().and_then(|unsupported| self.name.strip_prefix(unsupported.kind));
        prefix.and_then(|rest| rest.strip_prefix('/')).unwrap_or(&self.name)
    }
}

/// The unique key of an object: group and kind (a [`Kind`] is both), namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Its group and kind.
    pub kind: Kind,
    /// Its namespace; empty for kinds without.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// The object of this key that comes from a source.
    pub fn at(&self, source: &SourceId) -> ObjectRef {
        ObjectRef {
            group: self.kind.group(),
            kind: self.kind.as_str(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            source: source.clone(),
        }
    }
}

/// `VirtualService default/reviews`
impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.unsupported().map_or_else(|| self.kind().as_str(), |unsupported| unsupported.kind);
        if self.namespace.is_empty() {
            write!(f, "{kind} {}", self.written_name())
        } else {
            write!(f, "{kind} {}/{}", self.namespace, self.written_name())
        }
    }
}

/// Why a document was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The position of the first mistake.
    pub place: Span,
    /// The mistake.
    pub message: String,
    /// Set if the document has no mistake, but is of a kind that is not supported.
    pub unsupported: Option<Unsupported>,
}

/// A kind that protects something and is not supported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// Its API group.
    pub group: &'static str,
    /// Its name.
    pub kind: &'static str,
    /// What the object protects.
    pub guarded: Guarded,
    /// What it judges, of which each call is in one at most. Empty: nothing that proxies could refuse instead.
    pub judged: Vec<Judged>,
}

/// What an object protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guarded {
    /// Requests and connections at proxies: they can be refused instead.
    Requests,
    /// Packets: a cluster's network enforces that, not the mesh.
    Network,
}

/// Calls that an object judges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// Where.
    pub at: Places,
    /// On which ports; empty = all.
    pub ports: Vec<u16>,
}

/// Where a proxy judges calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyPlace {
    /// Beside a workload, what that is sent.
    Inbound,
    /// Beside a workload, what that sends.
    Outbound,
    /// At the edge.
    Gateway,
}

/// Some of these places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Places {
    /// [`ProxyPlace::Inbound`].
    pub inbound: bool,
    /// [`ProxyPlace::Outbound`].
    pub outbound: bool,
    /// [`ProxyPlace::Gateway`].
    pub gateway: bool,
}

impl Places {
    /// All of them.
    pub const ALL: Self = Self { inbound: true, outbound: true, gateway: true };
    /// Those at which workloads and gateways are called.
    pub const CALLED: Self = Self { inbound: true, outbound: false, gateway: true };

    /// Whether this place is one of them.
    pub fn has(self, place: ProxyPlace) -> bool {
        match place {
            ProxyPlace::Inbound => self.inbound,
            ProxyPlace::Outbound => self.outbound,
            ProxyPlace::Gateway => self.gateway,
        }
    }
}

impl Refusal {
    /// Makes a refusal from the first error.
    pub(crate) fn of(error: &Diagnostic) -> Self {
        Self { place: error.span.clone(), message: error.message.clone(), unsupported: None }
    }
}

/// `policy.yaml:7:3: there is no such field`
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}
