//! The test kit tested, and the workspace's own rules.

mod kit;
mod workspace_rules;
