//! What stands beside a proxy in a workload: bootstrap, certificates over SDS, DNS proxy, supervision
pub mod dns;
