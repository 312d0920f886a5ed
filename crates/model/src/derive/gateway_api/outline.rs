//! Route sets as far as the object and the place say what they are.

use evenkeel_api::Object;

use super::parents::Attached;
use crate::{RouteOrder, RouteSet, Visibility};

/// A route set without hosts and routes.
pub(super) fn empty(object: &Object) -> RouteSet {
    RouteSet {
        kind: object.kind(),
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        hosts: Vec::new(),
        gateways: Vec::new(),
        export_to: Visibility::default(),
        http: Vec::new(),
        order: RouteOrder::ByPrecedence,
        tls: Vec::new(),
        tcp: Vec::new(),
        udp: Vec::new(),
        origin: object.origin.clone(),
    }
}

/// A route set for a place, without routes.
pub(super) fn at(object: &Object, place: Attached) -> RouteSet {
    RouteSet { hosts: place.hosts, gateways: vec![place.at], export_to: place.export_to, ..empty(object) }
}
