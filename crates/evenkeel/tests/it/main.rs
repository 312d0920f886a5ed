//! End-to-end and interoperation tests of the `evenkeel` binary.

mod any_order;
mod attacks;
mod auto_sni;
mod certificates_any_order;
mod control_planes;
mod differential;
mod docs;
mod freshness;
mod gateway_secrets;
mod h2spec;
mod hangup;
mod http_proxy;
mod interop;
mod issuers;
mod kinds;
mod lab;
mod manager;
mod mesh;
mod proxy;
mod restart;
mod scope;
mod settle;
mod up;
