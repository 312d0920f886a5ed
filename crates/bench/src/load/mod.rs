//! The loads that other programs make, or that need the benchmarks' certificates; the others are in crate `load`. Each runs on the load's
//! core: as a separate program pinned there, or in this process, which is pinned there.

pub mod fortio;
pub mod h2load;
pub mod idle;
pub mod tls;
pub mod wrk;
