//! What a route says of its parents, whatever its kind.

use evenkeel_api::gateway_api::{DefaultScope, GROUP, ParentRef};
use evenkeel_api::{Object, Resource};
use evenkeel_base::Spanned;

/// What a route says of its parents.
pub(super) struct ParentFields<'a> {
    /// Those that it names.
    pub(super) parents: &'a [Spanned<ParentRef>],
    /// Whether it wants the default Gateways, too.
    pub(super) default_scope: Option<&'a Spanned<DefaultScope>>,
}

/// What a route says of its parents; `None`: it is no route.
pub(super) fn parent_fields(object: &Object) -> Option<ParentFields<'_>> {
    let (parents, scope) = match &object.resource {
        Resource::HttpRoute(route) => (&route.spec.parent_refs, &route.spec.use_default_gateways),
        Resource::GrpcRoute(route) => (&route.spec.parent_refs, &route.spec.use_default_gateways),
        Resource::TlsRoute(route) => (&route.spec.parent_refs, &route.spec.use_default_gateways),
        Resource::TcpRoute(route) => (&route.spec.parent_refs, &route.spec.use_default_gateways),
        Resource::UdpRoute(route) => (&route.spec.parent_refs, &route.spec.use_default_gateways),
        _ => return None,
    };
    let default_scope = scope.as_ref().filter(|scope| scope.value == DefaultScope::All);
    Some(ParentFields { parents, default_scope })
}

impl ParentFields<'_> {
    /// Whether the route applies to calls in the mesh only.
    pub(super) fn are_of_mesh(&self) -> bool {
        self.default_scope.is_none() && self.parents.iter().all(|parent| parent.group() != GROUP)
    }
}
