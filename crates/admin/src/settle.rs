//! `/debug/settle`: whether what was written to the files at some time has been read, and which proxies do not run it yet.

use serde::{Deserialize, Serialize};

use crate::syncz::{Refusal, TypeStatus};

/// The path of the page; with `?ticket=N`, the state of a ticket.
pub const PATH: &str = "/debug/settle";

/// A ticket: it stands for the files as they are now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Its number.
    pub ticket: u64,
}

/// The state of a ticket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settled {
    /// Whether the files have been read, and the proxies that they concern have been sent what changed.
    pub read: bool,
    /// The generation of the configuration.
    pub generation: u64,
    /// The node ids of proxies that do not run it yet.
    pub behind: Vec<String>,
    /// Proxies that refuse something.
    pub refusing: Vec<Refusing>,
    /// Findings about what is not in force.
    pub refused: Vec<String>,
    /// The last change.
    pub change: LastChange,
}

/// A proxy that refuses something.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refusing {
    /// Its node id.
    pub proxy: String,
    /// The types of which it refuses something.
    pub types: Vec<TypeStatus>,
}

impl Refusing {
    /// What it refuses.
    pub fn refused(&self) -> impl Iterator<Item = Refusal<'_>> {
        let kinds = self.types.iter().filter_map(|status| Some((&*status.kind, status.nack.as_ref()?)));
        kinds.map(|(kind, nack)| Refusal { kind, nack })
    }
}

/// The last change: its objects, and which proxies run it, after which time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastChange {
    /// The objects that changed.
    pub causes: Vec<Cause>,
    /// How many proxies are connected.
    pub proxies: usize,
    /// How many of them had something to change.
    pub changed: usize,
    /// After which time the last of these ran it, in milliseconds.
    pub after_ms: Option<f64>,
}

/// An object that changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    /// Kind and name.
    pub object: String,
    /// The name of the source that it comes from.
    pub source: String,
    /// Its file.
    pub file: String,
}
