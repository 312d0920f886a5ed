//! The HTTP port: metrics, readiness, and debug pages for operators.

mod cluster;
mod convergence;
mod pages;
mod query;
mod server;

pub use pages::Pages;
pub use server::serve;
