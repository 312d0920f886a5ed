//! The condition of a Gateway that says whether it is deployed: the deployment controller writes it, and the status follows it.

/// Its type.
pub(crate) const DEPLOYED: &str = "evenkeel.dev/Deployed";
/// Its reason, and that of `Accepted`, where the parameters of a Gateway cannot be used (`GatewayReasonInvalidParameters`).
pub(crate) const INVALID_PARAMETERS: &str = "InvalidParameters";
