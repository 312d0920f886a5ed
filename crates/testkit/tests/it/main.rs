//! Tests of the test kit, and the workspace's own rules.

mod alert_rules;
mod clocks;
mod file_circles;
mod kit;
mod kubernetes;
mod language_rules;
mod module_files;
mod package;
mod security_page;
mod workspace_rules;
