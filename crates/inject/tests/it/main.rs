//! What Pods get, and what agents are told.

mod agent;
mod pods;
mod support;
