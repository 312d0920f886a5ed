//! The CNI plugin as a container runtime sees it, and what it leaves on a node.

mod install;
mod networks;
mod plugin;
mod upkeep;
