//! Namespaces and service accounts.

object! {
    /// A namespace; only its metadata matters.
    pub struct Namespace {
    }
    inert: ["spec", "status"];
}

object! {
    /// An identity for workloads; only its name matters.
    pub struct ServiceAccount {
    }
    inert: ["secrets", "imagePullSecrets", "automountServiceAccountToken"];
}
