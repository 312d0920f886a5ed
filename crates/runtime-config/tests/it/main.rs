//! The crate's public interface: YAML in, compiled configuration or a reported error out.

mod bootstrap;
mod builder;
mod changes;
mod discovered_filters;
mod fields;
mod filter_chains;
mod http2;
mod http_filters;
mod input;
mod listeners;
mod load_balancing;
mod on_demand;
mod passive_filters;
mod peers;
mod properties;
mod re2;
mod rejections;
mod rewrites;
mod route_changes;
mod routes;
mod runtime;
mod sinks;
mod tracing;
mod udp;
