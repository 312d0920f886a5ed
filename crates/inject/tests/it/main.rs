//! What Pods get, and what agents are told.

mod agent;
mod applied;
mod pods;
mod support;
