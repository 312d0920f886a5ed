//! Names of the secrets that the agent serves to the proxy by SDS.

/// Name of the secret with the workload's certificate.
pub const CERTIFICATE_SECRET: &str = "default";
/// Name of the secret with the mesh's roots.
pub const ROOT_SECRET: &str = "ROOTCA";
/// Name of the secret with the roots that verify the control plane.
pub const CONTROL_PLANE_SECRET: &str = "control-plane-roots";
