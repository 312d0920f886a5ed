//! The dashboard: a live picture of the mesh.
//!
//! Data flows in one direction. A [`source::Source`] knows the replicas and fetches pages of their proxies. While somebody looks,
//! `poll` reads the pages of every proxy each second; `exposition` and `traffic` read Istio's metrics from them, `security` the edges'
//! TLS, and `collector` adds the differences to `series`, which remember an hour. `graph`, `workload`, `objects`, `requests` and `status` make
//! pages of it, whose types are in `evenkeel_admin::dashboard`, and [`server`] serves these and the files of `assets/` to a browser.
//!
//! It only reads, keeps nothing on disk, and has a limit for everything.

#![forbid(unsafe_code)]

mod assets;
mod collector;
mod exposition;
mod graph;
mod node;
mod objects;
mod poll;
mod requests;
mod security;
mod series;
pub mod server;
pub mod source;
mod status;
mod traffic;
mod workload;
