//! A chained CNI plugin (<https://www.cni.dev/docs/spec/>, versions 0.3 to 1.1) that has the capture rules of a Pod loaded before its
//! containers start, and the agent on each node that loads them.
//!
//! A container runtime runs the [`plugin`] for each Pod. It opens the Pod's network namespace and hands it to the agent over a Unix
//! socket ([`handover`]): the node itself needs neither `nft` nor credentials for the API server, and the agent gets exactly the
//! namespace that the runtime means. The [`agent`] also keeps the plugin and its entry in the node's configuration in place
//! ([`install`]), finds the [`networks`] of Pods that the plugin was not run for, and decides what is done about them ([`upkeep`]).

#![forbid(unsafe_code)]

pub mod agent;
pub mod configuration;
pub mod handover;
pub mod install;
pub mod networks;
pub mod plugin;
pub mod upkeep;

/// The plugin's file name, and its type in a network configuration.
pub const PLUGIN: &str = "evenkeel-cni";
