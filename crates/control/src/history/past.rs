//! What a proxy ran at some time, what made it so, and what came since.

use std::path::Path;
use std::sync::Arc;

use evenkeel_xds::{Resource, ResourceSet, ResourceType};

use super::error::HistoryError;
use super::log;
pub use super::replay::MadeBy;
use super::replay::{Followed, at_end, differing, follow};
use super::seen::last_run;

/// What a proxy ran at one time.
#[derive(Debug)]
pub struct Past {
    /// Its xDS node id.
    pub node: String,
    /// The generation it had acknowledged.
    pub generation: u64,
    /// Its resources.
    pub resources: Vec<ResourceAt>,
    /// What of them is different by the end of the log.
    pub since: Vec<Difference>,
    /// The same resources as they went over the wire.
    pub set: Arc<ResourceSet>,
    /// How many units of resources were made for it, the cost of the answer: those of the first generation of the segment,
    /// and after that what each change touched.
    pub units_made: u64,
}

/// One resource, and what made it what it was.
#[derive(Debug)]
pub struct ResourceAt {
    /// Its type.
    pub kind: ResourceType,
    /// The resource.
    pub resource: Arc<Resource>,
    /// Whether the proxy refused it, and so kept what it had under this name, if anything.
    pub refused: bool,
    /// The generation that made it so; none if it was so when the log begins.
    pub made_by: Option<MadeBy>,
}

/// A resource that is another now.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its type.
    pub kind: ResourceType,
    /// Its name.
    pub name: String,
    /// `added`, `changed` or `removed`.
    pub what: &'static str,
}

/// What `wanted` (a node id, `POD.NAMESPACE`, `POD`, or a workload: of its replicas the one seen last) ran at `at`, in µs since
/// 1970.
pub fn past(state: &Path, wanted: &str, at: u64) -> Result<Past, HistoryError> {
    let segments = log::read(state).map_err(|reason| HistoryError::Read { state: state.to_owned(), reason })?;
    let seen = last_run(&segments, wanted, at)?;
    let now = last_run(&segments, wanted, u64::MAX)?;
    let Followed { set, made_by, units_made } = follow(&segments, &seen)?;
    let latest = if now == seen { set.clone() } else { at_end(&segments, &now)? };
    let since = differing(&set, &latest).into_iter().map(|(kind, name, old, new)| Difference {
        kind,
        name: name.to_string(),
        what: match (old, new) {
            (None, _) => "added",
            (_, None) => "removed",
            _ => "changed",
        },
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
