//! The order of the HTTP filters of a connection manager: a chain of named slots.

use crate::pb::hcm::HttpFilter;

/// The slots, in the order of the chain. Users' filters name them too (`WasmPlugin.phase`; Istio's `buildHTTPConnectionManager`): theirs come
/// before those of the mesh in the same slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// What refuses or holds a request before anything is known of it, and external authorization.
    First,
    /// Tokens (`AUTHN`).
    Authentication,
    /// Policies (`AUTHZ`).
    Authorization,
    /// Statistics (`STATS`).
    Statistics,
    /// Filters that name no phase.
    Last,
    /// What routes configure, and what chooses the endpoint.
    Routing,
    /// The router, which is always the last filter.
    Router,
}

const SLOTS: usize = Slot::Router as usize + 1;

/// A chain of HTTP filters that is being put together.
#[derive(Debug, Default)]
pub struct FilterSlots([Vec<HttpFilter>; SLOTS]);

impl FilterSlots {
    /// Adds filters to a slot, behind those that are there already.
    pub fn add(&mut self, slot: Slot, filters: impl IntoIterator<Item = HttpFilter>) {
        self.0[slot as usize].extend(filters);
    }

    /// Returns the filters in order.
    pub fn into_filters(self) -> Vec<HttpFilter> {
        self.0.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_determine_the_order_and_within_a_slot_the_first_to_come() {
        let mut slots = FilterSlots::default();
        for (slot, name) in [
            (Slot::Router, "router"),
            (Slot::Authorization, "rbac"),
            (Slot::Last, "plugin"),
            (Slot::Authentication, "plugin of AUTHN"),
            (Slot::Routing, "fault"),
            (Slot::First, "ext_authz"),
            (Slot::Authentication, "jwt"),
            (Slot::Statistics, "stats"),
            (Slot::Routing, "cors"),
        ] {
            slots.add(slot, [HttpFilter { name: name.to_owned(), ..Default::default() }]);
        }
        let names: Vec<String> = slots.into_filters().into_iter().map(|filter| filter.name).collect();
        let expected = ["ext_authz", "plugin of AUTHN", "jwt", "rbac", "stats", "plugin", "fault", "cors", "router"];
        assert_eq!(names, expected);
    }
}
