//! Statuses of objects from sources that count generations and so can store a status.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_api::Object;
use evenkeel_base::{Diagnostic, ObjectRef};

use super::step::Step;
use crate::{GatewayApiStatus, HostAddress, Status};

/// The objects that have a status. Objects from files have none, so nothing is done for them.
#[derive(Debug, Default)]
pub(super) struct Statuses {
    objects: HashMap<ObjectRef, ObjectState>,
    /// Objects whose generation or findings have changed.
    touched: BTreeSet<ObjectRef>,
}

/// The addresses that the hosts of an object have been allotted.
#[derive(Debug)]
pub(super) struct Allotted {
    pub(super) addresses: Vec<HostAddress>,
    /// Whether the object's own status has all of them.
    pub(super) are_stored: bool,
}

#[derive(Debug, Default)]
struct ObjectState {
    /// `None`: the object is gone.
    generation: Option<i64>,
    /// The steps that have findings about it.
    found_by: BTreeSet<Step>,
    status: Option<Arc<Status>>,
}

impl Statuses {
    /// Records that an object was added or removed.
    pub(super) fn set(&mut self, object: &Object, is_there: bool) {
        let Some(generation) = object.generation else { return };
        let reference = object.reference();
        self.objects.entry(reference.clone()).or_default().generation = is_there.then_some(generation);
        self.touched.insert(reference);
    }

    /// Records that the findings of a step have changed.
    pub(super) fn found(&mut self, step: &Step, before: &[Diagnostic], now: &[Diagnostic]) {
        if self.objects.is_empty() {
            return;
        }
        for (is_there, finding) in before.iter().map(|f| (false, f)).chain(now.iter().map(|f| (true, f))) {
            let Some(object) = finding.object.as_deref() else { continue };
            let Some(known) = self.objects.get_mut(object) else { continue };
            if is_there {
                _ = known.found_by.insert(step.clone())
            } else {
                _ = known.found_by.remove(step)
            }
            self.touched.insert(object.clone());
        }
    }

    /// Records that the addresses of an object's hosts, or its status by the Gateway API, may have changed.
    pub(super) fn touch(&mut self, object: &Object) {
        if object.generation.is_some() {
            self.touched.insert(object.reference());
        }
    }

    /// The statuses that are others than last time. `addresses`: those that the hosts of an object have been allotted;
    /// `gateway_api`: the status of an object of the Gateway API.
    pub(super) fn changed(
        &mut self,
        findings: &BTreeMap<Step, Vec<Diagnostic>>,
        addresses: impl Fn(&ObjectRef) -> Allotted,
        gateway_api: impl Fn(&ObjectRef) -> Option<Arc<GatewayApiStatus>>,
    ) -> Arc<[(ObjectRef, Arc<Status>)]> {
        let mut changed = Vec::new();
        for object in std::mem::take(&mut self.touched) {
            let Some(known) = self.objects.get_mut(&object) else { continue };
            if known.generation.is_none() {
                self.objects.remove(&object);
                continue;
            }
            let found = known.found_by.iter().filter_map(|step| findings.get(step)).flatten();
            let found = found.filter(|f| f.object.as_deref() == Some(&object));
            let Allotted { addresses, are_stored } = addresses(&object);
            let status = Status { addresses, gateway_api: gateway_api(&object), ..Status::of(known.generation, found) };
            if known.status.as_deref() != Some(&status) || !are_stored {
                let status = Arc::new(status);
                known.status = Some(status.clone());
                changed.push((object, status));
            }
        }
        changed.into()
    }
}
