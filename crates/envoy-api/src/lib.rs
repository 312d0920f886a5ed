//! The part of Envoy's API that this project uses, in modules named like its packages: `envoy::config::core::v3::Node`.
//!
//! `protos/roots.txt` lists messages and services. `scripts/schema` extracts them, and everything that they refer to, from Envoy's API
//! into `protos/envoy.bin`, and generates these types of it.

#![forbid(unsafe_code)]
#![allow(missing_docs, clippy::all, rustdoc::all, reason = "generated; Envoy's API reference documents it")]

include!("generated/pb.rs");

/// The descriptors of the same messages, as an encoded `google.protobuf.FileDescriptorSet`.
pub static DESCRIPTORS: &[u8] = include_bytes!("../protos/envoy.bin");
