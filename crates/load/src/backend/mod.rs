//! The servers behind the proxies: as cheap as possible, so that the proxies are the bottleneck.

pub mod http1;
pub mod http2;
pub mod source;
