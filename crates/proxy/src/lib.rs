//! Workers, balance, listeners, request phases, upstream pools, access log, admin

pub mod access_log;
pub mod response_flags;
