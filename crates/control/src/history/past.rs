//! What a proxy ran at some time, which changes caused it, and what has changed since.

use std::sync::Arc;

use evenkeel_store::Store;
use evenkeel_xds::{Resource, ResourceSet, ResourceType};

use super::error::HistoryError;
use super::log::{self, Record};
pub use super::replay::{ChangeSince, MadeBy};
use super::replay::{Followed, at_end, between, differing, follow, what};
use super::seen::last_run;

/// Maximum number of changes that are told.
pub(super) const MAX_CHANGES: usize = 100;

/// The resources that a proxy ran at some time.
#[derive(Debug)]
pub struct Past {
    /// Its xDS node id.
    pub node: String,
    /// The generation it had acknowledged.
    pub generation: u64,
    /// Its resources.
    pub resources: Vec<ResourceAt>,
    /// The resources that differ at the end of the log.
    pub since: Vec<Difference>,
    /// The same resources as they were sent.
    pub set: Arc<ResourceSet>,
    /// Number of resource units built for it, the cost of the answer: those of the first generation of the segment, and then
    /// those that each change affected.
    pub units_made: u64,
}

/// A resource, and the change that caused its content.
#[derive(Debug)]
pub struct ResourceAt {
    /// Its type.
    pub kind: ResourceType,
    /// The resource.
    pub resource: Arc<Resource>,
    /// Whether the proxy rejected it, and so kept the former resource of this name, if any.
    pub refused: bool,
    /// The generation that changed it last; `None` if it has not changed since the log begins.
    pub made_by: Option<MadeBy>,
}

/// A resource that has changed since.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its type.
    pub kind: ResourceType,
    /// Its name.
    pub name: String,
    /// `added`, `changed` or `removed`.
    pub what: &'static str,
}

/// Returns what `wanted` (a node id, `POD.NAMESPACE`, `POD`, or a workload, of whose replicas the last seen one is chosen)
/// ran at `at`, in µs since 1970.
pub fn past(store: impl Into<Store>, wanted: &str, at: u64) -> Result<Past, HistoryError> {
    let segments = segments(&store.into())?;
    let seen = last_run(&segments, wanted, at)?;
    let now = last_run(&segments, wanted, u64::MAX)?;
    let Followed { set, made_by, units_made } = follow(&segments, &seen)?;
    let latest = if now == seen { set.clone() } else { at_end(&segments, &now)? };
    let since = differing(&set, &latest).into_iter().map(|(kind, name, old, new)| Difference {
        kind,
        name: name.to_string(),
        what: what(&old, &new),
    });

    let all = ResourceType::ALL.into_iter().flat_map(|kind| set.of(kind).values().map(move |r| (kind, r.clone())));
    let resources = all.map(|(kind, resource)| ResourceAt {
        kind,
        refused: seen.run.refused.iter().any(|of| of.0 == kind.short_name() && *of.1 == *resource.name),
        made_by: made_by.get(&(kind, resource.name.clone())).cloned(),
        resource,
    });
    Ok(Past {
        node: seen.run.node.clone(),
        generation: seen.run.generation,
        resources: resources.collect(),
        since: since.collect(),
        set,
        units_made,
    })
}

/// Returns the changes of a proxy's resources from `at` to the end of the log, the latest [`MAX_CHANGES`], oldest first. Changes
/// that were taken back are among them.
pub fn changes_since(store: impl Into<Store>, wanted: &str, at: u64) -> Result<Vec<ChangeSince>, HistoryError> {
    let segments = segments(&store.into())?;
    let (seen, now) = (last_run(&segments, wanted, at)?, last_run(&segments, wanted, u64::MAX)?);
    Ok(if now == seen { Vec::new() } else { between(&segments, Some(&seen), &now, MAX_CHANGES) })
}

/// Reads the log of a store.
pub(super) fn segments(store: &Store) -> Result<Vec<Vec<Record>>, HistoryError> {
    log::read(store).map_err(|reason| HistoryError::Read { state: store.place(""), reason })
}

/// Returns the changes of a proxy's resources in the log, the latest [`MAX_CHANGES`], oldest first.
pub(super) fn all_changes(segments: &[Vec<Record>], wanted: &str) -> Result<Vec<ChangeSince>, HistoryError> {
    let now = last_run(segments, wanted, u64::MAX)?;
    Ok(between(segments, None, &now, MAX_CHANGES))
}
