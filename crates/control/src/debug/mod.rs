//! The HTTP port: metrics, readiness, and debug pages for operators.

mod access;
mod cluster;
mod convergence;
mod pages;
mod query;
mod server;
mod sync_status;

pub use pages::Pages;
pub use server::serve;
