//! Kinds of the Kubernetes Gateway API.

object! {
    /// Where traffic enters, as the Gateway API writes it. Not Istio's Gateway, whose name it has.
    pub struct Gateway {}
    later: ["spec", "status"];
}
