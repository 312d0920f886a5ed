//! Changes of endpoints, which take effect at once.

use std::sync::Arc;

use evenkeel_api::{Kind, Object, Resource};

/// Whether an object is only an endpoint.
pub(super) fn is_endpoints(object: &Object) -> bool {
    matches!(object.kind(), Kind::Pod | Kind::EndpointSlice | Kind::WorkloadEntry)
}

/// Whether an entry's old and new objects differ at most in endpoints: of Pods, of EndpointSlices, of ServiceEntries.
pub(super) fn only_endpoints_differ(old: &[Arc<Object>], new: &[Object]) -> bool {
    let rest = |object: &&Object| !is_endpoints(object);
    let (old, new) = (old.iter().map(|object| &**object).filter(rest), new.iter().filter(rest));
    old.clone().count() == new.clone().count()
        && old.zip(new).all(|(a, b)| without_endpoints(a).says_the_same(&without_endpoints(b)))
}

/// Returns an object without its endpoints.
fn without_endpoints(object: &Object) -> Object {
    let mut object = object.clone();
    if let Resource::ServiceEntry(entry) = &mut object.resource {
        Arc::make_mut(entry).spec.endpoints.clear();
    }
    object
}
