//! WorkloadGroups: the templates of WorkloadEntries that are made when workloads register themselves.

use std::sync::Arc;

use evenkeel_api::Resource;
use evenkeel_api::istio::WorkloadGroupSpec;
use evenkeel_base::Span;

/// The content of a WorkloadGroup.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadGroup {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace, which is that of its workloads.
    pub namespace: Arc<str>,
    /// The object that it is.
    pub(crate) resource: Resource,
    /// Where it was written.
    pub origin: Span,
}

impl WorkloadGroup {
    /// Its specification.
    pub fn spec(&self) -> Option<&WorkloadGroupSpec> {
        match &self.resource {
            Resource::WorkloadGroup(group) => Some(&group.spec),
            _ => None,
        }
    }
}
