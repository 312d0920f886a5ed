//! What runs behind the proxies: as cheap as it gets, so that the proxies are what is measured.

pub mod http1;
pub mod http2;
pub mod source;
