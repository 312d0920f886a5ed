//! From files to the snapshot.

mod documented;
mod gateway_api_status;
mod gateway_secrets;
mod golden;
mod incremental;
mod queries;
mod rule_secrets;
