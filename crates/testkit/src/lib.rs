//! Fixtures for tests: ports, processes, raw HTTP clients, small servers, TLS material, Envoy from its package.
//!
//! Everything here is blocking `std`: a test reads top to bottom, and a hung peer ends in a named timeout, never in a hung
//! test run. Helpers panic with a message that says what was expected, what was seen, and where the output is.

#![forbid(unsafe_code)]

pub mod authz;
pub mod dns;
pub mod envoy;
pub mod exposition;
pub mod fortio;
pub mod go_reference;
pub mod golden;
pub mod grpc_xds;
pub mod h2spec;
pub mod http;
pub mod http2;
pub mod jwt;
pub mod kubernetes;
pub mod load;
pub mod objects;
pub mod otel;
pub mod port;
pub mod process;
pub mod random;
pub mod re2;
pub mod server;
pub mod thorough;
pub mod tls;
pub mod wait;
pub mod workspace;

pub use authz::{AuthzServer, authz_server};
pub use envoy::{envoy, envoy_validate};
pub use grpc_xds::grpc_xds_client;
pub use h2spec::assert_h2spec_passes;
pub use http::{Connection, Response};
pub use http2::Http2Frames;
pub use nix::sys::signal::Signal;
pub use otel::otel_collector;
pub use port::{free_port, free_ports};
pub use process::Process;
pub use random::Random;
pub use server::{Backend, Reply, Request, TcpEcho};
pub use thorough::cases;
pub use tls::{Identity, TestCa};
pub use wait::eventually;
