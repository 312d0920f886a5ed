//! `envoy.filters.http.cors`: tells browsers which origins' scripts may read responses, and answers preflight requests.

mod filter;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
