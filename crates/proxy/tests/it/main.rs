//! The proxy as a whole, in this process: bootstrap errors, the admin interface, configuration over xDS.

mod admin;
mod bootstrap;
mod data_path;
mod harness;
mod lifecycle;
mod xds;
