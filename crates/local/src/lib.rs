//! `evenkeel up`: a mesh on one Linux machine, without Kubernetes or containers.
//!
//! Read [`up::run`] first: it wires everything. The process that the user starts stays outside the namespaces and supervises the
//! supervisor ([`sandbox`]). The supervisor runs inside fresh namespaces and starts the control plane, the gateway and the replicas
//! ([`supervisor`], [`mesh`]). Every process that is started is this same binary or the application.

pub mod accounts;
pub mod addresses;
pub mod applied;
pub mod builds;
mod capture;
pub mod check;
pub mod cleanup;
pub mod client;
mod cluster;
mod compiled;
pub mod confine;
pub mod container;
pub mod dashboard;
mod disk;
mod draining;
pub mod egress;
pub mod exec;
mod exec_server;
mod follow;
mod gateway_datagrams;
mod gateway_ports;
mod gateway_reach;
pub mod init;
pub mod lifecycle;
pub mod logs;
mod main_process;
pub mod mesh;
mod metrics_pages;
mod mounts;
mod names;
pub mod namespace;
pub mod network;
pub mod network_error;
mod orphans;
mod output;
pub mod pages;
mod pidfd;
pub mod plan;
pub mod pods;
pub mod ports;
pub mod preflight;
pub mod probe;
pub mod process;
pub mod program;
pub mod programs;
mod prometheus;
pub mod reader;
pub mod replica;
mod rollout;
pub mod running;
pub mod sandbox;
mod service_rules;
pub mod supervisor;
mod temporary;
mod terminal;
pub mod tokens;
pub mod tools;
pub mod ui;
pub mod up;
mod user_names;
pub mod view;
mod view_error;
pub mod volumes;
pub mod workloads;

pub use plan::Options;
pub use up::{UpError, run};
