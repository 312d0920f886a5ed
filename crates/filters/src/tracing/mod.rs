//! Distributed tracing: sampling, context propagation, spans and their tags, and the export to collectors. It follows Envoy's
//! connection manager, router and tracers.
//!
//! A [`Tracer`] is one worker's side of a connection manager that traces. It begins a [`Trace`] for each request, once its
//! route is chosen. The trace writes the context into the head of each try, and becomes a span when the request ends. The
//! spans of all connection managers with the same provider go to one [`Reporter`], which sends them to the collector in
//! the background: a request never waits for a collector.

mod b3;
mod context;
mod otlp;
mod reporter;
mod sampling;
mod span;
mod tags;
#[cfg(test)]
mod tests;
mod trace;
mod try_end;
mod w3c;
mod zipkin;

pub use reporter::Reporter;
pub use sampling::clear_reason;
pub use trace::{Trace, Tracer};
pub use try_end::TryEnd;
