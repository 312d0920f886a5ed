//! Kinds of the Kubernetes Gateway API.

object! {
    /// The Gateway of the Gateway API: where traffic enters the mesh. Istio's Gateway is another kind of the same name.
    pub struct Gateway {}
    later: ["spec", "status"];
}
