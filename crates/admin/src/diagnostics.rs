//! `/debug/diagnostics`: what is wrong with the configuration, with file, line and column.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The path of the page.
pub const PATH: &str = "/debug/diagnostics";

/// The page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Page {
    /// The generation of the configuration that was checked.
    pub generation: u64,
    /// Files of which something is not in force.
    pub refused_files: BTreeSet<String>,
    /// Files that have never been accepted, so that no earlier state of them is in force.
    pub never_accepted: BTreeSet<String>,
    /// The findings.
    pub diagnostics: Vec<Finding>,
}

/// A finding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    /// `error`, `warning` or `info`.
    pub severity: String,
    /// The stable name of the finding.
    pub code: String,
    /// What is wrong.
    pub message: String,
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1.
    pub column: u32,
    /// The object that it is about, if it is about one.
    pub object: Option<Object>,
    /// The way out.
    pub help: Option<String>,
    /// As printed for a person.
    pub rendered: String,
}

/// An object and its source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Object {
    /// The group of its kind; empty for Kubernetes' core.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for kinds without.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The name of the source that it comes from.
    pub source: String,
}
