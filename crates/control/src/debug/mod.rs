//! The HTTP port: metrics, readiness, and what an operator may want to see.

mod convergence;
mod pages;
mod query;
mod server;

pub use pages::Pages;
pub use server::serve;
