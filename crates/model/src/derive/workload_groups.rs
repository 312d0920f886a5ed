//! WorkloadGroups.

use evenkeel_api::Kind;

use super::run::Run;
use super::step::Results;
use super::{renew, reuse_if_equal};
use crate::workload_group::WorkloadGroup;
use crate::{List, Snapshot};

/// All WorkloadGroups.
#[derive(Debug, Default)]
pub(super) struct Table(List<WorkloadGroup>);

pub(super) fn all_step(run: &mut Run<'_>) -> bool {
    let groups = run.read(|cx, _| {
        let group = |object: &std::sync::Arc<evenkeel_api::Object>| WorkloadGroup {
            name: object.name.clone(),
            namespace: object.namespace.clone(),
            resource: object.resource.clone(),
            origin: object.origin.clone(),
        };
        cx.objects(Kind::WorkloadGroup).map(group).collect::<Vec<_>>()
    });
    let table = &mut run.tables.workload_groups;
    let old = std::mem::take(&mut table.0);
    let before = |group: &WorkloadGroup| old.iter().find(|o| o.name == group.name && o.namespace == group.namespace);
    table.0 = groups.into_iter().map(|group| reuse_if_equal(before(&group), group)).collect();
    true
}

impl Results for Table {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        renew(&mut next.workload_groups, Some(self.0.iter().cloned()))
    }
}
